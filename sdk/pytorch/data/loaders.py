"""Loaders that can be entered at any batch of any epoch and give the same batches as if they had not been left.

Where the draws of a batch come from:

* without workers, from the process's own streams, which checkpoints hold;
* with workers, from streams that every worker seeds anew for each batch from (seed, epoch, batch). What workers have
  fetched ahead, how many there are, and whether they live on between epochs therefore changes nothing. (Once a batch,
  not once a sample: that would cost more than a small model's step.)

A plain `DataLoader` also draws one number from torch's global stream whenever it is iterated; these have a generator
of their own.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import partial
from multiprocessing.context import ForkServerContext
from numbers import Integral
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from proctor.sdk.pytorch.data.samplers import BatchKey, EpochSampler
from proctor.sdk.pytorch.distributed.processes import choose_context, die_with_parent, find_start_method
from proctor.sdk.pytorch.distributed.ranks import Ranks
from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.reproducibility.seeding import derive_seed, seed_worker


@dataclass(frozen=True)
class DataLoaderParams:
    """How a dataset is read.

    :param batch_size: None: the items of a stream are batches already.
    :param is_distributed: whether the ranks share the data; None: if there are several.
    :param sampler: any torch `Sampler`, or another iterable over indices, in place of `shuffle`.
    :param batch_sampler: one that gives whole batches, in place of `batch_size`, `shuffle`, `drop_last` and `sampler`.
    :param worker_init_fn: called in each worker with its number, after its streams have been seeded.
    :param random_seed: pins the order and the workers' draws; None follows the trainer's seed.
    """

    batch_size: "int | None" = 1
    shuffle: bool = False
    num_workers: int = 0
    pin_memory: bool = False
    drop_last: bool = False
    is_distributed: "bool | None" = None
    sampler: "Iterable[Any] | None" = None
    batch_sampler: "Iterable[Any] | None" = None
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
        if size is not None and (not isinstance(size, Integral) or isinstance(size, bool) or size < 1):
            raise ConfigurationError(f"batch_size must be an integer of at least 1, or None; found {size!r}.")


class EpochLoader:
    """The batches of one dataset, epoch by epoch; made once a run, so that persistent workers live on.

    :param source: the sampler, or the batch sampler of the parameters.
    :param seed: of the order, alike on all ranks.
    :param ranks: those that share the data.
    :param worker_seed: of the workers' draws, which differ on each rank.
    """

    def __init__(
        self, dataset: Any, params: DataLoaderParams, source: Any, *, seed: int, ranks: Ranks, worker_seed: int
    ) -> None:
        """:raises ConfigurationError: the dataset has no indices, or gives no batch."""
        _check(dataset, params, source)
        self.params = params
        has_batches, self._seed, self._generator = params.batch_sampler is not None, worker_seed, torch.Generator()
        self.sampler = EpochSampler(
            source,
            dataset,
            batch_size=None if has_batches else params.batch_size,
            drop_last=params.drop_last,
            seed=seed,
            ranks=ranks,
            worker_seed=worker_seed if params.num_workers else None,
        )
        if self.sampler.epoch_length == 0:
            raise ConfigurationError(
                f"a dataset of {len(dataset)} samples gives no batch of {params.batch_size} with "
                f"drop_last={params.drop_last}; make batch_size smaller or the dataset larger."
            )
        by_rows = params.collate_fn is None and find_rows(dataset) is not None
        reader = BatchReader(dataset, by_rows=by_rows)
        collate = keep_batch if by_rows else params.collate_fn
        self._loader = make_loader(reader, params, self._generator, batch_sampler=self.sampler, collate_fn=collate)
        self._has_persistent = False  # workers, which were started

    @property
    def will_fork(self) -> bool:
        """Whether the next iteration forks this process, to start workers."""
        return not self._has_persistent and forks(self._loader)

    @property
    def epoch_length(self) -> int:
        """How many batches a whole epoch has."""
        return self.sampler.epoch_length

    def set_epoch(self, epoch: int, start: int = 0) -> None:
        """Go to an epoch and, in it, to the batch `start`; the next epoch begins at its first batch again."""
        self.sampler.set_epoch(epoch, start)
        self._generator.manual_seed(derive_seed(self._seed, "loader", epoch))

    def __len__(self) -> int:
        """How many batches are left of the epoch."""
        return len(self.sampler)

    def count_real(self, step: int) -> int:
        """How many samples of a batch of the epoch are this rank's; those behind them, another rank has too."""
        return self.sampler.count_real(step)

    def state_dict(self) -> "dict[str, Any]":
        """What the epoch's order depends on besides seed, epoch and the sampler's attributes."""
        return self.sampler.state_dict()

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        """Draw the order anew when the epoch of the state is read."""
        self.sampler.load_state_dict(state)

    def __iter__(self) -> "Iterator[Any]":
        """Draw the epoch's order, and return its batches.

        :raises ConfigurationError: the sampler gives an index that the dataset does not have.
        """
        self._has_persistent = self.params.persistent_workers
        self.sampler.draw()
        return self._read()

    def _read(self) -> "Iterator[Any]":
        try:
            yield from self._loader
        except IndexError as error:
            if (stray := self.sampler.find_stray()) is None:
                raise
            raise ConfigurationError(
                f"{type(self.sampler.source).__name__} must give indices of the dataset, which has "
                f"{self.sampler.dataset_length} samples; found {stray}. Make it for the dataset that it is used with."
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


def make_loader(
    dataset: Any, params: DataLoaderParams, generator: torch.Generator, *, collate_fn: Any, **batching: Any
) -> "DataLoader[Any]":
    """Return torch's loader, whose workers die with this process and are seeded from the generator."""
    has_workers = params.num_workers > 0
    context = choose_context(params.multiprocessing_context) if has_workers else params.multiprocessing_context
    start_worker = partial(_start_worker, params.worker_init_fn, isinstance(context, ForkServerContext))
    return DataLoader(
        dataset,
        num_workers=params.num_workers,
        pin_memory=params.pin_memory,
        collate_fn=collate_fn,
        prefetch_factor=params.prefetch_factor,
        persistent_workers=params.persistent_workers,
        timeout=params.timeout,
        multiprocessing_context=context,
        worker_init_fn=start_worker if has_workers else None,
        generator=generator,
        **batching,
    )


def forks(loader: "DataLoader[Any]") -> bool:
    """Whether a loader starts its workers by forking this process."""
    context = loader.multiprocessing_context
    method = find_start_method() if context is None else context.get_start_method()
    return loader.num_workers > 0 and bool(method == "fork")


def _start_worker(user_hook: "Callable[[int], None] | None", has_server: bool, worker: int) -> None:
    die_with_parent(by_server=has_server)
    seed_worker(torch.initial_seed())
    if user_hook is not None:
        user_hook(worker)


def _check(dataset: Any, params: DataLoaderParams, source: Any) -> None:
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ConfigurationError(
            "a dataset must have __getitem__ and __len__, or be a stream: an iterable, or a loader with state_dict and "
            f"load_state_dict; found {type(dataset).__name__}."
        )
    if params.batch_size is None:
        raise ConfigurationError(
            "batch_size=None is for streams whose items are batches already; a dataset with indices needs an integer."
        )
    if not isinstance(source, Iterable) or isinstance(source, Iterator):
        raise ConfigurationError(
            "a sampler must be a torch Sampler or another iterable over indices that can be iterated anew for each "
            f"epoch; found {type(source).__name__}."
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
