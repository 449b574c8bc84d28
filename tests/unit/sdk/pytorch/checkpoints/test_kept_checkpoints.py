"""Which checkpoints stay in the folder and which are removed from it (row C10)."""

from pathlib import Path

import pytest
from fakes.checkpoint_writer import CheckpointWriter, numbers

from proctor.sdk import pytorch
from proctor.sdk.pytorch.checkpoints.folder import CheckpointFolder
from proctor.sdk.pytorch.checkpoints.pointer import POINTER_FILE, Retention
from proctor.sdk.pytorch.errors import CheckpointWarning


def test_C10_the_newest_stay_and_the_others_go(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, retention=Retention(keep_last=2))
    for number in range(5):
        writer.save(number)
    writer.storage.close()
    assert numbers(writer.storage) == [4, 3]
    assert writer.names() == ["run_epoch_1_iter_3.pth", "run_epoch_1_iter_4.pth"]


def test_C10_the_best_stay_besides_the_newest(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, retention=Retention(keep_last=1, keep_best=2, best_mode="min"))
    for number, score in enumerate([3.0, 1.0, 2.0, None, float("nan"), 5.0]):
        writer.save(number, score=score)
    writer.storage.close()
    assert numbers(writer.storage) == [5, 2, 1]
    best = writer.storage.load_best()
    assert best is not None
    assert best.entry.iteration == 1


def test_C10_a_pinned_checkpoint_stays_until_its_pin_is_removed(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, retention=Retention(keep_last=1))
    pinned = writer.save(1)
    writer.storage.pin(pinned.name)
    writer.save(2)
    writer.save(3)
    assert numbers(writer.storage) == [3, 1]
    pinned.with_name(f"{pinned.name}.pinned").unlink()
    writer.save(4)
    writer.storage.close()
    assert writer.names() == ["run_epoch_1_iter_4.pth"]


def test_C10_anyone_may_pin_a_checkpoint_while_the_run_goes_on(writer: CheckpointWriter, tmp_path: Path) -> None:
    name = writer.save(1).name
    pytorch.CheckpointFolder(str(tmp_path), "run").pin(name)
    for number in range(2, 7):
        writer.save(number)
    assert name in writer.names()


def test_C10_what_is_not_there_cannot_be_pinned(writer: CheckpointWriter) -> None:
    with pytest.raises(FileNotFoundError):
        writer.storage.pin("run_epoch_1_iter_1.pth")


def test_C10_without_a_limit_all_stay(tmp_path: Path) -> None:
    writer = CheckpointWriter(tmp_path, retention=Retention(keep_last=None))
    for number in range(5):
        writer.save(number)
    writer.storage.close()
    assert numbers(writer.storage) == [4, 3, 2, 1, 0]


def test_C10_a_run_that_is_started_anew_leaves_nothing_of_the_one_before_to_win(tmp_path: Path) -> None:
    before = CheckpointWriter(tmp_path)
    pinned, other = before.save(80), before.save(90)
    before.storage.pin(pinned.name)
    (pinned.parent / "weights.pth").write_bytes(b"of the user's own")
    before.storage.close()
    writer = CheckpointWriter(tmp_path, anew=True)
    assert other.exists()
    newest = writer.save(1)
    writer.storage.close()
    assert writer.names() == sorted([newest.name, pinned.name, "weights.pth"])
    pinned.unlink()
    (newest.parent / POINTER_FILE).unlink()
    with pytest.warns(CheckpointWarning, match="weights.pth"):
        assert writer.newest().path == newest


def test_C10_what_a_kill_after_the_pointer_left_is_removed_at_the_next_start(
    writer: CheckpointWriter, tmp_path: Path
) -> None:
    named = writer.save(2)
    writer.storage.close()
    for number in (1, 3):
        named.with_name(f"run_epoch_1_iter_{number}.pth").write_bytes(named.read_bytes())
    CheckpointFolder(tmp_path, "run").load_newest()  # one that only looks on, such as a test
    again = CheckpointWriter(tmp_path)
    assert len(again.names()) == 3
    again.storage.load_newest()
    assert again.names() == [named.name]
    again.storage.close()


def test_C10_without_a_pointer_or_with_no_limit_nothing_is_cleared_away(
    writer: CheckpointWriter, tmp_path: Path
) -> None:
    path = writer.save(2)
    writer.storage.close()
    (path.parent / POINTER_FILE).unlink()
    CheckpointWriter(tmp_path).storage.close()
    assert path.exists()
    anew = CheckpointWriter(tmp_path, retention=Retention(keep_last=None))
    anew.save(1)
    anew.storage.close()
    assert path.exists()
