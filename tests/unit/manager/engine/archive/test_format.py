"""Archives of experiments: what is no sound one is refused with a sentence, and nothing is written outside."""

import json
import stat
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from proctor.manager.engine.archive import format
from proctor.manager.engine.archive.format import ExperimentArchive
from proctor.manager.errors import BadRequest, Unavailable

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
    ("name", "sentence"),
    [
        *[
            (name, "leads out of its folder")
            for name in ("experiment/../../x", "/etc/x", "../x", "experiment/..", "experiment/a\\..\\x", "code/../../x")
        ],
        *[
            (f"experiment/{name}", "which is never saved")
            for name in (
                "environment.json",
                "secrets.json",
                ".proctor-owner.json",
                "metrics.db",
                "metrics.db-wal",
                "trials/x.db",
            )
        ],
        *[
            (name, f"'{name}' is not in its shortest form")
            for name in ("experiment//x", "./experiment", "experiment/.")
        ],
        ("experiment", "'experiment' is not a folder"),
    ],
)
def test_a_name_that_save_never_writes_is_refused(write: Write, name: str, sentence: str) -> None:
    with pytest.raises(BadRequest, match=sentence):
        write({name: "x"}).experiment()


def linked(name: str) -> zipfile.ZipInfo:
    link = zipfile.ZipInfo(name)
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    return link


@pytest.mark.parametrize(
    ("member", "compression", "sentence"),
    [
        ("experiment/x", zipfile.ZIP_LZMA, "'experiment/x' is compressed in another way"),
        ("experiment/x", zipfile.ZIP_BZIP2, "'experiment/x' is compressed in another way"),
        (linked("experiment/x"), zipfile.ZIP_STORED, "'experiment/x' is a link"),
    ],
    ids=["LZMA", "BZIP2", "a link"],
)
def test_a_member_that_save_never_writes_is_refused(
    write: Write, tmp_path: Path, member: str | zipfile.ZipInfo, compression: int, sentence: str
) -> None:
    archive = write()
    with zipfile.ZipFile(tmp_path / "e.zip", "a") as file:
        file.writestr(member, "/etc", compress_type=compression)
    with pytest.raises(BadRequest, match=sentence):
        archive.experiment()


