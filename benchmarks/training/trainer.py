"""The PyTorch trainer against a loop written by hand; what checkpoints cost; how soon a run continues."""

import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks import harness
from benchmarks.table import Row, spread
from benchmarks.trials import digits_cnn as digits
from proctor.sdk.pytorch import DataLoaderParams, DataModule, Model, Trainer, TrainingState

EPOCHS = 20
ROUNDS = 21  # the speed of a shared machine varies by more than what is to be seen
SAMPLES = 1_000_000
LONG_BATCH = 1_000
TARGET_LOOP = 0.97
TARGET_CHECKPOINTS = 0.95
TARGET_RESUME = 1.1


class Digits(DataModule):
    """The images of digits."""

    def setup(self) -> None:
        self.add_train_phase(digits.make_dataset(), DataLoaderParams(batch_size=digits.BATCH, shuffle=True))


class Network(Model):
    """The same network, optimizer and step as in the loop written by hand."""

    def setup(self) -> None:
        self.network = digits.make_network()
        self.optimizer = digits.make_optimizer(self.network)

    def train_step(self, batch: Any, state: TrainingState) -> None:
        digits.take_step(self.network, self.optimizer, batch)


class FirstBatch(Exception):
    """The first batch has come."""


class Numbers(DataModule):
    """A long epoch of numbers."""

    def setup(self) -> None:
        numbers = torch.utils.data.TensorDataset(torch.arange(SAMPLES, dtype=torch.float32).unsqueeze(1))
        self.add_train_phase(numbers, DataLoaderParams(batch_size=LONG_BATCH, shuffle=True))


class Line(Model):
    """A model as small as can be. With `leaves`, it ends the run at the first batch."""

    leaves = False

    def setup(self) -> None:
        self.network = torch.nn.Linear(1, 1)
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=1e-9)

    def train_step(self, batch: Any, state: TrainingState) -> None:
        if self.leaves:
            raise FirstBatch
        self.network(batch[0]).sum().backward()
        self.optimizer.step()


def trainer_rate(epochs: int, **options: Any) -> float:
    """Steps a second of the trainer, its own start and end included."""
    model, began = Network(), time.perf_counter()
    outcome = Trainer("digits", use_cpu=True, **options).fit(model, Digits())
    return outcome.state.global_iteration / (time.perf_counter() - began)


def take_turns(
    one: "Callable[[], float]", other: "Callable[[], float]", rounds: int
) -> "tuple[list[float], list[float]]":
    """What both give in so many rounds; in every second one the other begins, lest going first be a help."""
    found: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        turns = [(found[0], one), (found[1], other)]
        for values, measure_one in reversed(turns) if number % 2 else turns:
            values.append(measure_one())
    return found


def first_batch_seconds(root: Path, *, resume: bool, steps: int) -> float:
    """From calling `fit` to the first batch's step."""
    model = Line()
    model.leaves = True
    trainer = _long_trainer(root, resume=resume, total_steps=steps)
    began = time.perf_counter()
    try:
        trainer.fit(model, Numbers())
    except FirstBatch:
        return time.perf_counter() - began
    raise harness.BenchmarkError("the run ended without a batch")


def _long_trainer(root: Path, **options: Any) -> Trainer:
    settings: dict[str, Any] = {
        "chkpt_frequency": SAMPLES,
        "chkpt_root": root,
        "train_exceptions": (FirstBatch,),
    } | options
    return Trainer("numbers", train_unit="iteration", use_cpu=True, **settings)


def _loops(epochs: int, rounds: int) -> Row:
    by_hand, trained = take_turns(
        lambda: digits.train_by_hand(epochs), lambda: trainer_rate(epochs, total_steps=epochs), rounds
    )
    ratio = median(ours / plain for ours, plain in zip(trained, by_hand, strict=True))
    return Row(
        f"digits CNN, {epochs} epochs, no checkpoints",
        "a loop written by hand: " + spread(by_hand, " steps/s", 0),
        spread(trained, " steps/s", 0),
        f"{ratio:.3f}",
        f"≥ {TARGET_LOOP}",
        ratio >= TARGET_LOOP,
    )


def _checkpoints(epochs: int, rounds: int, folder: Path) -> Row:
    steps, numbers = epochs * -(-len(digits.make_dataset()) // digits.BATCH), count()
    options: dict[str, Any] = {"train_unit": "iteration", "total_steps": steps}
    without, with_them = take_turns(
        lambda: trainer_rate(epochs, **options),
        lambda: trainer_rate(epochs, chkpt_frequency=100, chkpt_root=folder / str(next(numbers)), **options),
        rounds,
    )
    ratio = median(some / none for some, none in zip(with_them, without, strict=True))
    return Row(
        "… with a checkpoint every 100 steps",
        "without: " + spread(without, " steps/s", 0),
        spread(with_them, " steps/s", 0),
        f"{ratio:.3f}",
        f"≥ {TARGET_CHECKPOINTS}",
        ratio >= TARGET_CHECKPOINTS,
    )


def _resume(rounds: int, folder: Path) -> Row:
    half = SAMPLES // LONG_BATCH // 2
    _long_trainer(folder, total_steps=half).fit(Line(), Numbers())
    fresh, resumed = [], []
    for _ in range(rounds):
        fresh.append(first_batch_seconds(folder, resume=False, steps=2 * half) * 1000)
        resumed.append(first_batch_seconds(folder, resume=True, steps=2 * half) * 1000)
    ratio = median(again / first for again, first in zip(resumed, fresh, strict=True))
    return Row(
        f"resume at half of an epoch of {SAMPLES:,} samples, until the first step",
        "a fresh start: " + spread(fresh, " ms"),
        spread(resumed, " ms"),
        f"{ratio:.2f}",
        f"≤ {TARGET_RESUME} ×",
        ratio <= TARGET_RESUME,
    )


def measure(quick: bool) -> list[Row]:
    """Three rows; each pair takes turns in one process, on one thread."""
    epochs, rounds = (2, 1) if quick else (EPOCHS, ROUNDS)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        trainer_rate(1, total_steps=1)  # what is imported lazily
        with harness.temporary_folder() as folder:
            return [
                _loops(epochs, rounds),
                _checkpoints(epochs, rounds, folder),
                _resume(rounds, folder / "long"),
            ]
    finally:
        torch.set_num_threads(threads)
