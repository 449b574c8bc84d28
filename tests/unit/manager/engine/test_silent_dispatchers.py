"""An experiment whose dispatcher does not answer, under virtual time: what its user can read, and how it ends."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fakes.small_experiments import Scene, play
from fakes.suspended_dispatchers import SuspendableDispatchers

from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.training_services.base import TrialJobForm
from proctor.training_services.in_memory.scripts import Final, Step

Meddling = Callable[[SuspendableDispatchers, Scene, Manager], Awaitable[None]]


def five_seconds(form: TrialJobForm) -> Iterable[Step]:
    yield Final(5.0, form.sequence_id)


def outcome(folder: Path, meddle: Meddling) -> list[dict[str, Any]]:
    """The parameters of all trials, in order, of an experiment that was meddled with after twelve seconds."""
    found: list[dict[str, Any]] = []
    dispatchers = SuspendableDispatchers()
    folder.mkdir()

    async def scenario(scene: Scene, manager: Manager) -> None:
        await scene.create(maxTrialNumber=20, seed=7, seconds=12.0)
        await meddle(dispatchers, scene, manager)
        row = await scene.until_ended()
        assert (row.status, manager.problem_of(row)) == (ExperimentStatus.DONE, "")
        assert [trial.sequence_id for trial in await scene.trials()] == list(range(20))
        found.extend([trial.parameters for trial in await scene.trials()])

    play(folder, scenario, script=five_seconds, open_dispatcher=lambda row, config: dispatchers.open)
    return found


async def leave_alone(dispatchers: SuspendableDispatchers, scene: Scene, manager: Manager) -> None:
    """Nothing."""


async def suspend(dispatchers: SuspendableDispatchers, scene: Scene, manager: Manager) -> None:
    """For good; only its successor runs."""
    dispatchers.suspended = True
    await asyncio.sleep(40.0)
    row = await scene.row()
    assert row.status is ExperimentStatus.RUNNING
    assert "the dispatcher has not answered for" in manager.problem_of(row)
    assert "it is suspended (by SIGSTOP or a debugger)" in manager.problem_of(row)
    assert await scene.notices() == []
    async with asyncio.timeout(100.0):
        await dispatchers.killed.wait()
    dispatchers.suspended = False
    await asyncio.sleep(10.0)
    (notice,) = await scene.notices()
    assert notice.startswith(
        "the dispatcher was started again: the dispatcher has not answered for 60 s: it is suspended"
    )
    assert manager.problem_of(row) == ""


async def hold_the_interpreter(dispatchers: SuspendableDispatchers, scene: Scene, manager: Manager) -> None:
    """For ten minutes, computing."""
    dispatchers.suspended, dispatchers.share = True, 1.0
    await asyncio.sleep(600.0)
    (notice,) = await scene.notices()
    assert notice.endswith("; suggestions come when it is done")
    assert dispatchers.kills == 0
    await dispatchers.go_on()


async def compute_long(dispatchers: SuspendableDispatchers, scene: Scene, manager: Manager) -> None:
    """A suggestion takes two minutes; pings are answered."""
    dispatchers.computing, dispatchers.share = True, 1.0
    await asyncio.sleep(10.0)
    row = await scene.row()
    assert manager.problem_of(row) == ""
    await asyncio.sleep(110.0)
    problem = manager.problem_of(row)
    assert re.fullmatch(r"the tuner has been computing for 1[01]\d s and has not made its next suggestion", problem)
    with ThreadPoolExecutor() as threads:  # as the reader of a list of experiments asks
        assert threads.submit(manager.problem_of, row).result() == problem
    assert dispatchers.kills == 0
    assert await scene.notices() == []
    await dispatchers.go_on()
    await asyncio.sleep(1.0)
    assert manager.problem_of(row) == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "meddle",
    [
        pytest.param(compute_long, id="a tuner that computes for long is the reason and is left alone"),
        pytest.param(suspend, id="a suspended dispatcher is reported and replaced"),
        pytest.param(hold_the_interpreter, id="a dispatcher that computes for minutes is reported and spared"),
    ],
)
def test_no_suggestion_is_lost_or_doubled(tmp_path: Path, meddle: Meddling) -> None:
    assert outcome(tmp_path / "a", meddle) == outcome(tmp_path / "b", leave_alone)
