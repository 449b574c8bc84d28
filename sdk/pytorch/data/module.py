"""What a run reads: a data module names its datasets, the trainer makes the loaders.

For frameworks that save what has `state_dict` and `load_state_dict`, as Lightning does, there is a loader with both.
"""

import io
import pickle
from collections.abc import Iterator, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import PurePath
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.utils.data import DataLoader, RandomSampler, Sampler, SequentialSampler

from proctor.sdk.pytorch.checkpoints.attributes import EPOCH, RUN
from proctor.sdk.pytorch.checkpoints.values import is_array
from proctor.sdk.pytorch.checkpoints.walk import find_generators
from proctor.sdk.pytorch.config import Phase
from proctor.sdk.pytorch.data.loaders import DataLoaderParams, EpochLoader, find_rows
from proctor.sdk.pytorch.data.streams import StreamLoader, is_stream, keeps_position
from proctor.sdk.pytorch.distributed.ranks import Ranks, get_ranks
from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.reproducibility.fingerprint import FIRST_SAMPLES, Fact, name_kind
from proctor.sdk.pytorch.reproducibility.seeding import (
    derive_seed,
    forked_streams,
    get_default_seed,
    get_rng_state_dict,
    load_rng_state_dict,
)

_SIMPLE = (str, int, float, type(None))
_SAMPLES = 3
_MOST_BYTES = 64 << 20
_MOST_OBJECTS = 100_000


@dataclass
class _Part:
    """One dataset of a run and how it is read."""

    phase: Phase
    number: int  # of the training's phases
    seed: int  # of its order and its workers' draws
    dataset: Any
    params: DataLoaderParams
    sampler: Any = None  # the same at each call, for it may be described before it is used
    facts: "dict[str, Fact]" = field(default_factory=dict)  # what of a sampler of the user's decides its order
    samples: "str | None" = None  # a hash of the first ones
    loader: "EpochLoader | StreamLoader | None" = None  # the same at each call, so that persistent workers live on

    def __str__(self) -> str:
        return f"{self.phase.value} {self.number}"

    @property
    def is_read_again(self) -> bool:
        """Whether a resumed run comes to its place in the data by reading what comes before."""
        return is_stream(self.dataset) and not keeps_position(self.dataset, self.params)


