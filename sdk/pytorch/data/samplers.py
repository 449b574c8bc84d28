"""Samplers whose order is a pure function of seed and epoch, so that an epoch can be entered at any batch.

A sampler here never draws from a global stream, and never replays what it skips: the order of the epoch is computed
and the loader begins at the right place of it.
"""

from collections.abc import Iterator, Sequence, Sized
from hashlib import sha256
from numbers import Integral
from typing import Any

import torch
from torch.utils.data import Sampler

from proctor.sdk.pytorch.distributed.ranks import Ranks
from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.reproducibility.seeding import derive_seed


class ResumableSampler(Sampler):
    """The base of every sampler of the trainer: subclass it and return the epoch's order from `order`.

    :param data: the dataset, or anything else that has a length.
    :param batch_size: how many indices make one batch; `start_iter` is in batches.
    """

    kept_by_trainer = (
        *("data", "batch_size", "epoch", "start_iter", "seed"),
        *("_bound_seed", "_ranks", "_dealt", "_repeats"),
    )
    seed: "int | None" = None  # follows the data module's
    _bound_seed = 0
    _ranks = Ranks()

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

    def bind(self, data: Sized, *, seed: int, ranks: Ranks) -> None:
        """Called before the first epoch with the dataset, the seed of its order, and the ranks that share it."""
        self._bound_seed, self._ranks = seed, ranks

    def make_generator(self) -> torch.Generator:
        """Return a generator of the seed and the epoch."""
        seed = self._bound_seed if self.seed is None else self.seed
        return torch.Generator().manual_seed(derive_seed(seed, "shuffle", self.epoch))

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
        return permute(len(self.data), self.make_generator())

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
        return count_share(len(self.data), self.num_replicas, drop_last=self.drop_last)

    @property
    def repeats(self) -> int:
        return 0 if self.drop_last else count_repeats(len(self.data), self.num_replicas, rank=self.rank)

    def order(self) -> "Sequence[int]":
        length = len(self.data)
        whole = permute(length, self.make_generator()) if self.shuffle else range(length)
        return take_share(whole, self.num_replicas, rank=self.rank, drop_last=self.drop_last)


class ResumableWeightedSampler(ResumableSampler):
    """Samples drawn by their weights, for each epoch anew, the same for the same seed; several ranks share the draws.

    :param weights: of each sample of the dataset, not negative; they need not sum up to 1.
    :param num_samples: how many draws an epoch has, of all ranks together.
    :param replacement: whether a sample may be drawn more than once in an epoch.
    :param seed: None follows the data module's.
    :raises ConfigurationError: the weights are none, or not as many samples can be drawn.
    """

    def __init__(
        self,
        weights: "Sequence[float] | torch.Tensor",
        num_samples: int,
        replacement: bool = True,
        *,
        seed: "int | None" = None,
        batch_size: int = 1,
    ) -> None:
        self.weights = torch.as_tensor(weights, dtype=torch.float64)
        super().__init__(self.weights, batch_size)
        self.replacement = replacement
        self.seed = seed
        is_list = self.weights.dim() == 1 and bool(torch.isfinite(self.weights).all() and (self.weights >= 0).all())
        if not is_list or not bool(self.weights.any()):
            raise ConfigurationError(
                "weights must be a list of numbers, one for each sample, none of them negative and not all of them 0."
            )
        most = int(self.weights.count_nonzero())
        is_count = isinstance(num_samples, Integral) and not isinstance(num_samples, bool) and num_samples >= 1
        if not is_count or (not replacement and num_samples > most):
            limit = "" if replacement else f" and, without replacement, at most {most}, which have a weight"
            raise ConfigurationError(f"num_samples must be an integer of at least 1{limit}; found {num_samples!r}.")
        self.num_samples = int(num_samples)

    def bind(self, data: Sized, *, seed: int, ranks: Ranks) -> None:
        if len(data) != len(self.weights):
            raise ConfigurationError(
                f"weights must be as many as the dataset has samples, {len(data)}; found {len(self.weights)}."
            )
        super().bind(data, seed=seed, ranks=ranks)

    def describe(self) -> "dict[str, str | int | float | bool | None]":
        weights = sha256(self.weights.numpy().tobytes()).hexdigest()[:16]
        own = {"num_samples": self.num_samples, "replacement": self.replacement, "seed": self.seed}
        return {"weights": weights, **own}

    @property
    def epoch_length(self) -> int:
        return count_share(self.num_samples, self._ranks.world_size)

    @property
    def repeats(self) -> int:
        return count_repeats(self.num_samples, self._ranks.world_size, rank=self._ranks.rank)

    def order(self) -> "Sequence[int]":
        drawn = torch.multinomial(self.weights, self.num_samples, self.replacement, generator=self.make_generator())
        return take_share(drawn.tolist(), self._ranks.world_size, rank=self._ranks.rank)


