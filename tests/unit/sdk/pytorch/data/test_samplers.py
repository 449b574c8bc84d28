"""The samplers against a plain shuffled epoch."""

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proctor.sdk.pytorch import (
    ConfigurationError,
    ResumableDistributedSampler,
    ResumableRandomSampler,
    ResumableSampler,
    ResumableSequentialSampler,
)
from proctor.sdk.pytorch.data.samplers import BatchKey, EpochBatchSampler

lengths = st.integers(1, 60)
sizes = st.integers(1, 9)
seeds = st.integers(0, 2**31)
epochs = st.integers(0, 5)


def batches_of(sampler: ResumableSampler, size: int, *, drop_last: bool = False) -> "list[list[int]]":
    """The rest of the epoch, in batches."""
    return [list(batch) for batch in EpochBatchSampler(sampler, size, drop_last=drop_last, seed=0)]


@settings(deadline=None)
@given(length=lengths, size=sizes, seed=seeds, epoch=epochs, start=st.integers(0, 70), drop_last=st.booleans())
def test_D1_entering_an_epoch_gives_the_rest_of_it_and_the_next_one_whole(
    length: int, size: int, seed: int, epoch: int, start: int, drop_last: bool
) -> None:
    sampler = ResumableRandomSampler(range(length), seed=seed, batch_size=size)
    sampler.set_epoch(epoch)
    whole = batches_of(sampler, size, drop_last=drop_last)
    sampler.set_epoch(epoch + 1)
    following = batches_of(sampler, size, drop_last=drop_last)
    sampler.set_epoch(epoch, start)
    assert batches_of(sampler, size, drop_last=drop_last) == whole[start:]
    assert len(EpochBatchSampler(sampler, size, drop_last=drop_last, seed=0)) == len(whole[start:])
    sampler.set_epoch(epoch + 1)
    assert batches_of(sampler, size, drop_last=drop_last) == following


@settings(deadline=None)
@given(length=lengths, seed=seeds, epoch=epochs)
def test_D2_a_shuffled_epoch_has_every_index_once_and_repeats(length: int, seed: int, epoch: int) -> None:
    sampler, other = (ResumableRandomSampler(range(length), seed=seed) for _ in range(2))
    sampler.set_epoch(epoch)
    other.set_epoch(epoch)
    assert sorted(sampler) == list(range(length))
    assert list(sampler) == list(other)


def test_D2_no_two_seeds_and_epochs_share_a_shuffle() -> None:
    orders = set()
    for seed in range(20):
        sampler = ResumableRandomSampler(range(50), seed=seed)
        for epoch in range(20):
            sampler.set_epoch(epoch)
            orders.add(tuple(sampler))
    assert len(orders) == 400


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
def test_D4_the_ranks_share_the_epoch_and_get_equally_many(
    length: int, ranks: int, seed: int, epoch: int, shuffle: bool, drop_last: bool
) -> None:
    shares = []
    for rank in range(ranks):
        sampler = ResumableDistributedSampler(
            range(length), ranks, rank=rank, shuffle=shuffle, seed=seed, drop_last=drop_last
        )
        sampler.set_epoch(epoch)
        shares.append(list(sampler))
        assert len(sampler) == len(shares[-1])
    counts = Counter(index for share in shares for index in share)
    assert len({len(share) for share in shares}) == 1
    if drop_last:
        assert len(counts) == sum(counts.values()) == length // ranks * ranks
    else:
        assert set(counts) == set(range(length))
        assert sum(counts.values()) - length == -length % ranks


@settings(deadline=None)
@given(length=lengths, ranks=st.integers(1, 4), seed=seeds, size=sizes, start=st.integers(0, 20))
def test_D4_each_rank_enters_its_own_share(length: int, ranks: int, seed: int, size: int, start: int) -> None:
    for rank in range(ranks):
        sampler = ResumableDistributedSampler(range(length), ranks, rank=rank, seed=seed, batch_size=size)
        sampler.set_epoch(3)
        whole = batches_of(sampler, size)
        sampler.set_epoch(3, start)
        assert batches_of(sampler, size) == whole[start:]


def test_a_distributed_order_is_the_shuffled_epoch_dealt_out() -> None:
    plain = ResumableRandomSampler(range(12), seed=4)
    plain.set_epoch(2)
    order = list(plain)
    for rank in range(3):
        sampler = ResumableDistributedSampler(range(12), 3, rank=rank, seed=4)
        sampler.set_epoch(2)
        assert list(sampler) == order[rank::3]


@settings(deadline=None)
@given(length=lengths, ranks=st.integers(1, 7), seed=seeds, epoch=epochs, drop_last=st.booleans())
def test_D4_without_what_is_repeated_at_the_end_the_ranks_have_each_index_once(
    length: int, ranks: int, seed: int, epoch: int, drop_last: bool
) -> None:
    found: list[int] = []
    for rank in range(ranks):
        sampler = ResumableDistributedSampler(range(length), ranks, rank=rank, seed=seed, drop_last=drop_last)
        sampler.set_epoch(epoch)
        share = list(sampler)
        found += share[: len(share) - sampler.repeats]
    assert len(found) == len(set(found)) == (length // ranks * ranks if drop_last else length)


class Listed(ResumableSampler):
    """An order that is given."""

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