class DataModule:
    """The base of every data module. The trainer calls, in this order:

    `prepare_data` once, in the process that calls `fit`; then in each process `setup` and, when the run has ended, has
    failed or was stopped, `teardown`. `setup` calls `add_train_phase` (once for each phase of the training),
    `set_validation` and `set_testing`; the streams are seeded by then.

    What changes of its plain attributes while training is saved, as that of a model and of a dataset is, except for
    those that `transient` names.
    """

    transient: "Sequence[str]" = ()
    kept_by_trainer = ("_parts", "_seed", "_ranks", "_train_phase")
    _parts: "dict[tuple[Phase, int], _Part] | None" = None
    _seed = 0
    _ranks = Ranks()
    _train_phase = 0

    def prepare_data(self) -> None:
        """Download, unpack: what is done once for all processes."""

    def setup(self) -> None:
        """Make the datasets and name them; called in each process."""

    def teardown(self) -> None:
        """Close what `setup` opened; called however the run ended, also if `setup` has failed in its middle."""

    def add_train_phase(self, dataset: Any, params: "DataLoaderParams | None" = None) -> None:
        """Name the data to train on; called again, the data of the next phase of the training."""
        self._add(Phase.TRAINING, dataset, params, number=self.train_phases)

    def set_validation(self, dataset: Any, params: "DataLoaderParams | None" = None) -> None:
        """Name the data that validations read."""
        self._add(Phase.VALIDATION, dataset, params)

    def set_testing(self, dataset: Any, params: "DataLoaderParams | None" = None) -> None:
        """Name the data that `Trainer.test` reads."""
        self._add(Phase.TESTING, dataset, params)

    _add_train_phase, _add_valid_dataset, _add_test_dataset = add_train_phase, set_validation, set_testing  # Helios 2

    def make_sampler(
        self, dataset: Sized, params: DataLoaderParams, *, phase: Phase, seed: int, ranks: Ranks
    ) -> "Sampler[Any]":
        """Choose the sampler, random or sequential, of an epoch that the ranks then share. To be overridden."""
        if params.shuffle and len(dataset):
            return RandomSampler(dataset, generator=torch.default_generator)
        return SequentialSampler(dataset)

    @property
    def train_phases(self) -> int:
        """How many phases of training there are."""
        return sum(phase is Phase.TRAINING for phase, _ in self._require_parts())

    def get_train_steps_per_epoch(self, train_phase: "int | None" = None) -> int:
        """Return how many batches an epoch of a phase of the training has; None is the phase that is in use.

        :raises ConfigurationError: `setup` has not named such data, or it is a stream, whose length is not known.
        """
        length = self.open(Phase.TRAINING, self._train_phase if train_phase is None else train_phase).epoch_length
        if length is None:
            raise ConfigurationError("an epoch of a stream ends where the stream does; its length is not known before.")
        return length

    def count_real(self, phase: Phase, step: int) -> int:
        """Return how many of the first samples of batch `step` (counted from 0) are to be counted on this rank.

        Where data does not divide by the ranks, the last sample of some shares is one that another rank has too.
        """
        return self.open(phase, self._train_phase if phase is Phase.TRAINING else 0).count_real(step)

    def has(self, phase: Phase) -> bool:
        """Whether there is data for a phase."""
        return (phase, 0) in self._require_parts()

    def open(self, phase: Phase, number: int = 0) -> "EpochLoader | StreamLoader":
        """Return the loader of a phase; the same one at each call, so that persistent workers live on.

        :raises ConfigurationError: there is no such data, or it cannot be read as the parameters say.
        """
        if phase is Phase.TRAINING:
            self._train_phase = number
        part = self._require_parts().get((phase, number))
        if part is None:
            method = "add_train_phase" if phase is Phase.TRAINING else f"set_{phase.value}"
            raise ConfigurationError(
                f"there is no data for {phase.value}{f' phase {number}' if number else ''}; call {method}(dataset, "
                f"DataLoaderParams(...)) in {type(self).__name__}.setup."
            )
        if part.loader is None:
            ranks = Ranks() if part.params.is_distributed is False else self._ranks
            own_seed = derive_seed(part.seed, "rank", self._ranks.rank)
            if is_stream(part.dataset):
                part.loader = StreamLoader(part.dataset, part.params, seed=own_seed, ranks=ranks)
            else:
                source, seed = self._choose_sampler(part), part.seed
                part.loader = EpochLoader(
                    part.dataset, part.params, source, seed=seed, ranks=ranks, worker_seed=own_seed
                )
        return part.loader

    def bind(self, seed: int, ranks: Ranks) -> None:
        """Drop earlier datasets, take over the seed and the ranks of a run; the trainer calls it before `setup`."""
        self._parts, self._seed, self._ranks, self._train_phase = {}, seed, ranks, 0

    def unbind(self) -> None:
        """Release the loaders and their workers; the trainer calls it after `teardown`."""
        for part in (self._parts or {}).values():
            part.loader = part.sampler = None

    def describe(self) -> "dict[str, dict[str, Fact]]":
        """What decides which samples a batch holds and how it is made, for the fingerprint of a run."""
        return {str(part): self._describe(part) for part in self._require_parts().values()}

    def examine(self, ranks: Ranks) -> None:
        """Note the first samples of what is trained on and validated, for the fingerprint (collective).

        :raises ConfigurationError: they are others on another rank, on all ranks alike.
        """
        found = {}
        for part in self._require_parts().values():
            if part.phase is not Phase.TESTING and not is_stream(part.dataset):
                part.samples = digest_samples(part.dataset)
                found[str(part)] = None if part.params.is_distributed is False else part.samples
        main, *others = ranks.gather(found) or [{}]
        unlike = [
            (name, rank)
            for rank, own in enumerate(others, 1)
            for name, samples in own.items()
            if samples != main.get(name) and None not in (samples, main.get(name))
        ]
        for name, rank in ranks.broadcast(unlike):
            raise ConfigurationError(
                f"the dataset of {name} must be the same on all ranks, which share it; found other first samples on "
                f"rank {rank} than on the main rank. Give it one order (sort what comes from a set, or set "
                "PYTHONHASHSEED before Python starts), or is_distributed=False where each rank has its own data."
            )

    def take_positions(self) -> "dict[str, Any]":
        """What a checkpoint must hold of this rank's place in the data besides the counters."""
        loaders = {str(part): part.loader for part in self._require_parts().values() if part.loader is not None}
        return {name: state for name, loader in loaders.items() if (state := loader.state_dict())}

    def restore_positions(self, saved: "Mapping[str, Any]") -> None:
        """Have the data read on from what `take_positions` returned."""
        in_use = self._train_phase
        for part in self._require_parts().values():
            if part.loader is not None or str(part) in saved:
                self.open(part.phase, part.number).load_state_dict(saved.get(str(part), {}))
        self._train_phase = in_use

    def find_read_again(self, phase: int, batch: int) -> "list[str]":
        """A clause if a run that continues in the middle of an epoch reads what it has been trained on again."""
        part = self._require_parts().get((Phase.TRAINING, phase))
        if part is None or not batch or not part.is_read_again:
            return []
        why = "is read in workers" if part.params.num_workers else "has no state_dict"
        return [f"the stream of {part} {why}, so {batch} batches are read again and passed over"]

    def get_read_with(self) -> "dict[str, Any]":
        """What samples are read with, by a name for people; workers read with copies of it, made as they start."""
        found = {}
        for part in self._require_parts().values():
            if not keeps_position(part.dataset, part.params) or not is_stream(part.dataset):
                found[f"the dataset of {part}"] = part.dataset
            found[f"the collate_fn of {part}"] = part.params.collate_fn
            found[f"the sampler of {part}"] = sampler = self._find_own_sampler(part)
            found[f"the sampler within that of {part}"] = getattr(sampler, "sampler", None)
        return {what: value for what, value in found.items() if value is not None}

    def get_copied(self) -> "dict[str, str]":
        """By the names of `get_read_with`, for how long a copy of it is read with, or an order that it has made."""
        found = {}
        for part in self._require_parts().values():
            is_training = part.phase is Phase.TRAINING  # others are read while nothing is saved
            for what in ("sampler of", "sampler within that of"):
                found[f"the {what} {part}"] = EPOCH if is_training else ""
            span = RUN if part.params.persistent_workers else EPOCH if is_training else ""
            for what in ("dataset", "collate_fn"):
                found[f"the {what} of {part}"] = span if part.params.num_workers or part.is_read_again else ""
        return found

    def find_gaps(self) -> "list[str]":
        """A clause for each random generator that no checkpoint can hold."""
        gaps: list[str] = []
        for part in self._require_parts().values():
            data, again, workers = part.dataset, part.is_read_again, part.params.num_workers
            has_own = any(find_generators(value) for value in (data, part.params.collate_fn))
            is_loader = isinstance(data, DataLoader) and not again
            own = f"the dataset or collate_fn of {part} has a random generator of its own, and"
            found = [
                (
                    has_own and workers and not again,
                    f"{own} each worker draws from a copy that no checkpoint holds; draw from torch, random or "
                    "get_default_numpy_rng() in workers, or set num_workers to 0",
                ),
                (
                    has_own and again and not workers,
                    f"{own} draws from it once more when a resumed run reads the epoch again; give it state_dict and "
                    "load_state_dict, or draw from torch, random or get_default_numpy_rng()",
                ),
                (
                    is_loader and (data.num_workers or data.generator is not None),
                    f"the state of the loader of {part} holds neither what its workers draw from nor, between two "
                    "epochs, a generator of its own; read without workers and leave generator out, or give the dataset "
                    "and DataLoaderParams",
                ),
            ]
            gaps += [clause for is_there, clause in found if is_there]
        return gaps

    def _add(self, phase: Phase, dataset: Any, params: "DataLoaderParams | None", *, number: int = 0) -> None:
        parts, params = self._require_parts(), params or DataLoaderParams()
        seed = self._seed if params.random_seed is None else params.random_seed
        parts[phase, number] = _Part(phase, number, derive_seed(seed, phase.value, number), dataset, params)

    def _choose_sampler(self, part: _Part) -> Any:
        if part.sampler is None:
            params = part.params
            part.sampler = params.sampler if params.batch_sampler is None else params.batch_sampler
            if part.sampler is None:
                options: dict[str, Any] = {"phase": part.phase, "seed": part.seed, "ranks": self._ranks}
                part.sampler = self.make_sampler(part.dataset, params, **options)
            part.facts = describe_sampler(part.sampler)
        return part.sampler

    def _find_own_sampler(self, part: _Part) -> Any:
        """The user's own, None for the automatic choice: other facts have all that decides that one."""
        is_given = part.params.sampler is not None or part.params.batch_sampler is not None
        is_automatic = not is_given and type(self).make_sampler is DataModule.make_sampler
        return None if is_automatic or is_stream(part.dataset) else self._choose_sampler(part)

    def _describe(self, part: _Part) -> "dict[str, Fact]":
        params, sampler = part.params, self._find_own_sampler(part)
        own: dict[str, Fact] = (
            {} if sampler is None else {f"sampler's {name}": fact for name, fact in part.facts.items()}
        )
        workers, has_indices = params.num_workers, not is_stream(part.dataset)
        maker: Any = part.dataset if isinstance(part.dataset, DataLoader) else params
        return {
            **own,
            FIRST_SAMPLES: part.samples,
            "dataset length": len(part.dataset) if has_indices else None,
            "batch size": maker.batch_size,
            # how many there are changes nothing where each batch is seeded; whether there are does
            "workers": min(workers, 1) if has_indices else maker.num_workers,
            "shuffle": params.shuffle,
            "drop_last": maker.drop_last,
            "collate function": name_kind(maker.collate_fn),
            "sampler": name_kind(sampler),
            "random_seed": params.random_seed,
            "is_distributed": params.is_distributed,
        }

    def _require_parts(self) -> "dict[tuple[Phase, int], _Part]":
        if self._parts is None:
            raise ConfigurationError(
                "a data module names its datasets in setup(), which the trainer calls; not before."
            )
        return self._parts


