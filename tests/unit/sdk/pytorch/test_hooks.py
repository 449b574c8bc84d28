"""The order in which a model is called; hooks that could not be called, or never would be, are refused at the start."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.recording_model import Line, RangeData, RecordingModel

from proctor.sdk.pytorch import ConfigurationError, Model, Plugin, Trainer, TrainingUnit


def batch(number: int) -> "list[Line]":
    """The calls for a training batch."""
    return [
        ("on_training_batch_start", number),
        ("batch_to_device", "training"),
        ("train_step", number),
        ("on_training_batch_end", number),
    ]


def validation(cycle: int) -> "list[Line]":
    """The calls for a validation of two batches."""
    steps: list[Line] = []
    for step in range(2):
        steps += [
            ("on_validation_batch_start", step),
            ("batch_to_device", "validation"),
            ("valid_step", step),
            ("on_validation_batch_end", step),
        ]
    return [
        ("eval",),
        ("on_validation_start", cycle),
        *steps,
        ("on_validation_end", cycle),
        ("train",),
        ("have_metrics_improved",),
    ]


def test_T13_by_epoch_the_hooks_come_in_their_documented_order(tmp_path: Path) -> None:
    model = RecordingModel()
    Trainer("run", total_steps=2, valid_frequency=1, chkpt_frequency=1, chkpt_root=tmp_path, use_cpu=True).fit(
        model, RangeData(2)
    )
    assert model.lines == [
        ("setup",),
        ("on_training_start",),
        ("train",),
        ("on_training_epoch_start", 0),
        *batch(1),
        *batch(2),
        ("on_training_epoch_end", 0),
        *validation(0),
        ("checkpoint",),
        ("on_training_epoch_start", 1),
        *batch(3),
        *batch(4),
        ("on_training_epoch_end", 1),
        *validation(1),
        ("checkpoint",),
        ("on_training_end",),
    ]


def test_T13_by_iteration_validations_and_checkpoints_come_between_windows(tmp_path: Path) -> None:
    model = RecordingModel()
    Trainer(
        "run",
        train_unit="iteration",
        total_steps=2,
        accumulation_steps=2,
        valid_frequency=1,
        chkpt_frequency=2,
        chkpt_root=tmp_path,
        use_cpu=True,
    ).fit(model, RangeData(3))
    assert model.lines == [
        ("setup",),
        ("on_training_start",),
        ("train",),
        ("on_training_epoch_start", 0),
        *batch(1),
        *batch(2),
        *validation(0),
        *batch(3),
        ("on_training_epoch_end", 0),
        ("on_training_epoch_start", 1),
        *batch(4),
        *validation(1),
        ("checkpoint",),
        ("on_training_end",),
    ]


def test_T13_a_test_has_hooks_of_its_own(tmp_path: Path) -> None:
    model = RecordingModel()
    Trainer("run", chkpt_root=tmp_path, use_cpu=True).test(model, RangeData(2))
    steps: list[Line] = []
    for step in range(2):
        steps += [
            ("on_testing_batch_start", step),
            ("batch_to_device", "testing"),
            ("test_step", step),
            ("on_testing_batch_end", step),
        ]
    assert model.lines == [
        ("setup",),
        ("load_for_testing",),
        ("eval",),
        ("on_testing_start",),
        *steps,
        ("on_testing_end",),
    ]


def test_a_resumed_run_loads_before_it_starts_and_enters_its_epoch_without_the_hook(tmp_path: Path) -> None:
    options = {"total_steps": 2, "chkpt_root": tmp_path, "use_cpu": True}
    Trainer("run", **options).fit(RecordingModel(stop_after=1), RangeData(2))  # type: ignore[arg-type]
    model = RecordingModel()
    Trainer("run", **options).fit(model, RangeData(2))  # type: ignore[arg-type]
    assert model.lines == [
        ("setup",),
        ("load_state_dict",),
        ("on_training_start",),
        ("train",),
        *batch(2),
        ("on_training_epoch_end", 0),
        ("on_training_epoch_start", 1),
        *batch(3),
        *batch(4),
        ("on_training_epoch_end", 1),
        ("checkpoint",),
        ("on_training_end",),
    ]


def test_the_names_of_helios_2_are_accepted() -> None:
    class Named(RangeData):
        def setup(self) -> None:
            self._add_train_phase(range(2))
            self._add_valid_dataset(range(1))
            self._add_test_dataset(range(1))

    model = RecordingModel()
    trainer = Trainer("run", train_unit=TrainingUnit.EPOCH, total_steps=1, valid_frequency=1, use_cpu=True)
    trainer.fit(model, Named())
    trainer.test(model, Named())
    assert {"valid_step", "test_step"} <= set(model.hooks)


def refuse(model: "Model | None" = None, data: Any = None, plugin: "Plugin | None" = None, *, told: str) -> None:
    """Both `fit` and `test` refuse it before they prepare the data."""
    data = data or RangeData(2)
    trainer = Trainer("run", total_steps=1, use_cpu=True)
    if plugin is not None:
        trainer.register_plugin(plugin)
    for work in (trainer.fit, trainer.test):
        with pytest.raises(ConfigurationError, match=told):
            work(model or RecordingModel(), data)
    assert data.calls == []


def train_on(self: Any, batch: Any) -> None: ...
def start_validation(self: Any) -> None: ...
def end_batch(self: Any, state: Any) -> None: ...
def append(self: Any, chkpt_name: str) -> str: ...  # type: ignore[empty-body]
async def train_later(self: Any, batch: Any, state: Any) -> None: ...


def yield_batches(self: Any, batch: Any, state: Any) -> Any:
    yield batch


@pytest.mark.parametrize(
    ("name", "hook", "told"),
    [
        ("train_step", train_on, r"Mine\.train_step must take .* \(batch, state\); found \(batch\)\. Give it"),
        ("on_validation_start", start_validation, r"Mine\.on_validation_start .* \(validation_cycle\); found \(\)"),
        ("on_training_batch_end", end_batch, r"\(state, should_log=False\); found \(state\)"),
        ("append_metadata_to_chkpt_name", append, r"Mine\.append_metadata_to_chkpt_name .* \(\); found \(chkpt_name\)"),
        ("train_step", train_later, r"Mine\.train_step would never run"),
        ("train_step", yield_batches, r"Mine\.train_step would never run"),
        ("train", True, r"Mine\.train hides the hook train\(\); found True"),
        ("user_state_dict", start_validation, r"Mine\.user_state_dict .* Helios.*: call it state_dict"),
        ("load_user_state_dict", train_on, r"Mine\.load_user_state_dict .*: call it load_state_dict\(state\)"),
    ],
)
def test_a_hook_of_a_model_that_cannot_be_called_is_refused(name: str, hook: Any, told: str) -> None:
    refuse(type("Mine", (Model,), {"train_step": lambda self, batch, state: None, name: hook})(), told=told)


@pytest.mark.parametrize(
    ("name", "hook", "told"),
    [
        ("setup", start_validation, r"Mine\.setup .* \(model\); found \(\)"),
        ("process_training_batch", train_on, r"\(batch, state\); found \(batch\)"),
        ("on_validation_end", train_on, r"Mine\.on_validation_end .* Helios.*do it in the model's"),
        ("configure_trainer", train_on, "give the options to Trainer"),
    ],
)
def test_a_hook_of_a_plug_in_that_cannot_be_called_is_refused(name: str, hook: Any, told: str) -> None:
    refuse(plugin=type("Mine", (Plugin,), {name: hook})("mine"), told=told)


def test_a_hook_of_a_data_module_that_cannot_be_called_is_refused() -> None:
    kind = type("Mine", (RangeData,), {"make_sampler": train_on})
    refuse(data=kind(2), told=r"Mine\.make_sampler .* \(dataset, params, \*, phase, seed, ranks\); found \(batch\)")


def test_hooks_that_can_be_called_are_left_alone() -> None:
    class Mixed(torch.nn.Module, RecordingModel):
        """Takes what it is called with in other ways, and calls a hook of Helios by itself."""

        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            RecordingModel.__init__(self)

        @torch.no_grad()
        def valid_step(self, *args: Any) -> None:
            self.seen = args

        @staticmethod
        def on_validation_start(cycle: int, extra: int = 0) -> None:
            pass

        def user_state_dict(self) -> "dict[str, Any]":
            return {"done": self.done}

        def state_dict(self, *args: Any, **kwargs: Any) -> "dict[str, Any]":
            return self.user_state_dict()

    model = Mixed()
    model.on_training_epoch_start = lambda *args: None  # type: ignore[method-assign]
    Trainer("run", total_steps=1, use_cpu=True, valid_frequency=1).fit(model, RangeData(2))
    assert len(model.batches) == 2
