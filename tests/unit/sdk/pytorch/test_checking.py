"""What is wrong with a run before its first batch is reported before its first batch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.recording_model import RangeData, RecordingModel
from torch import nn

from proctor.sdk.pytorch import (
    EMA,
    ConfigurationError,
    DataLoaderParams,
    Model,
    Plugin,
    Trainer,
    TrainingState,
    UnreadableCheckpointError,
)


class OtherData(RangeData):
    """Has data besides to validate on, or a second phase to train on.

    :param params: how the validation data is read.
    """

    def __init__(self, *lengths: int, valid: int = 2, params: "DataLoaderParams | None" = None) -> None:
        super().__init__(*lengths, valid=valid)
        self.valid_params = params

    def setup(self) -> None:
        super().setup()
        self.set_validation(range(self.valid), self.valid_params)


ONE_PASS = DataLoaderParams(sampler=iter(range(2)))


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (OtherData(4, valid=0), "a dataset of 0 samples gives no batch"),
        (OtherData(4, params=ONE_PASS), "a sampler must be a torch Sampler or .*; found range_iterator"),
        (OtherData(4, 0), "a dataset of 0 samples gives no batch"),
    ],
    ids=["empty validation", "sampler of the validation", "empty second phase"],
)
def test_D6_data_that_cannot_be_read_is_refused_before_the_first_batch(data: Any, told: str) -> None:
    model = RecordingModel()
    with pytest.raises(ConfigurationError, match=told):
        Trainer("run", total_steps=4, valid_frequency=2, use_cpu=True).fit(model, data)
    assert model.batches == []


def test_data_that_no_batch_will_be_read_of_does_not_matter() -> None:
    model = RecordingModel()
    Trainer("run", total_steps=1, use_cpu=True).fit(model, OtherData(2, valid=0))
    assert len(model.batches) == 2


class Odd:
    """Nothing that a checkpoint could hold."""


class Keeping(RecordingModel):
    def state_dict(self) -> "dict[str, Any]":
        return {"odd": Odd()}


class OddPlugin(Plugin):
    def state_dict(self) -> "dict[str, Any]":
        return {"odd": [Odd()]}


def fit(root: Path, model: Model, *plugins: Plugin) -> None:
    """Train for long before the first checkpoint."""
    trainer = Trainer("run", total_steps=5, chkpt_frequency=5, chkpt_root=root, use_cpu=True)
    for plugin in plugins:
        trainer.register_plugin(plugin)
    trainer.fit(model, RangeData(2))


def test_C11_a_state_that_no_checkpoint_could_hold_is_refused_before_the_first_batch(tmp_path: Path) -> None:
    for model, plugins, place in (
        (Keeping(), [], r"checkpoint\['model'\]\['odd'\] is a .*Odd"),
        (RecordingModel(), [OddPlugin("odd")], r"checkpoint\['plugins'\]\['odd'\]\['odd'\]\[0\] is a .*Odd"),
    ):
        with pytest.raises(ConfigurationError, match=place):
            fit(tmp_path, model, *plugins)
        assert model.batches == []


def test_a_state_that_only_training_makes_is_asked_for_when_it_is_saved(tmp_path: Path) -> None:
    class Late(RecordingModel):
        def train_step(self, batch: Any, state: TrainingState) -> None:
            super().train_step(batch, state)
            self.late = state.global_iteration

        def state_dict(self) -> "dict[str, Any]":
            return {"late": self.late}

    fit(tmp_path, Late())
    content = torch.load(next((tmp_path / "run").glob("*.pth")), weights_only=True)
    assert content["model"] == {"late": 10}


def _make_reduced(number: int) -> "Reduced":
    return Reduced()


class Lazy(RecordingModel):
    """A layer that does not know its size."""

    def setup(self) -> None:
        self.network = nn.LazyLinear(2)

    state_dict, load_state_dict = Model.state_dict, Model.load_state_dict


def test_a_layer_whose_size_is_unknown_and_an_average_without_a_network_are_refused_before_the_first_batch(
    tmp_path: Path,
) -> None:
    for model, plugins, told in (
        (Lazy(), [], r"Lazy\.network has layers whose sizes the first batch decides"),
        (RecordingModel(), [EMA()], r"averages the model's 'network', which must be a network"),
    ):
        with pytest.raises(ConfigurationError, match=told):
            fit(tmp_path, model, *plugins)
        assert model.batches == []


class Reduced:
    """Is read by a function, which the model does not name."""

    def __reduce__(self) -> "tuple[Any, ...]":
        return _make_reduced, (1,)


def test_the_first_checkpoint_of_a_start_is_read_back_before_the_run_goes_on(tmp_path: Path) -> None:
    class Unreadable(RecordingModel):
        reduced: Any = 0

        def state_dict(self) -> "dict[str, Any]":
            return {"reduced": self.reduced}

        def load_state_dict(self, state: "dict[str, Any]") -> None:
            assert state == {"reduced": 0}

        def types_for_safe_load(self) -> "list[type]":
            return [Reduced]

    options: dict[str, Any] = {"chkpt_frequency": 1, "chkpt_root": tmp_path, "use_cpu": True}
    Trainer("run", total_steps=1, **options).fit(Unreadable(), RangeData(2))
    model = Unreadable()
    model.reduced = Reduced()
    for _ in range(2):  # what was stored before is still there to continue from
        with pytest.raises(UnreadableCheckpointError, match="_make_reduced was not an allowed global"):
            Trainer("run", total_steps=9, **options).fit(model, RangeData(2))
        assert [path.name for path in (tmp_path / "run").glob("*.pth")] == ["run_epoch_1_iter_2.pth"]
    assert len(model.batches) == 4


def test_C6_parts_that_a_hook_has_made_are_refused_at_the_first_save(tmp_path: Path) -> None:
    class Late(Model):
        def train_step(self, batch: Any, state: TrainingState) -> None:
            self.held = [nn.Linear(1, 1)]

    with pytest.raises(ConfigurationError, match=r"Late\.held holds"):
        fit(tmp_path, Late())


def test_a_run_without_a_folder_may_hold_what_it_likes() -> None:
    model = Keeping()
    outcome = Trainer("run", total_steps=1, use_cpu=True).fit(model, RangeData(2))
    assert (len(model.batches), outcome.checkpoint) == (2, None)
