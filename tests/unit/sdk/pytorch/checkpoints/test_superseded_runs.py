"""A run that starts over in the folder of another one is a new one from its first moment on."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from fakes.checkpoint_writer import CheckpointWriter, numbers, write_run
from fakes.full_disk import FullDisk
from fakes.recording_model import RangeData, RecordingModel

from proctor.sdk.pytorch import (
    CheckpointFolder,
    CheckpointWarning,
    StopReason,
    Trainer,
    TrainingState,
    UnreadableCheckpointError,
    plain,
)
from proctor.sdk.pytorch.checkpoints.pointer import POINTER_FILE, Pointer, Retention

STEPS = 3


def superseded(writer: CheckpointWriter) -> "set[str]":
    """The names of the files of an earlier run."""
    return set(Pointer.read(writer.storage.path).superseded)


def fit(root: Path, *, fail_at: "int | None" = None, **options: Any) -> Any:
    """Train, and return the outcome and how many batches were trained on."""

    def fail(state: TrainingState) -> None:
        if state.global_iteration == fail_at:
            raise LookupError("as planned")

    model = RecordingModel(on_batch=fail)
    options = {"use_cpu": True, "chkpt_root": root, "total_steps": STEPS, **options}
    outcome = Trainer("run", train_exceptions=[LookupError], **options).fit(model, RangeData(1))
    return outcome, len(model.batches)


@pytest.mark.parametrize("background", [True, False])
def test_C8_a_run_that_ends_before_its_first_checkpoint_is_begun_again(tmp_path: Path, background: bool) -> None:
    options = {"background_writes": background}
    (before, _), files = fit(tmp_path, **options), set((tmp_path / "run").glob("*.pth"))
    for fail_at in (1, 2):
        with pytest.raises(LookupError):
            fit(tmp_path, resume=fail_at != 1, fail_at=fail_at, **options)
        assert set((tmp_path / "run").glob("*.pth")) == files  # they may still be wanted
    outcome, batches = fit(tmp_path, **options)
    assert (outcome.reason, outcome.resumed_from, batches) == (StopReason.COMPLETED, None, STEPS)
    assert before.checkpoint == outcome.checkpoint
    outcome, batches = fit(tmp_path, total_steps=STEPS + 1)
    assert (outcome.resumed_from, batches) == (before.checkpoint, 1)


def test_C8_the_run_before_is_continued_if_the_pointer_is_removed(tmp_path: Path) -> None:
    before, _ = fit(tmp_path)
    with pytest.raises(LookupError):
        fit(tmp_path, resume=False, fail_at=1)
    (tmp_path / "run" / POINTER_FILE).unlink()
    outcome, batches = fit(tmp_path)
    assert (outcome.resumed_from, batches) == (before.checkpoint, 0)


@pytest.mark.parametrize("place", ["trainer.pointer.before", "trainer.pointer.after"])
def test_C8_a_kill_while_that_is_decided_leaves_one_or_the_other(
    tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fit(tmp_path)
    process = os.fork()
    if process == 0:
        try:
            monkeypatch.setattr(
                "proctor.sdk.files.failpoint", lambda name: name == place and os.kill(os.getpid(), signal.SIGKILL)
            )
            CheckpointFolder(tmp_path, "run").open(anew=True)
        finally:
            os._exit(0)
    assert os.waitpid(process, 0)[1] == signal.SIGKILL
    _, batches = fit(tmp_path)
    assert batches == (0 if place.endswith("before") else STEPS)


def test_C8_a_loop_of_ones_own_that_ends_before_its_first_checkpoint_is_begun_again(tmp_path: Path) -> None:
    def train(batches: int, **options: Any) -> int:
        with plain.open_run("run", dict, dataset=range(9), chkpt_root=tmp_path, use_cpu=True, **options) as run:
            begin = run.state.global_iteration
            for _ in zip(range(batches), plain.remaining_batches(run), strict=False):
                pass
            if batches > 2:
                run.save()
        return begin

    assert [train(4), train(1), train(1, resume=False), train(1)] == [0, 4, 0, 0]


def test_C8_what_is_superseded_is_not_found_when_the_new_checkpoints_are_torn(tmp_path: Path) -> None:
    keeps_all = {"retention": Retention(keep_last=None)}
    before = CheckpointWriter(tmp_path, **keeps_all)
    old = before.save(90)
    writer = before.start_again(anew=True, **keeps_all)
    assert writer.storage.load_newest() is None
    assert writer.storage.is_empty()
    torn = [writer.save(1)]
    assert numbers(writer.storage) == [1]
    assert superseded(writer) == {old.name}
    again = writer.start_again(**keeps_all)
    again.storage.load_newest()
    torn.append(again.save(2))
    for path in torn:
        path.write_bytes(b"torn")
    with (
        pytest.warns(CheckpointWarning, match="is not what was stored"),
        pytest.raises(UnreadableCheckpointError, match="none of the checkpoints"),
    ):
        again.storage.load_newest()
    assert old.exists()


def test_C8_a_name_that_is_written_again_is_the_new_runs(tmp_path: Path) -> None:
    write_run(tmp_path, [1])
    writer = write_run(tmp_path, [1], anew=True)
    assert superseded(writer) == set()
    assert writer.newest().entry.iteration == 1


def test_C8_what_a_trial_is_handed_of_the_run_before_is_not_taken_over(tmp_path: Path) -> None:
    before = write_run(tmp_path, [5])
    handed = before.export(tmp_path / "handed")
    writer = before.start_again(anew=True)
    assert not writer.storage.adopt(handed)
    assert writer.storage.load_newest() is None


def test_C8_a_damaged_pointer_and_missing_files_are_superseded_too(tmp_path: Path) -> None:
    before = write_run(tmp_path, [5])
    (before.storage.path / POINTER_FILE).write_text("damaged")
    assert before.start_again(anew=True).storage.load_newest() is None


def test_C8_a_full_disk_does_not_keep_a_new_run_from_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = write_run(tmp_path, [5])
    disk = FullDisk(tmp_path / "run", monkeypatch, room=0)
    with pytest.warns(CheckpointWarning, match="no room to record .* starts over"):
        before.storage.open(anew=True)
    disk.room = None
    before.storage.close()
