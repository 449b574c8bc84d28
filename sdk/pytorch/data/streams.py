"""Streams: data without indices, and loaders that know their own position.

What has `state_dict` and `load_state_dict` (torchdata's `StatefulDataLoader`, streams of Hugging Face's datasets, a
class of the user's) is asked for its state at each save, and continues from it. What has none, or is read in workers,
whose copies cannot be asked, is read again from the epoch's beginning up to the place where the run continues.

So that this gives the same items again, each batch is fetched with random streams of (seed, epoch, batch); in workers,
with those of (seed, epoch, worker). Those of the process stay as they are.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset

from proctor.sdk.pytorch.checkpoints.walk import has_state
from proctor.sdk.pytorch.data.loaders import DataLoaderParams, forks, make_loader
from proctor.sdk.pytorch.data.samplers import pass_epoch
from proctor.sdk.pytorch.distributed.ranks import Ranks
from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.reproducibility.seeding import derive_seed, forked_streams

_END = object()


def is_stream(dataset: Any) -> bool:
    """Whether data is read from its beginning to its end, as there are no indices to read it by."""
    has_indices = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")
    return isinstance(dataset, (DataLoader, IterableDataset)) or (isinstance(dataset, Iterable) and not has_indices)


def keeps_position(dataset: Any, params: DataLoaderParams) -> bool:
    """Whether a stream continues from its own state; a loader of a stream without one would only read it again."""
    if isinstance(dataset, DataLoader):
        return has_state(dataset) and (has_state(dataset.dataset) or not isinstance(dataset.dataset, IterableDataset))
    return has_state(dataset) and not params.num_workers


class StreamLoader:
    """The batches of a stream, epoch by epoch.

    :param seed: of what is drawn while it is read, which differs on each rank.
    :param ranks: those that must have equally many batches: an epoch ends where the first of them has none left.
    """

    epoch_length = None
    """Not known before the end."""

    def __init__(self, source: Any, params: DataLoaderParams, *, seed: int, ranks: Ranks) -> None:
        """:raises ConfigurationError: an option is none for a stream, or a loader does not know its position."""
        _check(source, params)
        self._source, self._seed, self._ranks = source, seed, ranks
        self._keeps_position = keeps_position(source, params)
        self._generator = torch.Generator()
        self._epoch = self._start = 0
        self._has_begun = False
        self._pending: Any = None  # the state to continue from
        self._items = _Stream(source)
        self._loader = source
        if not isinstance(source, DataLoader):
            size, drop_last, collate = params.batch_size, params.drop_last, params.collate_fn
            batching: dict[str, Any] = {"batch_size": size, "drop_last": drop_last, "collate_fn": collate}
            self._loader = make_loader(self._items, params, self._generator, **batching)

    @property
    def will_fork(self) -> bool:
        """Whether the next iteration forks this process, to start workers."""
        return forks(self._loader)

    def __len__(self) -> int:
        """0: it is not known."""
        return 0

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Go to an epoch, and in it to the batch `start`."""
        self._epoch, self._start = epoch, start
        self._generator.manual_seed(derive_seed(self._seed, "loader", epoch))
        is_loader = isinstance(self._source, DataLoader)
        for part in (self._source, *((self._source.dataset, self._source.batch_sampler) if is_loader else ())):
            pass_epoch(part, epoch)

    def count_real(self, step: int) -> int:
        """All samples of a batch are this rank's."""
        return 2**31

    def state_dict(self) -> "dict[str, Any]":
        """The position, as the stream itself knows it; nothing if it does not."""
        if self._pending is None and not (self._keeps_position and self._has_begun):
            return {}
        state = self._source.state_dict() if self._pending is None else self._pending
        return {"stream": state, "has ended": self._items.has_ended}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        """Continue from there when it is read next."""
        self._pending, self._items.has_ended = state.get("stream"), state.get("has ended", False)

    def __iter__(self) -> "Iterator[Any]":
        """:raises ConfigurationError: an epoch has no batch."""
        number, batches = 0 if self._pending is None else self._start, iter(())
        if not (
            self._items.has_ended and self._pending is not None and self._start
        ):  # else the state is the next pass's
            with self._forked(-1):
                if self._pending is not None:
                    self._source.load_state_dict(self._pending)
                batches, self._pending, self._has_begun = iter(self._loader), None, True
        while True:
            with self._forked(number):
                batch = next(batches, _END)
            if self._ranks.any(batch is _END):
                break
            number += 1
            if number > self._start:
                yield batch
        if number == 0:
            raise ConfigurationError(
                f"{type(self._source).__name__} gave no batch in epoch {self._epoch}. Each iteration of a stream must "
                "begin anew, also after one that has come to its end; a state_dict must say so, too."
            )

    def _forked(self, batch: int) -> Any:
        return forked_streams(derive_seed(self._seed, "stream", self._epoch, batch))


class _Stream(IterableDataset):
    """Any iterable, for a torch loader; notes, where it is not read in workers, that a pass is at its end."""

    has_ended = False  # a loader sees that with a last batch that is not full

    def __init__(self, source: Any) -> None:
        self._source = source

    def __iter__(self) -> "Iterator[Any]":
        self.has_ended = False
        yield from self._source
        self.has_ended = True


def _check(source: Any, params: DataLoaderParams) -> None:
    name, is_loader = type(source).__name__, isinstance(source, DataLoader)
    has_order = params.shuffle or params.sampler is not None or params.batch_sampler is not None
    problems = [
        (
            is_loader and not has_state(source),
            f"{name} does not know its position: give its dataset and DataLoaderParams(batch_size=…); "
            "or a loader with state_dict and load_state_dict, such as torchdata's StatefulDataLoader.",
        ),
        (
            is_loader and params != DataLoaderParams(),
            f"{name} makes the batches itself; leave DataLoaderParams out.",
        ),
        (
            has_order or params.persistent_workers,
            f"a stream, such as {name}, has an order of its own, and its workers begin anew with each epoch; leave "
            "shuffle, sampler, batch_sampler and persistent_workers out.",
        ),
        (
            isinstance(source, Iterator),
            f"a stream must be iterable anew for each epoch; found the iterator {name}. Give an object whose __iter__ "
            "makes one.",
        ),
    ]
    for is_wrong, text in problems:
        if is_wrong:
            raise ConfigurationError(text)
