"""Plug-ins: what they may be called, what they may claim, what is kept of them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.recording_model import RangeData, RecordingModel
from fakes.trained_models import DigitsData, DigitsModel

from proctor.sdk.pytorch import Callback, ConfigurationError, Override, Phase, Plugin, Trainer, TrainingState
from proctor.sdk.pytorch.callbacks.base import RESERVED_NAMES, Callbacks


class Counting(Plugin):
    """Counts the batches of the whole run and adds a thousand to each."""

    def __init__(self, plugin_id: str = "counting", overrides: "frozenset[Override]" = frozenset()) -> None:
        super().__init__(plugin_id)
        self.overrides = overrides
        self.batches = 0
        self.calls: list[str] = []

    def setup(self, model: Any) -> None:
        self.calls.append("setup")

    def on_training_start(self) -> None:
        self.calls.append("start")

    def on_training_end(self) -> None:
        self.calls.append("end")

    def close(self) -> None:
        self.calls.append("close")

    def process_training_batch(self, batch: Any, state: TrainingState) -> Any:
        self.batches += 1
        return batch + 1000

    def on_evaluation_start(self, phase: Phase) -> None:
        self.calls.append(f"{phase.value} starts")

    def on_evaluation_end(self, phase: Phase) -> None:
        self.calls.append(f"{phase.value} ends")

    def process_validation_batch(self, batch: Any, step: int) -> Any:
        self.calls.append(f"validation {step}")
        return batch

    def process_testing_batch(self, batch: Any, step: int) -> Any:
        self.calls.append(f"testing {step}")
        return batch

    def state_dict(self) -> "dict[str, Any]":
        return {"batches": self.batches}

    def load_state_dict(self, state: "dict[str, Any]") -> None:
        self.batches = state["batches"]


def test_X14_two_of_the_same_id_are_refused() -> None:
    trainer = Trainer("run")
    trainer.register_plugin(Counting("one"))
    with pytest.raises(KeyError, match="'one' is registered already"):
        trainer.register_plugin(Counting("one"))


def test_X14_what_one_has_claimed_another_cannot_and_nothing_of_it_stays() -> None:
    trainer = Trainer("run")
    trainer.register_plugin(Counting("one", frozenset({Override.TRAINING_BATCH})))
    with pytest.raises(ValueError, match="'one' has claimed"):
        trainer.register_plugin(Counting("two", frozenset({Override.TESTING_BATCH, Override.TRAINING_BATCH})))
    trainer.register_plugin(Counting("two", frozenset({Override.TESTING_BATCH})))


def test_X14_a_plug_in_is_called_around_the_run_and_with_each_batch() -> None:
    plugin, model = Counting(), RecordingModel()
    trainer = Trainer("run", total_steps=1, valid_frequency=1, use_cpu=True)
    trainer.register_plugin(plugin)
    trainer.fit(model, RangeData(2))
    assert model.batches == [[1000], [1001]]
    assert plugin.calls == [
        "setup", "start", "validation starts", "validation 0", "validation 1", "validation ends", "end", "close",
    ]  # fmt: skip
    plugin.calls.clear()
    trainer.test(model, RangeData(2))
    assert plugin.calls == ["setup", "testing starts", "testing 0", "testing 1", "testing ends", "close"]


@pytest.mark.parametrize("claimed", [True, False])
def test_X14_a_plug_in_that_claims_the_batch_moves_it_in_place_of_the_model(claimed: bool) -> None:
    model = RecordingModel()
    trainer = Trainer("run", total_steps=1, use_cpu=True)
    trainer.register_plugin(Counting(overrides=frozenset({Override.TRAINING_BATCH} if claimed else ())))
    trainer.fit(model, RangeData(2))
    assert ("batch_to_device" in model.hooks) is not claimed


def test_C18_the_state_of_a_plug_in_is_saved_and_restored(tmp_path: Path) -> None:
    plugins = [Counting(), Counting()]
    for plugin, stop in zip(plugins, (3, None), strict=True):
        trainer = Trainer("run", total_steps=2, chkpt_root=tmp_path, use_cpu=True)
        trainer.register_plugin(plugin)
        outcome = trainer.fit(RecordingModel(stop_after=stop), RangeData(4))
    assert [plugin.batches for plugin in plugins] == [3, 8]
    assert torch.load(outcome.checkpoint, weights_only=True)["plugins"] == {"counting": {"batches": 8}}


def test_a_callback_is_given_to_the_trainer_and_known_by_its_class(tmp_path: Path) -> None:
    class Seen(Callback):
        def __init__(self) -> None:
            self.steps: list[int] = []

        def on_metrics(self, record: Any) -> None:
            self.steps.append(record.step)

        def state_dict(self) -> "dict[str, Any]":
            return {"steps": self.steps}

        def load_state_dict(self, state: "dict[str, Any]") -> None:
            self.steps = state["steps"]

    for total_steps in (1, 2):
        seen = Seen()
        trainer = Trainer("run", total_steps=total_steps, callbacks=[seen], chkpt_root=tmp_path, use_cpu=True)
        outcome = trainer.fit(DigitsModel(), DigitsData())
        assert trainer.settings.callbacks == ()
    assert seen.steps == list(range(1, 13))
    assert torch.load(outcome.checkpoint, weights_only=True)["plugins"]["Seen"] == {"steps": seen.steps}
    with pytest.raises(KeyError, match="'Seen' is registered already"):
        Trainer("run", callbacks=[Seen(), Seen()])
    with pytest.raises(ConfigurationError, match="must derive from Callback; found <class"):
        Trainer("run", callbacks=[Seen])


@pytest.mark.parametrize("saves", [True, False])
def test_C18_a_plug_in_that_comes_or_goes_between_runs_is_told(saves: bool, tmp_path: Path) -> None:
    def fit(has_plugin: bool, stop: "int | None") -> None:
        trainer = Trainer("run", total_steps=2, chkpt_root=tmp_path, use_cpu=True)
        if has_plugin:
            trainer.register_plugin(Counting())
        trainer.fit(RecordingModel(stop_after=stop), RangeData(4))

    fit(saves, 3)
    with pytest.warns(UserWarning, match="plug-ins was .*counting"):
        fit(not saves, None)


@pytest.mark.parametrize("name", sorted(RESERVED_NAMES))
def test_C4_a_name_of_the_checkpoints_own_parts_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="is a part of every checkpoint"):
        Trainer("run").register_plugin(Plugin(name))


def test_C4_every_part_of_a_checkpoint_is_reserved(tmp_path: Path) -> None:
    outcome = Trainer("run", total_steps=1, chkpt_root=tmp_path, use_cpu=True).fit(RecordingModel(), RangeData(2))
    assert set(torch.load(str(outcome.checkpoint), weights_only=True)) <= RESERVED_NAMES


def test_all_callbacks_are_closed_in_their_order_though_one_fails() -> None:
    closed = []

    class Closing(Callback):
        def __init__(self, number: int) -> None:
            self.number = number

        def close(self) -> None:
            closed.append(self.number)
            if self.number == 2:
                raise OSError("no")

    with pytest.raises(OSError, match="no"):
        Callbacks(logs=[Closing(1), Closing(2), Closing(3)]).close()
    assert closed == [1, 2, 3]