def describe_sampler(sampler: Any) -> "dict[str, Fact]":
    """The attributes of a sampler, and of the one that it draws from, which decide its order."""
    found: dict[str, Fact] = {}
    for attribute, value in getattr(sampler, "__dict__", {}).items():
        name = attribute.lstrip("_")
        if isinstance(value, Sampler):
            found.update({f"{name}'s {inner}": fact for inner, fact in describe_sampler(value).items()})
        elif isinstance(value, (*_SIMPLE, torch.Tensor, list, tuple, dict)):
            with suppress(Exception):  # what it holds cannot be compared
                found[name] = value if isinstance(value, _SIMPLE) else digest_value(value)
    return found


def describe_loaders(loaders: Any) -> "dict[str, dict[str, Fact]] | None":
    """What decides the batches of one loader, or of a tree of them; None if one of them forgets where it is."""
    if isinstance(loaders, ResumableLoader):
        return loaders.describe()
    if not isinstance(loaders, (Mapping, list, tuple)):
        return None
    found: dict[str, dict[str, Fact]] = {}
    for name, loader in loaders.items() if isinstance(loaders, Mapping) else enumerate(loaders):
        if (facts := describe_loaders(loader)) is None:
            return None
        found.update({f"{part} of loader {name}": values for part, values in facts.items()})
    return found


