"""Loaders: their parts, the draws of their workers, rows of tensors that are read at once, batches that move."""

import random
from collections import UserDict, namedtuple
from dataclasses import dataclass, fields
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence
from torch.utils.data import DataLoader, RandomSampler, SequentialSampler, Subset, TensorDataset

from proctor.sdk.pytorch import (
    ConfigurationError,
    DataLoaderParams,
    get_default_numpy_rng,
    seed_rngs,
)
from proctor.sdk.pytorch.data.loaders import EpochLoader, find_rows, move_to
from proctor.sdk.pytorch.distributed.ranks import Ranks

# there may be fewer processors than workers
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Drawing:
    """A dataset whose samples are draws of every stream."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        import numpy

        draws = [float(torch.rand(1)), random.random(), float(get_default_numpy_rng().random()), numpy.random.random()]
        return torch.tensor([float(index), *draws], dtype=torch.float64)


def open_loader(dataset: Any, sampler: Any, *, seed: int = 0, **params: Any) -> EpochLoader:
    return EpochLoader(dataset, DataLoaderParams(**params), sampler, seed=seed, ranks=Ranks(), worker_seed=seed)


def make_loader(dataset: Any = None, *, seed: int = 3, **params: Any) -> EpochLoader:
    """Batches of two, shuffled."""
    dataset = Drawing() if dataset is None else dataset
    return open_loader(dataset, RandomSampler(dataset), seed=seed, batch_size=2, **params)


def read(loader: EpochLoader, epoch: int, start: int = 0) -> "list[Any]":
    """The rest of an epoch."""
    loader.set_epoch(epoch, start)
    return [batch.tolist() for batch in loader]


def test_D7_the_defaults_are_the_documented_ones() -> None:
    assert {field.name: field.default for field in fields(DataLoaderParams)} == {
        "batch_size": 1,
        "shuffle": False,
        "num_workers": 0,
        "pin_memory": False,
        "drop_last": False,
        "is_distributed": None,
        "sampler": None,
        "batch_sampler": None,
        "collate_fn": None,
        "prefetch_factor": None,
        "persistent_workers": False,
        "timeout": 0,
        "multiprocessing_context": None,
        "worker_init_fn": None,
        "random_seed": None,
    }


def test_D8_the_length_is_what_is_left_of_the_epoch() -> None:
    dataset = range(23)
    loader = open_loader(dataset, SequentialSampler(dataset), batch_size=4)
    for epoch, start in ((0, 0), (0, 2), (0, 5), (0, 6), (1, 0)):
        loader.set_epoch(epoch, start)
        assert len(loader) == 6 - start == len(list(loader))
        assert loader.epoch_length == 6


def test_D13_iterating_draws_nothing_from_the_global_streams() -> None:
    loader = make_loader(range(12))
    torch.manual_seed(1)
    expected = float(torch.rand(1))
    torch.manual_seed(1)
    read(loader, 0)
    read(loader, 1, 3)
    assert float(torch.rand(1)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("persistent", [False, True])
def test_D14_workers_draw_the_same_for_a_batch_however_it_is_reached(workers: int, persistent: bool) -> None:
    reference = make_loader(num_workers=1)
    epochs = [read(reference, epoch) for epoch in range(3)]
    loader = make_loader(num_workers=workers, persistent_workers=persistent)
    assert read(loader, 1, 2) == epochs[1][2:]
    assert read(loader, 2) == epochs[2]
    assert read(loader, 0, 5) == epochs[0][5:]
    drawn = [tuple(sample[1:]) for epoch in epochs for batch in epoch for sample in batch]
    assert len(set(drawn)) == len(drawn)


def test_D14_batches_that_were_fetched_ahead_and_never_used_change_nothing() -> None:
    expected = read(make_loader(num_workers=2), 1)
    loader = make_loader(num_workers=2, persistent_workers=True, prefetch_factor=4)
    loader.set_epoch(0)
    next(iter(loader))
    assert read(loader, 1) == expected


def note_worker(worker: int) -> None:
    """A user's hook; draws from every stream to show that it is seeded by then."""
    import numpy

    Noted.draws = [
        float(torch.rand(1)),
        random.random(),
        float(get_default_numpy_rng().random()),
        float(numpy.random.random()),
    ]


