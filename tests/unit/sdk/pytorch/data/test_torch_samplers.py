"""Samplers of torch and of users, as they are: runs that are trained with them, stopped, and continued."""

import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from fakes.guide_samples import find_sample
from fakes.rank_scenarios import OneOf, Ragged
from fakes.recording_model import RecordingModel
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from proctor.sdk.pytorch import ConfigurationError, DataLoaderParams, DataModule, NotExactWarning, Trainer
from proctor.sdk.pytorch.config import Phase
from proctor.sdk.pytorch.data.module import ResumableLoader
from proctor.sdk.pytorch.distributed.ranks import Ranks

LENGTH = 23
WEIGHTS = [index % 4 / 2 for index in range(LENGTH)]


class Mixed(Sampler[int]):
    """Draws from every stream, and from a generator of its own; does not know its length."""

    def __init__(self) -> None:
        self.own = numpy.random.default_rng(3)

    def __iter__(self) -> Iterator[int]:
        yield random.randrange(LENGTH)
        yield int(numpy.random.randint(LENGTH))
        yield int(torch.randint(LENGTH, ()))
        yield from self.own.permutation(LENGTH)[: 5 + random.randrange(5)].tolist()


class Alternating(Sampler[int]):
    """Its order depends on the epoch that `set_epoch` named."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(range(LENGTH) if self.epoch % 2 else reversed(range(LENGTH)))


def pinned() -> torch.Generator:
    return torch.Generator().manual_seed(5)


FORMS: "dict[str, Callable[[], dict[str, Any]]]" = {
    "random": lambda: {"sampler": RandomSampler(range(LENGTH)), "batch_size": 4},
    "random, with a generator": lambda: {"sampler": RandomSampler(range(LENGTH), generator=pinned()), "batch_size": 4},
    "weighted": lambda: {"sampler": WeightedRandomSampler(WEIGHTS, 16), "batch_size": 3},
    "a subset": lambda: {"sampler": SubsetRandomSampler(range(3, 20)), "batch_size": 5, "drop_last": True},
    "distributed": lambda: {"sampler": DistributedSampler(range(LENGTH), 2, 1), "batch_size": 4},
    "batches": lambda: {"batch_sampler": BatchSampler(RandomSampler(range(LENGTH), generator=pinned()), 4, True)},
    "batches of one's own": lambda: {"batch_sampler": Ragged(LENGTH)},
    "one's own": lambda: {"sampler": Mixed(), "batch_size": 2},
    "told the epoch": lambda: {"sampler": Alternating(), "batch_size": 4},
    "a list": lambda: {"sampler": [5, 3, 1], "batch_size": 2},
    "in workers": lambda: {"sampler": RandomSampler(range(LENGTH), generator=pinned()), "num_workers": 1},
}


class Data(DataModule):
    def __init__(self, length: int = LENGTH, **params: Any) -> None:
        self.length = length
        self.params = DataLoaderParams(**params)

    def setup(self) -> None:
        self.add_train_phase(range(self.length), self.params)


def fit(root: "Path | None", data: DataModule, **options: Any) -> "list[list[int]]":
    model = RecordingModel(stop_after=options.pop("stop_after", None))
    Trainer("run", total_steps=3, chkpt_root=root, use_cpu=True, **options).fit(model, data)
    return model.batches


@pytest.mark.parametrize(
    "form", [pytest.param(one, marks=[pytest.mark.slow] if "work" in one else []) for one in FORMS]
)
def test_a_run_that_is_stopped_at_each_batch_goes_on_with_the_same_ones(form: str, tmp_path: Path) -> None:
    whole = fit(None, Data(**FORMS[form]()))
    stops = range(1, len(whole)) if form != "in workers" else (1, len(whole) // 2)
    found: list[list[int]] = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for stop in stops:
            found += fit(tmp_path, Data(**FORMS[form]()), stop_after=stop)
        assert found + fit(tmp_path, Data(**FORMS[form]())) == whole
    third = len(whole) // 3
    assert (whole[:third] == whole[-third:]) == (form in ("a list", "told the epoch"))  # others are drawn anew


@pytest.mark.parametrize("in_batches", [False, True])
def test_weights_that_change_between_epochs_are_saved(in_batches: bool, tmp_path: Path) -> None:
    class Mining(DataModule):
        def setup(self) -> None:
            self.draws = WeightedRandomSampler(WEIGHTS, 12)
            batches = {"batch_sampler": BatchSampler(self.draws, 4, False)}
            params = batches if in_batches else {"sampler": self.draws, "batch_size": 4}
            self.add_train_phase(range(LENGTH), DataLoaderParams(**params))

    class Miner(RecordingModel):
        def on_training_epoch_end(self, epoch: int) -> None:
            self.datamodule.draws.weights[:11] = 0.0
            self.datamodule.draws.num_samples += 4

    def start(root: "Path | None", stop_after: "int | None" = None) -> "list[list[int]]":
        model = Miner(stop_after=stop_after)
        Trainer("run", total_steps=3, chkpt_root=root, use_cpu=True).fit(model, Mining())
        return model.batches

    whole = start(None)
    assert len(whole) == 3 + 4 + 5
    for stop in (3, 5):
        assert start(tmp_path / str(stop), stop) + start(tmp_path / str(stop)) == whole, stop


def test_a_generator_of_the_dataset_is_not_the_samplers(tmp_path: Path) -> None:
    class Noisy(list[int]):
        def __init__(self) -> None:
            super().__init__(range(LENGTH))
            self.own = torch.Generator().manual_seed(1)

        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index) + int(torch.randint(1000, (), generator=self.own))

    class Own(DataModule):
        def setup(self) -> None:
            data = Noisy()
            self.add_train_phase(data, DataLoaderParams(sampler=RandomSampler(data), batch_size=4))

    whole = fit(None, Own())
    assert fit(tmp_path, Own(), stop_after=2) + fit(tmp_path, Own()) == whole


def test_a_loader_for_lightning_goes_on_in_an_order_of_the_samplers_generator() -> None:
    def make() -> ResumableLoader:
        return ResumableLoader(range(LENGTH), DataLoaderParams(**FORMS["random, with a generator"]()))

    whole = make()
    epochs = [[batch.tolist() for batch in whole] for _ in range(2)]
    stopped = make()
    list(stopped)
    second = iter(stopped)
    found = [next(second).tolist() for _ in range(2)]
    resumed = make()
    resumed.load_state_dict(stopped.state_dict())
    assert [*found, *(batch.tolist() for batch in resumed)] == epochs[1] != epochs[0]


def test_a_stream_is_none_for_a_loader_for_lightning() -> None:
    with pytest.raises(ConfigurationError, match="ResumableLoader reads data with indices; give a stream"):
        len(ResumableLoader({1, 2}, DataLoaderParams()))


def test_an_order_follows_the_runs_seed_or_the_samplers_generator() -> None:
    def draw(form: str, seed: int) -> "list[list[int]]":
        return fit(None, Data(**FORMS[form]()), random_seed=seed)

    assert draw("weighted", 1) != draw("weighted", 2)
    assert draw("random, with a generator", 1) == draw("random, with a generator", 2)


def test_an_order_is_drawn_from_other_streams_than_the_runs() -> None:
    class Drawing(RecordingModel):
        def on_training_end(self) -> None:
            self.drawn = [float(torch.rand(1)), random.random(), float(numpy.random.random())]

    models = [Drawing(), Drawing()]
    for model, params in zip(models, ({}, {"sampler": Mixed()}), strict=True):
        Trainer("run", total_steps=2, use_cpu=True).fit(model, Data(**params))
    assert models[0].drawn == models[1].drawn


def test_a_sampler_that_changes_as_it_is_read_is_reported(tmp_path: Path) -> None:
    class Shifting(Sampler[int]):
        shift = 0

        def __iter__(self) -> Iterator[int]:
            self.shift += 1
            return iter([(index + self.shift) % LENGTH for index in range(LENGTH)])

        def __len__(self) -> int:
            return LENGTH

    with pytest.warns(NotExactWarning, match=r"the sampler of training 0\.shift has changed in the middle of an epoch"):
        fit(tmp_path, Data(sampler=Shifting(), batch_size=4), stop_after=2)


def test_other_weights_are_told_at_a_resume(tmp_path: Path) -> None:
    fit(tmp_path, Data(**FORMS["weighted"]()), stop_after=1)
    other = Data(sampler=WeightedRandomSampler([1.0] * LENGTH, 16), batch_size=3)
    with pytest.warns(NotExactWarning, match="sampler's weights of training 0 was"):
        fit(tmp_path, other)


@pytest.mark.parametrize("params", [{"batch_size": 2}, {"shuffle": True}, {"drop_last": True}, {"sampler": [1]}])
def test_what_a_batch_sampler_decides_cannot_be_given_besides(params: "dict[str, Any]") -> None:
    with pytest.raises(ConfigurationError, match="batch_sampler makes the batches itself"):
        DataLoaderParams(batch_sampler=[[1]], **params)


class Endless(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        while True:
            yield 0


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"sampler": [[1]]}, r"list, which was given as sampler, gave \[1\]. Give it as batch_sampler"),
        ({"batch_sampler": [1]}, "gave 1. Give it as sampler"),
        ({"sampler": []}, "gives no batch"),
        ({"batch_sampler": Mixed.__mro__[1]()}, "NotImplementedError"),
        ({"batch_sampler": [[1], []]}, "found an empty one"),
        ({"batch_sampler": [[1, LENGTH]]}, "must give indices of the dataset, which has 23 samples; found 23"),
        ({"sampler": [1, -LENGTH - 1]}, "found -24"),
        ({"sampler": iter([1])}, "iterated anew for each epoch; found list_iterator"),
        ({"sampler": 3}, "found int"),
        ({"sampler": Endless()}, "Endless gave more than 10230 items for an epoch of 23 samples"),
        ({"batch_size": None}, "batch_size=None is for streams"),
    ],
)
def test_samplers_that_cannot_be_read_are_refused(params: "dict[str, Any]", told: str) -> None:
    with pytest.raises(RuntimeError, match=told):
        fit(None, Data(**params))


def open_ranks(count: int, make_params: "Callable[[], dict[str, Any]]", length: int = LENGTH) -> "list[Any]":
    """The loaders of so many ranks, at the beginning of their second epoch."""
    found = []
    for rank in range(count):
        data = Data(length, **make_params())
        data.bind(7, OneOf(rank, count) if count > 1 else Ranks())
        data.setup()
        found.append(data.open(Phase.TRAINING))
        found[-1].set_epoch(1)
    return found


@pytest.mark.parametrize("ranks", [2, 3, 5])
@pytest.mark.parametrize("form", ["weighted", "batches of one's own", "one's own", "random"])
def test_ranks_share_what_one_epoch_draws_and_know_what_is_repeated(form: str, ranks: int) -> None:
    (alone,) = open_ranks(1, FORMS[form])
    expected = Counter(index for batch in alone for index in batch.tolist())
    found, lengths = Counter[int](), set()
    for loader in open_ranks(ranks, FORMS[form]):
        batches = [batch.tolist() for batch in loader]
        assert len(batches) == loader.epoch_length
        lengths.add(len(batches))
        for step, batch in enumerate(batches):
            found.update(batch[: loader.count_real(step)])
    assert len(lengths) == 1
    assert found == expected


def test_a_sampler_that_deals_by_itself_is_taken_at_its_word() -> None:
    def read(ranks: int, sampler: Any) -> "list[Any]":
        loaders = open_ranks(ranks, lambda: {"sampler": sampler, "batch_size": 2}, 10)
        return [[batch.tolist() for batch in loader] for loader in loaders]

    assert read(2, SequentialSampler(range(5))) == [[[0, 2], [4]], [[1, 3], [0]]]
    assert read(2, DistributedSampler(range(10), 2, 1, shuffle=False)) == [[[1, 3], [5, 7], [9]]] * 2
    uneven = DistributedSampler(range(5), 2, 1, shuffle=False)
    (loader,) = open_ranks(1, lambda: {"sampler": uneven, "batch_size": 2}, 5)
    assert [batch.tolist() for batch in loader] == [[1, 3], [0]]
    assert [loader.count_real(step) for step in range(2)] == [2, 0]
    (loader,) = open_ranks(1, lambda: {"batch_sampler": BatchSampler(uneven, 2, False)}, 5)
    assert [batch.tolist() for batch in loader] == [[1, 3], [0]]


def test_ranks_that_do_not_share_the_data_have_each_all_of_it() -> None:
    for loader in open_ranks(2, lambda: {"batch_sampler": [[0], [1]], "is_distributed": False}):
        assert loader.epoch_length == 2


def test_the_buckets_of_the_guide_hold_texts_of_about_equal_length() -> None:
    names: dict[str, Any] = {}
    exec(find_sample("### Samplers"), names)
    lengths = [index * 37 % 101 for index in range(101)]
    sampler = names["Buckets"](lengths, 10)
    orders = []
    for _ in range(2):
        orders.append(list(sampler))
        assert sorted(index for batch in orders[-1] for index in batch) == list(range(101))
        assert all(max(lengths[i] for i in batch) - min(lengths[i] for i in batch) < 40 for batch in orders[-1])
    assert orders[0] != orders[1]
    assert fit(None, Data(101, batch_sampler=sampler)) != []
