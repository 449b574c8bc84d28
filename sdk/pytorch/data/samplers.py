"""The batches of a rank, drawn by any torch sampler, so that an epoch can be entered at any batch.

A sampler is iterated once in an epoch, to its end. Meanwhile the random streams are those of (seed, epoch), alike on
all ranks, and those of the process stay as they are. A random generator that a sampler has of its own continues from
epoch to epoch, as in any torch loop; a checkpoint holds its state from before the draw, and a resumed run draws again.
"""

from collections.abc import Iterator, Sequence, Sized
from itertools import islice
from typing import Any

from torch.utils.data import DistributedSampler, Sampler

from proctor.sdk.pytorch.checkpoints.values import decode, encode, get_generator_state, set_generator_state
from proctor.sdk.pytorch.checkpoints.walk import find_generators
from proctor.sdk.pytorch.distributed.ranks import Ranks
from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.reproducibility.seeding import derive_seed, forked_streams

_MOST_DRAWS = 10
"""An epoch that has so many times as many items as there are samples, or as the sampler says, has no end."""
_FEW_DRAWS = 10_000


class BatchKey(list):  # type: ignore[type-arg]
    """The indices of one batch, and the seed with which a worker is to fetch it."""

    def __init__(self, indices: "Sequence[int]", seed: int) -> None:
        super().__init__(indices)
        self.seed = seed


