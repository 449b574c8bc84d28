"""What would make a resumed run another one is reported or refused, whichever part of the run it is in."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.recording_model import RangeData, RecordingModel
from fakes.trained_models import DigitsData, DigitsModel, Recipe
from torch import nn
from torch.utils.data import RandomSampler, WeightedRandomSampler

from proctor.sdk.pytorch import (
    ConfigurationError,
    NotExactError,
    NotExactWarning,
    Trainer,
    get_default_numpy_rng,
)
from proctor.sdk.pytorch.reproducibility.fingerprint import find_differences, take_fingerprint
from proctor.sdk.pytorch.reproducibility.seeding import DefaultNumpyRNG


def fit(root: Path, data: Any, *, model: Any = None, **options: Any) -> None:
    """Train the first batch, or the rest."""
    model = model or RecordingModel(stop_after=None if (root / "run").exists() else 1)
    Trainer("run", total_steps=2, chkpt_root=root, use_cpu=True, **options).fit(model, data)


def drawn(samples: int) -> RangeData:
    return RangeData(4, sampler=RandomSampler(range(4), num_samples=samples))


class Chosen(RangeData):
    weights = (1, 2, 3, 4)

    def make_sampler(self, dataset: Any, params: Any, **chosen: Any) -> Any:
        return WeightedRandomSampler(self.weights[: len(dataset)], 3)


class OtherWeights(Chosen):
    weights = (4, 3, 2, 1)


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (RangeData(4, random_seed=1), RangeData(4, random_seed=2), "random_seed of training 0 was 1, is 2"),
        (RangeData(4), RangeData(4, is_distributed=True), "is_distributed of training 0 was None, is True"),
        (drawn(3), drawn(2), "sampler's num_samples of training 0 was 3, is 2"),
        (Chosen(4), OtherWeights(4), "sampler's weights of training 0 was '.*', is"),
        (RangeData(4), Chosen(4), "sampler of training 0 was None, is '.*WeightedRandomSampler'"),
    ],
)
def test_R6_other_orders_are_told_or_refused(tmp_path: Path, before: Any, after: Any, told: str) -> None:
    fit(tmp_path, before)
    with pytest.raises(NotExactError, match=told):
        fit(tmp_path, after, strict_resume=True)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always", NotExactWarning)
        fit(tmp_path, after)
    assert any(told.partition("'.*")[0] in str(warning.message) for warning in found)


class Scaling(DigitsModel):
    """Has a scaler that works, where the recipe's own does nothing."""

    def setup(self) -> None:
        super().setup()
        self.amp_scaler = torch.amp.GradScaler("cpu")


@pytest.mark.parametrize(
    ("precise", "changed", "told"),
    [
        (True, DigitsModel(), "mixed precision was .*bfloat16"),
        (False, DigitsModel(Recipe(amp=True)), "precision was None, is"),
        (True, Scaling(), "gradient scaler was 'enabled=False', is 'enabled=True'"),
    ],
)
def test_R6_mixed_precision_or_a_scaler_that_is_switched_is_refused(
    tmp_path: Path, precise: bool, changed: DigitsModel, told: str
) -> None:
    options: dict[str, Any] = {"chkpt_root": tmp_path, "use_cpu": True, "strict_resume": True}
    Trainer("run", total_steps=1, **options).fit(DigitsModel(Recipe(amp=precise)), DigitsData())
    with pytest.raises(NotExactError, match=told):
        Trainer("run", total_steps=2, **options).fit(changed, DigitsData())
    Trainer("run", total_steps=2, **options).fit(DigitsModel(Recipe(amp=precise)), DigitsData())


def test_R6_another_frequency_of_validations_is_told_for_they_draw_from_the_streams_too(tmp_path: Path) -> None:
    fit(tmp_path, RangeData(4), valid_frequency=1)
    with pytest.raises(NotExactError, match="validation frequency was 1, is 2"):
        fit(tmp_path, RangeData(4), valid_frequency=2, strict_resume=True)


def test_R6_another_backend_of_the_ranks_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_initialized", lambda: True)
    found = []
    for backend in ("gloo", "nccl"):
        monkeypatch.setattr("torch.distributed.get_backend_config", lambda backend=backend: backend)
        found.append(take_fingerprint("cpu", world_size=2))
    assert find_differences(*found) == ["backend was 'gloo', is 'nccl'"]


def hold_list(model: Any) -> None:
    model.held = [nn.Linear(2, 2)]


def hold_parameter(model: Any) -> None:
    model.held = nn.Parameter(torch.zeros(2))


def hold_deep(model: Any) -> None:
    model.held = {"all": ({"first": nn.BatchNorm1d(2)}, 1)}


def hold_optimizers(model: Any) -> None:
    model.held = (torch.optim.SGD(model.net.parameters(), lr=0.1),)


class Holding(DigitsModel):
    """A model with something besides.

    :param hold: gives the model what it holds.
    """

    def __init__(self, hold: Any) -> None:
        super().__init__()
        self.hold = hold

    def setup(self) -> None:
        super().setup()
        self.hold(self)


class Saving(Holding):
    def state_dict(self) -> "dict[str, Any]":
        return {**super().state_dict(), "held": [net.state_dict() for net in self.held]}  # type: ignore[attr-defined]


@pytest.mark.parametrize("hold", [hold_list, hold_parameter, hold_deep, hold_optimizers])
def test_C6_parts_that_nothing_saves_are_refused_before_the_first_batch(tmp_path: Path, hold: Any) -> None:
    model = Holding(hold)
    with pytest.raises(ConfigurationError, match=r"Holding\.held holds .*nn\.ModuleList.*override state_dict"):
        fit(tmp_path, DigitsData(), model=model)
    assert model.samples == []


def hold_streams(model: Any) -> None:
    model.streams = [torch.default_generator, get_default_numpy_rng()]
    model.numpy_stream = get_default_numpy_rng().generator
    model.own = DefaultNumpyRNG(1)  # has a state as an attribute


def hold_other_names(model: Any) -> None:
    model.parameters = list(model.net.parameters())
    model.first = next(model.net.parameters())
    model.layers = {"all": list(model.net.modules())}
    model.steps = [model.optimizer, model.scheduler]
    model.losses = [nn.MSELoss(), nn.CrossEntropyLoss()]
    model.rows = [1, "two", None, torch.zeros(3)]
    model.rows.append(model.rows)


@pytest.mark.parametrize(
    "model",
    [Holding(hold_streams), Holding(hold_other_names), Saving(hold_list)],
    ids=["streams of the trainer", "other names for what is saved", "a model that saves by itself"],
)
def test_C6_what_is_no_part_of_its_own_may_be_held(tmp_path: Path, model: Holding) -> None:
    fit(tmp_path, DigitsData(), model=model)
    assert list((tmp_path / "run").glob("*.pth"))
