"""Streams and loaders with a state: runs that are trained with them, stopped, and continued."""

import random
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from fakes.rank_scenarios import OneOf
from fakes.recording_model import RecordingModel
from fakes.trained_models import hash_state
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

from proctor.sdk.pytorch import (
    ConfigurationError,
    DataLoaderParams,
    DataModule,
    Model,
    NotExactWarning,
    Trainer,
    TrainingState,
)
from proctor.sdk.pytorch.config import Phase
from proctor.sdk.pytorch.data.streams import StreamLoader
from proctor.sdk.pytorch.distributed.ranks import Ranks
from proctor.sdk.pytorch.plain import open_run, remaining_batches, save_if_due

LENGTH = 10
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:'set_vital' is deprecated")


def draw(index: int) -> torch.Tensor:
    """A sample, disturbed by draws of every stream."""
    noise = [random.random(), float(numpy.random.random()), float(torch.rand(()))]
    return torch.tensor([index / LENGTH, *noise])


class Plain(IterableDataset):  # type: ignore[misc]
    """Shuffles anew in each pass, and splits itself over workers."""

    def __iter__(self) -> Iterator[Any]:
        order = list(range(LENGTH))
        random.shuffle(order)
        worker = torch.utils.data.get_worker_info()
        order = order if worker is None else order[worker.id :: worker.num_workers]
        return map(draw, order)


class Stateful:
    """No dataset of torch's: knows its position, has a generator, and counts what it has read."""

    def __init__(self) -> None:
        self.place = self.passes = self.told = 0
        self.generator = random.Random(4)
        self.order: list[int] = []

    def set_epoch(self, epoch: int) -> None:
        self.told = epoch

    def __iter__(self) -> Iterator[Any]:
        if not self.place:
            self.order = self.generator.sample(range(LENGTH), LENGTH - self.told % 3)
        while self.place < len(self.order):
            self.place += 1
            yield draw(self.order[self.place - 1]) + self.passes
        self.place, self.passes = 0, self.passes + 1

    def state_dict(self) -> "dict[str, Any]":
        version, words, rest = self.generator.getstate()
        return {"place": self.place, "passes": self.passes, "order": self.order, "words": [version, list(words), rest]}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        self.place, self.passes, self.order = state["place"], state["passes"], list(state["order"])
        version, words, rest = state["words"]
        self.generator.setstate((version, tuple(words), rest))


class Batched(Stateful):
    """Gives batches."""

    def __iter__(self) -> Iterator[Any]:
        return (torch.stack([sample, sample + 1]) for sample in super().__iter__())


class Indexed(Dataset[Any]):
    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> torch.Tensor:
        return draw(index)


def make_loader(**options: Any) -> Any:
    """Torchdata's own."""
    torchdata = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    return torchdata.StatefulDataLoader(batch_size=4, **options)


Named = tuple[Any, dict[str, Any]]  # a stream, and its parameters
SKIPPED = "is read again"
STREAMS: "dict[str, Callable[[], Named]]" = {
    "without a state": lambda: (Plain(), {"batch_size": 4}),
    "without a state, in workers": lambda: (Plain(), {"batch_size": 4, "num_workers": 2}),
    "with a state": lambda: (Stateful(), {"batch_size": 4}),
    "with a state, the rest dropped": lambda: (Stateful(), {"batch_size": 4, "drop_last": True}),
    "of batches": lambda: (Batched(), {"batch_size": None}),
    "a loader": lambda: (make_loader(dataset=Indexed(), shuffle=True), {}),
    "a loader of a stream": lambda: (make_loader(dataset=Plain()), {}),
}


class Streaming(DataModule):
    def __init__(self, make: "Callable[[], Named]") -> None:
        self.make = make

    def setup(self) -> None:
        dataset, params = self.make()
        self.add_train_phase(dataset, DataLoaderParams(**params))
        self.set_validation(*(dataset, DataLoaderParams(**params)) if isinstance(dataset, Plain) else ([1, 2],))


class Learner(Model):
    """Has dropout, and raises after so many batches, as if it had been killed."""

    transient = ("stop_after",)

    def __init__(self, stop_after: "int | None" = None) -> None:
        self.stop_after = stop_after

    def setup(self) -> None:
        self.network = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Linear(4, 1))
        self.optimizer = torch.optim.Adam(self.network.parameters(), 0.01)
        self.ends: list[int] = []

    def train_step(self, batch: Any, state: TrainingState) -> None:
        loss = self.network(batch.float()).square().mean()
        loss.backward()
        if state.optimizer_step_now:
            self.optimizer.step()
            self.optimizer.zero_grad()

    def valid_step(self, batch: Any, step: int) -> None:
        self.log({"seen": float(batch.sum())})

    def on_training_epoch_end(self, epoch: int) -> None:
        self.ends.append(self.trainer.state.global_iteration)

    def on_training_batch_end(self, state: TrainingState, should_log: bool = False) -> None:
        if state.global_iteration == self.stop_after:
            raise KeyboardInterrupt


