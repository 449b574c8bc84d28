"""Data modules: which sampler is chosen, when their methods are called, which seed decides."""

from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fakes.rank_scenarios import OneOf
from fakes.recording_model import RangeData, RecordingModel
from torch.utils.data import RandomSampler, Sampler, SequentialSampler

from proctor.sdk.pytorch import (
    CheckpointFolder,
    ConfigurationError,
    DataLoaderParams,
    DataModule,
    Phase,
    Trainer,
    TrainerError,
)
from proctor.sdk.pytorch.checkpoints.filesystem import FolderLock
from proctor.sdk.pytorch.distributed.ranks import Ranks


def make_module(
    module: "RangeData | None" = None, *, seed: int = 0, ranks: "Ranks | None" = None, **params: Any
) -> RangeData:
    """A data module that has been set up."""
    module = module or RangeData(16, 7, **params)
    module.bind(seed, ranks or Ranks())
    module.setup()
    return module


def read(module: DataModule, epoch: int = 0, start: int = 0) -> "list[list[int]]":
    """An epoch of the first phase."""
    loader = module.open(Phase.TRAINING)
    loader.set_epoch(epoch, start)
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize(
    ("ranks", "params", "expected", "count"),
    [
        (Ranks(), {"shuffle": True}, RandomSampler, 8),
        (Ranks(), {}, SequentialSampler, 8),
        (OneOf(1, 2), {"shuffle": True}, RandomSampler, 4),
        (OneOf(1, 2), {}, SequentialSampler, 4),
        (OneOf(1, 2), {"is_distributed": False}, SequentialSampler, 8),
    ],
)
def test_D5_each_default_sampler_enters_the_epoch_at_batches_times_batch_size(
    ranks: Ranks, params: "dict[str, Any]", expected: type, count: int
) -> None:
    module = make_module(ranks=ranks, batch_size=2, **params)
    whole = read(module, 1)
    loader: Any = module.open(Phase.TRAINING)
    assert type(loader.sampler.source) is expected
    assert read(module, 1, 2) == whole[2:]
    assert len(whole) == count


class Backwards(Sampler[int]):
    """An order of one's own."""

    def __init__(self, data: Any) -> None:
        self.data = data

    def __iter__(self) -> "Iterator[int]":
        return reversed(range(len(self.data)))


def test_D6_a_sampler_of_ones_own_is_entered_like_the_others() -> None:
    assert read(make_module(batch_size=4, sampler=Backwards(range(16))), 0, 2) == [[7, 6, 5, 4], [3, 2, 1, 0]]


def test_D6_a_subclass_may_choose_the_sampler() -> None:
    class Own(RangeData):
        def make_sampler(self, dataset: Any, params: DataLoaderParams, *, phase: Phase, **rest: Any) -> Any:
            chosen = super().make_sampler(dataset, params, phase=phase, **rest)
            return Backwards(dataset) if phase is Phase.TRAINING else chosen

    module = make_module(Own(4))
    assert read(module) == [[3], [2], [1], [0]]
    assert [batch.tolist() for batch in module.open(Phase.VALIDATION)] == [[0], [1]]


def count_right(length: int, *, ranks: int, **params: Any) -> "list[int]":
    """The samples of a validation of several ranks that each of them is to count."""
    found: list[int] = []
    batches = set()
    for rank in range(ranks):
        module = make_module(ranks=OneOf(rank, ranks))
        module.set_validation(range(length), DataLoaderParams(**params))
        shown = list(module.open(Phase.VALIDATION))
        batches.add(len(shown))
        for step, batch in enumerate(shown):
            found += batch[: module.count_real(Phase.VALIDATION, step)].tolist()
    assert len(batches) == 1  # or collectives in a step would wait forever
    return sorted(found)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("length", [1, 2, 5, 6, 12, 13])
def test_a_validation_of_several_ranks_can_count_each_sample_once(length: int, size: int) -> None:
    for ranks in (1, 2, 3, 4):
        assert count_right(length, ranks=ranks, batch_size=size) == list(range(length))
    assert count_right(length, ranks=1, batch_size=size, is_distributed=False) == list(range(length))


def test_a_validation_that_drops_the_rest_repeats_nothing() -> None:
    assert count_right(13, ranks=3, batch_size=2, drop_last=True) == list(range(12))


def test_counting_the_samples_of_a_training_batch_leaves_the_phase() -> None:
    module = make_module(ranks=OneOf(1, 2), batch_size=3)
    module.open(Phase.TRAINING, 1)
    assert [module.count_real(Phase.TRAINING, step) for step in range(2)] == [3, 0]
    assert module.get_train_steps_per_epoch() == 2