class Noted:
    """What the hook has drawn in this process."""

    draws = [0.0] * 4


class Notes:
    """A dataset that tells what the hook drew."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(Noted.draws, dtype=torch.float64)


@pytest.mark.slow
def test_S9_a_users_hook_runs_in_workers_whose_streams_are_all_seeded_and_repeats() -> None:
    def note(seed: int) -> "list[list[float]]":
        seed_rngs(1)  # the process's own streams, which the workers must not share
        batches = read(make_loader(Notes(), seed=seed, num_workers=2, worker_init_fn=note_worker), 0)
        return [batch[0] for batch in batches]

    found, again, other = note(3), note(3), note(4)
    assert found == again
    for first, second, of_other_seed in zip(*found, other[0], strict=True):
        assert len({0.0, first, second, of_other_seed}) == 4  # each worker's own, and by the seed


def test_S9_draws_of_workers_follow_the_seed() -> None:
    assert read(make_loader(seed=1, num_workers=1), 0) == read(make_loader(seed=1, num_workers=2), 0)
    assert read(make_loader(seed=1, num_workers=1), 0) != read(make_loader(seed=2, num_workers=1), 0)


def test_without_workers_draws_come_from_the_streams_of_the_process() -> None:
    seed_rngs(3)
    expected = [float(torch.rand(1)), random.random()]
    seed_rngs(3)
    assert read(make_loader(), 0)[0][0][1:3] == expected


def test_a_dataset_that_fetches_batches_itself_is_asked_for_whole_ones() -> None:
    class Whole(Drawing):
        def __getitems__(self, indices: "list[int]") -> "list[Any]":
            assert type(indices) is list
            return [torch.tensor(index) for index in indices]

    found = read(make_loader(Whole(), num_workers=1), 0)
    assert sorted(index for batch in found for index in batch) == list(range(12))


@pytest.mark.parametrize("size", [0, -1, 2.0, "4", True])
def test_a_batch_size_that_is_none_is_refused(size: Any) -> None:
    with pytest.raises(
        ConfigurationError, match=f"batch_size must be an integer of at least 1, or None; found {size!r}"
    ):
        DataLoaderParams(batch_size=size)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_sampler_over_other_data_is_refused_when_it_leaves_the_dataset(workers: int) -> None:
    loader = open_loader(list(range(5)), SequentialSampler(range(7)), batch_size=2, num_workers=workers)
    with pytest.raises(ConfigurationError, match=r"SequentialSampler must give .* has 5 samples; found 5\."):
        read(loader, 0)


@pytest.mark.parametrize("workers", [0, 1])
def test_an_index_error_of_the_dataset_itself_stays_one(workers: int) -> None:
    class Broken(Drawing):
        def __getitem__(self, index: int) -> Any:
            return [][index]

    with pytest.raises(IndexError, match="list index out of range"):
        read(make_loader(Broken(), num_workers=workers), 0)


@pytest.mark.parametrize(("length", "drop_last"), [(0, False), (3, True)])
def test_data_that_gives_no_batch_is_refused(length: int, drop_last: bool) -> None:
    dataset = range(length)
    with pytest.raises(ConfigurationError, match="gives no batch of 4"):
        open_loader(dataset, SequentialSampler(dataset), batch_size=4, drop_last=drop_last)


def test_only_starting_workers_by_a_fork_forks() -> None:
    seed_rngs(1)
    found = []
    for workers, persistent, method in ((0, False, None), (1, False, "fork"), (1, True, "fork"), (1, False, "spawn")):
        loader = make_loader(num_workers=workers, persistent_workers=persistent, multiprocessing_context=method)
        found.append(loader.will_fork)
        if method != "spawn":
            next(iter(loader))
            found.append(loader.will_fork)
    assert found == [False, False, True, True, True, False, False]


ORDER = [2, 0, 4, 3, 1, 9, 5, 10, 8, 7, 6]
DRAW = torch.Generator().manual_seed(1)
FLOATS = torch.rand(11, 3, 4, generator=DRAW)
NUMBERS = torch.arange(11)
DATASETS = {
    "two": TensorDataset(FLOATS, NUMBERS),
    "one": TensorDataset(FLOATS),
    "transposed": TensorDataset(FLOATS.transpose(1, 2), NUMBERS),
    "of a subclass": type("Mine", (TensorDataset,), {})(FLOATS, NUMBERS),
    "a part": Subset(TensorDataset(FLOATS, NUMBERS), [3, 1, 8, 9, 2]),
}


def find_order(dataset: Any) -> "list[int]":
    return [index for index in ORDER if index < len(dataset)]


def batches(dataset: Any, **params: Any) -> "list[Any]":
    return list(open_loader(dataset, find_order(dataset), batch_size=4, **params))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", DATASETS)
def test_batches_are_those_of_pytorchs_own_loader(name: str, workers: int) -> None:
    dataset = DATASETS[name]
    found = batches(dataset, num_workers=workers)
    expected = list(DataLoader(dataset, batch_size=4, sampler=find_order(dataset)))
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert type(ours) is type(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert (one.dtype, one.shape, one.stride()) == (other.dtype, other.shape, other.stride())
            assert torch.equal(one, other)


def test_a_batch_is_a_copy() -> None:
    dataset = TensorDataset(torch.zeros(8, 2))
    for (batch,) in batches(dataset):
        batch += 1
    assert not dataset.tensors[0].any()


def test_only_plain_tensors_are_read_so() -> None:
    assert find_rows(DATASETS["two"]) is not None
    assert [name for name, dataset in DATASETS.items() if find_rows(dataset) is None] == [
        "transposed",
        "of a subclass",
        "a part",
    ]
    assert find_rows(TensorDataset(torch.nn.Parameter(torch.zeros(2)))) is None


def test_a_collate_function_of_the_user_gets_the_samples() -> None:
    assert batches(DATASETS["two"], collate_fn=len) == [4, 4, 3]


def test_an_index_that_the_tensors_do_not_have_is_told_by_the_sampler() -> None:
    dataset = TensorDataset(torch.zeros(3))
    loader = open_loader(dataset, [0, 1, 99], batch_size=2)
    with pytest.raises(ConfigurationError, match="found 99"):
        list(loader)


Pair = namedtuple("Pair", ["left", "right"])


@dataclass(frozen=True)
class Sample:
    image: Any
    name: str


def test_T14_tensors_in_every_form_of_batch_move() -> None:
    def make(tensor: Any) -> "dict[str, Any]":
        pair = Pair(tensor, {"b": tensor})
        return {"a": [tensor, (tensor, 1)], "pair": pair, "sample": Sample(tensor, "x"), "n": None}

    tensor = torch.zeros(2)
    moved = move_to(make(tensor), "meta")
    assert repr(moved) == repr(make(torch.zeros(2, device="meta")))
    assert not tensor.is_meta


def test_what_moves_itself_is_asked_to() -> None:
    class Tokens(UserDict[str, Any]):
        """Like a `transformers.BatchEncoding`."""

        def to(self, device: Any) -> "Tokens":
            return Tokens({name: value.to(device) for name, value in self.items()})

    class InPlace(Tokens):
        """Moves itself and returns nothing."""

        def to(self, device: Any) -> None:  # type: ignore[override]
            self.data = Tokens(self).to(device).data

    packed = pack_sequence([torch.ones(3), torch.ones(2)])
    moved = move_to({"packed": packed, "tokens": Tokens(ids=torch.ones(2)), "own": InPlace(ids=torch.ones(2))}, "meta")
    assert moved["packed"].data.is_meta
    assert not moved["packed"].batch_sizes.is_meta  # which PyTorch wants on the CPU
    assert moved["tokens"]["ids"].is_meta
    assert moved["own"]["ids"].is_meta
