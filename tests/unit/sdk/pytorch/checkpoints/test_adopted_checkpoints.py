"""Checkpoints that go from one folder to another: what is handed over, and what is taken."""

import errno
from pathlib import Path

import pytest
from fakes.checkpoint_writer import CheckpointWriter, numbers, write_run
from fakes.full_disk import refuse

from proctor.sdk.pytorch.checkpoints import pointer as pointers
from proctor.sdk.pytorch.checkpoints.pointer import Retention
from proctor.sdk.pytorch.errors import CheckpointWarning


def test_the_best_and_the_pinned_are_handed_over_with_the_newest(tmp_path: Path) -> None:
    retention = Retention(keep_last=1, keep_best=1)
    writer = CheckpointWriter(tmp_path, retention=retention)
    writer.storage.pin(writer.save(1, score=0.1).name)
    for number, score in ((2, 0.9), (3, 0.5), (4, 0.4)):
        writer.save(number, score=score)
    exported = writer.export(tmp_path / "exported")
    other = CheckpointWriter(tmp_path / "other", retention=retention)
    assert other.storage.adopt(exported)
    assert other.newest().entry.iteration == 4
    other.save(5, score=0.3)
    best = other.storage.load_best()
    assert best is not None
    assert best.entry.iteration == 2
    assert numbers(other.storage) == [5, 2, 1]


def test_a_best_one_that_the_user_removed_is_not_handed_over(tmp_path: Path) -> None:
    writer = write_run(tmp_path, {1: 0.9, 2: 0.5}, retention=Retention(keep_last=1, keep_best=1))
    (writer.storage.path / "run_epoch_1_iter_1.pth").unlink()
    other = CheckpointWriter(tmp_path / "other")
    assert other.storage.adopt(writer.export(tmp_path / "exported"))
    assert numbers(other.storage) == [2]


def test_what_is_known_stays_behind_what_is_adopted(writer: CheckpointWriter, tmp_path: Path) -> None:
    own = writer.save(5, score=0.9)
    assert writer.storage.adopt(write_run(tmp_path / "other", [3]).export(tmp_path / "exported"))
    assert numbers(writer.storage) == [3, 5]
    assert own.exists()
    assert writer.newest().entry.iteration == 3


def test_another_runs_checkpoint_is_left_alone(writer: CheckpointWriter, tmp_path: Path) -> None:
    writer.save(1)
    other = CheckpointWriter(tmp_path / "other", "another_name")
    assert not other.storage.adopt(writer.export(tmp_path / "exported"))
    assert other.storage.is_empty()


def test_a_checkpoint_is_adopted_from_elsewhere_with_its_history(writer: CheckpointWriter, tmp_path: Path) -> None:
    writer.storage.history.append({"loss": 0.5}, step=1, iteration=1, epoch=1)
    writer.save(1)
    writer.storage.history.append({"loss": 0.4}, step=2, iteration=2, epoch=1)
    other = CheckpointWriter(tmp_path / "other")
    assert other.storage.adopt(writer.export(tmp_path / "exported"))
    other.storage.restore_history(other.newest().content)
    assert other.storage.history.position.rows == 1
    assert len((other.storage.path / "history.jsonl").read_text().splitlines()) == 1


def test_a_checkpoint_that_came_from_this_folder_is_not_adopted_again(writer: CheckpointWriter, tmp_path: Path) -> None:
    writer.save(1)
    writer.storage.export(tmp_path)
    writer.save(2)
    assert not writer.storage.adopt(tmp_path)
    assert numbers(writer.storage) == [2, 1]


def test_a_checkpoint_of_this_folder_that_was_damaged_gets_its_bytes_back(
    writer: CheckpointWriter, tmp_path: Path
) -> None:
    path = writer.save(1)
    exported = writer.export(tmp_path / "exported")
    for damaged in (path, writer.save(2)):
        damaged.unlink()
        damaged.write_bytes(b"torn")
    with pytest.warns(CheckpointWarning, match=r"iter_1\.pth is not what was stored.*takes its place"):
        assert writer.storage.adopt(exported)
    with pytest.warns(CheckpointWarning, match=r"iter_2\.pth is not what was stored.*passed over"):
        assert writer.newest().path == path


def test_a_checkpoint_of_this_folder_that_cannot_be_read_is_replaced_by_its_copy(
    writer: CheckpointWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = writer.save(1)
    exported = writer.export(tmp_path / "exported")
    inode = path.stat().st_ino
    with monkeypatch.context() as patch:
        patch.setattr(pointers, "hash_file", refuse(errno.EIO))
        with pytest.warns(CheckpointWarning, match=r"cannot be read.*takes its place"):
            assert writer.storage.adopt(exported)
    assert path.stat().st_ino != inode
    assert writer.newest().path == path


def test_a_folder_that_is_no_export_is_not_adopted(writer: CheckpointWriter, tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(b"of the user's own")
    assert not writer.storage.adopt(tmp_path)
