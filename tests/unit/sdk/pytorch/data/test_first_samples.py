"""The first samples of a dataset: compared between ranks and starts, without a trace in the dataset or the streams."""

import copy
import random
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from fakes.recording_model import RangeData, RecordingModel
from torch.utils.data import Subset, TensorDataset

from proctor.sdk.pytorch import (
    ConfigurationError,
    DataLoaderParams,
    DataModule,
    NotExactError,
    NotExactWarning,
    Trainer,
    get_rng_state_dict,
)
from proctor.sdk.pytorch.data.module import digest_samples
from proctor.sdk.pytorch.distributed.ranks import Ranks
from proctor.sdk.pytorch.reproducibility.fingerprint import find_differences


def shift(value: float) -> float:
    return value + 1


class Own:
    """Draws, counts, caches, writes into what it holds, and has all that a dataset may have."""

    def __init__(self, first: float = 0.0, *, tells_count: bool = False) -> None:
        self.first, self.tells_count = first, tells_count
        self.count, self.reads, self.cache = 0, [0] * 10, dict[int, Any]()
        self.tensor, self.array, self.large = torch.zeros(10), numpy.zeros(10), torch.zeros(20_000_000)
        self.generator, self.own = torch.Generator().manual_seed(1), random.Random(2)
        self.transform, self.path = shift, Path("/data") / str(first)

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Any:
        self.count += 1
        self.reads[index] += 1
        self.tensor[index] += 1
        self.array[index] += 1
        self.cache[index] = index
        draws = [torch.rand(2), random.random(), numpy.random.random(), self.large[index]]
        name = f"/tmp/{id(self)}/{self.first}.png"
        return {"x": draws, "y": self.transform(self.first), "name": name, "count": self.count * self.tells_count}


def show(dataset: Own) -> Any:
    return copy.deepcopy({name: value for name, value in vars(dataset).items() if name not in ("large", "generator")})


def test_reading_them_leaves_no_trace() -> None:
    dataset = Own()
    before, state, streams = show(dataset), dataset.generator.get_state(), repr(get_rng_state_dict())
    own = dataset.own.getstate()
    assert digest_samples(Subset(dataset, range(5))) is not None
    assert repr({**show(dataset), "own": 0}) == repr({**before, "own": 0})
    assert dataset.own.getstate() == own
    assert torch.equal(dataset.generator.get_state(), state)
    assert repr(get_rng_state_dict()) == streams


def test_equal_datasets_have_equal_samples_and_others_have_others() -> None:
    assert digest_samples(Own()) == digest_samples(Own()) is not None
    assert digest_samples(Own()) != digest_samples(Own(1.0))
    rows = TensorDataset(torch.arange(4))
    assert digest_samples(rows) == digest_samples(TensorDataset(torch.arange(4))) != digest_samples([*range(4)])
    assert digest_samples([{"b", "a"}]) == digest_samples([{"a", "b"}]) is not None


class Huge(Own):
    """Writes into an array that is too large to be copied."""

    def __init__(self) -> None:
        super().__init__()
        self.array = numpy.zeros(10_000_000)


class Broken(Own):
    def __getitem__(self, index: int) -> Any:
        raise OSError("no such file")


class Opened(Own):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


@pytest.mark.parametrize("dataset", [Own(tells_count=True), Huge(), Broken(), Opened()], ids=type)
def test_what_cannot_be_read_without_a_trace_or_is_different_each_time_is_not_compared(dataset: Own) -> None:
    assert digest_samples(dataset) is None
    assert not dataset.array.any()


def test_a_closure_is_not_called() -> None:
    seen = []
    dataset = Own()
    dataset.transform = lambda value: seen.append(value) or value  # type: ignore[func-returns-value]
    assert digest_samples(dataset) is None
    assert seen == []


class Given(DataModule):
    def __init__(self, data: Any, **params: Any) -> None:
        self.data, self.params = data, DataLoaderParams(**params)

    def setup(self) -> None:
        self.add_train_phase(self.data, self.params)


def fit(root: Path, data: Any, **options: Any) -> None:
    model = RecordingModel(stop_after=None if (root / "run").exists() else 1)
    Trainer("run", total_steps=2, chkpt_root=root, use_cpu=True, **options).fit(model, data)


def test_other_samples_are_told_or_refused_at_a_resume(tmp_path: Path) -> None:
    fit(tmp_path, Given([1, 2, 3]))
    with pytest.raises(NotExactError, match="first samples of training 0 was"):
        fit(tmp_path, Given([2, 1, 3]), strict_resume=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", NotExactWarning)
        fit(tmp_path, Given([1, 2, 3]), strict_resume=True)


def test_a_checkpoint_of_a_version_that_did_not_know_them_is_exact() -> None:
    known = {"seed": 1, "first samples of training 0": "12"}
    assert find_differences({"seed": 1}, known) == find_differences(known, {"seed": 1}) == []
    assert find_differences({**known, "first samples of training 0": None}, known) == []
    assert len(find_differences({**known, "first samples of training 0": "34"}, known)) == 1


class Other(Ranks):
    """The main rank of two, the other one of which has other samples."""

    world_size = 2

    def gather(self, value: Any) -> "list[Any]":
        return [value, {name: found and "other" for name, found in value.items()}]


@pytest.mark.parametrize("is_distributed", [None, True, False])
def test_ranks_that_share_a_dataset_and_have_others_are_refused(is_distributed: "bool | None") -> None:
    data = Given([1, 2, 3], is_distributed=is_distributed)
    data.bind(0, Other())
    data.setup()
    if is_distributed is False:
        data.examine(Other())
        return
    with pytest.raises(ConfigurationError, match=r"the dataset of training 0 must be the same on all ranks.*on rank 1"):
        data.examine(Other())


def test_a_run_without_checkpoints_and_other_ranks_reads_nothing_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proctor.sdk.pytorch.data.module.digest_samples", lambda data: pytest.fail("was read"))
    Trainer("run", total_steps=1, use_cpu=True).fit(RecordingModel(), RangeData(2))
