"""The folder of a run's checkpoints: named, found by the pointer, and written to by one process (rows C2, C3, C8)."""

import errno
import fcntl
import multiprocessing
import os
import threading
from contextlib import nullcontext
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from fakes.checkpoint_writer import CheckpointWriter
from fakes.full_disk import refuse
from fakes.trained_models import DigitsData, DigitsModel, Recipe

from proctor.sdk.pytorch import Trainer
from proctor.sdk.pytorch.checkpoints.filesystem import FolderLock, store_file
from proctor.sdk.pytorch.checkpoints.pointer import POINTER_FILE
from proctor.sdk.pytorch.errors import CheckpointWarning, ConfigurationError, TrainerError


@pytest.mark.parametrize(
    ("added", "name"),
    [
        ({}, "run_epoch_1_iter_3.pth"),
        ({"metadata": None}, "run_epoch_1_iter_3.pth"),
        ({"metadata": "acc_0.93"}, "run_epoch_1_iter_3_acc_0.93.pth"),
    ],
)
def test_C2_C3_a_checkpoint_lies_in_a_folder_of_its_run_and_its_name_has_what_the_model_adds(
    writer: CheckpointWriter, tmp_path: Path, added: "dict[str, Any]", name: str
) -> None:
    assert writer.save(3, **added) == tmp_path / "run" / name


@pytest.mark.parametrize(
    "metadata", ["run_epoch_1_iter_3_best", "../away", "a/b", "a b", "nul\0", 0.93, b"best", False]
)
def test_C3_a_model_can_only_add_to_the_name(writer: CheckpointWriter, metadata: Any) -> None:
    with pytest.raises(ConfigurationError, match="only what is added"):
        writer.save(3, metadata=metadata)
    assert writer.names() == []


@pytest.mark.parametrize("name", ["per_epoch_model", "epoch_9_iter_9", "iter"])
def test_C8_any_name_of_a_run_is_found_again(tmp_path: Path, name: str) -> None:
    writer = CheckpointWriter(tmp_path, name)
    writer.save(0)
    assert writer.start_again().newest().path.name == f"{name}_epoch_1_iter_0.pth"


def test_C8_the_pointer_and_no_name_decides_what_to_resume(writer: CheckpointWriter) -> None:
    writer.save(5)
    path = writer.save(4)  # saved later, with fewer iterations: a run that was started over
    (path.parent / "run_epoch_99_iter_99.pth").write_bytes(path.read_bytes())
    assert writer.newest().path == path


def test_C8_a_run_without_checkpoints_has_none_to_resume(writer: CheckpointWriter) -> None:
    assert writer.storage.load_newest() is None


@pytest.mark.parametrize(
    "pointer", [None, b"", b'{"format": 1, "checkp', b'{"format": 1, "checkpoints": [{}]}', b"\xff", b'{"format": 9}']
)
def test_C8_without_a_readable_pointer_the_contents_decide(writer: CheckpointWriter, pointer: "bytes | None") -> None:
    writer.save(9)
    path = writer.save(12)
    os.rename(path, path.with_name("moved.pth"))
    if pointer is None:
        (path.parent / POINTER_FILE).unlink()
    else:
        (path.parent / POINTER_FILE).write_bytes(pointer)
    with nullcontext() if pointer is None else pytest.warns(CheckpointWarning, match="damaged|format 9"):
        assert writer.newest().path.name == "moved.pth"


def test_a_second_run_of_this_process_or_another_one_cannot_write_to_the_folder_of_a_run(
    writer: CheckpointWriter, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(writer.storage.path)
    for path in (writer.storage.path, link):
        with pytest.raises(TrainerError, match=f"another run .process {os.getpid()} on"):
            FolderLock(path, patience_seconds=0.0).acquire()
    assert f"process {os.getpid()} on" in _try_elsewhere(writer.storage.path)  # the refused ones took nothing away
    writer.storage.close()
    assert _try_elsewhere(writer.storage.path) == ""
    again = FolderLock(writer.storage.path, patience_seconds=0.0)
    again.acquire()
    again.release()


def test_a_forked_child_may_write_once_its_parent_does_not_any_more(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path, patience_seconds=0.0)
    lock.acquire()
    go_on, reported = multiprocessing.get_context("fork").Pipe()
    child = multiprocessing.get_context("fork").Process(target=_take_when_told, args=(reported, tmp_path))
    child.start()
    try:
        assert go_on.recv() == "refused"
        lock.release()
        go_on.send("released")
        assert go_on.poll(60)
        assert go_on.recv() == "taken"
    finally:
        lock.release()
        child.kill()
        child.join(60)


def test_a_file_system_without_locks_gives_them_to_everyone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "lockf", refuse(errno.ENOLCK))
    lock = FolderLock(tmp_path)
    lock.acquire()
    lock.release()
    lock.release()


def _try_elsewhere(folder: Path) -> str:
    """Try to take the lock in another process and return the answer."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=_try, args=(there, folder))
    process.start()
    answer: str = here.recv()
    process.join(60)
    return answer


def _try(pipe: "Any", folder: Path) -> None:
    try:
        FolderLock(folder, patience_seconds=0.0).acquire()
    except TrainerError as error:
        pipe.send(str(error))
    else:
        pipe.send("")


def _take_when_told(pipe: "Any", folder: Path) -> None:
    lock = FolderLock(folder, patience_seconds=0.0)
    try:
        lock.acquire()
    except TrainerError:
        pipe.send("refused")
    pipe.recv()
    lock.acquire()
    pipe.send("taken")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_no_thread_stores_a_checkpoint_when_loader_workers_are_forked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[list[str]] = []
    fork = os.fork

    def note_threads() -> int:
        threads.append([thread.name for thread in threading.enumerate() if "proctor-store" in thread.name])
        return fork()

    def store_slowly(path: Path, data: Any, *, place: str) -> None:
        sleep(0.2)
        store_file(path, data, place=place)

    monkeypatch.setattr(os, "fork", note_threads)
    monkeypatch.setattr("proctor.sdk.pytorch.checkpoints.folder.store_file", store_slowly)
    recipe = Recipe(workers=1)
    data = DigitsData(recipe)
    options: dict[str, Any] = {"chkpt_root": tmp_path, "chkpt_frequency": 1, "valid_frequency": 1, "use_cpu": True}
    Trainer("run", total_steps=3, **options).fit(DigitsModel(recipe), data)
    assert threads == [[]] * 6
