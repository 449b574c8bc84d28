"""An experiment whose dispatcher does not answer, under virtual time: what its user can read, and how it ends."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fakes.small_experiments import SMALL
from fakes.suspended_dispatchers import SuspendableDispatchers

from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.tables import events, trials
from proctor.training_services.base import TrialJobForm
from proctor.training_services.in_memory.scripts import Final, Step

CONFIG = SMALL | {"maxTrialNumber": 20, "seed": 7, "objective": {"direction": "maximize"}}

Meddling = Callable[[SuspendableDispatchers, Manager, str], Awaitable[None]]


def five_seconds(form: TrialJobForm) -> Iterable[Step]:
    yield Final(5.0, form.sequence_id)


def outcome(folder: Path, meddle: Meddling) -> list[dict[str, Any]]:
    """The parameters of all trials, in order, of an experiment that was meddled with."""

    async def main(loop: VirtualTimeLoop) -> list[dict[str, Any]]:
        dispatchers = SuspendableDispatchers()
        folder.mkdir()
        home = Home(folder / "home")
        simulation = Simulation(home, loop, script=five_seconds, open_dispatcher=lambda row, config: dispatchers.open)
        async with simulation.manager() as manager:
            created = await manager.create_experiment(config=CONFIG, directory=str(folder))
            await meddle(dispatchers, manager, created.id)
            row = await simulation.ended(manager, created.id)
            assert row.status is ExperimentStatus.DONE
            assert manager.problem_of(row) == ""
            page = await manager.control.read(lambda c: trials.page(c, created.id, limit=1000))
        assert [trial.sequence_id for trial in page.items] == list(range(20))
        return [trial.parameters for trial in page.items]

    return run_virtual(main)


async def notices(manager: Manager, experiment_id: str) -> list[str]:
    return await manager.control.read(lambda c: events.notices(c, experiment_id))


async def leave_alone(dispatchers: SuspendableDispatchers, manager: Manager, experiment_id: str) -> None:
    """Nothing."""


async def suspend(dispatchers: SuspendableDispatchers, manager: Manager, experiment_id: str) -> None:
    """For good; only its successor runs."""
    await asyncio.sleep(12.0)
    dispatchers.suspended = True
    await asyncio.sleep(40.0)
    row = await manager.experiment(experiment_id)
    assert row.status is ExperimentStatus.RUNNING
    assert "the dispatcher has not answered for" in manager.problem_of(row)
    assert "it is suspended (by SIGSTOP or a debugger)" in manager.problem_of(row)
    assert await notices(manager, experiment_id) == []
    async with asyncio.timeout(100.0):
        await dispatchers.killed.wait()
    dispatchers.suspended = False
    await asyncio.sleep(10.0)
    (notice,) = await notices(manager, experiment_id)
    assert notice.startswith(
        "the dispatcher was started again: the dispatcher has not answered for 60 s: it is suspended"
    )
    assert manager.problem_of(row) == ""


async def hold_the_interpreter(dispatchers: SuspendableDispatchers, manager: Manager, experiment_id: str) -> None:
    """For ten minutes, computing."""
    await asyncio.sleep(12.0)
    dispatchers.suspended, dispatchers.share = True, 1.0
    await asyncio.sleep(600.0)
    (notice,) = await notices(manager, experiment_id)
    assert notice.endswith("; suggestions come when it is done")
    assert dispatchers.kills == 0
    await dispatchers.go_on()


async def compute_long(dispatchers: SuspendableDispatchers, manager: Manager, experiment_id: str) -> None:
    """A suggestion takes two minutes; pings are answered."""
    await asyncio.sleep(12.0)
    dispatchers.computing, dispatchers.share = True, 1.0
    await asyncio.sleep(10.0)
    row = await manager.experiment(experiment_id)
    assert manager.problem_of(row) == ""
    await asyncio.sleep(110.0)
    problem = manager.problem_of(row)
    assert re.fullmatch(r"the tuner has been computing for 1[01]\d s and has not made its next suggestion", problem)
    with ThreadPoolExecutor() as threads:  # as the reader of a list of experiments asks
        assert threads.submit(manager.problem_of, row).result() == problem
    assert dispatchers.kills == 0
    assert await notices(manager, experiment_id) == []
    await dispatchers.go_on()
    await asyncio.sleep(1.0)
    assert manager.problem_of(row) == ""


def test_a_tuner_that_computes_for_long_is_the_reason_and_is_left_alone(tmp_path: Path) -> None:
    assert outcome(tmp_path / "a", compute_long) == outcome(tmp_path / "b", leave_alone)


def test_a_suspended_dispatcher_is_reported_and_replaced_and_no_suggestion_is_lost_or_doubled(tmp_path: Path) -> None:
    assert outcome(tmp_path / "a", suspend) == outcome(tmp_path / "b", leave_alone)


def test_a_dispatcher_that_computes_for_minutes_is_reported_and_spared(tmp_path: Path) -> None:
    assert outcome(tmp_path / "a", hold_the_interpreter) == outcome(tmp_path / "b", leave_alone)