def fit(root: Path, make: "Callable[[], Named]", stop_after: "int | None" = None, **options: Any) -> "list[Any]":
    """One start, and all that it came to."""
    model = Learner(stop_after)
    chosen = {"total_steps": 8, "chkpt_frequency": 1, "train_unit": "iteration", "valid_frequency": 3, **options}
    try:
        Trainer("run", use_cpu=True, chkpt_root=root, keep_last=1, **chosen).fit(model, Streaming(make))
    except KeyboardInterrupt:
        assert stop_after is not None
    return [hash_state([model.network.state_dict(), model.optimizer.state_dict()]), model.ends]


@pytest.mark.slow
@pytest.mark.parametrize("name", STREAMS)
@pytest.mark.parametrize("unit", ["iteration", pytest.param("epoch", marks=pytest.mark.thorough)])
def test_a_run_over_a_stream_that_is_stopped_anywhere_ends_with_the_same_weights(
    name: str, unit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"train_unit": unit, **({"total_steps": 3, "valid_frequency": 1} if unit == "epoch" else {})}
    make = STREAMS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotExactWarning)
        whole = fit(tmp_path / "whole", make, **options)
        for stop in (4, 6):  # behind the last batch of an epoch, and in the middle of one
            fit(tmp_path / str(stop), make, stop, **options)
            assert fit(tmp_path / str(stop), make, **options) == whole, f"stopped after {stop}"
    told = "batches are read again and passed over" in capsys.readouterr().err
    assert told == ((name.startswith("without") or name == "a loader of a stream") and unit == "iteration")


def test_a_request_to_stop_in_the_middle_of_an_epoch_is_met_in_the_unit_epoch_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {"train_unit": "epoch", "total_steps": 2, "valid_frequency": None}
    whole = fit(tmp_path / "whole", STREAMS["with a state"], **options)
    with monkeypatch.context() as patched:
        patched.setattr("proctor.sdk.pytorch.trial.should_stop", lambda: True)
        for _ in range(3):
            fit(tmp_path / "run", STREAMS["with a state"], **options)
    assert fit(tmp_path / "run", STREAMS["with a state"], **options) == whole
    assert "requested: epoch 1 of 2, batch 1, in" in capsys.readouterr().err  # of how many is not known


class Levels(Plain):
    """Has a level that a model raises, and a generator of its own."""

    def __init__(self) -> None:
        self.level, self.own = 0, random.Random(1)

    def __iter__(self) -> Iterator[Any]:
        return (sample + self.level + self.own.random() for sample in super().__iter__())


def test_what_reading_again_would_change_is_reported(tmp_path: Path) -> None:
    class Raising(Learner):
        def train_step(self, batch: Any, state: TrainingState) -> None:
            super().train_step(batch, state)
            self.datamodule.levels.level += 1

    class Data(DataModule):
        def setup(self) -> None:
            self.levels = Levels()
            self.add_train_phase(self.levels, DataLoaderParams(batch_size=4))

    options: dict[str, Any] = {"chkpt_root": tmp_path, "chkpt_frequency": 2, "use_cpu": True}
    with pytest.warns(NotExactWarning) as warned:
        Trainer("run", total_steps=2, train_unit="iteration", **options).fit(Raising(), Data())
    texts = "\n".join(str(warning.message) for warning in warned)
    assert "training 0 has a random generator of its own, and draws from it once more" in texts
    assert "the dataset of training 0.level has changed in the middle of an epoch" in texts


@pytest.mark.filterwarnings("ignore::proctor.sdk.pytorch.NotExactWarning")
def test_the_position_of_a_loader_with_workers_is_kept(tmp_path: Path) -> None:
    class Numbers(Indexed):
        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.full((4,), index / LENGTH)

    def make() -> Named:
        return make_loader(dataset=Numbers(), shuffle=True, num_workers=2), {}

    whole = fit(tmp_path / "whole", make)
    fit(tmp_path / "run", make, 6)
    assert fit(tmp_path / "run", make) == whole


@pytest.mark.parametrize("options", [{"num_workers": 1}, {"generator": torch.Generator()}])
def test_what_the_state_of_a_loader_does_not_hold_is_reported(options: "dict[str, Any]", tmp_path: Path) -> None:
    with pytest.warns(NotExactWarning, match="the state of the loader of training 0 holds neither what its workers"):
        fit(tmp_path, lambda: (make_loader(dataset=Indexed(), **options), {}), total_steps=1)


