"""Weights and batches as users give them, and runs that are trained with them."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.guide_samples import find_sample
from fakes.rank_scenarios import OneOf, Ragged
from fakes.recording_model import RecordingModel

from proctor.sdk.pytorch import (
    ConfigurationError,
    DataLoaderParams,
    DataModule,
    NotExactWarning,
    ResumableBatchSampler,
    ResumableRandomSampler,
    ResumableWeightedSampler,
    Trainer,
)
from proctor.sdk.pytorch.config import Phase
from proctor.sdk.pytorch.data.loaders import EpochLoader

LENGTH = 23
WEIGHTS = [index % 4 / 2 for index in range(LENGTH)]


class Given(ResumableBatchSampler):
    def __init__(self, given: Any) -> None:
        super().__init__(range(LENGTH))
        self.given = given

    def batches(self) -> Any:
        return self.given


def test_draws_follow_the_weights() -> None:
    sampler = ResumableWeightedSampler([0.0, 1.0, 3.0], 4000)
    drawn = Counter(sampler)
    assert set(drawn) == {1, 2}
    assert 2.5 < drawn[2] / drawn[1] < 3.6
    once = ResumableWeightedSampler(torch.tensor([0.0, 1.0, 3.0]), 2, replacement=False)
    assert sorted(once) == [1, 2]


@pytest.mark.parametrize("weights", [[], [0.0, 0.0], [1.0, -1.0], [float("nan")], [float("inf")], [[1.0]], 1.0])
def test_weights_that_are_none_are_refused(weights: Any) -> None:
    with pytest.raises(ConfigurationError, match="weights must be a list of numbers"):
        ResumableWeightedSampler(weights, 1)


@pytest.mark.parametrize(("count", "replacement"), [(0, True), (1.5, True), (True, True), (3, False)])
def test_a_number_that_cannot_be_drawn_is_refused(count: Any, replacement: bool) -> None:
    with pytest.raises(ConfigurationError, match="num_samples must be an integer of at least 1"):
        ResumableWeightedSampler([1.0, 0.0, 2.0], count, replacement)


class Data(DataModule):
    def __init__(self, length: int = LENGTH, **params: Any) -> None:
        self.length = length
        self.params = DataLoaderParams(**params)

    def setup(self) -> None:
        self.add_train_phase(range(self.length), self.params)


def fit(root: "Path | None", data: DataModule, **options: Any) -> "list[list[int]]":
    model = RecordingModel(stop_after=options.pop("stop_after", None))
    Trainer("run", total_steps=3, chkpt_root=root, use_cpu=True, **options).fit(model, data)
    return model.batches


def weighted(**params: Any) -> Data:
    return Data(sampler=ResumableWeightedSampler(WEIGHTS, 16, **params), batch_size=3)


def test_weights_of_another_dataset_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="as many as the dataset has samples, 9; found 23"):
        fit(None, Data(9, sampler=ResumableWeightedSampler(WEIGHTS, 16)))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["weighted", "batches", "workers"])
def test_a_run_that_is_stopped_at_each_batch_goes_on_with_the_same_ones(kind: str, tmp_path: Path) -> None:
    def make_data() -> Data:
        workers = {"num_workers": 1} if kind == "workers" else {}
        return weighted() if kind == "weighted" else Data(batch_sampler=Ragged(range(LENGTH)), **workers)

    whole = fit(None, make_data())
    stops = range(1, len(whole)) if kind != "workers" else (1, len(whole) // 2)
    found: list[list[int]] = []
    for stop in stops:
        found += fit(tmp_path, make_data(), stop_after=stop)
    assert found + fit(tmp_path, make_data()) == whole
    if kind != "weighted":
        assert Counter(index for batch in whole for index in batch) == dict.fromkeys(range(LENGTH), 3)


def test_the_seed_is_that_of_the_run_unless_it_is_given() -> None:
    assert fit(None, weighted(), random_seed=1) != fit(None, weighted(), random_seed=2)
    assert fit(None, weighted(seed=5), random_seed=1) == fit(None, weighted(seed=5), random_seed=2)
    own = Data(batch_sampler=Ragged(range(LENGTH), seed=5))
    assert fit(None, own, random_seed=1) == fit(None, own, random_seed=2)


def test_other_weights_are_told_at_a_resume(tmp_path: Path) -> None:
    fit(tmp_path, weighted(), stop_after=1)
    other = Data(sampler=ResumableWeightedSampler([1.0] * LENGTH, 16), batch_size=3)
    with pytest.warns(NotExactWarning, match="sampler's weights of training 0 was"):
        fit(tmp_path, other)


@pytest.mark.parametrize("params", [{"batch_size": 2}, {"shuffle": True}, {"drop_last": True}, {"sampler": 1}])
def test_what_a_batch_sampler_decides_cannot_be_given_besides(params: "dict[str, Any]") -> None:
    with pytest.raises(ConfigurationError, match="batch_sampler makes the batches itself"):
        DataLoaderParams(batch_sampler=Given([[1]]), **params)


@pytest.mark.parametrize(
    "params", [{"sampler": Given([[1]])}, {"batch_sampler": ResumableRandomSampler(range(LENGTH))}]
)
def test_each_kind_of_sampler_has_its_parameter(params: "dict[str, Any]") -> None:
    with pytest.raises(ConfigurationError, match="batch_sampler must be a ResumableBatchSampler, and sampler must not"):
        fit(None, Data(**params))


@pytest.mark.parametrize(
    ("given", "told"),
    [([], "found none in epoch 0"), ([[1], []], "found an empty one"), ([[1, LENGTH]], "has 23 samples; found 23")],
)
def test_batches_that_cannot_be_read_are_refused(given: Any, told: str) -> None:
    with pytest.raises((ConfigurationError, RuntimeError), match=told):
        fit(None, Data(batch_sampler=Given(given)))


def test_a_batch_that_another_rank_has_too_has_no_samples_of_its_own() -> None:
    found = []
    for rank in range(2):
        sampler = Given([[0, 1], [2, 3, 4], [5]])
        sampler.bind(range(LENGTH), seed=0, ranks=OneOf(rank, 2))
        loader = EpochLoader(range(LENGTH), DataLoaderParams(batch_sampler=sampler), sampler=sampler, seed=0)
        found.append([loader.count_real(step) for step in range(3)])
    assert found == [[2, 1, 0], [3, 0, 0]]


def test_ranks_that_do_not_share_the_data_have_each_all_of_it() -> None:
    data = Data(batch_sampler=Given([[0], [1]]), is_distributed=False)
    data.bind(0, OneOf(1, 2))
    data.setup()
    assert data.open(Phase.TRAINING).epoch_length == 2


def test_the_buckets_of_the_guide_hold_texts_of_about_equal_length() -> None:
    names: dict[str, Any] = {}
    exec(find_sample("### Samplers"), names)
    lengths = [index * 37 % 101 for index in range(101)]
    sampler = names["Buckets"](lengths, 10)
    orders = []
    for epoch in range(2):
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
        assert sorted(index for batch in sampler for index in batch) == list(range(101))
        assert all(max(lengths[i] for i in batch) - min(lengths[i] for i in batch) < 40 for batch in sampler)
    assert orders[0] != orders[1]
    assert fit(None, Data(101, batch_sampler=sampler)) != []
