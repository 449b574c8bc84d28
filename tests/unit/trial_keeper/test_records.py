"""Records survive the keeper, and nothing in them is lost on the way."""

import fcntl
import os
from pathlib import Path

import pytest

from proctor.trial_keeper.protocol import EndReason, Exit, GpuSlot, Launch
from proctor.trial_keeper.records import (
    JobRecord,
    RecordFolder,
    Stop,
    parse_process,
    read_exit,
    with_duration,
    with_stop,
    write_exit,
)

LAUNCH = Launch(
    "T.1", "token", "E", "T", 3, "/job", "true", "/code", "{}", None, environment={"A": "1"}, gpus=[GpuSlot("GPU-a", 1)]
)
PROCESS = (
    '{"reaper": {"pid": 1, "started": 2}, "trial": {"pid": 3, "started": 4},'
    ' "boot_id": "b", "started_at": 5.0, "started_monotonic": 6.0}'
)


@pytest.fixture
def folder(tmp_path: Path) -> RecordFolder:
    folder = RecordFolder(tmp_path / "jobs")
    folder.read_all()
    return folder


def test_what_is_written_is_read_again(folder: RecordFolder) -> None:
    record = JobRecord(LAUNCH, "boot", Stop("DEADLINE", 5.0, "too long"), forgotten=True)
    folder.write([record])
    assert folder.read_all() == ([record], [])
    assert Path(folder.record_file("T.1")).stat().st_mode & 0o077 == 0


def test_a_record_that_cannot_be_read_is_set_aside_and_named(folder: RecordFolder) -> None:
    folder.write([JobRecord(LAUNCH, "boot")])
    (folder.path / "U.1.json").write_text("{")
    (folder.path / "V.1.json.77.new").write_text("half")
    records, problems = folder.read_all()
    assert [record.launch.job_id for record in records] == ["T.1"]
    assert "U.1.json" in problems[0]
    assert sorted(file.name for file in folder.path.iterdir()) == ["T.1.json", "U.1.unreadable"]


def test_removing_twice_is_removing_once(folder: RecordFolder) -> None:
    folder.write([JobRecord(LAUNCH, "boot")])
    folder.remove(["T.1", "T.1"])
    assert list(folder.path.iterdir()) == []


def test_what_a_keeper_that_was_killed_while_it_removed_has_left_is_removed_by_the_next(folder: RecordFolder) -> None:
    folder.write([JobRecord(LAUNCH, "boot")])
    for job_id in ("T.1", "U.1", "V.1"):
        Path(folder.process_file(job_id)).write_text(PROCESS)
    (folder.path / "V.1.unreadable").write_text("{")
    folder.read_all()
    assert sorted(file.name for file in folder.path.glob("*.process")) == ["T.1.process", "V.1.process"]


def test_a_job_is_claimed_as_long_as_its_lock_is_held(folder: RecordFolder) -> None:
    assert not folder.is_claimed("T.1")
    descriptor = os.open(folder.process_file("T.1"), os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    assert folder.is_claimed("T.1")
    assert folder.read_process("T.1") is None
    os.close(descriptor)
    assert not folder.is_claimed("T.1")


@pytest.mark.parametrize("text", ["{", "{}", "[]", "3", PROCESS[:-3]])
def test_a_torn_process_record_is_none(text: str) -> None:
    assert parse_process(PROCESS) is not None
    assert parse_process(text) is None


def test_the_first_decision_to_stop_stays() -> None:
    record = with_stop(JobRecord(LAUNCH, "boot"), Stop("DEADLINE", 5.0, "too long"))
    assert with_stop(record, Stop("CANCELED", 1.0)).stop == Stop("DEADLINE", 1.0, "too long")
    assert with_stop(record, Stop("CANCELED", 9.0)).stop == record.stop
    assert with_duration(record, 7.0).launch.max_duration_seconds == 7.0


def test_an_end_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_exit(str(tmp_path)) is None
    end = Exit(EndReason.DEADLINE, None, 9, 1.0, 2.0, "too long")
    write_exit(str(tmp_path), end)
    assert read_exit(str(tmp_path)) == end
    (tmp_path / "exit.json").write_text("{")
    unreadable = read_exit(str(tmp_path))
    assert unreadable is not None
    assert unreadable.reason == EndReason.EXIT_UNKNOWN
    (tmp_path / "exit.json").write_text("")  # what a power cut may leave
    assert read_exit(str(tmp_path)) is None
    write_exit(str(tmp_path / "missing"), end)
