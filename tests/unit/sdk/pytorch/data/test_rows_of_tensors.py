"""Tensors that are read a batch at a time give what PyTorch's own loader gives."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from proctor.sdk.pytorch import ConfigurationError, DataLoaderParams, ResumableRandomSampler
from proctor.sdk.pytorch.data.loaders import EpochLoader, find_rows

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

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


def batches(dataset: Any, **params: Any) -> "list[Any]":
    sampler = ResumableRandomSampler(dataset, seed=5)
    return list(EpochLoader(dataset, DataLoaderParams(batch_size=4, **params), sampler=sampler, seed=5))


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("name", DATASETS)
def test_batches_are_those_of_pytorchs_own_loader(name: str, workers: int) -> None:
    dataset = DATASETS[name]
    found = batches(dataset, num_workers=workers)
    expected = list(DataLoader(dataset, batch_size=4, sampler=ResumableRandomSampler(dataset, seed=5)))
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
    class Stray(ResumableRandomSampler):
        def order(self) -> "list[int]":
            return [0, 1, 99]

    dataset = TensorDataset(torch.zeros(3))
    loader = EpochLoader(dataset, DataLoaderParams(batch_size=2), sampler=Stray(dataset), seed=0)
    with pytest.raises(ConfigurationError, match="found 99"):
        list(loader)
