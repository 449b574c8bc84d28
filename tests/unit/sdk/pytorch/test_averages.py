"""Means that are read seldom and cost nothing in between."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.recording_model import RangeData

from proctor.sdk.pytorch import Model, Trainer, TrainingState
from proctor.sdk.pytorch.distributed.ranks import Ranks
from proctor.sdk.pytorch.model import Averages


class Three(Ranks):
    """One of three ranks that have all added the same."""

    world_size = 3

    def sum(self, tensor: Any) -> Any:
        return tensor.mul_(3)


class Averaging(Model):
    """Averages its batches and leaves the logging to the trainer."""

    def __init__(self, stop_after: "int | None" = None) -> None:
        self.stop_after = stop_after
        self.done = 0

    def train_step(self, batch: Any, state: TrainingState) -> None:
        self.done = state.global_iteration
        self.average({"value": batch.double().mean(), "constant": 2}, weight=len(batch))

    def should_training_stop(self) -> bool:
        return self.done == self.stop_after


def fit(root: Path, stop_after: "int | None" = None) -> None:
    """A run that logs every fifth batch."""
    trainer = Trainer("run", total_steps=3, print_frequency=5, chkpt_root=root, use_cpu=True)
    trainer.fit(Averaging(stop_after), RangeData(13, batch_size=2, shuffle=True))


def read(root: Path) -> "list[Any]":
    """The history of the run."""
    lines = (root / "run" / "history.jsonl").read_text().splitlines()
    return [(row["step"], row["metrics"]) for row in map(json.loads, lines)]


def test_T15_adding_neither_waits_for_the_device_nor_for_other_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("the device was waited for")

    averages = Averages()
    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "__float__", "cpu"):
            patch.setattr(torch.Tensor, name, refuse)
        averages.add({"a": torch.tensor(1.0, requires_grad=True), "b": torch.tensor([3.0])})
        averages.add({"a": torch.tensor(2.0)}, weight=3)
    assert averages.read(Ranks()) == {"a": 1.75, "b": 3.0}
    assert averages.read(Ranks()) == {}


def test_T15_the_mean_is_over_all_ranks() -> None:
    averages = Averages()
    averages.add({"a": 4.0}, weight=2)
    assert averages.read(Three()) == {"a": 4.0}


def test_T15_by_default_means_are_logged_when_logging_is_due(tmp_path: Path) -> None:
    fit(tmp_path)
    rows = read(tmp_path)
    assert [step for step, _ in rows] == [5, 10, 15, 20]
    assert all(set(metrics) == {"value", "constant"} and metrics["constant"] == 2.0 for _, metrics in rows)


@pytest.mark.parametrize("stop", [3, 5, 8])
def test_T15_means_that_were_begun_before_a_pause_are_ended_after_it(stop: int, tmp_path: Path) -> None:
    fit(tmp_path / "whole")
    fit(tmp_path / "paused", stop)
    fit(tmp_path / "paused")
    assert read(tmp_path / "paused") == read(tmp_path / "whole")
