"""Trials that need many GPUs are not passed by smaller ones forever."""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
from fakes import small_experiments
from fakes.small_experiments import SMALL, MachineService, Scene, played

from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.placement import HOLD_AFTER_SECONDS
from proctor.training_services.base import TrialJobForm
from proctor.training_services.in_memory.scripts import Final, Step


class OneMachineScene(Scene):
    """Two experiments on a machine of two GPUs: a trial of the second one needs both, while those of the first take
    turns."""

    service = MachineService
    config = SMALL | {"trialConcurrency": 2, "trialGpuNumber": 1, "maxTrialNumber": 1000}

    async def create_both(self, **large: Any) -> None:
        self.connect("m1")
        await self.create(id="small", seconds=1.0)
        await self.create(id="large", trialGpuNumber=2, trialConcurrency=1, **large)


def ten_seconds(form: TrialJobForm) -> Iterable[Step]:
    """Trials of one GPU are not in step: the first one takes five."""
    yield Final(5.0 if form.gpu_number == 1 and form.sequence_id == 0 else 10.0, 1.0)


play = partial(small_experiments.play, kind=OneMachineScene, script=ten_seconds)


@pytest.mark.slow
@pytest.mark.parametrize("wrong_by", [0.0, -3600.0], ids=["right", "set back"])
@played(play)
async def test_gpus_are_held_for_a_trial_that_smaller_ones_have_passed_for_a_minute(
    scene: OneMachineScene, manager: Manager, /, wrong_by: float
) -> None:
    await scene.create_both(maxTrialNumber=2)
    await asyncio.sleep(HOLD_AFTER_SECONDS - 5.0)
    (waiting,) = await scene.trials("large")
    assert waiting.status is TrialStatus.WAITING
    passed = [trial for trial in await scene.trials("small") if trial.created_at > waiting.created_at]
    assert len(passed) > 5  # until then, smaller ones take what is free
    scene.clock.wrong_by = wrong_by
    await asyncio.sleep(16.0)
    assert await scene.statuses() == [TrialStatus.RUNNING]
    assert TrialStatus.WAITING in {trial.status for trial in await scene.trials("small")}
    assert (await scene.until_ended()).status is ExperimentStatus.DONE
    assert (await manager.experiment("small")).status is ExperimentStatus.RUNNING


@played(play)
async def test_the_reason_of_a_waiting_trial_names_the_trial_for_which_gpus_are_held(
    scene: OneMachineScene, manager: Manager, /
) -> None:
    await scene.create_both(maxTrialNumber=1)
    reasons: set[str] = set()
    own: set[str] = set()
    for _ in range(int(HOLD_AFTER_SECONDS) + 20):
        await asyncio.sleep(1.0)
        reasons |= {trial.reason for trial in await scene.trials("small")}
        own |= {trial.reason for trial in await scene.trials("large")}
    (reported,) = {reason for reason in reasons if "held for" in reason}
    assert "held for trial 0 of experiment large, which needs 2 GPUs and has waited since " in reported
    assert reported.startswith("waiting: needs 1 GPU, node m1 has 0 free (")
    held = "; what becomes free on node m1 is held for trial 0 of experiment large"
    assert any(reason.endswith(held) for reason in own)


@played(play)
async def test_held_gpus_are_free_again_when_the_experiment_of_the_trial_is_stopped(
    scene: OneMachineScene, manager: Manager, /
) -> None:
    await scene.create_both(maxTrialNumber=1)
    while not any("held for" in trial.reason for trial in await scene.trials("small")):  # noqa: ASYNC110
        await asyncio.sleep(0.5)
    await manager.stop_experiment("large")
    await asyncio.sleep(1.0)
    assert [trial.status for trial in await scene.trials("small")].count(TrialStatus.RUNNING) == 2