def test_what_is_too_large_to_be_read_is_refused(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = write({"metrics.jsonl": "{} " * 10})
    monkeypatch.setattr(format, "MAX_RECORD_BYTES", 10)
    for name, read in (("trials", archive.trials), ("metrics", archive.metrics)):
        with pytest.raises(BadRequest, match=rf"{name}\.jsonl:1: the line is longer than 10 bytes"):
            list(read())
    monkeypatch.setattr(format, "MAX_HEAD_BYTES", 10)
    with pytest.raises(BadRequest, match=r"its proctor\.json is larger than 10 bytes"):
        archive.experiment()
    monkeypatch.undo()
    monkeypatch.setattr(format, "MAX_TABLE_BYTES", 10)
    with pytest.raises(BadRequest, match=r"its trials\.jsonl takes \d+ bytes unpacked, and 10 at most are read"):
        archive.experiment()


def test_a_line_that_is_no_json_is_named(write: Write) -> None:
    with pytest.raises(BadRequest, match=r"trials\.jsonl:2: "):
        write({"trials.jsonl": SOUND["trials.jsonl"] + "{"}).trials()


def test_a_disk_without_room_for_it_is_named(write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = write()
    archive.check_room(tmp_path)
    monkeypatch.setattr(format, "SPARE_BYTES", 1 << 60)
    with pytest.raises(Unavailable, match="free some space and load it again"):
        archive.check_room(tmp_path)


def test_a_name_that_is_there_twice_is_refused(write: Write, tmp_path: Path) -> None:
    archive = write({"experiment/x": "1"})
    with (
        zipfile.ZipFile(tmp_path / "e.zip", "a") as file,
        pytest.warns(UserWarning, match="Duplicate name"),
    ):
        file.writestr("experiment/x", "2")
    with pytest.raises(BadRequest, match=r"contains 'experiment/x' twice"):
        archive.experiment()


@pytest.mark.parametrize(
    ("head", "sentence"),
    [
        ({"format": 3, "experiment": EXPERIMENT}, "it has format 3, and this version reads formats up to 2"),
        ({"experiment": EXPERIMENT}, "its proctor.json cannot be read"),
        ([], "its proctor.json cannot be read"),
        *[
            ({"format": 1, "experiment": {**EXPERIMENT, key: value}}, f"proctor.json: {key}")
            for key, value in {
                "status": "SLEEPING",
                "trial_concurrency": 2_936_544,
                "max_trial_number": -5,
                "max_trial_duration_seconds": 1e303,
                "max_gpu_hours": -1.0,
                "priority": 10**9,
                "tags": ["a"] * 51,
                "active_seconds": "Infinity",
                "name": "a\x1b[31m",
                "created_at": "0001-01-01T00:00:00+14:00",
            }.items()
        ],
    ],
)
def test_another_version_and_a_damaged_head_are_named(write: Write, head: Any, sentence: str) -> None:
    archive = write({"proctor.json": json.dumps(head)})
    with pytest.raises(BadRequest) as caught:
        archive.experiment()
    assert f"the archive e.zip cannot be loaded: {sentence}" in str(caught.value)


@pytest.mark.parametrize("name", SOUND)
def test_a_missing_part_is_named(write: Write, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delitem(SOUND, name)
    with pytest.raises(BadRequest, match=f"it contains no {name}"):
        write().experiment()


@pytest.mark.parametrize("change", [{"id": "../x"}, {"sequence_id": -1}, {"status": 3}, {"parameter_id": None}])
def test_a_wrong_record_is_named_by_its_line(write: Write, change: dict[str, Any]) -> None:
    archive = write({"trials.jsonl": SOUND["trials.jsonl"] + json.dumps({**TRIAL, **change})})
    with pytest.raises(BadRequest, match=rf"trials\.jsonl:2: {next(iter(change))}: "):
        archive.trials()


def test_what_is_no_zip_and_a_damaged_member_are_refused(write: Write, tmp_path: Path) -> None:
    (tmp_path / "no.zip").write_text("hello")
    with pytest.raises(BadRequest, match="damaged or not a zip"):
        ExperimentArchive(tmp_path / "no.zip").experiment()
    archive = write({"experiment/x": "a text that will be another one"})
    path = tmp_path / "e.zip"
    path.write_bytes(path.read_bytes().replace(b"a text that will", b"a text that WILL"))
    with pytest.raises(BadRequest, match="damaged or not a zip"):
        archive.unpack(tmp_path / "folder", but=frozenset())


@pytest.mark.parametrize("where", [b"PK\x01\x02", b"PK\x03\x04"], ids=["directory", "member"])
def test_a_name_that_is_not_the_utf_8_it_is_said_to_be_is_refused(write: Write, tmp_path: Path, where: bytes) -> None:
    write({"experiment/é": "x"})
    data = bytearray((tmp_path / "e.zip").read_bytes())
    name = "experiment/é".encode()
    place = data.rindex(name) if where == b"PK\x01\x02" else data.index(name)
    data[place + len(name) - 1] = 0xFF
    (tmp_path / "e.zip").write_bytes(data)
    archive = ExperimentArchive(tmp_path / "e.zip")
    with pytest.raises(BadRequest, match="it is damaged or not a zip"):
        archive.experiment()
        archive.unpack(tmp_path / "folder", but=frozenset())


def test_a_place_before_the_beginning_of_the_file_is_refused(write: Write, tmp_path: Path) -> None:
    write()
    data = bytearray((tmp_path / "e.zip").read_bytes())
    end = data.rindex(b"PK\x05\x06")
    data[end + 16 : end + 20] = b"\xff\xff\xff\x7f"  # where the directory is said to begin
    (tmp_path / "e.zip").write_bytes(data)
    with pytest.raises(BadRequest, match="it is damaged or not a zip"):
        ExperimentArchive(tmp_path / "e.zip").experiment()


@pytest.mark.parametrize(
    ("member", "change"),
    [
        ("trials.jsonl", {"sequence_id": 2**63 - 3}),
        ("trials.jsonl", {"parameter_id": 2**53}),
        ("trials.jsonl", {"jobs": 2**60}),
        ("metrics.jsonl", {"id": 2**63 - 1}),
        ("metrics.jsonl", {"sequence": 2**53}),
        ("metrics.jsonl", {"member": 2**53}),
        ("jobs.jsonl", {"number": 2**53}),
        ("jobs.jsonl", {"resumed_from_step": 2**53}),
    ],
)
def test_a_number_that_could_not_be_counted_on_from_is_named_with_its_bound(
    write: Write, member: str, change: dict[str, int]
) -> None:
    job = {"trial_id": "a", "number": 1, "status": "ENDED", "parameter_id": 0, "parameters": {}}
    metric = {"id": 1, "trial_id": "a", "job": 1, "kind": "final", "sequence": 0, "data": 1.0, "time": NOW}
    record = {"trials.jsonl": TRIAL, "jobs.jsonl": job, "metrics.jsonl": metric}[member]
    [(key, value)] = change.items()

    def read(record: dict[str, Any]) -> None:
        archive = write({member: json.dumps(record) + "\n"})
        list({"trials.jsonl": archive.trials, "jobs.jsonl": archive.jobs, "metrics.jsonl": archive.metrics}[member]())

    read({**record, key: 2**53 - 1})
    with pytest.raises(BadRequest, match=f"{member}:1: {key}: .* less than {2**53}, found {value}"):
        read({**record, **change})


def test_a_job_that_resumed_from_what_is_no_job_is_refused(write: Write) -> None:
    job = {"trial_id": "a", "number": 2, "status": "ENDED", "parameter_id": 0, "parameters": {}}
    (read,) = write({"jobs.jsonl": json.dumps({**job, "resumed_from_job": "a.1"}) + "\n"}).jobs()
    assert read.resumed_from_job == "a.1"
    with pytest.raises(BadRequest, match=r"jobs.jsonl:1: resumed_from_job: .* found 'one'"):
        write({"jobs.jsonl": json.dumps({**job, "resumed_from_job": "one"}) + "\n"}).jobs()


@pytest.mark.parametrize("time", ["1969-12-31T23:59:59Z", "9999-12-30T00:00:00Z", "9999-12-31T23:59:59-14:00"])
def test_a_time_that_not_every_time_zone_can_show_is_refused_with_both_ends(write: Write, time: str) -> None:
    archive = write({"trials.jsonl": json.dumps({**TRIAL, "ended_at": time}) + "\n"})
    with pytest.raises(BadRequest, match=f"from 1970-01-01 to before 9999-12-30.*, found '{time}'"):
        archive.trials()
    write({"trials.jsonl": json.dumps({**TRIAL, "ended_at": "9999-12-29T23:59:59Z"}) + "\n"}).trials()


def test_one_of_this_format_has_checkpoints_and_imported_results(write: Write) -> None:
    archive = write({"proctor.json": json.dumps({"format": 2, "experiment": {}})})
    with pytest.raises(BadRequest, match=r"it contains no checkpoints\.jsonl"):
        archive.experiment()


def test_one_of_an_earlier_version_has_none(write: Write) -> None:
    archive = write({})
    assert archive.experiment().directory == ""
    assert (list(archive.checkpoints()), archive.imported()) == ([], [])
