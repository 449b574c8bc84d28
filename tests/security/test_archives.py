"""Archives that are damaged, or made to do harm, are loaded or refused; none fails inside and none leaves anything."""

import json
import random
import shutil
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fakes.disks import ext4_disk
from fakes.real_manager import RealManager, real_manager

from proctor.manager.engine.archive.format import ExperimentArchive
from proctor.manager.errors import BadRequest, Unavailable

pytestmark = pytest.mark.slow

TRIAL = "import proctor; proctor.report_intermediate_result(1); proctor.report_final_result(2)"
STRANGE = [
    None,
    [],
    {},
    "",
    "\x00",
    "\ud800",
    -1,
    0,
    2**63,
    10**400,
    1e308,
    True,
    "NaN",
    "2026-02-30T99:00:00Z",
    [[]],
    -5,
]
STRANGE += ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00", "0001-01-01T00:00:00", 1e303, "a\x1b[31m\0b"]


class Loader:
    """A manager, and a sound archive with its members."""

    def __init__(self, manager: RealManager, folder: Path) -> None:
        scheduler = {"name": "ASHA", "classArgs": {"max_t": 10}}
        experiment = manager.create(TRIAL, maxTrialNumber=2, trialScheduler=scheduler)
        manager.until_status(experiment, "DONE")
        manager.command_line("experiment", "save", experiment, "--path", str(folder))
        [self.sound] = folder.glob("*.zip")
        self._add_tables_and_views()
        manager.client.stop_experiment(experiment)
        manager.until_status(experiment, "STOPPED")
        manager.client.delete_experiment(experiment)
        self.manager = manager
        self.experiments = manager.home / "experiments"
        self.incoming = manager.home / "incoming"
        self.before = sorted(self.experiments.iterdir())
        headers = {"Authorization": f"Bearer {manager.client.token}"}
        self.client = httpx.Client(base_url=manager.client.url + "/api/v1/", headers=headers, timeout=60)

    def _add_tables_and_views(self) -> None:
        """Have it hold what only experiments with a trial scheduler, and those that people have looked at, have."""
        members = self.members()
        head = json.loads(members["proctor.json"])
        table = {"title": "Population", "columns": ["trial"], "rows": [[0], [None]], "trial_columns": [0]}
        view = {"name": "v", "page": "trials", "query": "sort=value", "saved_at": "2026-01-01T00:00:00Z"}
        head["experiment"] |= {"scheduler_tables": [table], "views": [view]}
        assert head["experiment"]["config"]["trial_scheduler"]
        members["proctor.json"] = json.dumps(head).encode()
        zipped(self.sound, members)

    def members(self) -> dict[str, bytes]:
        with zipfile.ZipFile(self.sound) as file:
            return {name: file.read(name) for name in file.namelist()}

    def load(self, archive: Path) -> int:
        """Try to take it in; the status of the answer. What was taken in is deleted."""
        shutil.copyfile(archive, self.incoming / "x.zip")
        answer = self.client.post("experiments/load", json={"archive": "x.zip", "experiment_id": "loaded"})
        assert answer.status_code in {201, 409, 422, 503}, answer.text
        if answer.status_code == 201:
            trials = self.client.get("experiments/loaded/trials").json()["items"]
            seen = ["", "/loaded", "/loaded/export?intermediate=true", "/loaded/trials", "/loaded/scheduler"]
            seen += ["/loaded/views", "/loaded/curves", "/loaded/table", "/loaded/best", "/loaded/failures"]
            for address in [f"experiments{each}" for each in seen] + [f"trials/{trials[0]['id']}/metrics"]:
                assert self.client.get(address).status_code == 200, address
            assert self.client.get("../../").status_code == 200
            assert self.client.delete("experiments/loaded").status_code == 200
        else:
            assert answer.json()["detail"]
        assert sorted(self.experiments.iterdir()) == self.before
        return answer.status_code


@pytest.fixture(scope="module")
def loader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loader]:
    folder = tmp_path_factory.mktemp("archives")
    with real_manager(folder) as manager:
        made = Loader(manager, folder)
        with made.client:
            yield made


def seeds(count: int) -> list[object]:
    """So many, of which three quarters are thorough."""
    return [pytest.param(n, marks=[pytest.mark.thorough] if 4 * n >= count else []) for n in range(count)]


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return path


def test_a_sound_archive_is_taken_in(loader: Loader) -> None:
    assert loader.load(loader.sound) == 201


