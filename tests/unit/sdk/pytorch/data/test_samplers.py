"""The orders of all samplers: entered anywhere, of every epoch, shared by ranks."""

from collections import Counter
from collections.abc import Sequence

import pytest
from fakes.rank_scenarios import OneOf, Ragged
from hypothesis import given, settings
from hypothesis import strategies as st

from proctor.sdk.pytorch import (
    ConfigurationError,
    ResumableBatchSampler,
    ResumableDistributedSampler,
    ResumableRandomSampler,
    ResumableSampler,
    ResumableSequentialSampler,
    ResumableWeightedSampler,
)
from proctor.sdk.pytorch.data.samplers import BatchKey, EpochBatchSampler

LENGTH = 23
WEIGHTS = [index % 4 / 2 for index in range(LENGTH)]
lengths = st.integers(1, 60)
sizes = st.integers(1, 9)
seeds = st.integers(0, 2**31)
epochs = st.integers(0, 5)


def make(
    kind: str, *, length: int = LENGTH, size: int = 3, seed: int = 1, rank: int = 0, ranks: int = 1
) -> ResumableSampler:
    """A sampler as a data module hands it to a loader; weights and batches are those of so many samples."""
    if kind == "shuffled":
        return ResumableRandomSampler(range(length), seed=seed, batch_size=size)
    if kind == "distributed":
        return ResumableDistributedSampler(range(length), ranks, rank=rank, seed=seed, batch_size=size)
    found: ResumableSampler = Ragged(range(LENGTH))
    if kind != "batches":
        found = ResumableWeightedSampler(WEIGHTS, 16, kind == "replaced", batch_size=size)
    found.bind(range(LENGTH), seed=seed, ranks=OneOf(rank, ranks))
    return found


def batches_of(
    sampler: ResumableSampler, size: int, *, epoch: int = 0, start: int = 0, drop_last: bool = False
) -> "list[list[int]]":
    """The rest of an epoch."""
    sampler.set_epoch(epoch, start)
    size = 1 if isinstance(sampler, ResumableBatchSampler) else size
    batches = EpochBatchSampler(sampler, size, drop_last=drop_last, seed=0)
    found = [list(batch) for batch in batches]
    assert len(batches) == len(found)
    return found


@settings(deadline=None)
@given(
    kind=st.sampled_from(["shuffled", "distributed", "replaced", "once", "batches"]),
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
    sampler, other = (make(kind, length=length, size=size, seed=seed, rank=rank, ranks=3) for _ in range(2))
    whole, following = (batches_of(sampler, size, epoch=at, drop_last=drop_last) for at in (epoch, epoch + 1))
    assert batches_of(other, size, epoch=epoch, start=start, drop_last=drop_last) == whole[start:]
    assert batches_of(other, size, epoch=epoch + 1, drop_last=drop_last) == following


@settings(deadline=None)
@given(length=lengths, seed=seeds, epoch=epochs)
def test_D2_a_shuffled_epoch_has_every_index_once(length: int, seed: int, epoch: int) -> None:
    sampler = make("shuffled", length=length, seed=seed)
    sampler.set_epoch(epoch)
    assert sorted(sampler) == list(range(length))


@pytest.mark.parametrize("kind", ["shuffled", "replaced", "once", "batches"])
def test_D2_no_two_seeds_and_epochs_share_an_order(kind: str) -> None:
    samplers = [make(kind, length=50, seed=seed) for seed in range(10)]
    assert len({str(batches_of(sampler, 3, epoch=epoch)) for sampler in samplers for epoch in range(10)}) == 100


@settings(deadline=None)
@given(length=lengths, epoch=epochs, size=sizes, start=st.integers(0, 70))
def test_D3_the_sequential_order_is_the_same_in_every_epoch(length: int, epoch: int, size: int, start: int) -> None:
    sampler = ResumableSequentialSampler(range(length), batch_size=size)
    sampler.set_epoch(epoch, start)
    assert list(sampler) == list(range(length))[start * size :]
    assert len(sampler) == len(list(sampler))


@settings(deadline=None)
@given(
    length=lengths, ranks=st.integers(1, 7), seed=seeds, epoch=epochs, shuffle=st.booleans(), drop_last=st.booleans()
)
def test_D4_the_ranks_share_the_epoch_get_equally_many_and_know_what_is_repeated(
    length: int, ranks: int, seed: int, epoch: int, shuffle: bool, drop_last: bool
) -> None:
    shares, real = [], []
    for rank in range(ranks):
        sampler = ResumableDistributedSampler(
            range(length), ranks, rank=rank, shuffle=shuffle, seed=seed, drop_last=drop_last
        )
        sampler.set_epoch(epoch)
        shares.append(list(sampler))
        assert len(sampler) == len(shares[-1])
        real += shares[-1][: len(sampler) - sampler.repeats]
    dealt = length // ranks * ranks if drop_last else length
    assert {len(share) for share in shares} == {-(-dealt // ranks)}
    assert set().union(*shares) == set(real)
    assert len(real) == len(set(real)) == dealt


@settings(deadline=None)
@given(kind=st.sampled_from(["replaced", "once", "batches"]), seed=seeds, epoch=epochs, ranks=st.integers(1, 5))
def test_ranks_get_equally_many_of_one_drawn_epoch_and_know_what_is_repeated(
    kind: str, seed: int, epoch: int, ranks: int
) -> None:
    alone = make(kind, seed=seed)
    alone.set_epoch(epoch)
    shares, real = [], Counter[str]()
    for rank in range(ranks):
        sampler = make(kind, seed=seed, rank=rank, ranks=ranks)
        sampler.set_epoch(epoch)
        share = list(map(str, sampler))
        assert len(share) == len(sampler) == sampler.epoch_length
        shares.append(len(share))
        real.update(share[: len(share) - sampler.repeats])
    assert len(set(shares)) == 1
    assert real == Counter(map(str, alone))


def test_a_distributed_order_is_the_shuffled_epoch_dealt_out() -> None:
    plain = ResumableRandomSampler(range(12), seed=4)
    plain.set_epoch(2)
    order = list(plain)
    for rank in range(3):
        sampler = ResumableDistributedSampler(range(12), 3, rank=rank, seed=4)
        sampler.set_epoch(2)
        assert list(sampler) == order[rank::3]


class Listed(ResumableSampler):
    def __init__(self, data: "Sequence[int]", order: "Sequence[int]") -> None:
        super().__init__(data)
        self.given = order

    def order(self) -> "Sequence[int]":
        return self.given


@pytest.mark.parametrize("length", [0, 1, 19, 21, 40])
def test_an_order_that_is_not_as_long_as_its_epoch_is_refused(length: int) -> None:
    with pytest.raises(ConfigurationError, match=rf"Listed.order\(\) must return epoch_length = 20 .*found {length}\."):
        batches_of(Listed(range(20), range(length)), 4)


def test_a_rank_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="from 0 to 1 of 2 ranks; found 2"):
        ResumableDistributedSampler(range(5), 2, rank=2)


def test_a_batch_carries_a_seed_of_its_own_to_the_worker() -> None:
    sampler = ResumableSequentialSampler(range(6), batch_size=2)
    batches = EpochBatchSampler(sampler, 2, drop_last=False, seed=1)
    found = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        found += [batch.seed for batch in batches if isinstance(batch, BatchKey)]
    sampler.set_epoch(1, 2)
    last = next(iter(batches))
    assert len(set(found)) == 6
    assert isinstance(last, BatchKey)
    assert last.seed == found[5]
