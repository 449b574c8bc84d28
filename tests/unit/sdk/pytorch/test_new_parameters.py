"""A trial that continues from the checkpoint of one with other parameters trains with its own."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.attempts import begin_attempt
from fakes.recording_model import RangeData
from fakes.trained_models import SCHEDULERS, hash_state

import proctor
from proctor.sdk.checkpoints.saving import find_newest_checkpoint
from proctor.sdk.pytorch import Model, Outcome, Trainer, TrainerError, TrainingState

STEPS, LEFT_AFTER = 12, 6
DEFAULTS = {"lr": 0.1, "decay": 0.0, "gamma": 0.7, "size": 1}


class Net(Model):
    """Takes everything from the trial's parameters; notes the learning rate of each batch."""

    transient = ("rates", "called")

    def __init__(self, scheduler: str = "step", *, stop: bool = False) -> None:
        self.scheduler_name, self.stop = scheduler, stop
        self.rates: list[float] = []
        self.called: list[Any] = []

    def setup(self) -> None:
        given = DEFAULTS | proctor.get_next_parameter()
        self.net = torch.nn.Linear(1, given["size"])
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=given["lr"], weight_decay=given["decay"])
        self.scheduler = SCHEDULERS[self.scheduler_name](self.optimizer)
        if self.scheduler_name == "step":
            self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=given["gamma"])

    def train_step(self, batch: Any, state: TrainingState) -> None:
        self.rates.append(self.optimizer.param_groups[0]["lr"])
        torch.nn.functional.dropout(self.net(batch.float().reshape(-1, 1))).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.scheduler.step(*([1.0] if self.scheduler_name == "plateau" else []))

    def should_training_stop(self) -> bool:
        return self.stop and len(self.rates) == LEFT_AFTER

    def on_parameters_changed(self, before: Any, now: Any) -> None:
        super().on_parameters_changed(before, now)
        self.called.append((before, now))


def fit(model: Model) -> Outcome:
    return Trainer("run", train_unit="iteration", total_steps=STEPS, chkpt_frequency=3, use_cpu=True).fit(
        model, RangeData(4)
    )


Begin = Callable[..., Path]


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Begin:
    """Begin an attempt of the trial of this name; the trial's folder and parameters follow from it."""

    def begin(trial: str, parameters: "dict[str, Any] | None" = None, *, resume: "Path | None" = None) -> Path:
        newest = None if resume is None else find_newest_checkpoint(str(resume))
        job = tmp_path / f"{trial}.{len(list(tmp_path.glob(f'{trial}.*')))}"
        begin_attempt(monkeypatch, job, resume=newest, trial=trial, parameters=parameters or {})
        return job

    return begin


def train_donor(begin: Begin, scheduler: str = "step") -> Path:
    job = begin("donor")
    fit(Net(scheduler, stop=True))
    return job


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_clone_continues_at_the_same_share_of_its_own_learning_rate(begin: Begin, name: str) -> None:
    begin("whole")
    fit(whole := Net(name))
    donor = train_donor(begin, name)
    begin("clone", {"lr": 0.02}, resume=donor)
    fit(clone := Net(name))
    share = 1.0 if name in ("one cycle", "cyclic") else 0.2  # these two have rates of their own
    assert clone.rates == pytest.approx([rate * share for rate in whole.rates[LEFT_AFTER:]])
    assert clone.scheduler.get_last_lr() == [clone.optimizer.param_groups[0]["lr"]]


def test_optimizer_and_scheduler_take_over_what_setup_gives_otherwise(
    begin: Begin, capsys: pytest.CaptureFixture[str]
) -> None:
    donor = train_donor(begin)
    begin("clone", {"decay": 0.5, "gamma": 0.1}, resume=donor)
    fit(clone := Net())
    assert clone.optimizer.param_groups[0]["weight_decay"] == 0.5
    present = 0.1 * 0.7**3  # the donor's steps stay
    assert clone.rates == pytest.approx([present, present, present / 10, present / 10, present / 100, present / 100])
    told = capsys.readouterr().err.splitlines()
    assert "; the trial has other parameters: decay was None, is 0.5, gamma was None, is 0.1" in told[-2]
    changes = "optimizer: weight_decay was 0.0, is 0.5; scheduler: gamma was 0.7, is 0.1"
    assert told[-1] == f"proctor: run run has other parameters; {changes}"


def test_a_changed_learning_rate_is_said(begin: Begin, capsys: pytest.CaptureFixture[str]) -> None:
    donor = train_donor(begin)
    begin("clone", {"lr": 0.02}, resume=donor)
    fit(Net())
    told = capsys.readouterr().err.splitlines()[-1]
    assert told.endswith("optimizer: the learning rate begins at 0.02 instead of 0.1 and is 0.00686 now")


def test_a_clone_with_the_donors_parameters_is_exact_and_so_is_the_resume_of_any_clone(begin: Begin) -> None:
    def clone(trial: str, *stops: bool, **parameters: Any) -> str:
        job = donor
        for stop in stops:
            job = begin(trial, parameters, resume=job)
            fit(model := Net(stop=stop))
            assert len(model.called) == (parameters != {} and stop is stops[0])
        return hash_state([model.net.state_dict(), model.optimizer.state_dict(), model.scheduler.state_dict()])

    begin("whole")
    fit(whole := Net())
    donor = begin("donor")
    model = Net()
    model.should_training_stop = lambda: len(model.rates) == 3  # type: ignore[method-assign]
    fit(model)
    expected = hash_state([whole.net.state_dict(), whole.optimizer.state_dict(), whole.scheduler.state_dict()])
    assert clone("same", False) == expected
    assert clone("same in two", True, False) == expected
    assert clone("other", False, lr=0.02) == clone("other in two", True, False, lr=0.02) != expected


def test_the_hook_gets_both_parameters_when_everything_is_restored(begin: Begin) -> None:
    class Own(Net):
        def on_parameters_changed(self, before: Any, now: Any) -> None:
            self.called.append((before, now, len(self.optimizer.state), self.optimizer.param_groups[0]["lr"]))

    donor = train_donor(begin)
    begin("clone", {"lr": 0.02}, resume=donor)
    fit(model := Own())
    assert model.called == [({}, {"lr": 0.02}, 2, pytest.approx(0.1 * 0.7**3))]
    assert model.rates[0] == pytest.approx(0.1 * 0.7**3)  # without super() it stays


def test_parameters_that_make_another_network_are_refused_by_name(begin: Begin) -> None:
    donor = train_donor(begin)
    begin("clone", {"size": 2}, resume=donor)
    with pytest.raises(TrainerError, match=r"saved with other parameters \(size was None, is 2\) and does not fit"):
        fit(Net())


def test_a_rate_in_a_tensor_is_taken_over_in_place(begin: Begin) -> None:
    class Capturable(Net):
        def setup(self) -> None:
            super().setup()
            rate = torch.tensor((DEFAULTS | proctor.get_next_parameter())["lr"])
            self.optimizer = torch.optim.Adam(self.net.parameters(), lr=rate)
            self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.7)

    donor = begin("donor")
    fit(Capturable(stop=True))
    begin("clone", {"lr": 0.02}, resume=donor)
    fit(clone := Capturable())
    rate = clone.optimizer.param_groups[0]["lr"]
    assert isinstance(rate, torch.Tensor)
    assert rate.item() == pytest.approx(0.02 * 0.7**6)