class ResumableBatchSampler(ResumableSampler):
    """The base of samplers that make whole batches, of any length, such as those of texts that are equally long.

    Subclass it, return the epoch's batches from `batches`, and give it to `DataLoaderParams(batch_sampler=…)`. Several
    ranks share the batches.

    :param data: the dataset, or anything else that has a length.
    :param seed: None follows the data module's.
    """

    def __init__(self, data: Sized, seed: "int | None" = None) -> None:
        super().__init__(data)
        self.seed = seed
        self._dealt: tuple[int, list[Any]] | None = None  # the epoch, and its batches for this rank
        self._repeats = 0

    def batches(self) -> "Sequence[Sequence[int]]":
        """The batches of the whole epoch `self.epoch`, of all ranks; a pure function of the sampler's arguments.

        Draw from `make_generator()` only. An epoch may have another number of batches than the one before.
        """
        raise NotImplementedError(f"{type(self).__name__} must return the epoch's batches from batches()")

    def bind(self, data: Sized, *, seed: int, ranks: Ranks) -> None:
        super().bind(data, seed=seed, ranks=ranks)
        self._dealt = None

    def describe(self) -> "dict[str, str | int | float | bool | None]":
        return {"seed": self.seed}

    @property
    def epoch_length(self) -> int:
        """How many batches the epoch has for this rank."""
        return len(self.order())

    @property
    def repeats(self) -> int:
        """How many of them, at the end, another rank has too."""
        return self._repeats

    def count_real(self, step: int) -> int:
        """How many samples of a batch of the epoch are this rank's."""
        batches = self.order()
        return len(batches[step]) if step < len(batches) - self._repeats else 0

    def order(self) -> "Sequence[Any]":
        """The batches of the epoch for this rank.

        :raises ConfigurationError: there is none, or one is empty.
        """
        if self._dealt is None or self._dealt[0] != self.epoch:
            whole = [list(batch) for batch in self.batches()]
            if not whole or not all(whole):
                raise ConfigurationError(
                    f"{type(self).__name__}.batches() must return batches of at least one index; found "
                    f"{'none' if not whole else 'an empty one'} in epoch {self.epoch}."
                )
            count, rank = self._ranks.world_size, self._ranks.rank
            self._repeats = count_repeats(len(whole), count, rank=rank)
            self._dealt = self.epoch, take_share(whole, count, rank=rank)
        return self._dealt[1]


def permute(length: int, generator: torch.Generator) -> "list[int]":
    """The numbers from 0 to length - 1, shuffled."""
    order: list[int] = torch.randperm(length, generator=generator).tolist()
    return order


def count_share(length: int, count: int, *, drop_last: bool = False) -> int:
    """How many items of an epoch each of so many ranks has."""
    return length // count if drop_last else -(-length // count)


def take_share(whole: "Sequence[Any]", count: int, *, rank: int, drop_last: bool = False) -> "list[Any]":
    """This rank's share of an epoch, filled up from its beginning, or cut off, so that all get equally many."""
    total = count * count_share(len(whole), count, drop_last=drop_last)
    return [whole[place % len(whole)] for place in range(rank, total, count)]


def count_repeats(length: int, count: int, *, rank: int) -> int:
    """How many items at the end of this rank's share another rank has too, if no rest is cut off."""
    return int(0 < length % count <= rank)


class BatchKey(list):  # type: ignore[type-arg]
    """The indices of one batch, and the seed with which a worker is to fetch it."""

    def __init__(self, indices: "Sequence[int]", seed: int) -> None:
        super().__init__(indices)
        self.seed = seed


class EpochBatchSampler(Sampler):
    """The batches of an epoch from `start_iter` on.

    :param keyed: whether they are fetched in workers, which need a seed for each.
    """

    def __init__(
        self, sampler: ResumableSampler, batch_size: int, *, drop_last: bool, seed: int, keyed: bool = True
    ) -> None:
        self.sampler = sampler
        self.batch_size = batch_size
        self.drop_last = drop_last
        self.seed = seed
        self.keyed = keyed

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
        rest: list[Any] = list(self.sampler)
        has_batches = isinstance(self.sampler, ResumableBatchSampler)
        for place in range(len(self)):
            indices = list(rest[place]) if has_batches else rest[place * size : (place + 1) * size]
            yield BatchKey(indices, derive_seed(self.seed, "worker", epoch, start + place)) if self.keyed else indices
