"""Small models and data whose every random draw shows in the weights: the subjects of the trainer's tests.

A sample is disturbed by draws from torch's, `random`'s and the package's NumPy stream, the networks have dropout, and
the identity of each sample that was trained on is recorded, so that a stream or a batch that goes wrong is seen.
"""

import hashlib
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from fakes.watches import Watch, pass_by
from torch import nn
from torch.utils.data import IterableDataset, RandomSampler

from proctor.sdk.pytorch import (
    DataLoaderParams,
    DataModule,
    Model,
    TrainingState,
    get_default_numpy_rng,
    get_ranks,
    wrap_for_ranks,
)

SAMPLES = 22  # no multiple of a batch: the last one is smaller


@dataclass(frozen=True)
class Recipe:
    """What a cell of the kill matrix trains, and how."""

    model: str = "cnn"
    unit: str = "epoch"
    shuffle: bool = True
    workers: int = 0
    persistent: bool = False
    accumulation: int = 1
    amp: bool = False
    scheduler: str = "step"
    phases: int = 1
    validation: bool = True
    flush: bool = False
    pause_seconds: float = 0.0  # for each sample, so that a run takes a while
    processes: int = 1
    samples: int = SAMPLES
    form: str = ""  # of the data: "sampler", "stream", "stream with a state"; else indices

    def options(self) -> "dict[str, Any]":
        """The options of the trainer: three epochs, or as many steps as they have."""
        by_epoch = self.unit == "epoch"
        return {
            "train_unit": self.unit,
            "total_steps": 3 if by_epoch else max(3, 18 // self.accumulation),
            "chkpt_frequency": 1 if by_epoch else 2,
            "valid_frequency": (1 if by_epoch else 3) if self.validation else None,
            "accumulation_steps": self.accumulation,
            "flush_at_epoch_end": self.flush,
            "use_cpu": True,
            "processes": self.processes,
            "enable_progress_bar": False,
        }


class DisturbedDigits:
    """Images of 8 x 8 with a class, disturbed anew each time one is read."""

    def __init__(self, samples: int = SAMPLES, first: int = 0, *, pause_seconds: float = 0.0) -> None:
        generator = torch.Generator().manual_seed(7)
        self.images = torch.rand(200, 1, 8, 8, generator=generator)[first : first + samples]
        self.labels = torch.randint(0, 10, (200,), generator=generator)[first : first + samples]
        self.first = first
        self.pause_seconds = pause_seconds

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> "tuple[Any, Any, int]":
        if self.pause_seconds:
            time.sleep(self.pause_seconds)
        noise = 0.1 * torch.rand(1, 8, 8) + 0.1 * random.random() + 0.1 * float(get_default_numpy_rng().random())
        return self.images[index] + noise, self.labels[index], self.first + index


class DigitStream(IterableDataset):  # type: ignore[misc]
    """The same in an order that is drawn in each pass; each rank has fewer than the one before."""

    def __init__(self, data: DisturbedDigits) -> None:
        self.data = data

    def __iter__(self) -> "Iterator[Any]":
        return (self.data[index] for index in self.draw())

    def draw(self) -> "list[int]":
        order, ranks = random.sample(range(len(self.data)), len(self.data)), get_ranks()
        share = order[ranks.rank :: ranks.world_size]
        return share[: len(share) - 4 * ranks.rank]


class KeptStream(DigitStream):
    """Knows its place."""

    def __init__(self, data: DisturbedDigits) -> None:
        super().__init__(data)
        self.order: list[int] = []

    def __iter__(self) -> "Iterator[Any]":
        self.order = self.order or self.draw()
        while self.order:
            yield self.data[self.order.pop()]

    def state_dict(self) -> "dict[str, Any]":
        return {"order": list(self.order)}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        self.order = list(state["order"])


class DigitsData(DataModule):
    """One or two phases of training data, and data to validate on."""

    def __init__(self, recipe: Recipe = Recipe(), batch_size: int = 4) -> None:
        self.recipe = recipe
        self.batch_size = batch_size

    def setup(self) -> None:
        for phase in range(self.recipe.phases):
            data = DisturbedDigits(self.recipe.samples, 50 * phase, pause_seconds=self.recipe.pause_seconds)
            self.add_train_phase(*self._shape(data))
        self.set_validation(DisturbedDigits(10, first=150), self._params(False))
        self.set_testing(DisturbedDigits(10, first=160), self._params(False))

    def _shape(self, data: DisturbedDigits) -> "tuple[Any, DataLoaderParams]":
        if self.recipe.form == "sampler":
            draws = RandomSampler(data, replacement=True, generator=torch.Generator().manual_seed(5))
            return data, DataLoaderParams(sampler=draws, batch_size=self.batch_size, num_workers=self.recipe.workers)
        if self.recipe.form:
            make = KeptStream if self.recipe.form == "stream with a state" else DigitStream
            return make(data), DataLoaderParams(batch_size=self.batch_size, num_workers=self.recipe.workers)
        return data, self._params(self.recipe.shuffle)

    def _params(self, shuffle: bool) -> DataLoaderParams:
        return DataLoaderParams(
            batch_size=self.batch_size,
            shuffle=shuffle,
            num_workers=self.recipe.workers,
            persistent_workers=self.recipe.persistent,
        )


class DigitsModel(Model):
    """A classifier with dropout.

    :param watch: called with a place and its number at each passage.
    :param sample_file: with the rank as its suffix, gets a line for each batch: its number and its samples.
    """

    transient = ("samples", "watch")  # of this start alone; the watch of one before has counted other passages

    def __init__(
        self,
        recipe: Recipe = Recipe(),
        watch: Watch = pass_by,
        sample_file: "Path | None" = None,
    ) -> None:
        self.recipe = recipe
        self.watch = watch
        self.sample_file = sample_file
        self.samples: list[list[int]] = []
        self.valid_losses: list[float] = []

    def setup(self) -> None:
        network = (_make_cnn() if self.recipe.model == "cnn" else TinyTransformer()).to(self.device)
        self.net = wrap_for_ranks(network, self.ranks)
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.01)
        self.scheduler = SCHEDULERS[self.recipe.scheduler](self.optimizer)
        if self.recipe.amp:
            self.create_scaler(torch.bfloat16)

    def train_step(self, batch: Any, state: TrainingState) -> None:
        self.samples.append(batch[2].tolist())
        if self.sample_file is not None:
            with open(f"{self.sample_file}.{self.ranks.rank}", "a") as file:
                file.write(f"{state.global_iteration} {self.samples[-1]}\n")
        self.watch("batch", state.global_iteration)
        with self.autocast():
            loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        loss.backward()
        self.watch("backward", state.global_iteration)
        self.log({"loss": loss})
        if state.optimizer_step_now:
            self.clip_gradients(self.net.parameters(), self.optimizer, 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            judged = self.ranks.sum(loss.detach().clone())  # all ranks decide alike
            self.scheduler.step(*([float(judged)] if self.recipe.scheduler == "plateau" else []))
            self.watch("step", state.global_iteration)

    def on_training_epoch_end(self, epoch: int) -> None:
        self.watch("epoch end", epoch)

    def on_training_end(self) -> None:
        self.watch("training end", 1)

    def on_validation_start(self, validation_cycle: int) -> None:
        self.valid_losses = []

    def valid_step(self, batch: Any, step: int) -> None:
        self.watch("validation", step)
        self.valid_losses.append(nn.functional.cross_entropy(self.net(batch[0]), batch[1]).item())

    def on_validation_end(self, validation_cycle: int) -> None:
        self.log({"valid_loss": sum(self.valid_losses) / len(self.valid_losses)})

    def should_advance_dataset_phase(self, state: TrainingState) -> bool:
        return state.global_iteration >= 7


class TinyTransformer(nn.Module):
    """The rows of an image as a sequence of eight tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, dim_feedforward=16, dropout=0.2, batch_first=True)
        self.head = nn.Linear(16, 10)

    def forward(self, images: Any) -> Any:
        return self.head(self.layer(self.embed(images.squeeze(1))).mean(1))


def _make_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.3),
        nn.Linear(4 * 6 * 6, 10),
    )


_rates = torch.optim.lr_scheduler
SCHEDULERS: "dict[str, Callable[[Any], Any]]" = {
    "step": lambda optimizer: _rates.StepLR(optimizer, 5, gamma=0.7),
    "multi step": lambda optimizer: _rates.MultiStepLR(optimizer, [4, 9]),
    "one cycle": lambda optimizer: _rates.OneCycleLR(optimizer, 0.02, total_steps=60),
    "cosine restarts": lambda optimizer: _rates.CosineAnnealingWarmRestarts(optimizer, 4),
    "plateau": lambda optimizer: _rates.ReduceLROnPlateau(optimizer, patience=1),
    "warm-up, then cosine": lambda optimizer: _rates.SequentialLR(
        optimizer,
        [_rates.LinearLR(optimizer, 0.1, total_iters=4), _rates.CosineAnnealingLR(optimizer, 12)],
        milestones=[4],
    ),
    "chained": lambda optimizer: _rates.ChainedScheduler(
        [_rates.ConstantLR(optimizer, 0.5, total_iters=5), _rates.ExponentialLR(optimizer, 0.95)]
    ),
    "lambda": lambda optimizer: _rates.LambdaLR(optimizer, lambda step: 0.97**step),
    "cyclic": lambda optimizer: _rates.CyclicLR(optimizer, 0.001, 0.01, step_size_up=3, cycle_momentum=False),
}


def hash_state(value: Any) -> str:
    """The SHA-256 of a tree of tensors and plain values, to the last bit."""
    digest = hashlib.sha256()
    _feed(digest.update, value)
    return digest.hexdigest()


def _feed(update: "Callable[[bytes], None]", value: Any) -> None:
    if isinstance(value, torch.Tensor):
        update(f"{value.dtype}{tuple(value.shape)}".encode())
        update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, Mapping):
        for key in value:
            update(repr(key).encode())
            _feed(update, value[key])
    elif isinstance(value, (list, tuple)):
        for item in value:
            _feed(update, item)
    else:
        update(repr(value).encode())
