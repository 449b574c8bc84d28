"""Files that wait for the disk: whole pieces, in their order, and one warning."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.full_disk import FullDisk

from proctor.sdk.pytorch import LogWarning
from proctor.sdk.pytorch.callbacks import log_file
from proctor.sdk.pytorch.callbacks.log_file import NonBlockingFile


class Clock:
    """Seconds that pass when the test says so."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(tmp_path, monkeypatch)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path, clock: Clock, disk: FullDisk) -> "Iterator[NonBlockingFile]":
    """A file that writes at once, closed when there is room again."""
    found = NonBlockingFile("log file", lambda: tmp_path / "log", clock=clock)
    yield found
    disk.room = None
    found.close()


def append(file: NonBlockingFile, clock: Clock, *pieces: bytes) -> None:
    for piece in pieces:
        file.write(piece)
        clock.now += 10.0


def test_what_did_not_fit_comes_in_its_order_when_there_is_room(
    file: NonBlockingFile, clock: Clock, disk: FullDisk, tmp_path: Path
) -> None:
    append(file, clock, b"one\n")
    disk.room = 6
    with pytest.warns(LogWarning, match=r"the log file .*/log could not be written: .*only 2 of 6 bytes") as reported:
        append(file, clock, b"two\n", b"three\n", b"four\n")
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"  # no half piece
    disk.room = None
    append(file, clock, b"five\n")
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\nthree\nfour\nfive\n"
    assert len(reported) == 1


def test_a_disk_that_is_full_again_is_told_again(file: NonBlockingFile, clock: Clock, disk: FullDisk) -> None:
    for _ in range(2):
        disk.room = 0
        with pytest.warns(LogWarning, match="No space left"):
            append(file, clock, b"a", b"b")
        disk.room = None
        append(file, clock, b"c")


def test_a_full_disk_is_not_asked_at_every_piece(file: NonBlockingFile, clock: Clock, disk: FullDisk) -> None:
    disk.room = 0
    with pytest.warns(LogWarning):
        file.write(b"a")
    for _ in range(99):
        clock.now += log_file.RETRY_SECONDS / 50
        file.write(b"a")
    assert disk.attempts == 2


def test_pieces_wait_for_company_as_long_as_they_may(tmp_path: Path, clock: Clock, disk: FullDisk) -> None:
    file = NonBlockingFile("log file", lambda: tmp_path / "log", interval_seconds=5.0, clock=clock)
    for _ in range(11):
        file.write(b"a")
        clock.now += 1.0
    assert disk.attempts == 3
    assert file.flush()
    assert (tmp_path / "log").read_bytes() == b"a" * 11
    file.close()


def test_what_finds_no_place_in_memory_either_is_lost_and_known_to_be(
    file: NonBlockingFile, clock: Clock, disk: FullDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file, "WAITING_BYTES", 5)
    disk.room = 0
    with pytest.warns(LogWarning) as reported:
        append(file, clock, b"abc", b"def", b"gh", b"ijk")
    assert [" lacks 3 bytes " in str(each.message) for each in reported] == [False, True]
    disk.room = None
    assert not file.flush()
    assert (tmp_path / "log").read_bytes() == b"abcgh"


def test_what_is_larger_than_memory_may_hold_is_written_directly_and_lost_only_where_there_is_no_room(
    tmp_path: Path, clock: Clock, disk: FullDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_file, "WAITING_BYTES", 5)
    file = NonBlockingFile("log file", lambda: tmp_path / "log", interval_seconds=5.0, clock=clock)
    for piece in (b"a", b"bc", b"defg", b"h", b"a large piece", b"i"):  # within the interval
        file.write(piece)
    assert file.flush()
    assert (tmp_path / "log").read_bytes() == b"abcdefgha large piecei"
    disk.room = 0
    with pytest.warns(LogWarning, match="lacks 13 bytes"), pytest.warns(LogWarning, match="could not be written"):
        file.write(b"a large piece")
    file.write(b"j")
    disk.room = None
    assert not file.flush()
    assert (tmp_path / "log").read_bytes() == b"abcdefgha large pieceij"
    file.close()


def test_a_file_that_is_closed_on_a_full_disk_raises_nothing(file: NonBlockingFile, disk: FullDisk) -> None:
    disk.room = 0
    with pytest.warns(LogWarning) as reported:
        file.write(b"a")
    file.close()
    assert len(reported) == 1


def test_a_file_is_opened_anew_after_a_problem_as_network_file_systems_want_it(tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "log"
    path.symlink_to("/dev/full")
    file = NonBlockingFile("log file", lambda: path, clock=clock)
    with pytest.warns(LogWarning, match="No space left"):
        append(file, clock, b"one\n")
    path.unlink()
    append(file, clock, b"two\n")
    assert path.read_bytes() == b"one\ntwo\n"
    file.close()


def test_a_disk_without_room_for_the_file_itself_is_waited_for_and_a_wrong_folder_is_not(
    tmp_path: Path, clock: Clock
) -> None:
    refusals = [OSError(28, "No space left on device"), OSError(122, "Disk quota exceeded")]

    def make_path() -> Path:
        if refusals:
            raise refusals.pop()
        return tmp_path / "log"

    file = NonBlockingFile("log file", make_path, clock=clock)
    with pytest.warns(LogWarning, match="the log file could not be written: .*quota"):
        file.open()
    append(file, clock, b"one\n", b"two\n")
    assert (tmp_path / "log").read_bytes() == b"one\ntwo\n"
    file.close()
    with pytest.raises(NotADirectoryError), warnings.catch_warnings():
        NonBlockingFile("log file", lambda: tmp_path / "log" / "below").open()