@pytest.mark.parametrize("seed", seeds(20))
def test_an_archive_with_flipped_bytes_is_taken_in_or_refused(loader: Loader, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    data = bytearray(loader.sound.read_bytes())
    for _ in range(draw.choice((1, 1, 3, 10))):
        data[draw.randrange(len(data))] = draw.randrange(256)
    (tmp_path / "x.zip").write_bytes(data[: draw.randrange(len(data))] if draw.random() < 0.2 else data)
    loader.load(tmp_path / "x.zip")


@pytest.mark.parametrize("seed", seeds(10))
def test_an_archive_with_a_damaged_directory_is_read_or_refused(loader: Loader, tmp_path: Path, seed: int) -> None:
    """Names, sizes and places stand there, once more before each member: most of the flips hit them."""
    draw = random.Random(seed)
    sound = zipped(tmp_path / "sound.zip", loader.members() | {"experiment/é.txt": b"x" * 500}).read_bytes()
    directory, refused = sound.index(b"PK\x01\x02"), 0
    for number in range(100):
        data = bytearray(sound)
        for _ in range(draw.choice((1, 1, 1, 2, 3, 6))):
            place = draw.randrange(directory if draw.random() < 0.8 else 0, len(data))
            data[place] = draw.choice([0, 255, 128, draw.randrange(256), data[place] ^ 1 << draw.randrange(8)])
        (tmp_path / "x.zip").write_bytes(data)
        refused += not is_read(ExperimentArchive(tmp_path / "x.zip"), tmp_path / str(number))
    assert 0 < refused < 100


def is_read(archive: ExperimentArchive, folder: Path) -> bool:
    """Whether all of it could be read; if not, it was refused."""
    folder.mkdir()
    try:
        archive.experiment()
        archive.check_room(folder.parent)
        archive.trials()
        archive.jobs()
        list(archive.metrics())
        archive.unpack(folder, but=frozenset())
    except (BadRequest, Unavailable):
        return False
    return True


@pytest.mark.parametrize("seed", seeds(40))
def test_an_archive_with_strange_records_is_taken_in_or_refused(loader: Loader, tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    members = loader.members()
    name = draw.choice(["proctor.json", "trials.jsonl", "jobs.jsonl", "metrics.jsonl"])
    text = members[name].decode()
    records = [json.loads(text)] if name == "proctor.json" else [json.loads(line) for line in text.splitlines()]
    record = draw.choice(records)
    _spoil(draw, record["experiment"] if name == "proctor.json" else record)
    members[name] = b"".join(json.dumps(each).encode() + b"\n" for each in records)
    loader.load(zipped(tmp_path / "x.zip", members))


def _spoil(draw: random.Random, record: dict[str, Any]) -> None:
    """Replace, or remove, one value somewhere in it."""
    key = draw.choice(list(record))
    inner = draw.choice(record[key]) if isinstance(record[key], list) and record[key] else record[key]
    if isinstance(inner, dict) and inner and draw.random() < 0.7:
        _spoil(draw, inner)
    elif draw.random() < 0.2:
        del record[key]
    else:
        record[key] = draw.choice(STRANGE)


@pytest.mark.parametrize("columns", [[1], [2**52], [0, 3], [0, 0], [0] * 1000])
def test_an_archive_whose_scheduler_tables_name_columns_that_are_not_there_is_refused(
    loader: Loader, tmp_path: Path, columns: list[int]
) -> None:
    members = loader.members()
    head = json.loads(members["proctor.json"])
    [table] = head["experiment"]["scheduler_tables"]
    members["proctor.json"] = json.dumps(head).encode()
    assert loader.load(zipped(tmp_path / "sound.zip", members)) == 201
    table["trial_columns"] = columns
    members["proctor.json"] = json.dumps(head).encode()
    assert loader.load(zipped(tmp_path / "x.zip", members)) == 422


def test_an_archive_that_unpacks_to_more_than_the_disk_holds_is_refused(loader: Loader, tmp_path: Path) -> None:
    sound = zipped(tmp_path / "x.zip", loader.members() | {"experiment/large": b"x" * 4096})
    data = bytearray(sound.read_bytes())
    at = data.rindex(b"experiment/large") - 46 + 24  # its size in the central directory
    data[at : at + 4] = struct.pack("<I", 2**32 - 2)
    sound.write_bytes(data)
    with ext4_disk(tmp_path, megabytes=16) as disk, pytest.raises(Unavailable, match="4096 MiB unpacked"):
        ExperimentArchive(sound).check_room(disk.folder)
