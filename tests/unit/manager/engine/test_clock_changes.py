"""The machine's clock is set while something waits, under virtual time: every wait takes as long as it should."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from fakes.settable_clock import SettableClock
from fakes.small_experiments import SMALL

from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.rows import TrialRow
from proctor.manager.store.tables import trials
from proctor.training_services.base import EndReason, TrialJobForm
from proctor.training_services.in_memory.scripts import Final, Hang, Script, ScriptedExit, Step

HOUR = 3600.0
CONFIG = SMALL | {"maxTrialNumber": 1, "seed": 7}


def play(tmp_path: Path, script: Script, scenario: Callable[[Simulation, SettableClock], Awaitable[None]]) -> None:
    """Run a scenario on a fresh home under virtual time."""

    async def main(loop: VirtualTimeLoop) -> None:
        simulation = Simulation(Home(tmp_path / "home"), loop, script=script)
        clock = simulation.clock = SettableClock()
        await scenario(simulation, clock)

    run_virtual(main)


async def the_trial(manager: Manager, experiment_id: str) -> TrialRow:
    page = await manager.control.read(lambda c: trials.page(c, experiment_id, limit=10))
    (row,) = page.items
    return row


async def create(manager: Manager, tmp_path: Path, **changes: Any) -> str:
    return (await manager.create_experiment(config={**CONFIG, **changes}, directory=str(tmp_path))).id


def lost_twice(form: TrialJobForm) -> Iterable[Step]:
    if form.number < 3:
        yield ScriptedExit(1.0, EndReason.NODE_LOST, code=None)
    yield Final(1.0, 0.5)


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_retry_does_not_wait_longer_or_shorter_when_the_clock_is_set(hours: int, tmp_path: Path) -> None:
    started: list[float] = []

    def script(form: TrialJobForm) -> Iterable[Step]:
        started.append(asyncio.get_running_loop().time())
        return lost_twice(form)

    async def scenario(simulation: Simulation, clock: SettableClock) -> None:
        async with simulation.manager() as manager:
            experiment_id = await create(manager, tmp_path)
            await asyncio.sleep(1.5)  # the first job was lost, the second one comes a second later
            assert (await the_trial(manager, experiment_id)).status is TrialStatus.WAITING
            clock.wrong_by = hours * HOUR
            await simulation.ended(manager, experiment_id)
        first, second, third = started
        assert second - first == pytest.approx(2.0)
        assert third - second == pytest.approx(3.0)

    play(tmp_path, script, scenario)


def test_a_restarted_manager_does_not_wait_longer_for_a_retry_than_its_delay(tmp_path: Path) -> None:
    async def scenario(simulation: Simulation, clock: SettableClock) -> None:
        async with simulation.manager() as manager:
            experiment_id = await create(manager, tmp_path)
            await asyncio.sleep(1.5)
            assert (await the_trial(manager, experiment_id)).status is TrialStatus.WAITING
        clock.wrong_by = -HOUR
        restarted = asyncio.get_running_loop().time()
        async with simulation.manager() as manager:
            await simulation.ended(manager, experiment_id)
            assert (await the_trial(manager, experiment_id)).status is TrialStatus.SUCCEEDED
        assert asyncio.get_running_loop().time() - restarted <= 120.0  # it is looked at once in a minute

    play(tmp_path, lost_twice, scenario)


def test_a_restarted_manager_waits_for_what_is_left_of_a_retrys_delay(tmp_path: Path) -> None:
    started: list[float] = []

    def script(form: TrialJobForm) -> Iterable[Step]:
        started.append(asyncio.get_running_loop().time())
        return lost_twice(form)

    async def scenario(simulation: Simulation, clock: SettableClock) -> None:
        async with simulation.manager() as manager:
            experiment_id = await create(manager, tmp_path)
            await asyncio.sleep(1.5)
        async with simulation.manager() as manager:
            await simulation.ended(manager, experiment_id)
        assert started[1] - started[0] == pytest.approx(2.0)

    play(tmp_path, script, scenario)


def test_max_trial_duration_is_not_longer_when_the_clock_is_set_back(tmp_path: Path) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        yield Final(1.0, 0.5)
        yield Hang()

    async def scenario(simulation: Simulation, clock: SettableClock) -> None:
        async with simulation.manager() as manager:
            experiment_id = await create(manager, tmp_path)
            await asyncio.sleep(10.0)
            clock.wrong_by = -HOUR
            await manager.update_experiment(experiment_id, max_trial_seconds=30.0)
            await simulation.ended(manager, experiment_id)
            assert (await the_trial(manager, experiment_id)).status is TrialStatus.EARLY_STOPPED
        assert asyncio.get_running_loop().time() <= 120.0

    play(tmp_path, script, scenario)
