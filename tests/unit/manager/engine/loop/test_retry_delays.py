"""When a trial runs again, by whether its last job made progress, under virtual time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fakes.small_experiments import SMALL, played

from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.rows import TrialRow
from proctor.manager.store.tables import jobs, trials
from proctor.training_services.base import EndReason, TrialJobForm
from proctor.training_services.in_memory.scripts import Final, Raw, ScriptedExit, ScriptedReport, ScriptedStart, Step

CONFIG = SMALL | {"maxTrialNumber": 1, "maxTrialRetries": 100, "maxInfrastructureRetries": 100}
CHECKPOINT = Raw(1.0, b'{"kind":"checkpoint","path":"output/c1","step":1,"time":1.0}\n')


class Scene(Simulation):
    """A simulated home with one experiment, whose trial's jobs do one after another what `attempts` says."""

    def __init__(self, folder: Path, loop: VirtualTimeLoop) -> None:
        super().__init__(Home(folder / "home"), loop, script=self._steps)
        self.folder = folder
        self.attempts: list[list[Step]] = []

    def _steps(self, form: TrialJobForm) -> Iterable[Step]:
        yield from self.attempts[form.number - 1] if form.number <= len(self.attempts) else [Final(1.0, 1.0)]

    async def create(self, manager: Manager, **changes: Any) -> None:
        await manager.create_experiment(config=CONFIG | changes, directory=str(self.folder), experiment_id="exp")

    async def trial(self, manager: Manager) -> TrialRow:
        return (await manager.control.read(lambda c: trials.page(c, "exp", limit=1))).items[0]

    async def pauses(self, manager: Manager) -> list[int]:
        """Seconds between the end of each job and the submission of the next one."""
        trial = await self.trial(manager)
        found = await manager.control.read(lambda c: jobs.of_trial(c, trial.id))
        return [round((later.submitted_at or 0) - (earlier.ended_at or 0)) for earlier, later in pairwise(found)]


def play(tmp_path: Path, act: Callable[[Scene], Awaitable[None]]) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        await act(Scene(tmp_path, loop))

    run_virtual(main)


@pytest.mark.parametrize("reason", [EndReason.PREEMPTED, EndReason.NODE_LOST, EndReason.OUT_OF_MEMORY])
@pytest.mark.parametrize("progress", [ScriptedReport(1.0, 0.5), CHECKPOINT])
@played(play)
async def test_a_trial_waits_longer_and_longer_until_a_job_has_got_on(
    scene: Scene, /, reason: EndReason, progress: Step
) -> None:
    end = ScriptedExit(1.0, reason=reason, code=None)
    scene.attempts = [
        [ScriptedStart(), end],
        [ScriptedStart(), end],
        [ScriptedStart(), end],
        [ScriptedStart(), progress, end],
        [ScriptedStart(), end],
    ]
    async with scene.manager() as manager:
        await scene.create(manager)
        assert (await scene.ended(manager, "exp")).status is ExperimentStatus.DONE
        assert await scene.pauses(manager) == [1, 2, 4, 0, 1]
        assert (await scene.trial(manager)).status is TrialStatus.SUCCEEDED


@played(play)
async def test_a_later_manager_knows_that_a_job_has_got_on_and_how_many_have_not(scene: Scene, /) -> None:
    end = ScriptedExit(100.0, reason=EndReason.PREEMPTED, code=None)
    scene.attempts = [
        [ScriptedStart(), end],
        [ScriptedReport(1.0, 0.5), end],
        [ScriptedStart(), end],
        [ScriptedStart(), end],
    ]
    for seconds in (50.0, 100.0, 100.0, 100.0):
        async with scene.manager() as manager:
            if seconds == 50.0:
                await scene.create(manager)
            await asyncio.sleep(seconds)
    async with scene.manager() as manager:
        assert (await scene.ended(manager, "exp")).status is ExperimentStatus.DONE
        assert await scene.pauses(manager) == [1, 0, 1, 2]


@played(play)
async def test_a_trial_whose_pause_is_over_waits_for_a_place_without_busying_the_loop(scene: Scene, /) -> None:
    end = ScriptedExit(1.0, reason=EndReason.NODE_LOST, code=None)
    scene.attempts = [[ScriptedStart(), end]]
    async with scene.manager() as manager:
        await scene.create(manager, maxTrialNumber=2)
        await asyncio.sleep(1.5)
        await manager.pause_experiment("exp")
        await asyncio.sleep(100.0)
        assert (await scene.trial(manager)).status is TrialStatus.WAITING
        await manager.resume_experiment("exp")
        assert (await scene.ended(manager, "exp")).status is ExperimentStatus.DONE


@played(play)
async def test_an_experiment_that_is_stopped_right_after_its_start_is_soon_going_on_after_a_resume(
    scene: Scene, /
) -> None:
    scene.attempts = [
        [ScriptedStart(), ScriptedReport(100.0, 0.5)],
        [ScriptedReport(1.0, 0.5), ScriptedReport(100.0, 0.5)],
    ]
    async with scene.manager() as manager:
        await scene.create(manager)
        for _ in range(2):
            await asyncio.sleep(10.0)
            await manager.stop_experiment("exp")
            while (await manager.experiment("exp")).status is not ExperimentStatus.STOPPED:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            await manager.resume_experiment("exp")
        assert (await scene.ended(manager, "exp")).status is ExperimentStatus.DONE
        assert await scene.pauses(manager) == [1, 0]
