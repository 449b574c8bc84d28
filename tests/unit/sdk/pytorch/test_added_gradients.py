"""Gradients that a model adds up by itself over a checkpoint, which holds none, are reported."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.recording_model import RangeData
from torch import nn

from proctor.sdk.pytorch import Model, NotExactError, NotExactWarning, Trainer, TrainingState


class Stepping(Model):
    """Makes its step in the way that a test gives."""

    def __init__(self, step: Any) -> None:
        self._step = step

    def setup(self) -> None:
        self.network = nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1)

    def train_step(self, batch: Any, state: TrainingState) -> None:
        loss = self.network(batch.float().unsqueeze(1) + 1).sum()
        self._step(self.optimizer, loss.backward, state)


def add_up(optimizer: torch.optim.Optimizer, backward: "Callable[[], None]", state: TrainingState) -> None:
    backward()
    if state.global_iteration % 2 == 0:
        optimizer.step()
        optimizer.zero_grad()


def clear_after(optimizer: torch.optim.Optimizer, backward: "Callable[[], None]", state: TrainingState) -> None:
    backward()
    optimizer.step()
    optimizer.zero_grad()


def clear_before(optimizer: torch.optim.Optimizer, backward: "Callable[[], None]", state: TrainingState) -> None:
    optimizer.zero_grad()
    backward()
    optimizer.step()


def fill_with_zeros_before(
    optimizer: torch.optim.Optimizer, backward: "Callable[[], None]", state: TrainingState
) -> None:
    optimizer.zero_grad(set_to_none=False)
    backward()
    optimizer.step()


def fit(root: Path, step: Any, **options: Any) -> None:
    common: dict[str, Any] = {"train_unit": "iteration", "chkpt_frequency": 1, "use_cpu": True}
    Trainer("run", total_steps=4, chkpt_root=root, **common, **options).fit(Stepping(step), RangeData(4))


def test_gradients_that_are_added_up_over_a_checkpoint_are_reported_once_and_refused_if_all_must_be_exact(
    tmp_path: Path,
) -> None:
    with pytest.warns(NotExactWarning, match="Stepping adds gradients up over a checkpoint") as told:
        fit(tmp_path / "told", add_up)
    assert len(told) == 1
    with pytest.raises(NotExactError, match="adds gradients up"):
        fit(tmp_path / "strict", add_up, strict_resume=True)


def test_gradients_that_are_cleared_at_each_batch_are_no_reason_to_warn(tmp_path: Path) -> None:
    for step in (clear_after, clear_before, fill_with_zeros_before):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fit(tmp_path / step.__name__, step)
