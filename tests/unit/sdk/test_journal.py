"""The trial's end of the journal, on real files; `/dev/full` is the full disk."""

import errno
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fakes.full_disk import refuse

from proctor.sdk import errors
from proctor.sdk.disk_reserve import RESERVE_BYTES, read_content, read_entries
from proctor.sdk.journal import DEFAULT_WAIT_SECONDS, Journal, read_wait_seconds


class Waiting:
    """A clock that only pausing moves, and what happens at the n-th pause."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: dict[int, Any] = {}
        self.pauses = 0

    def clock(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.pauses += 1
        self.events.get(self.pauses, lambda: None)()


class Disk:
    """A path that leads to a file or, while full, to `/dev/full`."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "real"
        self.path = folder / "journal"
        self.file.touch()
        self.path.symlink_to(self.file)

    def fill(self) -> None:
        self.path.unlink()
        self.path.symlink_to("/dev/full")

    def free(self) -> None:
        self.path.unlink()
        self.path.symlink_to(self.file)

    def records(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.file.read_text().splitlines() if line]


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


@pytest.fixture
def waiting() -> Waiting:
    return Waiting()


@pytest.fixture
def journal(disk: Disk, waiting: Waiting) -> Journal:
    return Journal(str(disk.path), wait_seconds=30.0, clock=waiting.clock, pause=waiting.pause)


@pytest.fixture(autouse=True)
def fresh_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "_given", set())


def line(number: int) -> str:
    return f'{{"kind":"intermediate","value":{number}}}\n'


def values(disk: Disk) -> list[int]:
    return [record["value"] for record in disk.records() if record["kind"] == "intermediate"]


def test_records_are_appended_in_order(journal: Journal, disk: Disk) -> None:
    for number in range(3):
        assert journal.append(line(number))
    assert disk.file.read_text() == line(0) + line(1) + line(2)


def test_only_the_owner_may_read_a_new_journal(tmp_path: Path) -> None:
    Journal(str(tmp_path / "new"), wait_seconds=0).append(line(0))
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o600


def test_threads_share_a_journal(journal: Journal, disk: Disk) -> None:
    def report(first: int) -> None:
        for number in range(first, first + 200):
            journal.append(line(number))

    with ThreadPoolExecutor(5) as threads:
        list(threads.map(report, range(0, 1000, 200)))
    assert sorted(values(disk)) == list(range(1000))


def test_a_report_that_waited_in_vain_is_counted_and_the_next_do_not_wait(
    journal: Journal, disk: Disk, waiting: Waiting, capsys: pytest.CaptureFixture[str]
) -> None:
    disk.fill()
    for number in range(3):
        assert not journal.append(line(number))
        assert waiting.now == 30.0
    disk.free()
    assert journal.append(line(3))
    assert [(record["kind"], record.get("count"), record.get("value")) for record in disk.records()] == [
        ("lost", 3, None),
        ("intermediate", None, 3),
    ]
    assert capsys.readouterr().err.count("No space left on device") == 1


def test_the_lost_record_of_a_checkpoint_is_told_and_is_no_lost_report(journal: Journal, disk: Disk) -> None:
    disk.fill()
    assert not journal.append('{"kind":"checkpoint"}\n', count=0, registers=True)
    for number in range(2):
        assert not journal.append(line(number))
        assert not journal.append('{"kind":"checkpoint"}\n', count=0, registers=True)
    disk.free()
    for number in (2, 3):
        assert journal.append(line(number))
    assert [
        (record["kind"], record.get("count") or record.get("why") or record["value"]) for record in disk.records()
    ] == [
        ("lost", 2),
        ("lost", "3 checkpoints are not registered: the record could not be written"),
        ("intermediate", 2),
        ("intermediate", 3),
    ]


def test_after_a_write_has_worked_reports_wait_again(journal: Journal, disk: Disk, waiting: Waiting) -> None:
    disk.fill()
    journal.append(line(0))
    disk.free()
    journal.append(line(1))
    disk.fill()
    os.close(journal._descriptor)
    waiting.events[waiting.pauses + 2] = disk.free
    assert journal.append(line(2))
    assert values(disk) == [1, 2]


def test_a_patient_append_waits_even_after_others_have_given_up(journal: Journal, disk: Disk, waiting: Waiting) -> None:
    disk.fill()
    journal.append(line(0))
    waiting.events[waiting.pauses + 4] = disk.free
    assert journal.append(line(1), patient=True)
    assert [record["kind"] for record in disk.records()] == ["lost", "intermediate"]


def final(number: int) -> str:
    return f'{{"kind":"final","value":{number},"time":1764000000.{number:06d}}}\n'


@pytest.fixture
def reserve(disk: Disk) -> Path:
    """Of the journal's folder."""
    path = disk.path.parent / "reserve"
    path.write_bytes(bytes(RESERVE_BYTES))
    return path


def in_reserve(path: Path) -> list[dict[str, Any]]:
    with path.open("rb") as file:
        return read_entries(read_content(file.fileno()))


def test_a_report_that_is_lost_is_counted_at_once_where_that_needs_no_room(
    journal: Journal, disk: Disk, reserve: Path
) -> None:
    disk.fill()
    for number in range(3):
        assert not journal.append(line(number))
    assert in_reserve(reserve) == [{"member": "0", "lost": 3}]
    disk.free()
    assert journal.append(line(3))
    assert [record["kind"] for record in disk.records()] == ["lost", "intermediate"]
    assert in_reserve(reserve) == [{"member": "0", "lost": 3}], "the journal says how many of them it tells of"


