"""An experiment under virtual time whose trials are paused, resumed and cloned by a scheduler, and whose manager or
dispatcher can be killed at any one moment."""

import asyncio
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fakes.killed_dispatchers import KilledChannel, KilledDispatchers
from fakes.small_experiments import SMALL, saved

from proctor.manager.dispatcher.host import saving
from proctor.manager.engine.manager import Manager
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.errors import DatabaseUnusable
from proctor.manager.store.tables import dispatcher_inputs, experiments, jobs, metrics, scheduler_tables, trials
from proctor.manager.store.writer import Writer, WriteRequest
from proctor.training_services.base import TrainingService, TrialJobForm
from proctor.training_services.in_memory.scripts import Final, ScriptedReport, Step
from proctor.training_services.in_memory.service import InMemoryPlatform, InMemoryTrainingService
from proctor.training_services.registry import ServiceContext

CONFIG = SMALL | {
    "trialConcurrency": 2,
    "maxTrialNumber": 9,
    "seed": 7,
    "objective": {"direction": "maximize"},
}
_STEPS = {"time_attr": "training_iteration"}
SCHEDULERS: dict[str, dict[str, Any]] = {
    "pausing": {
        "className": "fakes.pausing_scheduler.PausingScheduler",
        "codeDirectory": str(Path(__file__).parents[1]),
    },
    "ASHA, stopping": {"name": "ASHA", "classArgs": {"grace_period": 100, "max_t": 500, "reduction_factor": 2}},
    "ASHA, promotion": {
        "name": "ASHA",
        "classArgs": {"type": "promotion", "grace_period": 100, "max_t": 500, "reduction_factor": 2},
    },
    "HyperBand": {"name": "HyperBand", "classArgs": {"max_t": 400, "reduction_factor": 3} | _STEPS},
    "BOHB": {"name": "BOHB", "classArgs": {"max_t": 400, "reduction_factor": 3} | _STEPS},
    "MedianStopping": {
        "name": "MedianStopping",
        "classArgs": {"grace_period": 100, "min_samples_required": 2} | _STEPS,
    },
    "MedianStopping, pausing": {
        "name": "MedianStopping",
        "classArgs": {"grace_period": 100, "min_samples_required": 2, "hard_stop": False} | _STEPS,
    },
    "PBT": {"name": "PBT", "classArgs": {"population_size": 4, "perturbation_interval": 200} | _STEPS},
    "PBT, synchronous": {
        "name": "PBT",
        "classArgs": {"population_size": 4, "perturbation_interval": 200, "synch": True} | _STEPS,
    },
}
"""By what tests call them. "pausing" uses everything that a scheduler can decide."""
TUNERS: dict[str, dict[str, Any]] = {
    "Random": {"name": "Random"},
    "TPE": {"name": "TPE", "classArgs": {"tpe_args": {"n_startup_jobs": 2}}},  # so that it learns from the first ones
}
POINTS = 6
STOP_SECONDS = 12.3
"""For which a trial keeps running after it was to pause or to stop: time for a point more."""
LOOKS_EVERY_SECONDS = 1000.0


def training(form: TrialJobForm) -> Iterable[Step]:
    """A point every 10 seconds and a bit, no two trials at one time, with a checkpoint after each."""
    begin = 0 if form.resume_checkpoint is None else int(Path(form.resume_checkpoint).name)
    x = json.loads(form.parameter_file)["parameters"]["x"]
    for point in range(begin + 1, POINTS + 1):
        yield ScriptedReport(10.0 + form.sequence_id / 7, 10 * x + point, step=100 * point)
        yield saved(form, point)
    yield Final(1.0 + form.sequence_id / 70, 10 * x + POINTS)


async def observe(manager: Manager, experiment_id: str) -> dict[str, Any]:
    """All that was decided and became of it, without random ids and without times."""
    page = await manager.control.read(lambda c: trials.page(c, experiment_id, limit=100))
    numbers = {row.id: row.sequence_id for row in page.items}
    database = await manager.metrics(experiment_id)
    log = await manager.control.read(lambda c: dispatcher_inputs.after(c, experiment_id, 0, 10_000))
    found: dict[str, Any] = {
        "trials": [(row.status, row.parameters, row.parameter_id, row.final_value) for row in page.items],
        "inputs": [row.kind for row in log if row.kind != "ReportMetrics"],
        "jobs": [],
        "curves": [],
        "decisions": [],
    }
    for row in page.items:
        for job in await manager.control.read(lambda c, key=row.id: jobs.of_trial(c, key)):  # type: ignore[misc]
            owner, _, number = (job.resumed_from_job or "").partition(".")
            origin = (numbers.get(owner), number, job.resumed_from_step)
            found["jobs"].append(
                (row.sequence_id, job.number, job.parameter_id, job.parameters, origin, job.end_reason)
            )
        points = await database.read(lambda c, key=row.id: metrics.curve(c, key))  # type: ignore[misc]
        found["curves"].append([(point.sequence, point.value) for point in points])
    for entry in log:
        for each in await manager.control.read(
            lambda c, at=entry.position: dispatcher_inputs.decisions(c, experiment_id, at)  # type: ignore[misc]
        ):
            donor = None if each.donor_trial is None else numbers[each.donor_trial]
            place = (numbers[each.trial_id], donor, each.donor_sequence, each.job)
            found["decisions"].append((each.parameter_id, str(each.kind), *place, each.parameters, each.state))
    shown = await manager.control.read(lambda c: scheduler_tables.get(c, experiment_id))
    return found | {"tables": None if shown is None else shown.tables}