def test_D15_the_length_of_an_epoch_is_known_for_each_phase() -> None:
    module = make_module(batch_size=3)
    assert module.get_train_steps_per_epoch() == 6
    assert module.get_train_steps_per_epoch(1) == 3
    assert module.open(Phase.TRAINING, 1) is module.open(Phase.TRAINING, 1)
    with pytest.raises(ConfigurationError, match="add_train_phase"):
        module.get_train_steps_per_epoch(2)


def test_D15_the_length_follows_the_phase_that_is_in_use() -> None:
    lengths: list[int] = []

    def ask(state: object = None) -> None:
        lengths.append(model.datamodule.get_train_steps_per_epoch())

    model = RecordingModel(advance_at=3, on_batch=ask)
    model.on_training_start = ask  # type: ignore[method-assign]
    Trainer("run", total_steps=2, use_cpu=True).fit(model, RangeData(3, 2))
    assert lengths == [3, 3, 3, 3, 2, 2]


class FailingModel(RecordingModel):
    def __init__(self, place: str) -> None:
        super().__init__()
        self.place = place

    def setup(self) -> None:
        if self.place == "setup of the model":
            raise OSError("no")

    def train_step(self, batch: Any, state: Any) -> None:
        if self.place == "batch":
            raise OSError("no")


class FailingData(RangeData):
    place = ""

    def setup(self) -> None:
        super().setup()
        if self.place == "setup of the data":
            raise OSError("no")

    def teardown(self) -> None:
        super().teardown()
        if self.place == "teardown":
            raise OSError("no")


@pytest.mark.parametrize("place", ["", "pause", "batch", "setup of the model", "setup of the data", "teardown"])
def test_D17_preparing_comes_first_and_tearing_down_last_however_a_run_ends(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proctor.sdk.pytorch.trial.should_stop", lambda: place == "pause")
    data = FailingData(2)
    data.place = place
    fails = place not in ("", "pause")
    with pytest.raises(RuntimeError, match="OSError: no") if fails else nullcontext():
        Trainer("run", total_steps=3, use_cpu=True).fit(FailingModel(place), data)
    assert data.calls == ["prepare_data", "setup", "teardown"]


class _Broken(RangeData):
    """Closes what a `setup` that failed has not opened."""

    def setup(self) -> None:
        raise FileNotFoundError("no data here")

    def teardown(self) -> None:
        raise AttributeError("no file to close")


def test_D17_what_tearing_down_raises_does_not_hide_why_the_run_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("proctor.sdk.pytorch.checkpoints.folder.FolderLock", partial(FolderLock, patience_seconds=0.0))
    with pytest.raises(RuntimeError, match="FileNotFoundError: no data here"):
        Trainer("run", total_steps=1, use_cpu=True).fit(RecordingModel(), _Broken(2))
    assert "AttributeError: no file to close" in caplog.text
    caplog.clear()
    storage = CheckpointFolder(tmp_path, "run")
    storage.open()
    with pytest.raises(TrainerError, match="another run"):
        Trainer("run", total_steps=1, use_cpu=True, chkpt_root=tmp_path).fit(RecordingModel(), _Broken(2))
    storage.close()
    assert not caplog.text  # nothing was set up


def test_S10_one_seed_decides_every_order_and_one_loader_can_be_pinned() -> None:
    def shuffle(seed: int, **params: Any) -> "list[list[int]]":
        return read(make_module(seed=seed, shuffle=True, **params))

    assert shuffle(1) == shuffle(1)
    assert shuffle(1) != shuffle(2)
    assert shuffle(1, random_seed=5) == shuffle(2, random_seed=5) != shuffle(1)


def test_phases_and_validations_do_not_share_a_shuffle() -> None:
    module = make_module(RangeData(40, 40, shuffle=True))
    module.set_validation(range(40), DataLoaderParams(shuffle=True))
    orders = set()
    for phase, number in ((Phase.TRAINING, 0), (Phase.TRAINING, 1), (Phase.VALIDATION, 0)):
        loader = module.open(phase, number)
        loader.set_epoch(0)
        orders.add(tuple(int(batch[0]) % 100 for batch in loader))
    assert len(orders) == 3


def test_data_is_named_in_setup_and_not_before() -> None:
    with pytest.raises(ConfigurationError, match=r"in setup\(\)"):
        DataModule().add_train_phase(range(3))
