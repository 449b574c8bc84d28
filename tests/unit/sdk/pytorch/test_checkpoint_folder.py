"""The folder of a run's checkpoints: whole or not at all, found by the pointer, kept as asked (rows C2, C3, C8-C10)."""

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from proctor.sdk.pytorch import folder as folders
from proctor.sdk.pytorch.errors import (
    CheckpointNotStoredError,
    CheckpointWarning,
    ConfigurationError,
    TrainerError,
    UnreadableCheckpointError,
)
from proctor.sdk.pytorch.folder import CheckpointFolder
from proctor.sdk.pytorch.locking import FolderLock
from proctor.sdk.pytorch.pointer import POINTER_FILE
from proctor.sdk.pytorch.registering import Registrar
from proctor.sdk.pytorch.retention import Retention
from proctor.sdk.pytorch.state import TrainingState


class Writer:
    """A run that saves: each checkpoint holds its own number."""

    def __init__(self, root: Path, name: str = "run", **options: Any) -> None:
        self.storage = CheckpointFolder(root, name, **options)
        self.storage.open()

    def save(self, number: int, **options: Any) -> Path:
        state = TrainingState(global_epoch=1 + number // 10, current_iteration=number, global_iteration=number)
        content = {
            "format": 1,
            "version": "0.1.0",
            "training_state": state.state_dict(),
            "model": {"weight": torch.full((4,), float(number))},
            "rng": [],
        }
        path = self.storage.save(content, **options)
        self.storage.wait()
        return path

    def names(self) -> "list[str]":
        return sorted(path.name for path in self.storage.path.glob("*.pth"))


@pytest.fixture
def writer(tmp_path: Path) -> "Iterator[Writer]":
    found = Writer(tmp_path)
    yield found
    found.storage.close()


def numbers(storage: CheckpointFolder) -> "list[int]":
    return [entry.iteration for entry in storage.entries()]


def tear(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def test_C2_the_checkpoints_of_a_run_lie_in_a_folder_of_its_name_under_the_root(writer: Writer, tmp_path: Path) -> None:
    assert writer.save(3) == tmp_path / "run" / "run_epoch_1_iter_3.pth"


def test_C3_a_name_has_run_epoch_and_iteration_and_what_the_model_adds(writer: Writer) -> None:
    assert writer.save(3, metadata="acc_0.93").name == "run_epoch_1_iter_3_acc_0.93.pth"


@pytest.mark.parametrize("metadata", ["run_epoch_1_iter_3_best", "../away", "a/b", "a b", "nul\0"])
def test_C3_a_model_can_only_add_to_the_name(writer: Writer, metadata: str) -> None:
    with pytest.raises(ConfigurationError, match="only what is added"):
        writer.save(3, metadata=metadata)
    assert writer.names() == []


@pytest.mark.parametrize("name", ["per_epoch_model", "epoch_9_iter_9", "iter"])
def test_C8_any_name_of_a_run_is_found_again(tmp_path: Path, name: str) -> None:
    writer = Writer(tmp_path, name)
    writer.save(0)
    writer.storage.close()
    loaded = CheckpointFolder(tmp_path, name).load_newest()
    assert loaded is not None
    assert loaded.path.name == f"{name}_epoch_1_iter_0.pth"


def test_C8_the_pointer_and_no_name_decides_what_to_resume(writer: Writer) -> None:
    writer.save(5)
    path = writer.save(4)  # saved later, with fewer iterations: a run that was started over
    (path.parent / "run_epoch_99_iter_99.pth").write_bytes(path.read_bytes())
    loaded = writer.storage.load_newest()
    assert loaded is not None
    assert loaded.path == path


def test_C8_a_run_without_checkpoints_has_none_to_resume(writer: Writer) -> None:
    assert writer.storage.load_newest() is None


@pytest.mark.parametrize(
    "pointer", [None, b"", b'{"format": 1, "checkp', b'{"format": 1, "checkpoints": [{}]}', b"\xff"]
)
def test_C8_without_a_readable_pointer_the_contents_decide(writer: Writer, pointer: "bytes | None") -> None:
    writer.save(9)
    path = writer.save(12)
    os.rename(path, path.with_name("moved.pth"))
    if pointer is None:
        (path.parent / POINTER_FILE).unlink()
        loaded = writer.storage.load_newest()
    else:
        (path.parent / POINTER_FILE).write_bytes(pointer)
        with pytest.warns(CheckpointWarning, match="damaged"):
            loaded = writer.storage.load_newest()
    assert loaded is not None
    assert loaded.path.name == "moved.pth"


def test_C9_a_checkpoint_that_is_being_written_has_no_name_yet(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_C9_what_a_killed_save_left_is_cleared_away(writer: Writer, tmp_path: Path) -> None:
    writer.save(1)
    writer.storage.close()
    left = tmp_path / "run" / ".unfinished-elsewhere-123"
    left.write_bytes(b"half")
    again = Writer(tmp_path)
    again.storage.close()
    assert not left.exists()
    assert again.names() == ["run_epoch_1_iter_1.pth"]


def test_C9_a_torn_newest_checkpoint_is_passed_over_for_the_one_before(writer: Writer) -> None:
    writer.save(1)
    before = writer.save(2)
    tear(writer.save(3))
    with pytest.warns(CheckpointWarning, match="iter_3.pth is not what was stored.*The one before it is used"):
        loaded = writer.storage.load_newest()
    assert loaded is not None
    assert loaded.path == before


def test_C9_a_checkpoint_with_other_bytes_of_the_same_length_is_torn_too(writer: Writer) -> None:
    before, newest = writer.save(1), writer.save(2)
    data = bytearray(newest.read_bytes())
    data[len(data) // 2] ^= 1
    newest.write_bytes(data)
    with pytest.warns(CheckpointWarning, match="other bytes of the same length"):
        loaded = writer.storage.load_newest()
    assert loaded is not None
    assert loaded.path == before


def test_C9_a_run_whose_checkpoints_are_all_torn_does_not_start_over_by_itself(writer: Writer) -> None:
    for number in (1, 2):
        tear(writer.save(number))
    with pytest.warns(CheckpointWarning), pytest.raises(UnreadableCheckpointError, match="none of the 2 checkpoints"):
        writer.storage.load_newest()


def test_C9_after_a_fall_back_the_torn_one_is_gone_with_the_next_save(writer: Writer, tmp_path: Path) -> None:
    writer.save(1)
    tear(writer.save(3))
    writer.storage.close()
    again = Writer(tmp_path)
    with pytest.warns(CheckpointWarning):
        again.storage.load_newest()
    again.save(2)
    again.storage.close()
    assert numbers(again.storage) == [2, 1]
    assert again.names() == ["run_epoch_1_iter_1.pth", "run_epoch_1_iter_2.pth"]


def test_C9_a_full_disk_costs_a_checkpoint_and_not_the_run(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
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
    writer: Writer, monkeypatch: pytest.MonkeyPatch
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


def _fail(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


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


def test_C10_the_newest_stay_and_the_others_go(tmp_path: Path) -> None:
    writer = Writer(tmp_path, retention=Retention(keep_last=2))
    for number in range(5):
        writer.save(number)
    writer.storage.close()
    assert numbers(writer.storage) == [4, 3]
    assert writer.names() == ["run_epoch_1_iter_3.pth", "run_epoch_1_iter_4.pth"]


def test_C10_the_best_stay_besides_the_newest(tmp_path: Path) -> None:
    writer = Writer(tmp_path, retention=Retention(keep_last=1, keep_best=2, best_mode="min"))
    for number, score in enumerate([3.0, 1.0, 2.0, None, float("nan"), 5.0]):
        writer.save(number, score=score)
    writer.storage.close()
    assert numbers(writer.storage) == [5, 2, 1]
    best = writer.storage.load_best()
    assert best is not None
    assert best.entry.iteration == 1


def test_C10_a_pinned_checkpoint_stays_until_its_pin_is_removed(tmp_path: Path) -> None:
    writer = Writer(tmp_path, retention=Retention(keep_last=1))
    pinned = writer.save(1)
    writer.storage.pin(pinned.name)
    writer.save(2)
    writer.save(3)
    assert numbers(writer.storage) == [3, 1]
    pinned.with_name(f"{pinned.name}.pinned").unlink()
    writer.save(4)
    writer.storage.close()
    assert writer.names() == ["run_epoch_1_iter_4.pth"]


def test_C10_what_is_not_there_cannot_be_pinned(writer: Writer) -> None:
    with pytest.raises(FileNotFoundError):
        writer.storage.pin("run_epoch_1_iter_1.pth")


def test_C10_without_a_limit_all_stay(tmp_path: Path) -> None:
    writer = Writer(tmp_path, retention=Retention(keep_last=None))
    for number in range(5):
        writer.save(number)
    writer.storage.close()
    assert numbers(writer.storage) == [4, 3, 2, 1, 0]


def test_C10_a_run_that_is_started_anew_leaves_nothing_of_the_one_before_to_win(tmp_path: Path) -> None:
    before = Writer(tmp_path)
    pinned, other = before.save(80), before.save(90)
    before.storage.pin(pinned.name)
    (pinned.parent / "weights.pth").write_bytes(b"of the user's own")
    before.storage.close()
    writer = Writer(tmp_path)  # which loads nothing: resume=False
    assert other.exists()
    newest = writer.save(1)
    writer.storage.close()
    assert writer.names() == sorted([newest.name, pinned.name, "weights.pth"])
    pinned.unlink()
    (newest.parent / POINTER_FILE).unlink()
    with pytest.warns(CheckpointWarning, match="weights.pth"):
        loaded = writer.storage.load_newest()
    assert loaded is not None
    assert loaded.path == newest


def test_C10_what_a_kill_after_the_pointer_left_is_removed_at_the_next_start(writer: Writer, tmp_path: Path) -> None:
    named = writer.save(2)
    writer.storage.close()
    pointed_at = os.stat(named.parent / POINTER_FILE).st_mtime_ns
    older, newer = named.with_name("run_epoch_1_iter_1.pth"), named.with_name("run_epoch_1_iter_3.pth")
    for path, age in ((older, 0), (newer, 1)):
        path.write_bytes(named.read_bytes())
        os.utime(path, ns=(pointed_at + age, pointed_at + age))
    again = Writer(tmp_path)
    assert again.names() == [named.name, newer.name]
    again.storage.load_newest()
    last = again.save(4)
    again.storage.close()
    assert again.names() == [named.name, last.name]


def test_C10_without_a_pointer_or_with_no_limit_nothing_is_cleared_away(writer: Writer, tmp_path: Path) -> None:
    path = writer.save(2)
    writer.storage.close()
    (path.parent / POINTER_FILE).unlink()
    Writer(tmp_path).storage.close()
    assert path.exists()
    anew = Writer(tmp_path, retention=Retention(keep_last=None))
    anew.save(1)
    anew.storage.close()
    assert path.exists()


def test_the_best_and_the_pinned_are_handed_over_with_the_newest(tmp_path: Path) -> None:
    retention = Retention(keep_last=1, keep_best=1)
    writer = Writer(tmp_path, retention=retention)
    pinned = writer.save(1, score=0.1)
    writer.storage.pin(pinned.name)
    for number, score in ((2, 0.9), (3, 0.5), (4, 0.4)):
        writer.save(number, score=score)
    exported = tmp_path / "exported"
    exported.mkdir()
    writer.storage.export(exported)
    writer.storage.close()
    other = Writer(tmp_path / "other", retention=retention)
    assert other.storage.adopt(exported)
    assert other.storage.load_newest() is not None
    other.save(5, score=0.3)
    other.storage.close()
    best = other.storage.load_best()
    assert best is not None
    assert best.entry.iteration == 2
    assert numbers(other.storage) == [5, 2, 1]


def test_a_best_one_that_the_user_removed_is_not_handed_over(tmp_path: Path) -> None:
    writer = Writer(tmp_path, retention=Retention(keep_last=1, keep_best=1))
    best = writer.save(1, score=0.9)
    writer.save(2, score=0.5)
    best.unlink()
    exported = tmp_path / "exported"
    exported.mkdir()
    writer.storage.export(exported)
    writer.storage.close()
    other = Writer(tmp_path / "other")
    assert other.storage.adopt(exported)
    other.storage.close()
    assert numbers(other.storage) == [2]


def test_what_is_known_stays_behind_what_is_adopted(writer: Writer, tmp_path: Path) -> None:
    own = writer.save(5, score=0.9)
    other = Writer(tmp_path / "other")
    other.save(3)
    exported = tmp_path / "exported"
    exported.mkdir()
    other.storage.export(exported)
    other.storage.close()
    assert writer.storage.adopt(exported)
    assert numbers(writer.storage) == [3, 5]
    assert own.exists()


def test_another_runs_checkpoint_is_left_alone(writer: Writer, tmp_path: Path) -> None:
    writer.save(1)
    exported = tmp_path / "exported"
    exported.mkdir()
    writer.storage.export(exported)
    other = Writer(tmp_path / "other", "another_name")
    assert not other.storage.adopt(exported)
    assert other.storage.is_empty()
    other.storage.close()


def test_a_checkpoint_is_adopted_from_elsewhere_with_its_history(writer: Writer, tmp_path: Path) -> None:
    writer.storage.history.append({"loss": 0.5}, step=1, iteration=1, epoch=1)
    writer.save(1)
    writer.storage.history.append({"loss": 0.4}, step=2, iteration=2, epoch=1)
    exported = tmp_path / "exported"
    exported.mkdir()
    writer.storage.export(exported)
    other = Writer(tmp_path / "other")
    assert other.storage.adopt(exported)
    loaded = other.storage.load_newest()
    assert loaded is not None
    other.storage.restore_history(loaded.content)
    assert other.storage.history.position.rows == 1
    assert len((other.storage.path / "history.jsonl").read_text().splitlines()) == 1
    other.storage.close()


def test_a_checkpoint_that_came_from_this_folder_is_not_adopted_again(writer: Writer, tmp_path: Path) -> None:
    writer.save(1)
    writer.storage.export(tmp_path)
    writer.save(2)
    assert not writer.storage.adopt(tmp_path)
    assert numbers(writer.storage) == [2, 1]


def test_a_checkpoint_from_elsewhere_is_adopted_over_an_own_one(writer: Writer, tmp_path: Path) -> None:
    writer.save(5)
    other = Writer(tmp_path / "other")
    other.save(3)
    exported = tmp_path / "exported"
    exported.mkdir()
    other.storage.export(exported)
    other.storage.close()
    assert writer.storage.adopt(exported)
    loaded = writer.storage.load_newest()
    assert loaded is not None
    assert loaded.entry.iteration == 3


def test_a_folder_that_is_no_export_is_not_adopted(writer: Writer, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"of the user's own")
    assert not writer.storage.adopt(tmp_path)


def test_a_second_process_cannot_write_to_the_folder_of_a_run(writer: Writer) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from proctor.sdk.pytorch.errors import TrainerError\n"
        "from proctor.sdk.pytorch.locking import FolderLock\n"
        "lock = FolderLock(Path(sys.argv[1]), patience_seconds=0.0)\n"
        "try:\n    lock.acquire()\nexcept TrainerError as error:\n    print(error)\n"
    )
    command = [sys.executable, "-c", code, str(writer.storage.path)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert f"process {os.getpid()} on" in refused.stdout
    writer.storage.close()
    allowed = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert allowed.stdout == ""


def test_a_file_system_without_locks_gives_them_to_everyone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", refuse)
    lock = FolderLock(tmp_path)
    lock.acquire()
    lock.release()
    lock.release()


def test_a_pointer_of_a_newer_version_is_told_and_the_contents_decide(writer: Writer) -> None:
    path = writer.save(1)
    pointer = path.parent / POINTER_FILE
    pointer.write_text(json.dumps({**json.loads(pointer.read_text()), "format": 9}))
    with pytest.warns(CheckpointWarning, match="format 9"):
        assert writer.storage.load_newest() is not None


def test_a_save_that_fails_for_another_reason_than_the_disk_stops_the_run(writer: Writer) -> None:
    class Failing(Registrar):
        def on_stored(self, storage: CheckpointFolder) -> None:
            raise KeyError("register")

    writer.storage._registrar = Failing()
    with pytest.raises(CheckpointNotStoredError, match="KeyError"):
        writer.save(1)
    assert issubclass(CheckpointNotStoredError, TrainerError)
