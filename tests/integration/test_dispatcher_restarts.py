"""Experiments whose dispatcher is a real process: killed, replayed, failing. Jobs are played in memory."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from proctor.manager.clock import SystemClock
from proctor.manager.dispatcher.client.liveness import Patience
from proctor.manager.engine.dispatchers import ProcessDispatchers
from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.settings import Home
from proctor.manager.store.database import Database
from proctor.manager.store.rows import ExperimentRow
from proctor.manager.store.tables import trials
from proctor.training_services.base import TrainingService, TrialJobForm
from proctor.training_services.in_memory.scripts import Final, Script, ScriptedReport, Step
from proctor.training_services.in_memory.service import InMemoryPlatform, InMemoryTrainingService
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.registry import ServiceContext

pytestmark = pytest.mark.anyio

_OVER = {ExperimentStatus.DONE, ExperimentStatus.STOPPED, ExperimentStatus.ERROR}


def script(form: TrialJobForm) -> Iterable[Step]:
    yield ScriptedReport(0.01, 0.5)
    yield Final(0.01, form.sequence_id % 7)


@asynccontextmanager
async def serving_manager(
    home: Home,
    script: Script = script,
    patience: Patience = Patience(),  # noqa: B008 - frozen
) -> AsyncIterator[Manager]:
    """A manager in a home; on leaving it goes as after SIGTERM."""

    def create_service(platform: str, context: ServiceContext) -> TrainingService:
        return InMemoryTrainingService(script, platform=InMemoryPlatform())

    async with await Database.open(str(home.control_database), "control") as control:
        pool = NodePool()
        manager = Manager(
            home=home,
            control=control,
            pool=pool,
            hub=KeeperHub(pool),
            clock=SystemClock(),
            open_dispatcher=ProcessDispatchers(home, patience),
            create_service=create_service,
        )
        async with manager.serve():
            yield manager


async def run(
    home: Home,
    config: dict[str, Any],
    meddle: Callable[[Manager, str], Awaitable[None]],
    *,
    patience: Patience = Patience(),  # noqa: B008 - frozen
) -> Any:
    """Run an experiment to its end while `meddle` does what it likes; returns (row, trials)."""
    home.prepare()
    async with serving_manager(home, patience=patience) as manager:
        row = await manager.create_experiment(config=config, directory=str(home.path.parent))
        await meddle(manager, row.id)
        row = await ended(manager, row.id)
        page = await manager.control.read(lambda c: trials.page(c, row.id, limit=1000))
    return row, list(page.items)


async def ended(manager: Manager, experiment_id: str) -> ExperimentRow:
    async with asyncio.timeout(60):
        while True:
            bell = manager.feed.next_change()
            row = await manager.experiment(experiment_id)
            if row.status in _OVER:
                return row
            await bell.wait()


async def trial_count(manager: Manager, experiment_id: str, at_least: int) -> None:
    """Wait until so many trials are there."""
    async with asyncio.timeout(60):
        while True:
            bell = manager.feed.next_change()
            counts = await manager.control.read(lambda c: trials.counts(c, experiment_id))
            if sum(counts.values()) >= at_least:
                return
            await bell.wait()


def dispatchers() -> list[int]:
    """The pids of this process's dispatchers."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
            except OSError:
                continue
            if b"proctor.manager.dispatcher" in command and int(parent) == os.getpid():
                found.append(int(entry.name))
    return found


def config(**changes: Any) -> dict[str, Any]:
    return {
        "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
        "trialCommand": "true",
        "trialConcurrency": 1,
        "maxTrialNumber": 12,
        "seed": 3,
        "objective": {"direction": "maximize"},
        "tuner": {"name": "Random"},
        "trainingService": {"platform": "local"},
        **changes,
    }


async def leave_alone(manager: Manager, experiment_id: str) -> None:
    """Nothing."""


async def kill_thrice(manager: Manager, experiment_id: str) -> None:
    """Kill the dispatcher at three stages."""
    for stage in (1, 4, 8):
        await trial_count(manager, experiment_id, stage)
        for pid in dispatchers():
            os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    "tuner",
    ["TPE", *(pytest.param(name, marks=pytest.mark.thorough) for name in ("Random", "Evolution", "GridSearch"))],
)
async def test_a_killed_dispatcher_suggests_what_it_would_have_suggested(tmp_path: Path, tuner: str) -> None:
    settings = config(tuner={"name": tuner}, assessor={"name": "Medianstop"})
    calm, expected = await run(Home(tmp_path / "a" / "home"), settings, leave_alone)
    killed, found = await run(Home(tmp_path / "b" / "home"), settings, kill_thrice)
    assert calm.status is killed.status is ExperimentStatus.DONE
    assert [trial.parameters for trial in found] == [trial.parameters for trial in expected]
    assert [trial.parameter_id for trial in found] == list(range(12))


TUNER = """
import sys
from nni.tuner import Tuner

class Counting(Tuner):
    def __init__(self):
        print("a tuner may print to stdout")

    def update_search_space(self, search_space):
        self.space = search_space

    def generate_parameters(self, parameter_id, **kwargs):
        return {"x": parameter_id / 100}

    def receive_trial_result(self, parameter_id, parameters, value, **kwargs): ...
"""


def custom(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "tuners").mkdir(parents=True, exist_ok=True)
    (tmp_path / "tuners" / "counting.py").write_text(TUNER)
    return config(tuner={"className": "counting.Counting", "codeDirectory": str(tmp_path / "tuners")})


async def test_a_custom_tuner_that_imports_nni_and_prints_runs_to_the_end(tmp_path: Path) -> None:
    row, found = await run(Home(tmp_path / "home"), custom(tmp_path), leave_alone)
    assert row.status is ExperimentStatus.DONE
    assert [trial.parameters["x"] for trial in found] == [n / 100 for n in range(12)]
    log = (Path(row.directory) / "log" / "dispatcher.log").read_text()
    assert "a tuner may print to stdout" in log


async def test_a_custom_tuner_runs_in_the_interpreter_that_create_was_called_with(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.prepare()
    settings = custom(tmp_path)
    (tmp_path / "tuners" / "counting.py").write_text(TUNER + "\nprint('interpreter', sys.executable, sys.path)\n")
    (tmp_path / "python").symlink_to(sys.executable)
    wrapper = tmp_path / "wrapped-python"
    wrapper.write_text(f'#!/bin/sh\necho wrapped\nexec {sys.executable} "$@"\n')
    wrapper.chmod(0o755)
    handover = home.incoming_directory / "handover.json"
    handover.write_text(f'{{"environment": {{"PATH": "/usr/bin:/bin"}}, "executable": "{wrapper}"}}')
    async with serving_manager(home) as manager:
        row = await manager.create_experiment(config=settings, directory=str(tmp_path), handover="handover.json")
        row = await ended(manager, row.id)
    assert row.status is ExperimentStatus.DONE
    assert "wrapped" in (Path(row.directory) / "log" / "dispatcher.log").read_text()
    assert not handover.exists()
    assert (Path(row.directory) / "environment.json").stat().st_mode & 0o077 == 0
