"""A metric that is to judge a run and does not come is reported, once and early."""

import warnings
from pathlib import Path
from typing import Any

import pytest
from fakes.attempts import begin_attempt
from fakes.trained_models import DigitsData, DigitsModel

from proctor.sdk.pytorch import MetricWarning, Trainer
from proctor.sdk.pytorch.plain import open_run, remaining_batches


class Judged(DigitsModel):
    """Logs an accuracy at the end of each epoch, with validations or without."""

    def on_training_epoch_end(self, epoch: int) -> None:
        self.log({"accuracy": 0.5})


def fit(root: Path, **options: Any) -> "list[str]":
    """Train for three epochs and return the warnings."""
    chosen: dict[str, Any] = {"total_steps": 3, "chkpt_root": root, "keep_best": 1, "use_cpu": True, **options}
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        Trainer("run", **chosen).fit(Judged(), DigitsData())
    return [str(warning.message) for warning in found if warning.category is MetricWarning]


def test_a_misspelt_best_metric_is_told_once_after_the_first_validation(tmp_path: Path) -> None:
    (reported,) = fit(tmp_path, best_metric="acuracy", valid_frequency=1)
    assert "best_metric is 'acuracy', and by the end of the first validation" in reported
    assert "only 'loss', 'accuracy', 'valid_loss'." in reported


@pytest.mark.parametrize("unit", ["epoch", "iteration"])
@pytest.mark.parametrize("epochs", [1, 3])
def test_without_validations_it_is_told_once_after_the_first_epoch(tmp_path: Path, unit: str, epochs: int) -> None:
    steps = epochs if unit == "epoch" else 6 * epochs
    (reported,) = fit(tmp_path, best_metric="acuracy", train_unit=unit, total_steps=steps)
    assert "by the end of the first epoch" in reported


def test_in_a_trial_it_is_told_without_best_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_attempt(monkeypatch, tmp_path / "job")
    (reported,) = fit(tmp_path, best_metric="acuracy", valid_frequency=1, keep_best=0)
    assert "a trial has no default metric" in reported


@pytest.mark.parametrize("metric", ["accuracy", "valid_loss"])
def test_one_that_comes_with_the_first_validation_is_not_told(tmp_path: Path, metric: str) -> None:
    assert fit(tmp_path, best_metric=metric, valid_frequency=2) == []


def test_in_a_loop_of_ones_own_what_is_logged_after_the_epoch_counts(tmp_path: Path) -> None:
    def train(metric: str) -> None:
        with open_run("run", dict, dataset=range(4), use_cpu=True, best_metric=metric) as run:
            for _ in range(2):
                list(remaining_batches(run))
                run.log({"accuracy": 0.5})

    train("accuracy")
    with pytest.warns(MetricWarning, match="by the end of the first epoch .* only 'accuracy'"):
        train("acuracy")


def test_a_test_judges_no_run(tmp_path: Path) -> None:
    class Tested(Judged):
        def test_step(self, batch: Any, step: int) -> None:
            self.log({"test_accuracy": 0.5})

    trainer = Trainer("run", total_steps=1, chkpt_root=tmp_path, best_metric="accuracy", use_cpu=True)
    trainer.fit(Tested(), DigitsData())
    trainer.test(Tested(), DigitsData())