class ManagerKill:
    """Kills the manager at one of its commits, counted over all databases: nothing of it runs afterwards."""

    def __init__(self, at: int | None) -> None:
        self.commits = 0
        self.happened = asyncio.Event()
        self._at = at
        self._survivors: set[asyncio.Task[Any]] = set()

    def protect(self) -> None:
        """The task that calls this survives."""
        self._survivors.add(asyncio.current_task())  # type: ignore[arg-type]

    def carry_out(
        self, writer: Writer, requests: Sequence[WriteRequest], run: Callable[[Writer, Sequence[WriteRequest]], None]
    ) -> None:
        if self._at == self.commits:
            raise DatabaseUnusable("the manager was killed")
        self.commits += 1
        run(writer, requests)
        if self._at == self.commits:
            self.happened.set()
            for task in asyncio.all_tasks() - self._survivors:
                task.cancel()

    def restart(self) -> None:
        """From now on commits are carried out."""
        self._at = None
        self.happened.clear()


class SlowlyStoppingSimulation(Simulation):
    """Jobs take a moment to stop, and report meanwhile: so no decision falls into the instant at which a job ends."""

    def _create_service(self, platform: str, context: ServiceContext) -> TrainingService:
        played = self.platforms.setdefault(context.experiment_id, InMemoryPlatform(self.clock.now))
        return InMemoryTrainingService(self._script, platform=played, now=self.clock.now, stop_seconds=STOP_SECONDS)


@dataclass
class ScheduledOutcome:
    """What is to be seen of an experiment in the end, and how many commits and dispatcher inputs that took."""

    found: dict[str, Any]
    commits: int
    inputs: int
    channels: list[KilledChannel]
    tables: Any
    """What people see of the scheduler at the end."""


def save_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have dispatchers save their state after every few inputs."""
    monkeypatch.setattr(saving, "LEAST_INPUTS", 5)
    monkeypatch.setattr(saving, "BYTES_AN_INPUT", 1e9)


class ScheduledRun:
    """Runs the experiment to its end, killing the manager or a dispatcher once on the way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        self._monkeypatch = monkeypatch
        self._directory = directory

    def __call__(
        self,
        tuner: str,
        scheduler: str = "pausing",
        *,
        manager_killed_at: int | None = None,
        dispatcher_killed_at: int | None = None,
    ) -> ScheduledOutcome:
        """One run in a home of its own."""
        outcomes: list[ScheduledOutcome] = []
        directory = self._directory / f"{tuner}-{scheduler}-{manager_killed_at}-{dispatcher_killed_at}"
        directory.mkdir()
        dispatchers = KilledDispatchers(dispatcher_killed_at)

        async def main(loop: VirtualTimeLoop) -> None:
            interruption = ManagerKill(manager_killed_at)
            interruption.protect()
            run = Writer.run
            with self._monkeypatch.context() as patch:
                patch.setattr(Writer, "run", lambda writer, requests: interruption.carry_out(writer, requests, run))
                simulation = SlowlyStoppingSimulation(
                    Home(directory / "home"), loop, script=training, open_dispatcher=dispatchers
                )
                while not outcomes:
                    try:
                        async with simulation.manager() as manager:
                            config = CONFIG | {"tuner": TUNERS[tuner], "trialScheduler": SCHEDULERS[scheduler]}
                            found = await self._finish(manager, config, directory, interruption)
                            if found is not None:
                                channels, tables = dispatchers.channels, found.pop("tables")
                                outcomes.append(
                                    ScheduledOutcome(found, interruption.commits, dispatchers.inputs, channels, tables)
                                )
                    except (Exception, asyncio.CancelledError):
                        if not interruption.happened.is_set():
                            raise
                    interruption.restart()

        run_virtual(main)
        return outcomes[0]

    async def _finish(
        self, manager: Manager, config: dict[str, Any], directory: Path, interruption: ManagerKill
    ) -> dict[str, Any] | None:
        """Wait for the end of the experiment; None where the manager is killed before."""
        ids = list(await manager.control.read(experiments.ids))
        if not ids:
            ids = [(await manager.create_experiment(config=config, directory=str(directory))).id]
        while not (await manager.experiment(ids[0])).status.has_ended:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOKS_EVERY_SECONDS):
                    await interruption.happened.wait()
                return None
        return await observe(manager, ids[0])
