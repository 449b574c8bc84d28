"""What a trial hands to its next attempt: each run gets its own back, and what cannot be continued is reported."""

import fcntl
import os
import shutil
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fakes.attempts import begin_attempt
from fakes.trained_models import DigitsData, DigitsModel

from proctor.sdk.checkpoints.saving import find_newest_checkpoint, list_checkpoints, locked_folder, save_checkpoint
from proctor.sdk.protocol import CHECKPOINT_FOLDER
from proctor.sdk.pytorch import CheckpointWarning, Model, Outcome, Trainer
from proctor.sdk.pytorch.checkpoints.folder import CheckpointFolder
from proctor.sdk.pytorch.checkpoints.pointer import POINTER_FILE
from proctor.sdk.pytorch.trial import find_registered_runs, list_registered_runs

Attempt = Callable[..., None]


@pytest.fixture
def attempt(monkeypatch: pytest.MonkeyPatch) -> Attempt:
    """Makes this process seem to be an attempt of a trial."""
    return partial(begin_attempt, monkeypatch)


def fit(name: str = "run", *, epochs: int = 1, model: "Model | None" = None, **options: Any) -> Outcome:
    trainer = Trainer(name, total_steps=epochs, chkpt_frequency=1, use_cpu=True, **options)
    return trainer.fit(model or DigitsModel(), DigitsData())


def save_own(job: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "weights").write_bytes(b"of the user's own")
    save_checkpoint(str(folder), str(job))


def carry(job: Path, target: Path) -> str:
    """Take the job's newest checkpoint to another machine, and nothing else."""
    shutil.copytree(find_newest_checkpoint(str(job)) or "", target)
    return str(target)


def test_a_registered_folder_has_every_run_once(attempt: Attempt, tmp_path: Path) -> None:
    attempt(tmp_path / "job")
    assert [fit(name).resumed_from for name in ("one", "other", "third")] == [None] * 3
    fit("one", epochs=2)
    runs = list_registered_runs(Path(find_newest_checkpoint(str(tmp_path / "job")) or ""))
    assert set(runs) == {"one", "other", "third"}
    assert not [path for place in runs.values() for path in place.glob("runs/*/runs")]
    assert not [path for path in runs["other"].rglob("*") if path.is_symlink()]


def test_a_checkpoint_of_the_users_own_beside_the_trainers_does_not_make_it_start_over(
    attempt: Attempt, tmp_path: Path
) -> None:
    job = tmp_path / "job"
    attempt(job)
    fit()
    save_own(job, tmp_path / "own")
    shutil.rmtree(job / "output" / "trainer")
    assert fit(epochs=2).resumed_from is not None


def test_what_the_trainer_did_not_make_is_told_and_not_passed_over_in_silence(attempt: Attempt, tmp_path: Path) -> None:
    attempt(tmp_path / "first")
    save_own(tmp_path / "first", tmp_path / "own")
    attempt(tmp_path / "second", resume=carry(tmp_path / "first", tmp_path / "carried"))
    with pytest.warns(CheckpointWarning, match="neither the trainer nor a callback of it made; run 'run' starts over"):
        assert fit().resumed_from is None
    assert fit(epochs=2).resumed_from is not None  # from its own folder: nothing to tell


def test_another_trials_run_of_another_name_is_told(attempt: Attempt, tmp_path: Path) -> None:
    attempt(tmp_path / "first", trial="one")
    fit("run-of-one")
    attempt(tmp_path / "second", trial="other", resume=carry(tmp_path / "first", tmp_path / "carried"))
    with pytest.warns(CheckpointWarning, match=r"another trial's and holds the runs \['run-of-one'\]"):
        assert fit("run-of-other").resumed_from is None


def test_another_trials_run_of_this_name_is_continued(attempt: Attempt, tmp_path: Path) -> None:
    attempt(tmp_path / "first", trial="one")
    fit()
    attempt(tmp_path / "second", trial="other", resume=carry(tmp_path / "first", tmp_path / "carried"))
    assert fit(epochs=2).resumed_from is not None


def test_a_run_that_the_earlier_attempts_had_not_come_to_begins_without_a_word(
    attempt: Attempt, tmp_path: Path
) -> None:
    attempt(tmp_path / "first")
    fit("one")
    attempt(tmp_path / "second", resume=carry(tmp_path / "first", tmp_path / "carried"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit("other").resumed_from is None


class Judged(DigitsModel):
    """The better the earlier: its first epoch is its best."""

    def on_training_epoch_end(self, epoch: int) -> None:
        self.log({"score": -float(epoch)})


def test_the_best_and_the_pinned_survive_a_retry_elsewhere(attempt: Attempt, tmp_path: Path) -> None:
    options: dict[str, Any] = {"keep_last": 1, "keep_best": 1, "best_metric": "score", "valid_frequency": 1}
    attempt(tmp_path / "first")
    first, second = (CheckpointFolder(tmp_path / job / "output" / "trainer", "run") for job in ("first", "second"))
    for epochs in (1, 2, 3):
        fit(epochs=epochs, model=Judged(), **options)
        if epochs == 2:
            first.pin(first.entries()[0].name)
    assert [entry.epoch for entry in first.entries()] == [3, 2, 1]
    attempt(tmp_path / "second", resume=carry(tmp_path / "first", tmp_path / "carried"))
    fit(epochs=4, model=Judged(), **options)
    assert [entry.epoch for entry in second.entries()] == [4, 2, 1]
    assert [path.name for path in second.path.glob("*.pinned")] == ["run_epoch_2_iter_12.pth.pinned"]


def test_a_damaged_registered_folder_is_passed_over_for_the_one_before(attempt: Attempt, tmp_path: Path) -> None:
    attempt(tmp_path / "job")
    fit()
    fit(epochs=2)
    older, newest = list_checkpoints(str(tmp_path / "job"))[-2:]
    (Path(newest) / POINTER_FILE).write_bytes(b"{")
    with pytest.warns(CheckpointWarning, match="passed over.*damaged"):
        assert find_registered_runs() == {"run": Path(older)}


def test_one_process_of_a_job_works_in_a_folder_at_a_time(tmp_path: Path) -> None:
    with locked_folder(str(tmp_path / CHECKPOINT_FOLDER)):
        descriptor = os.open(tmp_path / CHECKPOINT_FOLDER, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(descriptor)