def test_a_final_goes_to_the_reserve_at_once_and_to_the_journal_before_what_comes_next(
    journal: Journal, disk: Disk, reserve: Path, waiting: Waiting
) -> None:
    journal.append(line(0))
    disk.fill()
    os.close(journal._descriptor)
    assert journal.append(final(1), patient=True)
    assert waiting.pauses == 0
    assert in_reserve(reserve) == [{"member": "0", "record": final(1)}]
    disk.free()
    waiting.now += 1
    assert journal.append(line(2))
    assert disk.file.read_text() == line(0) + final(1) + line(2)
    assert in_reserve(reserve) == []


def test_the_first_final_comes_first_whichever_process_reports_the_second(
    journal: Journal, disk: Disk, reserve: Path, waiting: Waiting
) -> None:
    disk.fill()
    assert journal.append(final(1), patient=True)
    disk.free()
    other = Journal(str(disk.path), wait_seconds=30.0, clock=waiting.clock, pause=waiting.pause)
    assert other.append(final(2), patient=True)
    assert disk.file.read_text() == final(1) + final(2)
    waiting.now += 1
    assert journal.append(line(3))
    assert disk.file.read_text() == final(1) + final(2) + line(3)


def test_a_final_whose_mover_was_killed_before_it_could_say_so_is_not_written_twice(
    journal: Journal, disk: Disk, reserve: Path, waiting: Waiting
) -> None:
    disk.fill()
    assert journal.append(final(1), patient=True)
    disk.free()
    disk.file.write_text(final(1))
    waiting.now += 1
    assert journal.append(line(2))
    assert disk.file.read_text() == final(1) + line(2)


def test_a_record_with_which_nothing_is_lost_is_not_told_of(journal: Journal, disk: Disk) -> None:
    disk.fill()
    assert not journal.append('{"kind":"unjudged"}\n', count=0)
    disk.free()
    assert journal.append(line(1))
    assert disk.file.read_text() == line(1)


@pytest.mark.slow
def test_a_final_that_no_reserve_takes_waits_as_long_as_its_process_lives(
    journal: Journal, disk: Disk, waiting: Waiting, capsys: pytest.CaptureFixture[str]
) -> None:
    disk.fill()
    waiting.events[100_000] = disk.free
    assert journal.append(final(1), patient=True)
    assert waiting.now > 20_000
    assert disk.file.read_text() == final(1)
    assert "the final metric waits until it can be written" in capsys.readouterr().err


def test_a_final_that_is_interrupted_while_it_waits_is_counted(journal: Journal, disk: Disk, waiting: Waiting) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    disk.fill()
    waiting.events[3] = interrupt
    with pytest.raises(KeyboardInterrupt):
        journal.append(final(1), patient=True)
    disk.free()
    journal.append(line(2))
    assert [(record["kind"], record.get("count")) for record in disk.records()] == [("lost", 1), ("intermediate", None)]


def test_other_threads_report_while_a_final_waits(journal: Journal, disk: Disk, waiting: Waiting) -> None:
    """Only pausing moves the clock here: the second thread reports from within the first one's pause."""

    def report() -> None:
        thread = threading.Thread(target=journal.append, args=(line(0),))
        thread.start()
        thread.join(30)
        assert not thread.is_alive()

    disk.fill()
    waiting.events[1] = report
    waiting.events[200] = disk.free
    assert journal.append(final(1), patient=True)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_every_kind_of_full_disk_is_waited_for(
    journal: Journal, disk: Disk, waiting: Waiting, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", refuse(number))
        waiting.events[5] = patch.undo
        assert journal.append(line(0))
    assert waiting.pauses == 5
    assert values(disk) == [0]


def test_a_folder_that_is_gone_is_not_waited_for(tmp_path: Path, waiting: Waiting) -> None:
    journal = Journal(str(tmp_path / "gone" / "journal"), wait_seconds=30.0, clock=waiting.clock, pause=waiting.pause)
    assert not journal.append(line(0))
    assert waiting.pauses == 0
    (tmp_path / "gone").mkdir()
    assert journal.append(line(1))
    assert '"kind":"lost","count":1' in (tmp_path / "gone" / "journal").read_text()


@pytest.mark.parametrize("cut", [1, 10, 20])
def test_a_record_torn_by_a_kill_does_not_spoil_the_next(journal: Journal, disk: Disk, cut: int) -> None:
    disk.file.write_text(line(0) + line(1)[:-cut])
    journal.append(line(2))
    assert disk.file.read_text().splitlines() == [line(0).rstrip(), line(1)[:-cut].rstrip(), line(2).rstrip()]


def test_another_process_torn_in_the_middle_is_healed_without_reopening(journal: Journal, disk: Disk) -> None:
    journal.append(line(0))
    with disk.file.open("a") as other:
        other.write(line(1)[:12])
    journal.append(line(2))
    assert disk.file.read_text() == line(0) + line(1)[:12] + "\n" + line(2)


def test_a_descriptor_closed_by_the_user_is_opened_anew(journal: Journal, disk: Disk) -> None:
    journal.append(line(0))
    os.close(journal._descriptor)
    assert journal.append(line(1))
    assert values(disk) == [0, 1]


def test_a_descriptor_number_taken_by_another_file_is_not_written_to(
    journal: Journal, disk: Disk, tmp_path: Path
) -> None:
    journal.append(line(0))
    theirs = os.open(tmp_path / "theirs", os.O_WRONLY | os.O_CREAT)
    os.dup2(theirs, journal._descriptor)
    assert journal.append(line(1))
    os.close(theirs)
    assert values(disk) == [0, 1]
    assert (tmp_path / "theirs").read_bytes() == b""


def test_the_wait_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PROCTOR_REPORT_WAIT_SECONDS", "2.5")
    assert read_wait_seconds() == 2.5
    monkeypatch.setenv("PROCTOR_REPORT_WAIT_SECONDS", "soon")
    assert read_wait_seconds() == DEFAULT_WAIT_SECONDS
