"""The orders of all samplers: entered anywhere, of every epoch, shared by ranks."""

from collections import Counter
from itertools import chain
from typing import Any

import pytest
import torch
from fakes.rank_scenarios import OneOf, Ragged
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import RandomSampler, SequentialSampler, WeightedRandomSampler

from proctor.sdk.pytorch.data.samplers import BatchKey, EpochSampler

LENGTH = 23
WEIGHTS = [1 + index % 4 / 2 for index in range(LENGTH)]
KINDS = ["sequential", "shuffled", "replaced", "once", "batches"]
lengths = st.integers(1, 60)
sizes = st.integers(1, 9)
seeds = st.integers(0, 2**31)
epochs = st.integers(0, 5)


def make(
    kind: str,
    *,
    length: int = LENGTH,
    size: int = 3,
    seed: int = 1,
    rank: int = 0,
    ranks: int = 1,
    drop_last: bool = False,
    worker_seed: "int | None" = None,
) -> EpochSampler:
    """A sampler as a data module hands it to a loader; weights and batches are those of so many samples."""
    source: Any = {
        "sequential": lambda: SequentialSampler(range(length)),
        "shuffled": lambda: RandomSampler(range(length), generator=torch.default_generator),
        "replaced": lambda: WeightedRandomSampler(WEIGHTS, 16),
        "once": lambda: WeightedRandomSampler(WEIGHTS, 16, replacement=False),
        "batches": lambda: Ragged(LENGTH),
    }[kind]()
    batch_size, drop_last = (None, False) if kind == "batches" else (size, drop_last)
    options: dict[str, Any] = {"ranks": OneOf(rank, ranks), "worker_seed": worker_seed, "drop_last": drop_last}
    return EpochSampler(source, range(length), batch_size=batch_size, seed=seed, **options)


def read(sampler: EpochSampler, epoch: int = 0, start: int = 0) -> "list[list[int]]":
    """The rest of an epoch."""
    sampler.set_epoch(epoch, start)
    found = [list(batch) for batch in sampler]
    assert len(sampler) == len(found)
    return found


@settings(deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    length=lengths,
    size=sizes,
    seed=seeds,
    epoch=epochs,
    start=st.integers(0, 70),
    rank=st.integers(0, 2),
    drop_last=st.booleans(),
)
def test_D1_D4_entering_an_epoch_gives_the_rest_of_it_and_the_next_one_whole(
    kind: str, length: int, size: int, seed: int, epoch: int, start: int, rank: int, drop_last: bool
) -> None:
    options: dict[str, Any] = {"length": length, "size": size, "seed": seed, "rank": rank, "ranks": 3}
    sampler, other = (make(kind, drop_last=drop_last and length >= 3, **options) for _ in range(2))
    whole, following = read(sampler, epoch), read(sampler, epoch + 1)
    assert read(other, epoch, start) == whole[start:]
    assert read(other, epoch + 1) == following


@settings(deadline=None)
@given(length=lengths, seed=seeds, epoch=epochs)
def test_D2_a_shuffled_epoch_has_every_index_once(length: int, seed: int, epoch: int) -> None:
    batches = read(make("shuffled", length=length, seed=seed), epoch)
    assert sorted(chain.from_iterable(batches)) == list(range(length))


@pytest.mark.parametrize("kind", KINDS[1:])
def test_D2_no_two_seeds_and_epochs_share_an_order(kind: str) -> None:
    samplers = [make(kind, length=50, seed=seed) for seed in range(10)]
    assert len({str(read(sampler, epoch)) for sampler in samplers for epoch in range(10)}) == 100


def test_D2_the_order_of_a_seed_stays_what_it_was_in_earlier_versions() -> None:
    assert list(chain.from_iterable(read(make("shuffled", length=9, seed=4), 2))) == [3, 5, 2, 7, 6, 1, 0, 4, 8]


@settings(deadline=None)
@given(length=lengths, epoch=epochs, size=sizes)
def test_D3_the_sequential_order_is_the_same_in_every_epoch(length: int, epoch: int, size: int) -> None:
    batches = read(make("sequential", length=length, size=size), epoch)
    assert list(chain.from_iterable(batches)) == list(range(length))


@settings(deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    length=lengths,
    ranks=st.integers(1, 7),
    seed=seeds,
    epoch=epochs,
    drop_last=st.booleans(),
)
def test_D4_the_ranks_share_the_epoch_get_equally_many_and_know_what_is_repeated(
    kind: str, length: int, ranks: int, seed: int, epoch: int, drop_last: bool
) -> None:
    (whole,) = [read(make(kind, length=length, seed=seed, size=1), epoch)]
    drop_last = drop_last and kind != "batches"
    shares, real = [], Counter[str]()
    for rank in range(ranks):
        sampler = make(kind, length=length, seed=seed, size=1, rank=rank, ranks=ranks, drop_last=drop_last)
        share = read(sampler, epoch) if not drop_last or len(whole) >= ranks else []
        shares.append(len(share))
        real.update(str(batch) for step, batch in enumerate(share) if sampler.count_real(step) == len(batch))
    dealt = len(whole) // ranks * ranks if drop_last else len(whole)
    assert set(shares) == {-(-dealt // ranks)}
    assert real == Counter(map(str, whole[:dealt]))


def test_a_batch_carries_a_seed_of_its_own_to_the_worker() -> None:
    sampler = make("sequential", length=6, size=2, worker_seed=1)
    found = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        found += [batch.seed for batch in sampler if isinstance(batch, BatchKey)]
    sampler.set_epoch(1, 2)
    last = next(iter(sampler))
    assert len(set(found)) == 6
    assert isinstance(last, BatchKey)
    assert last.seed == found[5]
