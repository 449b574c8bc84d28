"""Hooks that could not be called, or never would be, are refused when the run starts."""

from typing import Any

import pytest
import torch
from fakes.recording_model import RangeData, RecordingModel

from proctor.sdk.pytorch import ConfigurationError, Model, Plugin, Trainer


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
