"""Samplers whose order is a pure function of seed and epoch, so that an epoch can be entered at any batch.

A sampler here never draws from a global stream, and never replays what it skips: the order of the epoch is computed
and the loader begins at the right place of it.
"""

from collections.abc import Iterator, Sequence, Sized

import torch
from torch.utils.data import Sampler

from proctor.sdk.pytorch.determinism.seeding import derive_seed
from proctor.sdk.pytorch.errors import ConfigurationError


class ResumableSampler(Sampler):
    """The base of every sampler of the trainer: subclass it and return the epoch's order from `order`.

    :param data: the dataset, or anything else that has a length.
    :param batch_size: how many indices make one batch; `start_iter` is in batches.
    """

    def __init__(self, data: Sized, batch_size: int = 1) -> None:
        if batch_size < 1:
            raise ConfigurationError(f"batch_size must be at least 1; found {batch_size}.")
        self.data = data
        self.batch_size = batch_size
        self.epoch = 0
        self.start_iter = 0

    def set_epoch(self, epoch: int, start_iter: int = 0) -> None:
        """Go to an epoch, and in it to the batch `start_iter`; later epochs begin at their first batch again."""
        self.epoch = epoch
        self.start_iter = start_iter

    def order(self) -> "Sequence[int]":
        """The indices of the whole epoch `self.epoch` for this rank; a pure function of the sampler's arguments."""
        raise NotImplementedError(f"{type(self).__name__} must return the epoch's indices from order()")

    def __iter__(self) -> "Iterator[int]":
        """:raises ConfigurationError: the order is not as long as the epoch."""
        order = self.order()
        if len(order) != self.epoch_length:
            raise ConfigurationError(
                f"{type(self).__name__}.order() must return epoch_length = {self.epoch_length} indices; found "
                f"{len(order)}. Return as many, or override the property epoch_length."
            )
        return iter(order[self.start_iter * self.batch_size :])

    def __len__(self) -> int:
        """How many indices are left of the epoch."""
        return max(0, self.epoch_length - self.start_iter * self.batch_size)

    def describe(self) -> "dict[str, str | int | float | bool | None]":
        """What else decides the order, for the fingerprint of a run, by names such as "seed". To be overridden."""
        return {}

    @property
    def epoch_length(self) -> int:
        """How many indices the whole epoch has for this rank."""
        return len(self.data)

    @property
    def repeats(self) -> int:
        """How many of them, at the end, another rank has too, so that all ranks have equally many."""
        return 0


class ResumableSequentialSampler(ResumableSampler):
    """The indices in their own order, every epoch."""

    def order(self) -> "Sequence[int]":
        return range(len(self.data))


class ResumableRandomSampler(ResumableSampler):
    """A permutation for each epoch, the same for the same seed."""

    def __init__(self, data: Sized, seed: int = 0, batch_size: int = 1) -> None:
        super().__init__(data, batch_size)
        self.seed = seed

    def order(self) -> "Sequence[int]":
        return permute(len(self.data), self.seed, self.epoch)

    def describe(self) -> "dict[str, str | int | float | bool | None]":
        return {"seed": self.seed}


class ResumableDistributedSampler(ResumableSampler):
    """Every `num_replicas`-th index of the (shuffled) epoch, beginning with the rank's own.

    Without `drop_last` the order is filled up from its own beginning so that all ranks get equally many; with it the
    rest is cut off.
    """

    def __init__(
        self,
        data: Sized,
        num_replicas: int,
        *,
        rank: int,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        batch_size: int = 1,
    ) -> None:
        super().__init__(data, batch_size)
        if not 0 <= rank < num_replicas:
            raise ConfigurationError(
                f"rank must be from 0 to {num_replicas - 1} of {num_replicas} ranks; found {rank}."
            )
        self.num_replicas = num_replicas
        self.rank = rank
        self.shuffle = shuffle
        self.seed = seed
        self.drop_last = drop_last

    def describe(self) -> "dict[str, str | int | float | bool | None]":
        return {"seed": self.seed, "shuffle": self.shuffle, "drop_last": self.drop_last}

    @property
    def epoch_length(self) -> int:
        length = len(self.data)
        return length // self.num_replicas if self.drop_last else -(-length // self.num_replicas)

    @property
    def repeats(self) -> int:
        rest = len(self.data) % self.num_replicas
        return int(not self.drop_last and 0 < rest <= self.rank)

    def order(self) -> "Sequence[int]":
        length = len(self.data)
        whole: Sequence[int] = permute(length, self.seed, self.epoch) if self.shuffle else range(length)
        total = self.epoch_length * self.num_replicas
        if total > length:
            whole = [whole[place % length] for place in range(total)]
        return whole[self.rank : total : self.num_replicas]


SAMPLER_NAMES = "ResumableSampler (ResumableRandomSampler, ResumableSequentialSampler, ResumableDistributedSampler)"


def permute(length: int, seed: int, epoch: int) -> "list[int]":
    """The shuffled epoch: 0 to length - 1, from a private stream of (seed, epoch)."""
    generator = torch.Generator()
    generator.manual_seed(derive_seed(seed, "shuffle", epoch))
    order: list[int] = torch.randperm(length, generator=generator).tolist()
    return order


class BatchKey(list):  # type: ignore[type-arg]
    """The indices of one batch, and which batch it is; the fetch in a worker is keyed by it."""

    def __init__(self, indices: "Sequence[int]" = (), seed: int = 0) -> None:
        super().__init__(indices)
        self.seed = seed

    def __reduce__(self) -> "tuple[type[BatchKey], tuple[list[int], int]]":
        return BatchKey, (list(self), self.seed)


class EpochBatchSampler(Sampler):
    """The batches of an epoch from `start` on, each with the seed that its worker is to use."""

    def __init__(self, sampler: ResumableSampler, batch_size: int, *, drop_last: bool, seed: int) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.seed = seed
        self.keyed = True  # whether the batches are fetched in workers, which need their seeds

    @property
    def epoch_length(self) -> int:
        """How many batches the whole epoch has."""
        length = self.sampler.epoch_length
        return length // self.batch_size if self.drop_last else -(-length // self.batch_size)

    def __len__(self) -> int:
        """How many batches are left of the epoch."""
        return max(0, self.epoch_length - self.sampler.start_iter)

    def __iter__(self) -> "Iterator[list[int]]":
        epoch, start, size = self.sampler.epoch, self.sampler.start_iter, self.batch_size
        rest = list(self.sampler)
        for place in range(len(self)):
            indices = rest[place * size : (place + 1) * size]
            yield BatchKey(indices, derive_seed(self.seed, "worker", epoch, start + place)) if self.keyed else indices
