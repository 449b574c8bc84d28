"""What datasets, samplers, collate functions, data modules, callbacks and optimizers keep is restored by a resume."""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from fakes.trained_models import hash_state
from torch import nn
from torch.utils.data import Sampler, Subset

from proctor.sdk.pytorch import (
    ConfigurationError,
    DataLoaderParams,
    DataModule,
    Model,
    NotExactWarning,
    Plugin,
    Trainer,
    TrainingState,
)

SAMPLES = 12


class Hard:
    """Samples that count how often they were read, and have weights and a level that others change."""

    transient = ("folder",)

    def __init__(self) -> None:
        self.level = 1
        self.weights = torch.ones(SAMPLES)
        self.reads: dict[int, int] = {}
        self.folder = ["begins anew"]

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        self.reads[index] = self.reads.get(index, 0) + 1
        self.folder.append("x")
        return self.weights[index] * torch.tensor([index / SAMPLES, self.level, self.reads[index], numpy.random.rand()])


class Shifted(Sampler[int]):
    """An order that is turned round by what it has learned."""

    def __init__(self) -> None:
        self.shift = 0

    def __iter__(self) -> "Iterator[int]":
        return iter([(index + self.shift) % SAMPLES for index in range(SAMPLES)])

    def __len__(self) -> int:
        return SAMPLES


class Noise:
    """Collates, and adds what it has added up."""

    def __init__(self) -> None:
        self.total = 0.0

    def collate(self, samples: "list[torch.Tensor]") -> torch.Tensor:
        self.total += 0.1
        return torch.stack(samples) + self.total


class Habits(DataModule):
    """A dataset that torch's `Subset` holds, and a counter.

    :param workers: how many processes read.
    """

    def __init__(self, workers: int = 0) -> None:
        self.workers = workers
        self.rounds = 0

    def setup(self) -> None:
        self.hard, self.noise = Hard(), Noise()
        self.order = Shifted()
        params = DataLoaderParams(
            batch_size=4, sampler=self.order, collate_fn=self.noise.collate, num_workers=self.workers
        )
        self.add_train_phase(Subset(self.hard, range(SAMPLES)), params)

    def show(self) -> Any:
        main = [] if self.workers else [self.hard.reads, self.noise.total]
        return [self.rounds, self.hard.level, self.hard.weights.tolist(), self.order.shift, *main]


class Patience(Plugin):
    """Counts batches without a smaller loss, as people's own early stopping does."""

    def __init__(self) -> None:
        super().__init__("patience")
        self.best: float | None = None
        self.waits: list[int] = []

    def setup(self, model: Model) -> None:
        self.model = model

    def on_training_batch_end(self, state: TrainingState) -> None:
        loss = float(self.model.loss)  # type: ignore[attr-defined]
        if self.best is None or loss < self.best:
            self.best = loss
        else:
            self.waits.append(state.global_iteration)


