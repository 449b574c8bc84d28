"""Which checkpoint a test is of: the latest one, the best one, or a file."""

from pathlib import Path
from typing import Any

import pytest
from fakes.recording_model import RangeData, RecordingModel

from proctor.sdk.pytorch import (
    CheckpointFolder,
    CheckpointWarning,
    ConfigurationError,
    Plugin,
    Trainer,
    UnreadableCheckpointError,
)
from proctor.sdk.pytorch.checkpoints.pointer import Retention

SCORES = (1.0, 5.0, 3.0, 2.0)


class Scored(RecordingModel):
    """Is best after the second epoch; knows after a test how many batches it was trained on."""

    def on_validation_end(self, validation_cycle: int) -> None:
        self.log({"score": SCORES[validation_cycle]})


def make_trainer(root: "Path | None", **options: Any) -> Trainer:
    chosen = {"best_metric": "score", "keep_best": 1, "keep_last": 1, **options}
    return Trainer("run", total_steps=4, valid_frequency=1, chkpt_root=root, use_cpu=True, **chosen)


def examine(trainer: Trainer, ckpt_path: Any) -> int:
    """The batches that the tested model was trained on."""
    model = Scored()
    outcome = trainer.test(model, RangeData(2), ckpt_path=ckpt_path)
    assert outcome.state.global_iteration == model.done
    assert "test_step" in model.hooks
    if model.done:
        assert outcome.checkpoint == outcome.resumed_from
        assert f"_iter_{model.done}." in str(outcome.checkpoint)
    return model.done


def test_a_test_is_of_the_latest_checkpoint_the_best_one_or_a_file(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, chkpt_frequency=1)
    latest = trainer.fit(Scored(), RangeData(2)).checkpoint
    assert [examine(trainer, path) for path in (None, "last", "best", latest, str(latest))] == [8, 8, 4, 8, 8]
    assert examine(make_trainer(tmp_path, best_mode="max"), "best") == 4
    best = tmp_path / "run" / "run_epoch_2_iter_4.pth"
    assert examine(make_trainer(None), best) == 4  # wherever it lies


def test_the_best_one_that_was_damaged_is_passed_over_with_a_warning(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, keep_best=2)
    trainer.fit(Scored(), RangeData(2))
    (tmp_path / "run" / "run_epoch_2_iter_4.pth").write_bytes(b"torn")
    with pytest.warns(UserWarning, match=r"run_epoch_2_iter_4\.pth is not what was stored"):
        assert examine(trainer, "best") == 6


@pytest.mark.parametrize(
    ("options", "ckpt_path", "told"),
    [
        ({"best_metric": None, "keep_best": 0}, "best", "needs best_metric"),
        ({"keep_best": 0}, "best", "needs keep_best"),
        ({"chkpt_root": None}, "best", "needs chkpt_root"),
        ({"chkpt_root": None}, "last", "needs chkpt_root"),
        ({}, "best", "holds none.*'score'"),
        ({}, "last", "holds none"),
        ({}, 5, "ckpt_path must be None, 'last', 'best' or the path of a checkpoint; found 5"),
        ({}, "bets", "there is no checkpoint bets"),
    ],
)
def test_a_checkpoint_that_there_is_not_is_an_error_that_says_what_to_do(
    options: "dict[str, Any]", ckpt_path: Any, told: str, tmp_path: Path
) -> None:
    model, root = Scored(), options.pop("chkpt_root", tmp_path)
    with pytest.raises(ConfigurationError, match=told):
        make_trainer(root, **options).test(model, RangeData(2), ckpt_path=ckpt_path)
    assert "test_step" not in model.hooks
    assert not (tmp_path / "run").exists()


def test_checkpoints_without_a_score_are_none_of_them_the_best(tmp_path: Path) -> None:
    make_trainer(tmp_path, best_metric=None, keep_best=0).fit(Scored(), RangeData(2))
    assert CheckpointFolder(tmp_path, "run", retention=Retention(keep_best=1)).load_best() is None
    with pytest.raises(ConfigurationError, match="holds none that was saved with a value of 'score'"):
        make_trainer(tmp_path).test(Scored(), RangeData(2), ckpt_path="best")


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.pth").write_bytes(b"nothing")
    with pytest.raises(UnreadableCheckpointError, match=r"weights\.pth"):
        make_trainer(tmp_path).test(Scored(), RangeData(2), ckpt_path=tmp_path / "weights.pth")


class Counting(Plugin):
    def state_dict(self) -> "dict[str, Any]":
        return {"count": 1}


def test_a_callback_that_the_checkpoint_has_a_state_of_is_missed(tmp_path: Path) -> None:
    both = [Counting("averaging"), Plugin("watching")]
    make_trainer(tmp_path, callbacks=both).fit(Scored(), RangeData(2))
    assert examine(make_trainer(tmp_path, callbacks=both), "best") == 4
    with pytest.warns(CheckpointWarning, match=r"run_epoch_2_iter_4\.pth has a state of the callback 'averaging'"):
        assert examine(make_trainer(tmp_path), "best") == 4
