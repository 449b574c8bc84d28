"""Checkpoints are whole or not at all: torn ones, full disks, saves that are killed or fail (row C9)."""

import errno
import json
import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.checkpoint_writer import CheckpointWriter, numbers
from fakes.full_disk import refuse

from proctor.sdk.pytorch import TrainingState
from proctor.sdk.pytorch.checkpoints import folder as folders
from proctor.sdk.pytorch.checkpoints import pointer as pointers
from proctor.sdk.pytorch.checkpoints.folder import CheckpointFolder
from proctor.sdk.pytorch.checkpoints.pointer import POINTER_FILE, Retention
from proctor.sdk.pytorch.errors import (
    CheckpointNotStoredError,
    CheckpointWarning,
    TrainerError,
    UnreadableCheckpointError,
)
from proctor.sdk.pytorch.trial import Registrar


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    """Change one bit of a tensor: torch would load it all the same."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def remove_oldest(pointer: str) -> str:
    document = json.loads(pointer)
    return json.dumps({**document, "checkpoints": document["checkpoints"][:-1]})


def test_C9_a_checkpoint_that_is_being_written_has_no_name_yet(
    writer: CheckpointWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go_on = threading.Event(), threading.Event()
    rename = os.rename

    def wait(source: Any, target: Any) -> None:
        reached.set()
        assert go_on.wait(60)
        rename(source, target)

    writer.save(1)
    monkeypatch.setattr(os, "rename", wait)
    with ThreadPoolExecutor() as threads:
        threads.submit(writer.save, 2)
        assert reached.wait(60)
        seen = writer.names(), numbers(writer.storage)
        go_on.set()
    assert seen == (["run_epoch_1_iter_1.pth"], [1])
    assert numbers(writer.storage) == [2, 1]


def test_C9_what_a_killed_save_left_is_cleared_away(writer: CheckpointWriter, tmp_path: Path) -> None:
    writer.save(1)
    left = tmp_path / "run" / ".unfinished-elsewhere-123"
    left.write_bytes(b"half")
    again = writer.start_again()
    assert not left.exists()
    assert again.names() == ["run_epoch_1_iter_1.pth"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (tear, "iter_3.pth is not what was stored.*It is passed over"),
        (empty, "found 0 bytes. It is passed over"),
        (flip, "other bytes of the same length"),
        (Path.unlink, r"iter_3\.pth is not what was stored.*found no file"),
    ],
)
def test_C9_a_damaged_newest_checkpoint_is_passed_over_for_the_one_before(
    writer: CheckpointWriter, damage: Any, message: str
) -> None:
    writer.save(1)
    before = writer.save(2)
    damage(writer.save(3))
    with pytest.warns(CheckpointWarning, match=message):
        assert writer.newest().path == before


def test_C9_a_run_whose_checkpoints_are_all_torn_does_not_start_over_by_itself(writer: CheckpointWriter) -> None:
    for number in (1, 2):
        tear(writer.save(number))
    with pytest.warns(CheckpointWarning), pytest.raises(UnreadableCheckpointError, match="none of the checkpoints in"):
        writer.storage.load_newest()


@pytest.mark.parametrize("when", ["before the pointer", "now"])
def test_C9_one_that_was_brought_back_is_continued_from_when_all_others_are_torn(
    writer: CheckpointWriter, tmp_path: Path, when: str
) -> None:
    older = writer.save(1)
    data = older.read_bytes()
    older.unlink()
    for number in (2, 3):
        flip(writer.save(number))
    (older.parent / POINTER_FILE).write_text(remove_oldest((older.parent / POINTER_FILE).read_text()))
    older.write_bytes(data)
    if when != "now":
        os.utime(older, (0.0, 0.0))
    again = writer.start_again()
    with pytest.warns(CheckpointWarning, match="It is passed over"):
        assert again.newest().path == older
    last = again.save(2)
    assert again.names() == sorted([older.name, last.name])
    assert numbers(again.storage) == [2, 1]


@pytest.mark.parametrize("content", [b"torn", b"newer"])
@pytest.mark.parametrize("pointer", [None, b"damaged"])
def test_C9_a_run_whose_pointer_is_lost_does_not_start_over_while_there_are_files_of_it(
    writer: CheckpointWriter, tmp_path: Path, content: bytes, pointer: "bytes | None"
) -> None:
    path = writer.save(1)
    if content == b"newer":
        torch.save({**torch.load(path), "format": 99}, path)
    else:
        path.write_bytes(content)
    if pointer is None:
        (path.parent / POINTER_FILE).unlink()
    else:
        (path.parent / POINTER_FILE).write_bytes(pointer)
    with (
        warnings.catch_warnings(record=True) as reported,
        pytest.raises(UnreadableCheckpointError, match="none of the"),
    ):
        warnings.simplefilter("always")
        CheckpointFolder(tmp_path, "run").load_newest()
    assert "iter_1.pth" in str(reported[-1].message)


def test_C9_a_file_of_the_users_own_does_not_keep_a_run_from_beginning(writer: CheckpointWriter) -> None:
    torch.save({"weight": torch.ones(2)}, writer.storage.path / "pretrained.pth")
    with pytest.warns(CheckpointWarning, match=r"passed over.*pretrained\.pth"):
        assert writer.storage.load_newest() is None


@pytest.mark.parametrize("problem", [errno.EIO, errno.ESTALE, errno.EACCES])
def test_C9_a_checkpoint_that_the_disk_does_not_let_be_read_is_neither_passed_over_nor_removed(
    writer: CheckpointWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, problem: int
) -> None:
    writer.save(1)
    newest = writer.save(2)
    again = writer.start_again()
    with monkeypatch.context() as patch:
        patch.setattr(pointers, "hash_file", refuse(problem))
        with pytest.raises(UnreadableCheckpointError, match=r"iter_2\.pth cannot be read.*Start again when the disk"):
            again.storage.load_newest()
    assert again.newest().path == newest


@pytest.mark.parametrize(("keep_last", "is_pinned", "stays"), [(3, False, False), (3, True, True), (None, False, True)])
def test_C9_after_a_fall_back_the_torn_one_is_gone_with_the_next_save_unless_it_is_pinned_or_all_are_kept(
    writer: CheckpointWriter, keep_last: "int | None", is_pinned: bool, stays: bool
) -> None:
    writer.save(1)
    torn = writer.save(3)
    tear(torn)
    if is_pinned:
        writer.storage.pin(torn.name)
    again = writer.start_again(retention=Retention(keep_last))
    with pytest.warns(CheckpointWarning):
        again.storage.load_newest()
    again.save(2)
    assert torn.exists() is stays
    again.save(4)
    assert torn.exists() is stays
    assert numbers(again.storage) == [4, 2, 1]


def test_C9_a_full_disk_costs_a_checkpoint_and_not_the_run(
    writer: CheckpointWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.save(1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse(errno.ENOSPC))
        with pytest.raises(CheckpointNotStoredError, match=r"iter_2\.pth could not be stored.*No space left"):
            writer.save(2)
    assert numbers(writer.storage) == [1]
    assert not list(writer.storage.path.glob(".unfinished*"))
    writer.save(3)
    assert numbers(writer.storage) == [3, 1]


def test_C9_a_save_after_one_that_a_full_disk_refused_warns_and_stores(
    writer: CheckpointWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", refuse(errno.ENOSPC))
        writer.storage.save(make_content(1))
        writer.storage.settle()
    with pytest.warns(UserWarning, match="Training continues"):
        writer.save(2)
    assert numbers(writer.storage) == [2]


def make_content(number: int, **model: Any) -> "dict[str, Any]":
    state = TrainingState(global_epoch=1, current_iteration=number).state_dict()
    return {"format": 1, "training_state": state, "model": model, "rng": []}


def test_C9_tensors_may_change_while_they_are_being_stored(
    writer: CheckpointWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    write = folders.store_file
    weight = torch.ones(8)
    writer.save(1)  # the first one is read back before training continues
    monkeypatch.setattr(folders, "store_file", lambda *a, **k: (go_on.wait(60), write(*a, **k)))
    writer.storage.save(make_content(2, weight=weight))
    weight.zero_()
    go_on.set()
    writer.storage.close()
    assert torch.equal(writer.newest().content["model"]["weight"], torch.ones(8))


def test_C9_there_is_one_copy_at_a_time(writer: CheckpointWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    has_second_copy = threading.Event()
    copy, write = folders.copy_content, folders.store_file

    def record_copy(*args: Any) -> "dict[str, Any]":
        happened.append("copied")
        if len(happened) > 1:
            has_second_copy.set()
        return copy(*args)

    def write_late(*args: Any, **options: Any) -> None:
        has_second_copy.wait(0.5)  # if it were made now, it would be made by then
        write(*args, **options)
        happened.append("stored")

    monkeypatch.setattr(folders, "copy_content", record_copy)
    monkeypatch.setattr(folders, "store_file", write_late)
    for number in (1, 2):
        writer.storage.save(make_content(number))
    writer.storage.close()
    assert happened == ["copied", "stored", "copied", "stored"]


def test_C9_what_a_pointer_names_is_on_the_disk_before_it(
    writer: CheckpointWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.storage.history.append({"loss": 1.0}, step=1, iteration=1, epoch=1)
    synced: list[str] = []
    sync = os.fsync

    def record(descriptor: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")).split("-")[0])
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    writer.save(1)
    assert synced == ["history.jsonl", ".unfinished", "run", ".unfinished", "run"]


def test_a_save_that_fails_for_another_reason_than_the_disk_stops_the_run(writer: CheckpointWriter) -> None:
    class Failing(Registrar):
        def on_stored(self, storage: CheckpointFolder) -> None:
            raise KeyError("register")

    writer.storage._registrar = Failing()
    with pytest.raises(CheckpointNotStoredError, match="KeyError"):
        writer.save(1)
    assert issubclass(CheckpointNotStoredError, TrainerError)
