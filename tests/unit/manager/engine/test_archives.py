"""Archives of experiments: what is no sound one is refused with a sentence, and nothing is written outside."""

import json
import stat
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from proctor.manager.engine.archive.format import ExperimentArchive
from proctor.manager.errors import BadRequest

NOW = "2026-01-02T03:04:05.000Z"
EXPERIMENT = {
    "id": "e",
    "name": "n",
    "status": "DONE",
    "config": {},
    "search_space": {},
    "trial_concurrency": 1,
    "max_trial_number": None,
    "max_experiment_duration_seconds": None,
    "max_trial_duration_seconds": None,
    "created_at": NOW,
    "a key of a later version": 1,
}
TRIAL = {
    "id": "a",
    "sequence_id": 0,
    "status": "SUCCEEDED",
    "parameters": {},
    "parameter_id": 0,
    "source": "algorithm",
    "jobs": 1,
    "final_value": "NaN",
    "final_data": "NaN",
    "created_at": NOW,
}
SOUND = {
    "proctor.json": json.dumps({"format": 1, "experiment": EXPERIMENT}),
    "trials.jsonl": json.dumps(TRIAL) + "\n",
    "jobs.jsonl": "",
    "metrics.jsonl": "",
}

Write = Callable[..., ExperimentArchive]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def make(members: Mapping[str, str] | None = None, **also: str) -> ExperimentArchive:
        path = tmp_path / "e.zip"
        with zipfile.ZipFile(path, "w") as file:
            for name, text in {**SOUND, **(members or {}), **also}.items():
                file.writestr(name, text)
        return ExperimentArchive(path)

    return make


def test_a_sound_one_is_read_and_unpacked(write: Write, tmp_path: Path) -> None:
    archive = write(
        {"experiment/trials/0-a/jobs/1/stdout": "said", "experiment/config.json": "{}", "experiment/checkpoint/x": ""}
    )
    assert archive.experiment().id == "e"
    [trial] = archive.trials()
    assert (trial.final_value, trial.final_data) == ("NaN", "NaN")
    archive.unpack(tmp_path / "folder", but=frozenset({"config.json", "checkpoint"}))
    assert [path.relative_to(tmp_path / "folder") for path in (tmp_path / "folder").rglob("*") if path.is_file()] == [
        Path("trials/0-a/jobs/1/stdout")
    ]


@pytest.mark.parametrize(
    "name",
    ["experiment/../../x", "/etc/x", "../x", "experiment/..", "experiment/a\\..\\x", "code/../../x"],
)
def test_a_name_that_leads_outside_is_refused(write: Write, name: str) -> None:
    archive = write({name: "x"})
    with pytest.raises(BadRequest, match="leads out of its folder"):
        archive.experiment()


@pytest.mark.parametrize("name", ["environment.json", "secrets.json", "metrics.db", "metrics.db-wal", "trials/x.db"])
def test_what_is_never_saved_is_refused(write: Write, name: str) -> None:
    archive = write({f"experiment/{name}": "x"})
    with pytest.raises(BadRequest, match="which is never saved"):
        archive.experiment()


def test_a_link_is_refused(write: Write, tmp_path: Path) -> None:
    archive = write()
    with zipfile.ZipFile(tmp_path / "e.zip", "a") as file:
        link = zipfile.ZipInfo("experiment/link")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        file.writestr(link, "/etc")
    with pytest.raises(BadRequest, match=r"'experiment/link' is a link"):
        archive.experiment()


def test_a_name_that_is_there_twice_is_refused(write: Write, tmp_path: Path) -> None:
    archive = write({"experiment/x": "1"})
    with (
        zipfile.ZipFile(tmp_path / "e.zip", "a") as file,
        pytest.warns(UserWarning, match="Duplicate name"),
    ):
        file.writestr("experiment/x", "2")
    with pytest.raises(BadRequest, match=r"holds 'experiment/x' twice"):
        archive.experiment()


@pytest.mark.parametrize(
    ("head", "sentence"),
    [
        ({"format": 2, "experiment": EXPERIMENT}, "it has format 2, and this version reads format 1"),
        ({"experiment": EXPERIMENT}, "its proctor.json cannot be read"),
        ([], "its proctor.json cannot be read"),
        ({"format": 1, "experiment": {**EXPERIMENT, "status": "SLEEPING"}}, "proctor.json: status: "),
    ],
)
def test_another_version_and_a_damaged_head_are_named(write: Write, head: Any, sentence: str) -> None:
    archive = write({"proctor.json": json.dumps(head)})
    with pytest.raises(BadRequest) as caught:
        archive.experiment()
    assert f"the archive e.zip cannot be loaded: {sentence}" in str(caught.value)


@pytest.mark.parametrize("name", ["trials.jsonl", "metrics.jsonl", "jobs.jsonl", "proctor.json"])
def test_a_missing_part_is_named(tmp_path: Path, name: str) -> None:
    with zipfile.ZipFile(tmp_path / "e.zip", "w") as file:
        for member, text in SOUND.items():
            if member != name:
                file.writestr(member, text)
    with pytest.raises(BadRequest, match=f"it holds no {name}"):
        ExperimentArchive(tmp_path / "e.zip").experiment()


@pytest.mark.parametrize("change", [{"id": "../x"}, {"sequence_id": -1}, {"status": 3}, {"parameter_id": None}])
def test_a_wrong_record_is_named_by_its_line(write: Write, change: dict[str, Any]) -> None:
    archive = write({"trials.jsonl": SOUND["trials.jsonl"] + json.dumps({**TRIAL, **change})})
    with pytest.raises(BadRequest, match=rf"trials\.jsonl:2: {next(iter(change))}: "):
        archive.trials()


def test_what_is_no_zip_and_a_damaged_member_are_refused(write: Write, tmp_path: Path) -> None:
    (tmp_path / "no.zip").write_text("hello")
    with pytest.raises(BadRequest, match="damaged or no zip"):
        ExperimentArchive(tmp_path / "no.zip").experiment()
    archive = write({"experiment/x": "a text that will be another one"})
    path = tmp_path / "e.zip"
    path.write_bytes(path.read_bytes().replace(b"a text that will", b"a text that WILL"))
    with pytest.raises(BadRequest, match="damaged or no zip"):
        archive.unpack(tmp_path / "folder", but=frozenset())
