"""Lock files that are made, removed and locked by several processes at the same time."""

import errno
import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from proctor.trial_keeper.linux.locks import (
    EXCLUSIVE,
    SHARED,
    lock,
    read_if_locked,
    remove_unlocked,
    wait_for_lock,
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "locks" / "GPU-a.0")


def meddle(monkeypatch: pytest.MonkeyPatch, deed: Callable[[], None], *, times: int) -> None:
    """Do something between opening and locking, so many times."""
    flock = fcntl.flock
    left = [None] * times

    def meddled(descriptor: int, operation: int) -> None:
        if left:
            left.pop()
            deed()
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", meddled)


def take(path: str) -> int:
    """The exclusive lock of the file that is there now."""
    descriptor = lock(path, EXCLUSIVE)
    assert descriptor is not None
    assert os.stat(path).st_ino == os.fstat(descriptor).st_ino
    return descriptor


def remove(path: str) -> None:
    os.unlink(path)


def remove_with_its_folder(path: str) -> None:
    os.unlink(path)
    os.rmdir(os.path.dirname(path))


def replace(path: str) -> None:
    Path(path + ".new").touch()
    os.rename(path + ".new", path)


@pytest.mark.parametrize("deed", [remove, remove_with_its_folder, replace])
def test_the_lock_of_a_file_that_is_gone_meanwhile_does_not_count(
    path: str, monkeypatch: pytest.MonkeyPatch, deed: Callable[[str], None]
) -> None:
    meddle(monkeypatch, lambda: deed(path), times=3)
    descriptor = take(path)
    assert lock(path, EXCLUSIVE) is None
    os.close(descriptor)


def test_a_file_that_is_removed_again_and_again_is_an_error(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    meddle(monkeypatch, lambda: os.unlink(path), times=10_000)
    with pytest.raises(OSError, match="repeatedly created and removed"):
        lock(path, EXCLUSIVE)


def test_a_file_that_is_not_to_be_made_is_missing(path: str) -> None:
    with pytest.raises(FileNotFoundError):
        lock(path, EXCLUSIVE, make=False)
    assert not os.path.exists(os.path.dirname(path))


def test_only_an_exclusive_lock_is_one_that_somebody_holds(path: str) -> None:
    assert read_if_locked(path) is None
    looking = lock(path, SHARED)
    assert looking is not None
    assert read_if_locked(path) is None
    assert wait_for_lock(path, EXCLUSIVE, seconds=0.01) is None
    os.close(looking)
    holding = wait_for_lock(path, EXCLUSIVE, seconds=0.01)
    assert holding is not None
    Path(path).write_text("me")
    assert read_if_locked(path) == b"me"
    assert wait_for_lock(path, SHARED, seconds=0.01) is None
    os.close(holding)


def test_a_held_file_stays_and_a_free_one_goes(path: str) -> None:
    assert remove_unlocked(path)
    descriptor = take(path)
    assert not remove_unlocked(path)
    assert os.path.exists(path)
    os.close(descriptor)
    assert remove_unlocked(path)
    assert not os.path.exists(path)


def test_a_file_that_may_not_be_removed_stays(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    os.close(take(path))

    def refuse(path: str) -> None:
        raise PermissionError(errno.EPERM, "not the owner", path)

    monkeypatch.setattr(os, "unlink", refuse)
    assert not remove_unlocked(path)
    assert os.path.exists(path)