class Counting(torch.optim.SGD):
    """An optimizer that makes smaller steps, by a count of its own."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1, momentum=0.9)
        self.count = 0

    def step(self, closure: Any = None) -> Any:
        self.count += 1
        for group in self.param_groups:
            group["lr"] = 0.1 / self.count
        return super().step(closure)


class Teacher(Model):
    """Changes the data that it learns from.

    :param stop_after: the number of batches after which this start ends, as if it had been killed.
    """

    transient = ("stop_after",)

    def __init__(self, stop_after: "int | None" = None) -> None:
        self.stop_after = stop_after

    def setup(self) -> None:
        self.network = nn.Linear(4, 1)
        self.optimizer = Counting(self.network.parameters())

    def train_step(self, batch: Any, state: TrainingState) -> None:
        self.loss = self.network(batch.float()).square().mean()
        self.loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.loss = self.loss.detach()
        data: Any = self.datamodule
        data.rounds += 1
        data.hard.weights[state.global_iteration % SAMPLES] *= 1.5
        if state.global_iteration % 3 == 0:
            data.hard.level, data.order.shift = data.hard.level + 1, data.order.shift + 5

    def on_training_batch_end(self, state: TrainingState, should_log: bool = False) -> None:
        if state.global_iteration == self.stop_after:
            raise KeyboardInterrupt


def fit(root: Path, stop_after: "int | None" = None, workers: int = 0) -> "list[Any]":
    """One start, and all that it came to."""
    model, data, patience = Teacher(stop_after), Habits(workers), Patience()
    trainer = Trainer(
        "run", use_cpu=True, chkpt_root=root, total_steps=3, chkpt_frequency=1, callbacks=[patience], train_unit="epoch"
    )
    try:
        trainer.fit(model, data)
    except KeyboardInterrupt:
        assert stop_after is not None
    weights = hash_state([model.network.state_dict(), model.optimizer.state_dict()])
    return [weights, model.optimizer.count, *data.show(), patience.best, patience.waits]


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_what_data_callbacks_and_optimizers_keep_goes_on(workers: int, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = fit(tmp_path / "whole", workers=workers)
        for stop in (4, 7):
            fit(tmp_path / str(stop), stop, workers)
            assert fit(tmp_path / str(stop), workers=workers) == whole, f"stopped after {stop}"
    assert whole[2:4] == [9, 4]


def test_a_dataset_that_keeps_more_than_a_checkpoint_should_hold_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proctor.sdk.pytorch.checkpoints.values._LARGEST_BYTES", 20)
    with pytest.warns(NotExactWarning) as told:
        fit(tmp_path)
    texts = "\n".join(str(warning.message) for warning in told)
    assert "the dataset of training 0.dataset.reads has changed since training began and is a value of 0 MiB" in texts
    assert "folder" not in texts  # transient


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "the sampler of training 0.shift has changed in the middle of an epoch"),
        pytest.param(
            {"num_workers": 1},
            "the dataset of training 0.dataset.level has changed in the middle of an epoch",
            marks=pytest.mark.thorough,
        ),
        pytest.param(
            {"num_workers": 1, "persistent_workers": True},
            "the dataset of training 0.dataset.level has changed since training began, and persistent workers",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_what_changes_after_a_copy_of_it_was_made_to_read_with_is_reported(
    options: "dict[str, Any]", told: str, tmp_path: Path
) -> None:
    class Data(DataModule):
        def setup(self) -> None:
            self.hard, self.order = Hard(), Shifted()
            params = DataLoaderParams(batch_size=4, sampler=self.order, **options)
            self.add_train_phase(Subset(self.hard, range(SAMPLES)), params)

    class Shifting(Model):
        def setup(self) -> None:
            self.network = nn.Linear(1, 1)

        def train_step(self, batch: Any, state: TrainingState) -> None:
            data: Any = self.datamodule
            data.hard.level, data.order.shift = data.hard.level + 1, data.order.shift + 1

    common: dict[str, Any] = {"use_cpu": True, "train_unit": "iteration", "chkpt_frequency": 2, "chkpt_root": tmp_path}
    with pytest.warns(NotExactWarning) as warned:
        Trainer("run", total_steps=2, **common).fit(Shifting(), Data())
    assert told in "\n".join(str(warning.message) for warning in warned)


class Inner(Model):
    """An optimizer that makes its steps by another one, which has a state."""

    def setup(self) -> None:
        self.network = nn.Linear(1, 1)
        self.optimizer = Counting(self.network.parameters())
        self.optimizer.base = torch.optim.Adam(self.network.parameters())  # type: ignore[attr-defined]

    def train_step(self, batch: Any, state: TrainingState) -> None:
        raise AssertionError("the run was to be refused")


def test_an_optimizer_inside_an_optimizer_is_refused_unless_it_is_an_attribute_too(tmp_path: Path) -> None:
    class Named(Inner):
        def setup(self) -> None:
            super().setup()
            self.base = self.optimizer.base

        def train_step(self, batch: Any, state: TrainingState) -> None:
            pass

    trainer = Trainer("run", use_cpu=True, chkpt_root=tmp_path, total_steps=1)
    with pytest.raises(ConfigurationError, match=r"Inner\.optimizer holds .* that no checkpoint would hold"):
        trainer.fit(Inner(), Habits())
    trainer.fit(Named(), Habits())
