"""The machine's clock is set while something waits, under virtual time: every wait takes as long as it should."""

import asyncio

import pytest
from fakes.small_experiments import Scene, by_attempt, play, played, plays

from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import TrialStatus
from proctor.training_services.base import EndReason
from proctor.training_services.in_memory.scripts import Final, Hang, ScriptedExit

HOUR = 3600.0
LOST = ScriptedExit(1.0, EndReason.NODE_LOST, code=None)
LOST_TWICE = by_attempt([LOST], [LOST], [Final(1.0, 0.5)])


@pytest.mark.parametrize("hours", [-1, 1])
@played(play, script=LOST_TWICE)
async def test_a_retry_does_not_wait_longer_or_shorter_when_the_clock_is_set(
    scene: Scene, manager: Manager, /, hours: int
) -> None:
    await scene.create(maxTrialNumber=1, seconds=1.5)  # the first job was lost, the second one comes a second later
    assert (await scene.trial()).status is TrialStatus.WAITING
    scene.clock.wrong_by = hours * HOUR
    await scene.until_ended()
    first, second, third = scene.starts
    assert (second - first, third - second) == pytest.approx((2.0, 3.0))


@played(play, script=LOST_TWICE)
async def test_a_restarted_manager_does_not_wait_longer_for_a_retry_than_its_delay(
    scene: Scene, manager: Manager, /
) -> None:
    await scene.create(maxTrialNumber=1, seconds=1.5)
    assert (await scene.trial()).status is TrialStatus.WAITING
    scene.clock.wrong_by = -HOUR
    await scene.restart()
    await scene.until_ended()
    assert (await scene.trial()).status is TrialStatus.SUCCEEDED
    assert asyncio.get_running_loop().time() <= 1.5 + 120.0  # it is looked at once in a minute


@played(play, script=LOST_TWICE)
async def test_a_restarted_manager_waits_for_what_is_left_of_a_retrys_delay(scene: Scene, manager: Manager, /) -> None:
    await scene.create(maxTrialNumber=1, seconds=1.5)
    await scene.restart()
    await scene.until_ended()
    assert scene.starts[1] - scene.starts[0] == pytest.approx(2.0)


@played(play, script=plays(Final(1.0, 0.5), Hang()))
async def test_max_trial_duration_is_not_longer_when_the_clock_is_set_back(scene: Scene, manager: Manager, /) -> None:
    await scene.create(maxTrialNumber=1, seconds=10.0)
    scene.clock.wrong_by = -HOUR
    await manager.update_experiment("exp", max_trial_seconds=30.0)
    await scene.until_ended()
    assert (await scene.trial()).status is TrialStatus.EARLY_STOPPED
    assert asyncio.get_running_loop().time() <= 120.0