class ResumableLoader:
    """The batches to train on, one epoch at each iteration, for frameworks that save a loader's state.

    Its state is the position in the epoch and the random streams of all ranks, which it restores right before the first
    batch is fetched: whatever the framework draws while it starts up does not matter.

    :param seed: of the order and the workers' draws; None is the default seed.
    """

    def __init__(self, dataset: Any, params: DataLoaderParams, *, seed: "int | None" = None) -> None:
        self._dataset = dataset
        self._params = params
        self._seed = get_default_seed() if seed is None else seed
        self._data: DataModule | None = None
        self._epoch = self._batch = 0  # where the next batch is
        self._streams: list[Any] = []  # those to be given back
        self._positions: list[Any] = []
        self._may_be_inside = False  # whether the next iteration begins in the middle of an epoch

    def __len__(self) -> int:
        """How many batches a whole epoch has, for frameworks count from its beginning."""
        return self._open().epoch_length

    def __iter__(self) -> "Iterator[Any]":
        loader = self._open()
        if self._batch and not self._may_be_inside:  # the epoch before was left early
            self._epoch, self._batch = self._epoch + 1, 0
        self._may_be_inside = False
        rank = get_ranks().rank
        if self._data is not None and rank < len(self._positions):
            self._data.restore_positions(self._positions[rank])
        loader.set_epoch(self._epoch, self._batch)
        if rank < len(self._streams):
            load_rng_state_dict(self._streams[rank])
        self._streams, self._positions = [], []
        for batch in loader:
            self._batch += 1
            if self._batch == loader.epoch_length:
                self._epoch, self._batch = self._epoch + 1, 0
            yield batch

    def state_dict(self) -> "dict[str, Any]":
        """The position and all ranks' streams (collective)."""
        ranks, data = get_ranks(), {} if self._data is None else self._data.take_positions()
        streams, positions = ranks.gather(get_rng_state_dict()) or [], ranks.gather(data) or []
        return {"epoch": self._epoch, "batch": self._batch, "streams": streams, "positions": positions}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        """Go there with the next batch."""
        self._epoch, self._batch, self._streams = state["epoch"], state["batch"], state["streams"]
        self._positions = state.get("positions", [])  # which checkpoints of earlier versions do not have
        self._may_be_inside = True

    def describe(self) -> "dict[str, dict[str, Fact]]":
        """What decides the batches, for the fingerprint."""
        self._open()
        return {} if self._data is None else self._data.describe()

    def _open(self) -> EpochLoader:
        if self._data is None:  # not before the framework has made the process group
            self._data = DataModule()
            self._data.bind(self._seed, get_ranks())
            self._data.add_train_phase(self._dataset, self._params)
            self._data.examine(get_ranks())
        loader = self._data.open(Phase.TRAINING)
        if isinstance(loader, StreamLoader):
            raise ConfigurationError(
                "ResumableLoader reads data with indices; give a stream to the framework in a loader with state_dict "
                "and load_state_dict, such as torchdata's StatefulDataLoader."
            )
        return loader