class EpochSampler(Sampler):
    """The batches of an epoch for one rank, from any of them on, of what a torch sampler draws.

    The ranks share what is drawn, and all get equally many: it is filled up from its own beginning or, with
    `drop_last`, cut off. A sampler that deals by itself, as torch's `DistributedSampler` does, is taken at its word.

    :param source: gives indices or, with a `batch_size` of None, batches; iterable anew for each epoch.
    :param dataset: has a length; the generators that it has are not the sampler's, though that may hold it.
    :param seed: of what it draws from the streams.
    :param worker_seed: of what workers draw for a batch; None if there are none.
    """

    def __init__(
        self,
        source: Any,
        dataset: Any,
        *,
        batch_size: "int | None",
        drop_last: bool,
        seed: int,
        ranks: Ranks,
        worker_seed: "int | None" = None,
    ) -> None:
        self.source = source
        self.epoch = self.start = 0
        self.dataset_length = len(dataset)
        of_dataset = set(map(id, find_generators(dataset)))
        self._generators = [one for one in find_generators(source) if id(one) not in of_dataset]
        self._size, self._drop_last = batch_size, drop_last
        self._seed, self._worker_seed = seed, worker_seed
        self._dealer = _find_dealer(source)
        self._ranks = ranks if self._dealer is None else Ranks()
        self._drawn: list[Any] | None = None  # of the epoch, for this rank
        self._repeats = 0  # of them, at the end, another rank has too
        self._before: list[Any] = []  # the states of its generators before it drew
        self._restored: Any = None

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Go to an epoch, and in it to the batch `start`."""
        if epoch != self.epoch:
            self._drawn = None
        self.epoch, self.start = epoch, start
        pass_epoch(self.source, epoch)

    @property
    def epoch_length(self) -> int:
        """How many batches the whole epoch has; a sampler without a length is asked for a draw."""
        count = self._count()
        if self._size is None:
            return count
        return count // self._size if self._drop_last else -(-count // self._size)

    def __len__(self) -> int:
        """How many batches are left of the epoch."""
        return max(0, self.epoch_length - self.start)

    def __iter__(self) -> "Iterator[list[int]]":
        items, size = self.draw(), self._size
        for place in range(self.start, self.epoch_length):
            batch = items[place] if size is None else items[place * size : (place + 1) * size]
            if self._worker_seed is not None:
                batch = BatchKey(batch, derive_seed(self._worker_seed, "worker", self.epoch, place))
            yield batch

    def count_real(self, step: int) -> int:
        """How many samples of a batch of the epoch are this rank's; those behind them, another rank has too."""
        items = self.draw()
        if self._size is None:
            return len(items[step]) if step < len(items) - self._repeats else 0
        return max(0, min(self._size, len(items) - self._repeats - step * self._size))

    def draw(self) -> "list[Any]":
        """What the epoch has for this rank: drawn once, and then the same.

        :raises ConfigurationError: it has no item or no end, a batch is empty, or batches and indices are mixed up.
        """
        if self._drawn is None:
            if self._restored is not None and self._restored["epoch"] == self.epoch:
                self._set_generators(self._restored["generators"])
            self._restored, self._before = None, self._get_generators()
            whole, ranks = self._draw_whole(), self._ranks
            self._drawn = whole
            if ranks.world_size > 1:
                self._drawn = take_share(whole, ranks.world_size, rank=ranks.rank, drop_last=self._drop_last)
            self._repeats = 0 if self._drop_last else count_repeats(len(whole), ranks.world_size, rank=ranks.rank)
            dealer = self._dealer
            if dealer is self.source and isinstance(dealer, DistributedSampler) and not dealer.drop_last:
                self._repeats = count_repeats(len(dealer.dataset), dealer.num_replicas, rank=dealer.rank)
        return self._drawn

    def find_stray(self) -> "Any | None":
        """An index of the epoch that the dataset does not have."""
        items = self.draw()
        indices = (index for batch in items for index in batch) if self._size is None else iter(items)
        return next((index for index in indices if not -self.dataset_length <= index < self.dataset_length), None)

    def state_dict(self) -> "dict[str, Any]":
        """The states that the sampler's own generators had before this epoch's draw; nothing if it has none."""
        return {"epoch": self.epoch, "generators": self._before} if self._before else {}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        """Draw anew, in the epoch of the state from the generators' states in it."""
        self._drawn, self._restored = None, state or None

    def _draw_whole(self) -> "list[Any]":
        known = len(self.source) if isinstance(self.source, Sized) else 0
        most = _MOST_DRAWS * max(known, self.dataset_length) + _FEW_DRAWS
        with forked_streams(derive_seed(self._seed, "shuffle", self.epoch)):
            whole: list[Any] = list(islice(self.source, most + 1))
        name, takes_batches = type(self.source).__name__, self._size is None
        if len(whole) > most:
            raise ConfigurationError(
                f"{name} gave more than {most} items for an epoch of {self.dataset_length} samples. A sampler must "
                "end: let its __iter__ return after an epoch's items, and give it a __len__."
            )
        gives_batches = [hasattr(item, "__iter__") if takes_batches else isinstance(item, list) for item in whole[:1]]
        if gives_batches == [not takes_batches]:
            own, other = ("batch_sampler", "sampler") if takes_batches else ("sampler", "batch_sampler")
            raise ConfigurationError(
                f"a batch_sampler must give batches (lists of indices), and a sampler indices; {name}, which was given "
                f"as {own}, gave {whole[0]!r}. Give it as {other}."
            )
        whole = [list(batch) for batch in whole] if takes_batches else whole
        if not whole or (takes_batches and not all(whole)):
            raise ConfigurationError(
                f"{name} must give at least one index or batch in each epoch, and no empty batch; found "
                f"{'an empty one' if whole else 'none'} in epoch {self.epoch}."
            )
        return whole

    def _count(self) -> int:
        """How many indices or batches the epoch has for this rank."""
        if self._drawn is not None:
            return len(self._drawn)
        if isinstance(self.source, Sized):
            count = len(self.source)
        else:  # it is drawn when the epoch is read: until then, what it is made of may change
            before = self._get_generators()
            count = len(self._draw_whole())
            self._set_generators(before)
        return count_share(count, self._ranks.world_size, drop_last=self._drop_last)

    def _get_generators(self) -> "list[Any]":
        return [encode(get_generator_state(one), {}) for one in self._generators]

    def _set_generators(self, states: "Sequence[Any]") -> None:
        for one, state in zip(self._generators, states, strict=False):
            set_generator_state(one, decode(state, {}, "cpu"))


def pass_epoch(source: Any, epoch: int) -> None:
    """Tell a sampler, and the one that it draws from, which epoch comes, if they have a `set_epoch`."""
    if isinstance(inner := getattr(source, "sampler", None), Sampler):
        pass_epoch(inner, epoch)
    if callable(method := getattr(source, "set_epoch", None)):
        method(epoch)


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


def _find_dealer(source: Any) -> Any:
    """The sampler, of those that draw from each other, that deals the epoch out to the ranks by itself."""
    while source is not None and not (hasattr(source, "num_replicas") and hasattr(source, "rank")):
        source = getattr(source, "sampler", None)
    return source
