"""Registering the run's checkpoints as its trial's: seldom, at the end, and without filling the disk."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.attempts import begin_attempt
from fakes.checkpoint_writer import CheckpointWriter, numbers

from proctor.sdk.checkpoints.manifest import MANIFEST_FILE, read_manifest
from proctor.sdk.checkpoints.saving import list_checkpoints
from proctor.sdk.pytorch import CheckpointWarning
from proctor.sdk.pytorch.checkpoints.filesystem import FolderLock
from proctor.sdk.pytorch.checkpoints.folder import CheckpointFolder
from proctor.sdk.pytorch.checkpoints.history import HISTORY_FILE
from proctor.sdk.pytorch.checkpoints.pointer import Retention, read_pointer
from proctor.sdk.pytorch.trial import FREE_COUNT, Registrar, adopt_checkpoint


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The directory of the job that this process seems to be."""
    begin_attempt(monkeypatch, tmp_path / "job")
    return str(tmp_path / "job")


def steps(job: str) -> "list[int]":
    return [read_pointer(Path(path))[0].iteration for path in list_checkpoints(job)]


def test_a_run_that_saves_all_the_time_registers_now_and_then_and_at_the_end(job: str, tmp_path: Path) -> None:
    now = 100.0
    writer = CheckpointWriter(tmp_path, registrar=Registrar(interval_seconds=5.0, clock=lambda: now))
    for number in range(1, 5):
        writer.save(number)
        now += 3.0
    assert steps(job) == [1, 3]
    for _ in range(2):
        writer.storage.close()
        assert steps(job) == [1, 3, 4]


def test_a_checkpoint_is_registered_in_place(job: str, tmp_path: Path) -> None:
    writer = CheckpointWriter(
        tmp_path, registrar=Registrar(interval_seconds=0.0), retention=Retention(keep_last=1, keep_best=1)
    )
    best, newest = writer.save(1, score=0.9), writer.save(2, score=0.5)
    writer.storage.history.append({"loss": 1.0}, step=3, iteration=3, epoch=1)
    registered = Path(list_checkpoints(job)[-1])
    assert all((registered / path.name).samefile(path) for path in (best, newest))
    files = read_manifest((registered / MANIFEST_FILE).read_bytes())
    assert {entry.name: (entry.size, entry.sha256) for entry in writer.storage.entries()}.items() <= files.items()
    assert not [path for path in registered.iterdir() if path.samefile(writer.storage.path / HISTORY_FILE)]  # it grows


def behind(job: str, root: Path) -> "tuple[CheckpointFolder, Path]":
    """A run that was killed when its registered checkpoint was the first of four, and that copy."""
    writer = CheckpointWriter(root, registrar=Registrar(interval_seconds=3600.0))
    for number in range(1, 5):
        writer.save(number)
    writer.storage._lock.release()  # as a kill does
    CheckpointWriter.opened.remove(writer)
    return writer.storage, Path(list_checkpoints(job)[-1])


def adopt(root: Path) -> "list[int]":
    """What the next attempt continues from, and what the pointer names."""
    writer = CheckpointWriter(root)
    adopt_checkpoint(writer.storage)
    found = [writer.newest().entry.iteration, *numbers(writer.storage)]
    writer.storage.close()
    return found


@pytest.fixture
def retry(job: str, monkeypatch: pytest.MonkeyPatch) -> "Callable[..., None]":
    """Makes this process seem to be the next attempt."""

    def begin(copy: Path, *, trial: str = "t") -> None:
        begin_attempt(monkeypatch, Path(f"{job}-retry"), resume=str(copy), trial=trial)

    return begin


def test_the_next_attempt_here_continues_from_what_was_saved_last(
    job: str, tmp_path: Path, retry: "Callable[..., None]"
) -> None:
    _, copy = behind(job, tmp_path / "first")
    retry(copy)
    assert adopt(tmp_path / "second") == [4, 4, 3, 2, 1]


def test_the_next_attempt_in_the_same_folder_does_so_although_the_registered_one_was_removed_there(
    job: str, tmp_path: Path, retry: "Callable[..., None]"
) -> None:
    storage, copy = behind(job, tmp_path / "root")
    retry(copy)
    assert adopt(tmp_path / "root") == [4, 4, 3, 2, 1]
    for entry in storage.entries():
        (storage.path / entry.name).unlink()  # which the copy may share
        (storage.path / entry.name).write_bytes(b"torn")
    with pytest.warns(CheckpointWarning):
        assert adopt(tmp_path / "root") == [1, 4, 3, 2, 1]


@pytest.mark.parametrize("case", ["elsewhere", "another trial's", "older", "still written to", "gone", "torn"])
def test_otherwise_it_continues_from_what_was_registered(
    job: str, tmp_path: Path, retry: "Callable[..., None]", case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage, copy = behind(job, tmp_path / "first")
    writer = FolderLock(storage.path)
    if case == "elsewhere":  # the same path there
        names = os.uname()
        monkeypatch.setattr(os, "uname", lambda: os.uname_result((names[0], "other", *names[2:])))
    elif case == "older":
        storage.open()
        storage.close()  # registers the newest
    elif case == "still written to":
        writer.acquire()
    elif case == "gone":
        shutil.rmtree(storage.path)
    elif case == "torn":
        (storage.path / storage.entries()[0].name).write_bytes(b"torn")
    retry(copy, trial="other" if case == "another trial's" else "t")
    assert adopt(tmp_path / "second") == [1, 1]
    writer.release()


def test_what_is_registered_stays_until_the_manager_removes_it_and_delays_the_next(job: str, tmp_path: Path) -> None:
    now = 100.0
    writer = CheckpointWriter(tmp_path, registrar=Registrar(interval_seconds=5.0, clock=lambda: now))
    for number in range(1, FREE_COUNT + 4):
        writer.save(number)
        now += 5.0
    beyond = FREE_COUNT + 2
    assert steps(job) == [*range(1, beyond + 1)], "the last one is due later"
    for path in list_checkpoints(job)[:-2]:
        shutil.rmtree(path)
    for number in range(beyond + 2, beyond + 4):
        writer.save(number)
        now += 5.0
    assert steps(job) == [*range(beyond - 1, beyond + 1), beyond + 2, beyond + 3]
