"""The smallest experiment, for tests of the engine that run it on scripted jobs under virtual time."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Any

from proctor.manager.engine.manager import Manager
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.rows import MetricRow, TrialJobRow, TrialRow
from proctor.manager.store.tables import jobs, metrics, trials
from proctor.training_services.base import SupportsCheckpoints, TrainingService, TrialJobForm
from proctor.training_services.in_memory.scripts import Final, Raw, Script, ScriptedReport, Step
from proctor.training_services.in_memory.service import InMemoryPlatform, InMemoryTrainingService
from proctor.training_services.registry import ServiceContext

SMALL: dict[str, Any] = {
    "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
    "trialCommand": "python trial.py",
    "trialConcurrency": 1,
    "tuner": {"name": "Random"},
    "trainingService": {"platform": "local"},
}

Scenario = Callable[[Simulation, Manager], Awaitable[None]]


class CheckpointingService(InMemoryTrainingService, SupportsCheckpoints):
    """Is given checkpoints wherever they lie."""


class CheckpointingSimulation(Simulation):
    """Jobs run on a `CheckpointingService`."""

    def __init__(self, *arguments: Any, stop_seconds: float = 0.0, **options: Any) -> None:
        """:param stop_seconds: how long a job takes to end after it was asked to stop."""
        super().__init__(*arguments, **options)
        self._stop_seconds = stop_seconds

    def _create_service(self, platform: str, context: ServiceContext) -> TrainingService:
        played = self.platforms.setdefault(context.experiment_id, InMemoryPlatform(self.clock.now))
        return CheckpointingService(self._script, platform=played, now=self.clock.now, stop_seconds=self._stop_seconds)


def three_reports(form: TrialJobForm) -> Iterable[Step]:
    for step in range(3):
        yield ScriptedReport(1.0, form.sequence_id + step / 10)
    yield Final(1.0, form.sequence_id)


def saved(form: TrialJobForm, number: int, **record: Any) -> Raw:
    """Save checkpoint `number`: a folder of this name, with the number in a file `step`. A trial's script yields what
    this returns.

    :param record: what else the trial's journal says of it.
    """
    path = f"output/checkpoints/{number}"
    folder = Path(form.directory, path)
    folder.mkdir(parents=True)
    (folder / "step").write_text(str(number))
    return Raw(0.0, json.dumps({"kind": "checkpoint", "path": path, "time": 1.0, **record}).encode() + b"\n")


def play(
    tmp_path: Path,
    *scenarios: Scenario,
    script: Script = three_reports,
    kind: Callable[..., Simulation] = Simulation,
) -> None:
    """Run scenarios on a fresh home under virtual time, each with a manager of its own: between two of them the manager
    is restarted."""

    async def main(loop: VirtualTimeLoop) -> None:
        simulation = kind(Home(tmp_path / "home"), loop, script=script)
        for scenario in scenarios:
            async with simulation.manager() as manager:
                await scenario(simulation, manager)

    run_virtual(main)


def played(
    play: Callable[..., None], **options: Any
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Make a scenario a test: `play` is called with the test's folder, the scenario and the options.

    What `play` gives the scenario are its positional-only parameters; the others are fixtures.
    """

    def decorate(scenario: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        fixtures = [each for each in signature(scenario).parameters.values() if each.kind is not each.POSITIONAL_ONLY]
        folder = Parameter("tmp_path", Parameter.POSITIONAL_OR_KEYWORD)
        others = [each for each in fixtures if each.name != folder.name]

        @wraps(scenario)
        def test(tmp_path: Path, **given: Any) -> None:
            wanted = {"tmp_path": tmp_path, **given}
            play(tmp_path, partial(scenario, **{each.name: wanted[each.name] for each in fixtures}), **options)

        test.__signature__ = Signature([folder, *others])  # type: ignore[attr-defined]
        return test

    return decorate


async def create(manager: Manager, tmp_path: Path, *, seconds: float = 0.0, **changes: Any) -> str:
    """The id of an experiment with `SMALL` and the changes, so many seconds after its beginning."""
    row = await manager.create_experiment(config=SMALL | changes, directory=str(tmp_path))
    await asyncio.sleep(seconds)
    return row.id


async def all_trials(manager: Manager, experiment_id: str) -> list[TrialRow]:
    page = await manager.control.read(lambda c: trials.page(c, experiment_id, limit=1000))
    return list(page.items)


async def attempts(manager: Manager, trial: TrialRow) -> list[TrialJobRow]:
    return await manager.control.read(lambda c: jobs.of_trial(c, trial.id))


async def curve(manager: Manager, trial: TrialRow) -> list[MetricRow]:
    """The trial's visible curve."""
    database = await manager.metrics(trial.experiment_id)
    return await database.read(lambda c: metrics.curve(c, trial.id))
