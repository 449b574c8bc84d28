"""What a model sees of its run, as `self.trainer`."""

import copy
import pickle
from pathlib import Path
from typing import Any

import torch
from fakes.recording_model import RangeData

from proctor.sdk.pytorch import Model, Trainer, TrainingState


class Asking(Model):
    """Looks at its run in the hooks, and has everything saved by itself."""

    transient = ("seen",)

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def setup(self) -> None:
        self.layer = torch.nn.Linear(1, 1)
        self.seen.append((self.trainer.settings.run_name, self.trainer.checkpoint_folder))

    def train_step(self, batch: Any, state: TrainingState) -> None:
        assert self.trainer.state is state
        self.log({"loss": state.global_iteration})
        assert self.trainer.metrics["loss"] == state.global_iteration

    def on_training_start(self) -> None:
        self.seen.append((self.trainer.state.epoch, dict(self.trainer.metrics)))

    def should_training_stop(self) -> bool:
        return self.trainer.settings.total_steps == 3 and self.trainer.state.epoch == 1

    def test_step(self, batch: Any, step: int) -> None:
        self.seen.append((self.trainer.state.epoch, dict(self.trainer.metrics)))


def test_a_model_sees_the_settings_the_position_the_metrics_and_the_folder(tmp_path: Path) -> None:
    options: dict[str, Any] = {"chkpt_root": tmp_path, "use_cpu": True}
    first, second, tested = Asking(), Asking(), Asking()
    Trainer("run", total_steps=3, **options).fit(first, RangeData(2))
    outcome = Trainer("run", total_steps=2, **options).fit(second, RangeData(2))
    Trainer("run", **options).test(tested, RangeData(2))
    named = ("run", tmp_path / "run")
    assert first.seen == [named, (0, {})]
    assert second.seen == [named, (1, {"loss": 3.0})]
    assert tested.seen == [named, (2, {"loss": 4.0}), (2, {"loss": 4.0})]
    content = torch.load(str(outcome.checkpoint), weights_only=True)
    assert (list(content["model"]), content["attributes"]) == (["layer"], [[]])


def test_a_model_that_was_trained_can_be_copied_and_sent_with_what_it_saw(tmp_path: Path) -> None:
    model = Asking()
    Trainer("run", total_steps=1, use_cpu=True).fit(model, RangeData(2))
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other.trainer.state == model.trainer.state
        assert other.trainer.checkpoint_folder is None
    Trainer("other", total_steps=1, use_cpu=True).fit(model, RangeData(2))
    assert model.trainer.settings.run_name == "other"
