"""Loaders that can be entered at any batch of any epoch and give the same batches as if they had not been left.

Where the draws of a batch come from:

* without workers, from the process's own streams, which checkpoints hold;
* with workers, from streams that every worker seeds anew for each batch from (seed, epoch, batch). What workers have
  fetched ahead, how many there are, and whether they live on between epochs therefore changes nothing. (Once a batch,
  not once a sample: that would cost more than a small model's step.)

A plain `DataLoader` also draws one number from torch's global stream whenever it is iterated; these have a generator
of their own.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from itertools import chain
from multiprocessing.context import ForkServerContext
from numbers import Integral
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from proctor.sdk.pytorch.data.samplers import (
    BatchKey,
    EpochBatchSampler,
    ResumableBatchSampler,
    ResumableSampler,
)
from proctor.sdk.pytorch.distributed.processes import choose_context, die_with_parent
from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.reproducibility.fingerprint import Fact, name_kind
from proctor.sdk.pytorch.reproducibility.seeding import derive_seed, seed_worker


@dataclass(frozen=True)
class DataLoaderParams:
    """How a dataset is read.

    :param is_distributed: whether the ranks share the data; None: if there are several.
    :param sampler: a `ResumableSampler` in place of the automatic choice.
    :param batch_sampler: makes the batches itself, in place of `batch_size`, `shuffle`, `drop_last` and `sampler`.
    :param worker_init_fn: called in each worker with its number, after its streams have been seeded.
    :param random_seed: pins the order and the workers' draws; None follows the trainer's seed.
    """

    batch_size: int = 1
    shuffle: bool = False
    num_workers: int = 0
    pin_memory: bool = False
    drop_last: bool = False
    is_distributed: "bool | None" = None
    sampler: "ResumableSampler | None" = None
    batch_sampler: "ResumableBatchSampler | None" = None
    collate_fn: "Callable[[list[Any]], Any] | None" = None
    prefetch_factor: "int | None" = None
    persistent_workers: bool = False
    timeout: float = 0
    multiprocessing_context: Any = None
    worker_init_fn: "Callable[[int], None] | None" = None
    random_seed: "int | None" = None

    def __post_init__(self) -> None:
        """:raises ConfigurationError: `batch_size` is no integer of at least 1, or `batch_sampler` decides it."""
        size = self.batch_size
        if self.batch_sampler is not None and (size != 1 or self.shuffle or self.drop_last or self.sampler is not None):
            raise ConfigurationError(
                "batch_sampler makes the batches itself; leave batch_size, shuffle, drop_last and sampler out."
            )
        if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
            raise ConfigurationError(f"batch_size must be an integer of at least 1; found {size!r}.")


class EpochLoader:
    """The batches of one dataset, epoch by epoch; made once a run, so that persistent workers live on."""

    def __init__(self, dataset: Any, params: DataLoaderParams, *, sampler: ResumableSampler, seed: int) -> None:
        """:raises ConfigurationError: the dataset has no indices, or gives no batch."""
        _check(dataset)
        self.params = params
        self.sampler = sampler
        self._length = len(dataset)
        self._seed = seed
        self._generator = torch.Generator()
        self._has_batches = isinstance(sampler, ResumableBatchSampler)  # whose items are batches already
        size, drop_last = (1, False) if self._has_batches else (params.batch_size, params.drop_last)
        sampler.batch_size = size
        keyed = params.num_workers > 0
        self._batches = EpochBatchSampler(sampler, size, drop_last=drop_last, seed=seed, keyed=keyed)
        if self._batches.epoch_length == 0:
            raise ConfigurationError(
                f"a dataset of {len(dataset)} samples gives no batch of {params.batch_size} with "
                f"drop_last={params.drop_last}; make batch_size smaller or the dataset larger."
            )
        self._loader = _make_loader(dataset, params, batches=self._batches, generator=self._generator)
        self._has_persistent = False  # workers, which were started

    @property
    def will_fork(self) -> bool:
        """Whether the next iteration forks this process, to start workers."""
        has_new = self.params.num_workers > 0 and not self._has_persistent
        return has_new and self._loader.multiprocessing_context.get_start_method() == "fork"

    @property
    def epoch_length(self) -> int:
        """How many batches a whole epoch has."""
        return self._batches.epoch_length

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Go to an epoch and, in it, to the batch `start`; the next epoch begins at its first batch again."""
        self.sampler.set_epoch(epoch, start)
        self._generator.manual_seed(derive_seed(self._seed, "loader", epoch))

    def __len__(self) -> int:
        """How many batches are left of the epoch."""
        return len(self._batches)

    def count_real(self, step: int) -> int:
        """How many samples of a batch of the epoch are this rank's; those behind them, another rank has too."""
        if isinstance(self.sampler, ResumableBatchSampler):
            return self.sampler.count_real(step)
        size = self.params.batch_size
        real = self.sampler.epoch_length - self.sampler.repeats
        return max(0, min(size, real - step * size))

    def __iter__(self) -> "Iterator[Any]":
        """:raises ConfigurationError: the sampler gives an index that the dataset does not have."""
        self._has_persistent = self.params.persistent_workers
        try:
            yield from self._loader
        except IndexError as error:
            self._check_order(error)
            raise

    def _check_order(self, error: IndexError) -> None:
        order: Any = self.sampler.order()
        indices = chain.from_iterable(order) if self._has_batches else order
        stray = [index for index in indices if not -self._length <= index < self._length]
        if stray:
            method = "batches" if self._has_batches else "order"
            raise ConfigurationError(
                f"{type(self.sampler).__name__}.{method}() must return indices of the dataset, which has "
                f"{self._length} samples; found {stray[0]}. Make the sampler of the dataset that it is used with."
            ) from error


