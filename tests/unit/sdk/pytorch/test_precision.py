"""Mixed precision, clipping and learning rates continue after a resume where they were."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.trained_models import SCHEDULERS, DigitsData, DigitsModel, Recipe, hash_state
from torch import nn

from proctor.sdk.pytorch import Model, Trainer, TrainingState


class Traced(DigitsModel):
    """Writes down the learning rate of each batch, and stops at a given batch."""

    transient = ("samples", "rates")

    def __init__(self, recipe: Recipe, stop_after: "int | None" = None) -> None:
        super().__init__(recipe)
        self.rates: list[float] = []
        self.stop_after = stop_after

    def on_training_batch_end(self, state: TrainingState, should_log: bool = False) -> None:
        self.rates.append(self.optimizer.param_groups[0]["lr"])

    def should_training_stop(self) -> bool:
        return len(self.rates) == self.stop_after


def train(recipe: Recipe, root: "Path | None", stop_after: "int | None" = None) -> Traced:
    """One incarnation, by iterations, and without noise on the way."""
    model = Traced(recipe, stop_after)
    options = {"train_unit": "iteration", "total_steps": 18, "use_cpu": True}
    Trainer("run", chkpt_root=root, **options).fit(model, DigitsData(recipe))  # type: ignore[arg-type]
    return model


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_T18_every_scheduler_goes_on_with_its_trace_after_a_resume(scheduler: str, tmp_path: Path) -> None:
    recipe = Recipe(scheduler=scheduler)
    reference = train(recipe, None)
    for stop in (1, 4, 5, 11):
        first = train(recipe, tmp_path / str(stop), stop)
        second = train(recipe, tmp_path / str(stop))
        assert first.rates + second.rates == reference.rates, stop
        assert hash_state(second.net.state_dict()) == hash_state(reference.net.state_dict())
    assert len(set(reference.rates)) > 1


class Hurried(Traced):
    """Takes its learning rate as a parameter that may be another one after a resume."""

    def __init__(self, rate: float, stop_after: "int | None" = None) -> None:
        super().__init__(Recipe(scheduler="lambda"), stop_after)
        self.rate = rate

    def on_training_start(self) -> None:
        self.scheduler.base_lrs = [self.rate]
        self.optimizer.param_groups[0]["lr"] = self.rate


def test_T18_a_learning_rate_that_is_set_when_training_starts_holds_after_a_resume_too(tmp_path: Path) -> None:
    rates = []
    for rate, stop_after in ((0.01, 4), (0.5, None)):
        model = Hurried(rate, stop_after)
        options = {"train_unit": "iteration", "total_steps": 8, "use_cpu": True, "chkpt_root": tmp_path}
        Trainer("run", **options).fit(model, DigitsData(model.recipe))  # type: ignore[arg-type]
        rates += model.rates
    assert rates[:4] == pytest.approx([0.01 * 0.97**step for step in range(1, 5)])
    assert rates[4:] == pytest.approx([0.5 * 0.97**step for step in range(5, 9)])


class Scaled(Model):
    """Has a gradient scaler that grows, and meets an overflow."""

    transient = ("trace",)

    def __init__(self, stop_after: "int | None" = None) -> None:
        self.stop_after = stop_after
        self.trace: list[dict[str, Any]] = []
        self.done = 0

    def setup(self) -> None:
        self.net = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1)
        self.amp_scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=3)

    def train_step(self, batch: Any, state: TrainingState) -> None:
        loss = self.net(batch.float().unsqueeze(1)).sum() * (float("inf") if state.global_iteration == 5 else 1.0)
        self.amp_scaler.scale(loss).backward()
        self.amp_scaler.step(self.optimizer)
        self.amp_scaler.update()
        self.optimizer.zero_grad()
        self.trace.append(self.amp_scaler.state_dict())
        self.done = state.global_iteration

    def should_training_stop(self) -> bool:
        return self.done == self.stop_after


def test_T16_scale_and_growth_go_on_after_a_resume(tmp_path: Path) -> None:
    from fakes.recording_model import RangeData

    def fit(root: "Path | None", stop: "int | None" = None) -> Scaled:
        model = Scaled(stop)
        trainer = Trainer("run", train_unit="iteration", total_steps=12, chkpt_root=root, use_cpu=True)
        trainer.fit(model, RangeData(7))
        return model

    reference = fit(None)
    assert len({line["scale"] for line in reference.trace}) > 2
    for stop in (2, 4, 5, 6, 9):
        first = fit(tmp_path / str(stop), stop)
        assert first.trace + fit(tmp_path / str(stop)).trace == reference.trace, stop


def test_T16_on_the_cpu_only_bfloat16_is_accepted() -> None:
    model = Model()
    model.device = torch.device("cpu")
    with pytest.raises(ValueError, match=r"bfloat16 only; found torch\.float16"):
        model.create_scaler()
    with model.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.float32
    assert not model.create_scaler(torch.bfloat16).is_enabled()
    with model.autocast():
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype is torch.bfloat16


@pytest.mark.parametrize("scaled", [False, True])
def test_T17_gradients_are_clipped_as_they_are_without_the_scale(scaled: bool) -> None:
    model = Model()
    model.device = torch.device("cpu")
    weight = nn.Parameter(torch.zeros(4))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    if scaled:
        model.amp_scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    loss = (weight * 3).sum()
    (model.amp_scaler.scale(loss) if scaled else loss).backward()
    assert float(model.clip_gradients([weight], optimizer, 1.0)) == 6.0
    assert weight.grad is not None
    assert float(weight.grad.norm()) == pytest.approx(1.0)
