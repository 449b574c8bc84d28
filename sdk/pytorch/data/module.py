"""What a run reads: a data module names its datasets, the trainer makes the loaders.

For frameworks that save what has `state_dict` and `load_state_dict`, as Lightning does, there is a loader with both.
"""

from collections.abc import Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any

from proctor.sdk.pytorch.checkpoints.attributes import EPOCH, RUN, find_generators
from proctor.sdk.pytorch.config import Phase
from proctor.sdk.pytorch.data.loaders import DataLoaderParams, EpochLoader, describe_loader
from proctor.sdk.pytorch.data.samplers import (
    ResumableBatchSampler,
    ResumableDistributedSampler,
    ResumableRandomSampler,
    ResumableSampler,
    ResumableSequentialSampler,
)
from proctor.sdk.pytorch.distributed.ranks import Ranks, get_ranks
from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.reproducibility.fingerprint import Fact
from proctor.sdk.pytorch.reproducibility.seeding import (
    derive_seed,
    get_default_seed,
    get_rng_state_dict,
    load_rng_state_dict,
)


@dataclass
class _Part:
    """One dataset of a run and how it is read."""

    phase: Phase
    number: int  # of the training's phases
    seed: int  # of its order and its workers' draws
    dataset: Any
    params: DataLoaderParams
    sampler: "ResumableSampler | None" = None  # the same at each call, for it may be described before it is used
    loader: "EpochLoader | None" = None  # the same at each call, so that persistent workers live on

    def __str__(self) -> str:
        return f"{self.phase.value} {self.number}"


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
    ) -> ResumableSampler:
        """Choose the sampler: distributed if the ranks share the data, else random or sequential. To be overridden."""
        size = params.batch_size
        shared = ranks.world_size > 1 if params.is_distributed is None else params.is_distributed
        if shared:
            return ResumableDistributedSampler(
                dataset,
                ranks.world_size,
                rank=ranks.rank,
                shuffle=params.shuffle,
                seed=seed,
                drop_last=params.drop_last,
                batch_size=size,
            )
        if params.shuffle:
            return ResumableRandomSampler(dataset, seed=seed, batch_size=size)
        return ResumableSequentialSampler(dataset, batch_size=size)

    @property
    def train_phases(self) -> int:
        """How many phases of training there are."""
        return sum(phase is Phase.TRAINING for phase, _ in self._require_parts())

    def get_train_steps_per_epoch(self, train_phase: "int | None" = None) -> int:
        """Return how many batches an epoch of a phase of the training has; None is the phase that is in use.

        :raises ConfigurationError: `setup` has not named such data.
        """
        return self.open(Phase.TRAINING, self._train_phase if train_phase is None else train_phase).epoch_length

    def count_real(self, phase: Phase, step: int) -> int:
        """Return how many of the first samples of batch `step` (counted from 0) are to be counted on this rank.

        Where data does not divide by the ranks, the last sample of some shares is one that another rank has too.
        """
        return self.open(phase, self._train_phase if phase is Phase.TRAINING else 0).count_real(step)

    def has(self, phase: Phase) -> bool:
        """Whether there is data for a phase."""
        return (phase, 0) in self._require_parts()

    def open(self, phase: Phase, number: int = 0) -> EpochLoader:
        """Return the loader of a phase; the same one at each call, so that persistent workers live on.

        :raises ConfigurationError: there is no such data, or the sampler is none that can be resumed.
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
            seed = derive_seed(part.seed, "rank", self._ranks.rank)
            part.loader = EpochLoader(part.dataset, part.params, sampler=self._choose_sampler(part), seed=seed)
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
        return {
            str(part): describe_loader(part.dataset, part.params, self._find_own_sampler(part))
            for part in self._require_parts().values()
        }

    def get_read_with(self) -> "dict[str, Any]":
        """What samples are read with, by a name for people; workers read with copies of it, made as they start."""
        found = {}
        for part in self._require_parts().values():
            params = part.params
            found[f"the dataset of {part}"] = part.dataset
            found[f"the collate_fn of {part}"] = params.collate_fn
            found[f"the sampler of {part}"] = params.sampler or params.batch_sampler
        return {what: value for what, value in found.items() if value is not None}

    def get_copied(self) -> "dict[str, str]":
        """By the names of `get_read_with`, for how long a copy of it is read with, or an order that it has made."""
        found = {}
        for part in self._require_parts().values():
            is_training = part.phase is Phase.TRAINING  # others are read while nothing is saved
            found[f"the sampler of {part}"] = EPOCH if is_training else ""
            span = RUN if part.params.persistent_workers else EPOCH if is_training else ""
            for what in ("dataset", "collate_fn"):
                found[f"the {what} of {part}"] = span if part.params.num_workers else ""
        return found

    def find_gaps(self) -> "list[str]":
        """A clause for each random generator that no checkpoint can hold: in workers, and where an order is drawn."""
        gaps = []
        for part in self._require_parts().values():
            read_with = (part.dataset, part.params.collate_fn)
            if part.params.num_workers and any(find_generators(value) for value in read_with):
                gaps.append(
                    f"the dataset or collate_fn of {part} has a random generator of its own, and each worker draws "
                    "from a copy that no checkpoint holds; draw from torch, random or get_default_numpy_rng() in "
                    "workers, or set num_workers to 0"
                )
            if (sampler := self._find_own_sampler(part)) is not None and find_generators(sampler):
                gaps.append(
                    f"the sampler of {part} has a random generator of its own, and draws from it again when an epoch "
                    "is resumed; let order() make one from the seed and the epoch"
                )
        return gaps

    def _add(self, phase: Phase, dataset: Any, params: "DataLoaderParams | None", *, number: int = 0) -> None:
        parts, params = self._require_parts(), params or DataLoaderParams()
        seed = self._seed if params.random_seed is None else params.random_seed
        parts[phase, number] = _Part(phase, number, derive_seed(seed, phase.value, number), dataset, params)

    def _choose_sampler(self, part: _Part) -> ResumableSampler:
        if part.sampler is None:
            params, seed = part.params, part.seed
            sampler: Any = params.sampler if params.batch_sampler is None else params.batch_sampler
            if sampler is None:
                sampler = self.make_sampler(part.dataset, params, phase=part.phase, seed=seed, ranks=self._ranks)
            if not isinstance(sampler, ResumableSampler):
                raise ConfigurationError(
                    "a sampler must be a ResumableSampler (such as ResumableRandomSampler, ResumableSequentialSampler, "
                    f"or one of yours that derives from it); found {type(sampler).__name__}."
                )
            if isinstance(sampler, ResumableBatchSampler) != (params.batch_sampler is not None):
                raise ConfigurationError(
                    "batch_sampler must be a ResumableBatchSampler, and sampler must not be one; found "
                    f"{type(sampler).__name__}."
                )
            is_alone = params.is_distributed is False
            sampler.bind(part.dataset, seed=seed, ranks=Ranks() if is_alone else self._ranks)
            part.sampler = sampler
        return part.sampler

    def _find_own_sampler(self, part: _Part) -> "ResumableSampler | None":
        """The user's own, None for the automatic choice: other facts have all that decides that one."""
        is_given = part.params.sampler is not None or part.params.batch_sampler is not None
        is_automatic = not is_given and type(self).make_sampler is DataModule.make_sampler
        return None if is_automatic else self._choose_sampler(part)

    def _require_parts(self) -> "dict[tuple[Phase, int], _Part]":
        if self._parts is None:
            raise ConfigurationError(
                "a data module names its datasets in setup(), which the trainer calls; not before."
            )
        return self._parts


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
        self._may_be_inside = False  # whether the next iteration begins in the middle of an epoch

    def __len__(self) -> int:
        """How many batches a whole epoch has, for frameworks count from its beginning."""
        return self._open().epoch_length

    def __iter__(self) -> "Iterator[Any]":
        loader = self._open()
        if self._batch and not self._may_be_inside:  # the epoch before was left early
            self._epoch, self._batch = self._epoch + 1, 0
        self._may_be_inside = False
        loader.set_epoch(self._epoch, self._batch)
        if get_ranks().rank < len(self._streams):
            load_rng_state_dict(self._streams[get_ranks().rank])
        self._streams = []
        for batch in loader:
            self._batch += 1
            if self._batch == loader.epoch_length:
                self._epoch, self._batch = self._epoch + 1, 0
            yield batch

    def state_dict(self) -> "dict[str, Any]":
        """The position and all ranks' streams (collective)."""
        streams = get_ranks().gather(get_rng_state_dict())
        return {"epoch": self._epoch, "batch": self._batch, "streams": streams or []}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        """Go there with the next batch."""
        self._epoch, self._batch, self._streams = state["epoch"], state["batch"], state["streams"]
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
        return self._data.open(Phase.TRAINING)
