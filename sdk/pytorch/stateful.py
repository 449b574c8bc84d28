"""A loader for frameworks that save what has `state_dict` and `load_state_dict`, as Lightning does.

Its state is the position in the epoch and the random streams of all ranks, which it gives back right before the first
batch is fetched: whatever the framework draws while it starts up does not matter.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from proctor.sdk.pytorch.data import DataModule
from proctor.sdk.pytorch.distributed import get_ranks
from proctor.sdk.pytorch.fingerprint import Fact
from proctor.sdk.pytorch.loaders import DataLoaderParams, EpochLoader
from proctor.sdk.pytorch.options import Phase
from proctor.sdk.pytorch.seeding import get_default_seed, get_rng_state_dict, load_rng_state_dict


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
    """The batches to train on, one epoch at each iteration.

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