class BatchReader:
    """A dataset of which whole batches are read; in workers with the streams of the batch's key.

    PyTorch takes a `TensorDataset` apart into samples and stacks them again, which costs more than a small model's
    step. Indexing its tensors once gives the same batches, to the bit.
    """

    def __init__(self, dataset: Any, *, by_rows: bool) -> None:
        self.dataset = dataset
        self._by_rows = by_rows

    def __getitems__(self, indices: "list[int]") -> "list[Any]":
        if isinstance(indices, BatchKey):
            seed_worker(indices.seed)
        if self._by_rows:
            chosen = torch.tensor(indices)
            return [tensor[chosen] for tensor in self.dataset.tensors]
        fetch_all = getattr(self.dataset, "__getitems__", None)
        found: list[Any] = fetch_all(list(indices)) if fetch_all else [self.dataset[index] for index in indices]
        return found


def describe_loader(
    dataset: Any, params: DataLoaderParams, sampler: "ResumableSampler | None" = None
) -> "dict[str, Fact]":
    """What decides which samples a batch holds and how it is made, for the fingerprint of a run.

    :param sampler: one of the user's own, whose `describe` returns what decides its order.
    """
    own = {} if sampler is None else sampler.describe()
    return {
        **{f"sampler's {name}": value for name, value in own.items()},
        "dataset length": len(dataset),
        "batch size": params.batch_size,
        "workers": min(params.num_workers, 1),  # how many there are changes nothing; whether there are does
        "shuffle": params.shuffle,
        "drop_last": params.drop_last,
        "collate function": name_kind(params.collate_fn),
        "sampler": name_kind(sampler),
        "random_seed": params.random_seed,
        "is_distributed": params.is_distributed,
    }


def _make_loader(dataset: Any, params: DataLoaderParams, *, batches: EpochBatchSampler, generator: Any) -> Any:
    has_workers = params.num_workers > 0
    context = choose_context(params.multiprocessing_context) if has_workers else params.multiprocessing_context
    has_server = isinstance(context, ForkServerContext)
    start_worker = partial(_start_worker, params.worker_init_fn, has_server)
    by_rows = params.collate_fn is None and find_rows(dataset) is not None
    return DataLoader(
        BatchReader(dataset, by_rows=by_rows),
        batch_sampler=batches,
        num_workers=params.num_workers,
        pin_memory=params.pin_memory,
        collate_fn=keep_batch if by_rows else params.collate_fn,
        prefetch_factor=params.prefetch_factor,
        persistent_workers=params.persistent_workers,
        timeout=params.timeout,
        multiprocessing_context=context,
        worker_init_fn=start_worker if has_workers else None,
        generator=generator,
    )


def _start_worker(user_hook: "Callable[[int], None] | None", has_server: bool, worker: int) -> None:
    die_with_parent(by_server=has_server)
    seed_worker(torch.initial_seed())
    if user_hook is not None:
        user_hook(worker)


def _check(dataset: Any) -> None:
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ConfigurationError(
            f"a dataset must have __getitem__ and __len__, so that an epoch can be entered at any batch; found "
            f"{type(dataset).__name__}. Give a stream an index (for example of its shards) to train on it."
        )


def move_to(batch: Any, device: Any) -> Any:
    """Return the batch with every tensor on the device; what is no tensor stays as it is.

    A batch is a tree of tensors: dictionaries, lists, tuples (named ones too), dataclasses. An object of a class with a
    method `to`, such as a `PackedSequence`, moves itself.
    """
    if isinstance(batch, torch.Tensor):
        return batch.to(device, non_blocking=True)
    if callable(getattr(type(batch), "to", None)) and not isinstance(batch, type):
        moved = batch.to(device)
        return batch if moved is None else moved  # one that moves in place
    if isinstance(batch, dict):
        return {key: move_to(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(move_to(value, device) for value in batch))
    if isinstance(batch, (list, tuple)):
        return type(batch)(move_to(value, device) for value in batch)
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(batch, **{field.name: move_to(getattr(batch, field.name), device) for field in fields(batch)})
    return batch


def find_rows(dataset: Any) -> "tuple[torch.Tensor, ...] | None":
    """Return the tensors of a plain `TensorDataset` whose rows, stacked, are laid out as PyTorch lays batches out."""
    if type(dataset) is not TensorDataset or not dataset.tensors:
        return None
    is_plain = all(type(tensor) is torch.Tensor and tensor.layout is torch.strided for tensor in dataset.tensors)
    return dataset.tensors if is_plain and all(tensor.is_contiguous() for tensor in dataset.tensors) else None


def keep_batch(batch: Any) -> Any:
    """Collate what is a batch already; a function with a name, which workers need."""
    return batch
