"""Records survive the keeper, and nothing in them is lost on the way."""

import fcntl
import json
import os
import time
from pathlib import Path

import pytest

from proctor.sdk.protocol import boot_time
from proctor.trial_keeper.jobs.records import (
    JobRecord,
    RecordFolder,
    StopRecord,
    exit_problem,
    parse_process,
    read_exit,
    with_stop,
    write_exit,
)
from proctor.trial_keeper.protocol import EndReason, Exit, GpuSlot, Launch, Update

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
    record = JobRecord(LAUNCH, "boot", StopRecord("DEADLINE", 5.0, "too long"), forgotten=True)
    folder.write([record])
    assert folder.read_all() == ([record], [])
    assert Path(folder.record_file("T.1")).stat().st_mode & 0o077 == 0


def test_a_record_that_cannot_be_read_is_set_aside_and_named(folder: RecordFolder) -> None:
    folder.write([JobRecord(LAUNCH, "boot")])
    damaged = [b"{", b"\xff\xfe", b"[]", b"null", b'{"launch": 3, "boot_id": "b"}', b"\0" * 100]
    for number, data in enumerate(damaged):
        (folder.path / f"U{number}.1.json").write_bytes(data)
    (folder.path / "V.1.json.77.new").write_text("half")
    records, problems = folder.read_all()
    assert [record.launch.job_id for record in records] == ["T.1"]
    assert ["U0.1.json" in problems[0], len(problems)] == [True, len(damaged)]
    names = [f"U{number}.1.unreadable" for number in range(len(damaged))]
    assert sorted(file.name for file in folder.path.iterdir()) == ["T.1.json", *names]
    assert folder.lost() == []
    Path(folder.process_file("U2.1")).write_text(PROCESS)
    assert folder.lost() == ["U2.1"]


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


@pytest.mark.parametrize("data", [b"", b"{", b"{}", b"[]", b"3", b"\xff\xfe\0", b"\0" * 40, PROCESS[:-3].encode()])
def test_a_damaged_process_record_is_none(folder: RecordFolder, data: bytes) -> None:
    assert parse_process(PROCESS.encode()) is not None
    path = Path(folder.process_file("T.1"))
    path.write_bytes(data)
    assert folder.read_process("T.1") is None
    assert folder.is_damaged("T.1") == bool(data), "an empty one is that of a job which was not started"
    assert str(path) in folder.set_process_aside("T.1")
    assert [file.read_bytes() for file in folder.path.iterdir()] == [data]
    assert not folder.is_damaged("T.1")


def test_the_first_decision_to_stop_stays() -> None:
    record = with_stop(JobRecord(LAUNCH, "boot"), StopRecord("DEADLINE", 5.0, "too long"))
    assert with_stop(record, StopRecord("CANCELED", 1.0)).stop == StopRecord("DEADLINE", 1.0, "too long")
    assert with_stop(record, StopRecord("CANCELED", 9.0)).stop == record.stop


@pytest.mark.parametrize("hours", [-1, 1])
def test_how_long_a_job_may_save_does_not_change_when_the_clock_is_set(
    folder: RecordFolder, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    stop = StopRecord.after_saving(EndReason.CANCELED, 5.0, "paused", request="pause", save_seconds=600.0)
    folder.write([JobRecord(LAUNCH, "boot", stop)])
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + hours * 3600.0)
    (known,), _ = folder.read_all()  # as the next keeper does
    assert known.stop is not None
    assert 300.0 < known.stop.seconds_left <= 600.0
    again = StopRecord.after_saving(EndReason.CANCELED, 5.0, "", request="pause", save_seconds=900.0)
    changed = with_stop(known, again).stop
    assert changed is not None
    assert changed.until == known.stop.until, "what is asked again prolongs nothing"


def test_a_stop_that_an_earlier_version_has_written_is_read(folder: RecordFolder) -> None:
    folder.write(
        [JobRecord(LAUNCH, "boot", StopRecord("CANCELED", 5.0, save_seconds=60.0, deadline=time.time() + 60.0))]
    )
    path = Path(folder.record_file("T.1"))
    body = json.loads(path.read_text())
    del body["stop"]["until"]
    path.write_text(json.dumps(body))
    (known,), problems = folder.read_all()
    assert problems == []
    assert known.stop is not None
    assert 30.0 < known.stop.seconds_left <= 60.0


def test_a_process_record_of_an_earlier_version_tells_how_long_ago_it_started() -> None:
    known = parse_process(PROCESS.encode())
    assert known is not None
    assert known.seconds == pytest.approx(time.monotonic() - 6.0, abs=60.0)
    newer = parse_process(PROCESS.replace('"b"', '"b", "started_boot": 7.0').encode())
    assert newer is not None
    assert newer.seconds == pytest.approx(boot_time() - 7.0, abs=60.0)


def test_an_update_changes_the_duration_limit_and_the_milestone_only_if_it_has_one() -> None:
    updated = Update("T.1", "token", 7.0, milestone=9).applied_to(LAUNCH)
    assert (updated.max_duration_seconds, updated.milestone) == (7.0, 9)
    updated = Update("T.1", "token", None).applied_to(updated)
    assert (updated.max_duration_seconds, updated.milestone) == (None, 9)


def test_an_end_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_exit(str(tmp_path)) is None
    end = Exit(EndReason.DEADLINE, None, 9, 1.0, 2.0, "too long")
    write_exit(str(tmp_path), end)
    assert read_exit(str(tmp_path)) == end
    write_exit(str(tmp_path / "missing"), end)


END = b'{"reason": "EXITED_OK", "code": 0, "signal": null, "started_at": 1, "ended_at": %s}'


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"\xff\xfe",
        b'{"reason": "NO SUCH REASON"}',
        b"\0" * 40,
        b"[" * 50_000,
        END % b"NaN",
        END % b"1e300",
        END % (b"9" * 400),
        END.replace(b'"code": 0', b'"code": 99999999999') % b"2",
    ],
)
def test_an_end_that_cannot_be_read_is_none(tmp_path: Path, data: bytes) -> None:
    """It proves nothing about the trial: whoever reads it looks for processes."""
    assert exit_problem(str(tmp_path)) == ""
    (tmp_path / "exit.json").write_bytes(data)
    assert read_exit(str(tmp_path)) is None
    is_damaged = data.strip(b"\0") != b""  # one of nothing or zeros is what a power cut leaves
    assert ("exit.json" in exit_problem(str(tmp_path))) == is_damaged


def test_a_folder_in_place_of_an_end_is_none(tmp_path: Path) -> None:
    (tmp_path / "exit.json").mkdir()
    assert read_exit(str(tmp_path)) is None
    assert "exit.json cannot be read" in exit_problem(str(tmp_path))