def test_a_loop_of_ones_own_goes_on_in_the_middle_of_a_stream(tmp_path: Path) -> None:
    def read(root: Path, count: int) -> "list[float]":
        dataset, params = STREAMS["with a state"]()
        options: dict[str, Any] = {"chkpt_root": root, "chkpt_frequency": 1, "use_cpu": True}
        seen: list[float] = []
        make = partial(dict, network=nn.Linear(1, 1))
        with open_run("run", make, dataset=dataset, params=DataLoaderParams(**params), **options) as run:
            while run.state.epoch < 2:
                for batch in remaining_batches(run):
                    seen.append(float(batch.sum()))
                    save_if_due(run)
                    if len(seen) == count:
                        return seen
        return seen

    whole = read(tmp_path / "whole", 99)
    assert read(tmp_path / "run", 4) + read(tmp_path / "run", 99) == whole
    assert len(whole) == 6


def refuse(dataset: Any, **params: Any) -> None:
    class Data(DataModule):
        def setup(self) -> None:
            self.add_train_phase(dataset, DataLoaderParams(**params))

    Trainer("run", total_steps=1, use_cpu=True).fit(RecordingModel(), Data())


@pytest.mark.parametrize(
    ("dataset", "params", "told"),
    [
        (DataLoader(range(3)), {}, "DataLoader does not know its position: give its dataset"),
        (iter([1]), {}, "found the iterator list_iterator"),
        (Plain(), {"shuffle": True}, "such as Plain, has an order of its own"),
        (Plain(), {"sampler": [1]}, "leave shuffle, sampler"),
        (Plain(), {"num_workers": 1, "persistent_workers": True}, "persistent_workers out"),
        (map(int, "123"), {}, "found the iterator map"),
        ({1, 2}, {"batch_sampler": [[1]]}, "such as set, has an order"),
        (3, {}, "a dataset must have __getitem__ and __len__, or be a stream.*found int"),
        (set(), {}, "set gave no batch in epoch 0. Each iteration of a stream must begin anew"),
    ],
)
def test_streams_that_cannot_be_read_are_refused(dataset: Any, params: "dict[str, Any]", told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        refuse(dataset, **params)


def test_a_loader_with_a_state_takes_no_parameters() -> None:
    with pytest.raises(ConfigurationError, match="makes the batches itself; leave DataLoaderParams out"):
        refuse(make_loader(dataset=Indexed()), batch_size=4)


@pytest.mark.parametrize("options", [{"train_unit": "epoch"}, {"train_unit": "iteration", "flush_at_epoch_end": True}])
def test_windows_that_must_end_with_an_epoch_are_refused(options: "dict[str, Any]", tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="accumulation_steps=3 needs to know which batch is the last"):
        fit(tmp_path, STREAMS["with a state"], accumulation_steps=3, **options)


def test_windows_may_span_epochs(tmp_path: Path) -> None:
    options = {"accumulation_steps": 4, "total_steps": 5, "valid_frequency": None}
    whole = fit(tmp_path / "whole", STREAMS["with a state"], **options)
    fit(tmp_path / "run", STREAMS["with a state"], 11, **options)
    assert fit(tmp_path / "run", STREAMS["with a state"], **options) == whole


def test_the_length_of_an_epoch_is_not_known() -> None:
    data = Streaming(STREAMS["with a state"])
    data.bind(0, Ranks())
    data.setup()
    with pytest.raises(ConfigurationError, match="its length is not known"):
        data.get_train_steps_per_epoch()
    assert data.count_real(Phase.TRAINING, 0) >= LENGTH


class Shorter(OneOf):
    """A rank of several, one of which ends after three batches."""

    asked = 0

    def any(self, flag: bool) -> bool:
        self.asked += 1
        return flag or self.asked > 3


def test_an_epoch_ends_for_all_ranks_where_the_first_has_no_batch_left() -> None:
    loader = StreamLoader(Stateful(), DataLoaderParams(batch_size=2), seed=0, ranks=Shorter(0, 2))
    assert len(list(loader)) == 3


def test_a_state_is_that_of_so_many_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fit(tmp_path, STREAMS["with a state"], 3)
    restored: list[Any] = []
    monkeypatch.setattr(DataModule, "restore_positions", lambda self, saved: restored.append(saved))
    monkeypatch.setattr(Ranks, "world_size", 2)
    monkeypatch.setattr(Ranks, "gather", lambda self, value: [value, value])
    monkeypatch.setattr("proctor.sdk.pytorch.snapshots.refuse_to_leave_behind", lambda *given: None)
    with pytest.warns(NotExactWarning, match="world size was 1, is 2"):
        fit(tmp_path, STREAMS["with a state"], 4)
    assert restored == [{}]
