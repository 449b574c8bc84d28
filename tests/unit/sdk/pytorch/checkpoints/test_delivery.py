"""A checkpoint reaches every rank: by the file itself where that is at hand, else by its bytes (row R7)."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.checkpoint_writer import write_checkpoint, write_run
from fakes.full_disk import refuse
from fakes.thread_ranks import ThreadRanks, call_on_ranks

from proctor.sdk.pytorch import UnreadableCheckpointError, snapshots
from proctor.sdk.pytorch.checkpoints.folder import CheckpointFolder
from proctor.sdk.pytorch.checkpoints.serialization import load
from proctor.sdk.pytorch.distributed.ranks import Ranks
from proctor.sdk.pytorch.snapshots import deliver, refuse_to_leave_behind

DATA = os.urandom(10_000)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """The main rank's file."""
    path = tmp_path / "main.pth"
    path.write_bytes(DATA)
    return path


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> "list[int]":
    """The size of each block that was sent, to each rank."""
    sizes: list[int] = []
    broadcast = ThreadRanks.broadcast

    def record(ranks: ThreadRanks, value: Any) -> Any:
        value = broadcast(ranks, value)
        if isinstance(value, bytes):
            sizes.append(len(value))
        return value

    monkeypatch.setattr(ThreadRanks, "broadcast", record)
    monkeypatch.setattr(snapshots, "BLOCK_BYTES", 3_000)
    return sizes


def read_from(places: "list[Path]") -> "Callable[[Ranks], bytes]":
    """What each rank does: ask for the main rank's file, by the name that it has here."""

    def read(ranks: Ranks) -> bytes:
        with deliver(places[ranks.rank], ranks) as file:
            return file.read()

    return read


def test_a_rank_that_sees_the_same_file_reads_it(path: Path, sent: "list[int]") -> None:
    assert call_on_ranks(read_from([path, path, path]), 3) == [DATA] * 3
    assert sent == []


@pytest.mark.parametrize(
    ("content", "is_sent"), [(DATA, False), (DATA[::-1], True), (None, True)], ids=["a copy", "another file", "no file"]
)
def test_a_rank_reads_a_copy_of_the_file_and_is_sent_its_bytes_in_blocks_where_there_is_none(
    path: Path, tmp_path: Path, sent: "list[int]", content: "bytes | None", is_sent: bool
) -> None:
    other = tmp_path / "other.pth"
    if content is not None:
        other.write_bytes(content)
        os.utime(other, ns=(path.stat().st_mtime_ns, path.stat().st_mtime_ns))
    assert call_on_ranks(read_from([path, other, path]), 3) == [DATA] * 3
    assert sorted(sent) == sorted([3_000, 3_000, 3_000, 1_000] * 3 if is_sent else [])


def test_a_checkpoint_that_was_sent_is_loaded_as_the_file_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.pth"
    write_checkpoint(path, {"number": 7})

    def read(ranks: Ranks) -> Any:
        with deliver(path if ranks.is_main else tmp_path / "none", ranks) as file:
            return load(path, file=file)

    assert call_on_ranks(read) == [{"number": 7}] * 2


def test_a_machine_without_room_for_the_copy_says_so(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        def __enter__(self) -> "Full":
            return self

        def __exit__(self, *_: object) -> None:
            pass

        write = refuse(errno.ENOSPC)

    monkeypatch.setattr(snapshots, "TemporaryFile", lambda **_: Full())
    first, second = call_on_ranks(read_from([path, tmp_path / "none"]))
    assert first == DATA
    assert isinstance(second, UnreadableCheckpointError)
    assert "a copy of its 10000 bytes" in str(second)
    assert "TMPDIR" in str(second)


def test_a_checkpoint_that_only_another_rank_has_is_told_to_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "second", [3])

    def begin(ranks: Ranks) -> None:
        name = "second" if ranks.rank == 1 else "first"
        refuse_to_leave_behind(CheckpointFolder(tmp_path / name, "run"), ranks)

    assert call_on_ranks(lambda ranks: refuse_to_leave_behind(CheckpointFolder(tmp_path, "run"), ranks)) == [None] * 2
    for problem in call_on_ranks(begin, 3):
        assert isinstance(problem, UnreadableCheckpointError)
        assert f"{tmp_path / 'second' / 'run'} on " in str(problem)
        assert "(rank 1)" in str(problem)
    monkeypatch.setattr(snapshots, "is_in_trial", lambda: True)  # where the manager says what is continued
    assert call_on_ranks(begin, 3) == [None] * 3
