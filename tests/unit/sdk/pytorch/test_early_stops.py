"""Stopping early by the metric that judges the run, across resumes too."""

import math
from pathlib import Path
from typing import Any

import pytest
from fakes.recording_model import RangeData

from proctor.sdk.pytorch import ConfigurationError, Model, StopReason, Trainer, TrainingState

OPTIONS: "dict[str, Any]" = {"use_cpu": True, "valid_frequency": 1, "early_stop_cycles": 2, "best_metric": "score"}


class Scored(Model):
    """Logs a score after each validation.

    :param scores: None logs none.
    """

    def __init__(self, *scores: "float | None") -> None:
        self.scores = scores

    def train_step(self, batch: Any, state: TrainingState) -> None:
        pass

    def on_validation_end(self, validation_cycle: int) -> None:
        score = self.scores[validation_cycle]
        self.log({"loss": 1.0} if score is None else {"score": score})


class Improving(Scored):
    def have_metrics_improved(self) -> bool:
        return True


@pytest.mark.parametrize("unit", ["epoch", "iteration"])
@pytest.mark.parametrize(
    ("mode", "scores", "epochs"),
    [
        ("max", (1.0, 2.0, 2.0, 1.0, 9.0), 4),
        ("min", (2.0, 1.0, 0.5, 1.0, 0.5, 0.1), 5),
        ("max", (math.nan, 1.0, math.nan, math.inf, 9.0), 4),
        ("min", (math.nan, -math.inf, 0.0), 2),
    ],
)
def test_T9_best_metric_judges_where_the_model_does_not(
    unit: str, mode: str, scores: "tuple[float, ...]", epochs: int
) -> None:
    trainer = Trainer("run", total_steps=len(scores) + 9, train_unit=unit, best_mode=mode, **OPTIONS)
    outcome = trainer.fit(Scored(*scores), RangeData(1))
    assert outcome.reason is StopReason.EARLY_STOP
    assert outcome.state.validation_cycles == epochs
    assert outcome.state.early_stop_count == 2


def test_T9_a_resumed_run_knows_the_best_score_so_far(tmp_path: Path) -> None:
    scores = (5.0, 1.0, 2.0, 9.0)
    options = {**OPTIONS, "chkpt_root": tmp_path}
    first = Trainer("run", total_steps=2, **options).fit(Scored(*scores), RangeData(1))
    assert (first.reason, first.state.best_score) == (StopReason.COMPLETED, 5.0)
    second = Trainer("run", total_steps=9, **options).fit(Scored(*scores), RangeData(1))
    assert second.reason is StopReason.EARLY_STOP
    assert (second.state.epoch, second.state.best_score) == (3, 5.0)


def test_T9_a_validation_without_the_metric_does_not_count() -> None:
    outcome = Trainer("run", total_steps=6, **OPTIONS).fit(Scored(1.0, None, 0.0, None, 0.0), RangeData(1))
    assert outcome.reason is StopReason.EARLY_STOP
    assert outcome.state.validation_cycles == 5


def test_T9_a_model_that_judges_by_itself_is_asked_alone() -> None:
    outcome = Trainer("run", total_steps=4, **OPTIONS).fit(Improving(3.0, 2.0, 1.0, 0.0), RangeData(1))
    assert outcome.reason is StopReason.COMPLETED


def test_T9_early_stopping_that_nothing_judges_is_refused() -> None:
    options = {**OPTIONS, "best_metric": None}
    with pytest.raises(ConfigurationError, match=r"early_stop_cycles .* best_metric, or override .* in Scored"):
        Trainer("run", total_steps=4, **options).fit(Scored(), RangeData(1))
    Trainer("run", total_steps=1, **options).fit(Improving(1.0), RangeData(1))


def test_T9_a_state_of_before_there_was_a_best_score_is_read() -> None:
    state = TrainingState(epoch=3)
    older = {name: value for name, value in state.state_dict().items() if name != "best_score"}
    found = TrainingState(best_score=1.0)
    found.load_state_dict(older)
    assert found == state
