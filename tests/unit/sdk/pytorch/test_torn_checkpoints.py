"""Checkpoints are whole or not at all: torn ones, full disks, saves that are killed or fail (row C9)."""

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.checkpoint_writer import CheckpointWriter, numbers

from proctor.sdk.pytorch import folder as folders
from proctor.sdk.pytorch.errors import (
    CheckpointNotStoredError,
    CheckpointWarning,
    TrainerError,
    UnreadableCheckpointError,
)
from proctor.sdk.pytorch.folder import CheckpointFolder
from proctor.sdk.pytorch.registering import Registrar
from proctor.sdk.pytorch.state import TrainingState


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def test_C9_a_checkpoint_that_is_being_written_has_no_name_yet(
    writer: CheckpointWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go_on = threading.Event(), threading.Event()
    replace = os.replace

    def wait(source: Any, target: Any) -> None:
        reached.set()
        assert go_on.wait(60)
        replace(source, target)

    writer.save(1)
    monkeypatch.setattr(os, "replace", wait)
    thread = threading.Thread(target=writer.save, args=(2,))
    thread.start()
    try:
        assert reached.wait(60)
        assert writer.names() == ["run_epoch_1_iter_1.pth"]
        assert numbers(writer.storage) == [1]
    finally:
        go_on.set()
        thread.join(60)
    assert numbers(writer.storage) == [2, 1]


def test_C9_what_a_killed_save_left_is_cleared_away(writer: CheckpointWriter, tmp_path: Path) -> None:
    writer.save(1)
    writer.storage.close()
    left = tmp_path / "run" / ".unfinished-elsewhere-123"
    left.write_bytes(b"half")
    again = CheckpointWriter(tmp_path)
    again.storage.close()
    assert not left.exists()
    assert again.names() == ["run_epoch_1_iter_1.pth"]


def test_C9_a_torn_newest_checkpoint_is_passed_over_for_the_one_before(writer: CheckpointWriter) -> None:
    writer.save(1)
    before = writer.save(2)
    tear(writer.save(3))
    with pytest.warns(CheckpointWarning, match="iter_3.pth is not what was stored.*The one before it is used"):
        loaded = writer.storage.load_newest()
    assert loaded is not None
    assert loaded.path == before


def test_C9_a_checkpoint_with_other_bytes_of_the_same_length_is_torn_too(writer: CheckpointWriter) -> None:
    before, newest = writer.save(1), writer.save(2)
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    with pytest.warns(CheckpointWarning, match="other bytes of the same length"):
        loaded = writer.storage.load_newest()
    assert loaded is not None
    assert loaded.path == before


def test_C9_a_run_whose_checkpoints_are_all_torn_does_not_start_over_by_itself(writer: CheckpointWriter) -> None:
    for number in (1, 2):
        tear(writer.save(number))
    with pytest.warns(CheckpointWarning), pytest.raises(UnreadableCheckpointError, match="none of the 2 checkpoints"):
        writer.storage.load_newest()


def test_C9_after_a_fall_back_the_torn_one_is_gone_with_the_next_save(writer: CheckpointWriter, tmp_path: Path) -> None:
    writer.save(1)
    tear(writer.save(3))
    writer.storage.close()
    again = CheckpointWriter(tmp_path)
    with pytest.warns(CheckpointWarning):
        again.storage.load_newest()
    again.save(2)
    again.storage.close()
    assert numbers(again.storage) == [2, 1]
    assert again.names() == ["run_epoch_1_iter_1.pth", "run_epoch_1_iter_2.pth"]


def test_C9_a_full_disk_costs_a_checkpoint_and_not_the_run(
    writer: CheckpointWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.save(1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _fail)
        with pytest.raises(CheckpointNotStoredError, match=r"iter_2\.pth could not be stored.*No space left"):
            writer.save(2)
    assert numbers(writer.storage) == [1]
    assert not list(writer.storage.path.glob(".unfinished*"))
    writer.save(3)
    assert numbers(writer.storage) == [3, 1]


def test_C9_a_save_after_one_that_a_full_disk_refused_warns_and_stores(
    writer: CheckpointWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = writer.storage
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _fail)
        storage._storage.start("one", lambda: os.fsync(0))
        thread = storage._storage._thread
        assert thread is not None
        thread.join(60)
    with pytest.warns(UserWarning, match="Training goes on"):
        writer.save(2)
    assert numbers(storage) == [2]


def test_C9_tensors_may_change_while_they_are_being_stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    write = folders.write_whole
    monkeypatch.setattr(folders, "write_whole", lambda *a, **k: (go_on.wait(60), write(*a, **k)))
    storage = CheckpointFolder(tmp_path, "run")
    storage.open()
    weight = torch.ones(8)
    state = TrainingState(global_epoch=1, current_iteration=1).state_dict()
    storage.save({"format": 1, "training_state": state, "model": {"weight": weight}, "rng": []})
    weight.zero_()
    go_on.set()
    storage.close()
    loaded = storage.load_newest()
    assert loaded is not None
    assert torch.equal(loaded.content["model"]["weight"], torch.ones(8))


def test_C9_what_a_pointer_names_is_on_the_disk_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = CheckpointFolder(tmp_path, "run")
    storage.open()
    storage.history.append({"loss": 1.0}, step=1, iteration=1, epoch=1)
    synced: list[str] = []
    sync = os.fsync

    def record(descriptor: int) -> None:
        synced.append(os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")).split("-")[0])
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", record)
    state = TrainingState(global_epoch=1, current_iteration=1).state_dict()
    storage.save({"format": 1, "training_state": state, "model": {}, "rng": []})
    storage.close()
    assert synced == ["history.jsonl", ".unfinished", "run", ".unfinished", "run"]


def test_a_save_that_fails_for_another_reason_than_the_disk_stops_the_run(writer: CheckpointWriter) -> None:
    class Failing(Registrar):
        def on_stored(self, storage: CheckpointFolder) -> None:
            raise KeyError("register")

    writer.storage._registrar = Failing()
    with pytest.raises(CheckpointNotStoredError, match="KeyError"):
        writer.save(1)
    assert issubclass(CheckpointNotStoredError, TrainerError)


def _fail(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")
