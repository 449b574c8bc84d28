"""The average of a network's weights: what it is, who is judged by it, and that a resume continues it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from fakes.trained_models import DigitsData, DigitsModel, Recipe, hash_state
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from proctor.sdk.pytorch import EMA, ConfigurationError, NotExactWarning, Outcome, Trainer, TrainingState

DECAY = 0.7


class Watched(DigitsModel):
    """Remembers what it is judged with.

    :param stop_after: the number of batches after which it wants the training to stop.
    """

    transient = (*DigitsModel.transient, "judged", "tested", "stop_after")

    def __init__(self, *, stop_after: "int | None" = None, **recipe: Any) -> None:
        super().__init__(Recipe(**recipe))
        self.stop_after = stop_after
        self.judged: list[str] = []
        self.tested = ""

    def on_validation_end(self, validation_cycle: int) -> None:
        super().on_validation_end(validation_cycle)
        self.judged.append(hash_state(self.net.state_dict()))

    def test_step(self, batch: Any, step: int) -> None:
        self.tested = hash_state(self.net.state_dict())

    def should_training_stop(self) -> bool:
        return self.trainer.state.global_iteration == self.stop_after


def make_trainer(ema: "EMA | None" = None, **options: Any) -> Trainer:
    trainer = Trainer("run", **{"use_cpu": True, **options})
    trainer.register_plugin(ema or EMA(DECAY, "net"))
    return trainer


def fit(root: "Path | None", model: Watched, *, ema: "EMA | None" = None, **options: Any) -> Outcome:
    chosen = {**model.recipe.options(), "chkpt_root": root, **options}
    chosen["chkpt_frequency"] = None if root is None else chosen["chkpt_frequency"]
    return make_trainer(ema, **chosen).fit(model, DigitsData(model.recipe))


def average_of(outcome: Outcome) -> Any:
    return torch.load(str(outcome.checkpoint), weights_only=True)["plugins"]["ema"]["average"]


@pytest.mark.parametrize("accumulation", [1, 4])
def test_it_is_the_average_that_torch_computes(accumulation: int, tmp_path: Path) -> None:
    averaged: list[Any] = []

    class Averaging(Watched):
        def on_training_batch_end(self, state: TrainingState, should_log: bool = False) -> None:
            if not averaged:
                averaged.append(AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(DECAY), use_buffers=True))
            if state.optimizer_step_now:
                averaged[0].update_parameters(self.net)

    model = Averaging(accumulation=accumulation)
    found = average_of(fit(tmp_path, model))
    expected = dict(averaged[0].module.state_dict())
    assert list(found) == list(expected)
    for name, tensor in found.items():
        own = model.net.state_dict()[name]
        assert torch.equal(tensor, expected[name] if tensor.is_floating_point() else own), name


def test_validations_and_tests_judge_it_and_training_goes_on_without_it(tmp_path: Path) -> None:
    model, plain = Watched(), Watched()
    outcome = fit(tmp_path, model)
    options = {**plain.recipe.options(), "chkpt_frequency": None}
    Trainer("run", **options).fit(plain, DigitsData(plain.recipe))
    assert hash_state(model.net.state_dict()) == hash_state(plain.net.state_dict())
    assert hash_state(model.optimizer.state_dict()) == hash_state(plain.optimizer.state_dict())
    assert model.judged != plain.judged
    assert model.judged[-1] == hash_state(average_of(outcome))
    tested = Watched()
    make_trainer(chkpt_root=tmp_path).test(tested, DigitsData(tested.recipe))
    assert tested.tested == hash_state(average_of(outcome))
    assert hash_state(tested.net.state_dict()) == hash_state(plain.net.state_dict())


@pytest.mark.slow
def test_a_run_that_is_stopped_goes_on_with_it(tmp_path: Path) -> None:
    whole = Watched(accumulation=4)
    expected = average_of(fit(tmp_path / "whole", whole))
    judged: list[str] = []
    for stop in (4, 8, 14, None):  # after 4 the window of the last two batches of the epoch is open
        model = Watched(accumulation=4, stop_after=stop)
        outcome = fit(tmp_path / "stopped", model)
        judged += model.judged
    assert judged == whole.judged
    assert hash_state(average_of(outcome)) == hash_state(expected)


def test_before_the_first_step_the_weights_themselves_are_tested() -> None:
    model = Watched()
    make_trainer().test(model, DigitsData(model.recipe))
    assert model.tested == hash_state(model.net.state_dict())


def test_a_validation_that_fails_leaves_the_network_its_own_weights(tmp_path: Path) -> None:
    class Failing(Watched):
        weights = ""

        def on_training_epoch_end(self, epoch: int) -> None:
            self.weights = hash_state(self.net.state_dict())

        def valid_step(self, batch: Any, step: int) -> None:
            assert hash_state(self.net.state_dict()) != self.weights
            raise LookupError("no")

    model = Failing()
    with pytest.raises(RuntimeError, match="LookupError"):
        fit(tmp_path, model)
    assert hash_state(model.net.state_dict()) == model.weights


def test_tied_weights_are_exchanged_once(tmp_path: Path) -> None:
    class Tied(Watched):
        def setup(self) -> None:
            super().setup()
            layer = torch.nn.Linear(3, 3)
            self.tied = torch.nn.ModuleList([layer, layer])

    ema = EMA(DECAY, "tied")
    model = Tied()
    fit(tmp_path, model, ema=ema)
    assert list(ema.average) == ["0.weight", "0.bias"]


def test_another_decay_is_told_at_a_resume(tmp_path: Path) -> None:
    fit(tmp_path, Watched(stop_after=6))
    with pytest.warns(NotExactWarning, match=r"decay of ema was 0\.7, is 0\.9"):
        fit(tmp_path, Watched(), ema=EMA(0.9, "net"))


@pytest.mark.parametrize("decay", [1, 1.0, -0.1, float("nan"), "0.9", True, None])
def test_a_decay_out_of_its_range_is_refused(decay: Any) -> None:
    with pytest.raises(ConfigurationError, match="decay must be a number from 0 to less than 1"):
        EMA(decay)


def test_a_network_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"averages the model's 'network', which must be a network .* None\."):
        fit(None, Watched(), ema=EMA(DECAY))


def test_a_network_of_another_form_is_refused(tmp_path: Path) -> None:
    class Growing(Watched):
        def on_training_epoch_start(self, epoch: int) -> None:
            if epoch == 1:
                self.net = torch.nn.Sequential(self.net, torch.nn.Linear(10, 10))

    with pytest.raises(ConfigurationError, match="has the average of other tensors than net has now"):
        fit(None, Growing())