# -- the first samples -------------------------------------------------------------------------------------------------


def digest_samples(dataset: Any) -> "str | None":
    """Return a hash of the first samples of a dataset; None if they cannot be read without a trace, or are others when
    they are read again.

    They are read from a copy, and with random streams of their own: no counter of the dataset moves, nor does anything
    that a run draws. The copy shares what is not written to, and what no checkpoint could hold: large tensors, and
    large arrays, which are read-only meanwhile.
    """
    is_plain = type(dataset) in (list, tuple, range) or find_rows(dataset) is not None
    try:
        with forked_streams(0):
            copied = dataset if is_plain else _copy(dataset)
        found = set()
        for _ in range(2):
            with forked_streams(0):
                found.add(digest_value([copied[index] for index in range(min(_SAMPLES, len(copied)))]))
    except Exception:  # whatever the dataset's code may raise; a training that reads it will tell
        return None
    return found.pop() if len(found) == 1 else None


def digest_value(value: Any) -> str:
    """Return a hash of a value; texts that are paths count by their last part. Raises what pickling it raises."""
    file = io.BytesIO()
    hasher = _Hasher(file, protocol=5)
    hasher.fast = True  # equal values have equal hashes, whether or not they are one object
    hasher.dump(value)
    return blake2b(file.getbuffer(), digest_size=8).hexdigest()


class _Hasher(pickle.Pickler):
    def persistent_id(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
            return str(value.dtype), list(value.shape), data.numpy().tobytes()
        if isinstance(value, (set, frozenset)):
            return sorted(map(repr, value))
        value = str(value) if isinstance(value, PurePath) else value
        return value.rpartition("/")[2].encode(errors="replace") if isinstance(value, str) and "/" in value else None


class _Copier(pickle.Pickler):
    """Pickles all but what it puts into `shared`: code, texts, tensors and arrays (the small ones copied)."""

    shared: "list[Any]"
    count = 0

    def persistent_id(self, value: Any) -> "int | None":
        self.count += 1
        if self.count > _MOST_OBJECTS or type(value).__module__.startswith("PIL."):  # which is read when it is pickled
            raise pickle.PicklingError  # which is a reason not to compare
        is_plain = isinstance(value, FunctionType) and not value.__closure__
        if isinstance(value, torch.Tensor):
            value = value if value.nbytes > _MOST_BYTES else value.detach().clone()
        elif is_array(value):
            value = value.view() if value.nbytes > _MOST_BYTES else value.copy()
            value.flags.writeable = value.nbytes <= _MOST_BYTES
        elif not is_plain and not isinstance(value, (type, ModuleType, str, bytes)):
            return None
        self.shared.append(value)
        return len(self.shared) - 1


class _Reader(pickle.Unpickler):
    shared: "list[Any]"

    def persistent_load(self, number: Any) -> Any:
        return self.shared[number]


def _copy(value: Any) -> Any:
    """Raises whatever the objects of the user do when they are copied."""
    file = io.BytesIO()
    copier, reader = _Copier(file, protocol=5), _Reader(file)
    copier.shared = reader.shared = []
    copier.dump(value)
    file.seek(0)
    return reader.load()
