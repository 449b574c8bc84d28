"""The smallest experiment, for tests of the engine that run it on scripted jobs under virtual time."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from itertools import pairwise
from pathlib import Path
from typing import Any

from proctor.manager.clock import LoopClock
from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.rows import ExperimentRow, MetricRow, TrialJobRow, TrialRow
from proctor.manager.store.tables import dispatcher_inputs, events, jobs, metrics, trials
from proctor.training_services.base import SupportsCheckpoints, SupportsNodes, TrainingService, TrialJobForm
from proctor.training_services.in_memory.scripts import Final, Raw, Script, ScriptedReport, Step
from proctor.training_services.in_memory.service import InMemoryPlatform, InMemoryTrainingService
from proctor.training_services.registry import ServiceContext
from proctor.trial_keeper.protocol import Device

SMALL: dict[str, Any] = {
    "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
    "trialCommand": "python trial.py",
    "trialConcurrency": 1,
    "objective": {"direction": "maximize"},
    "tuner": {"name": "Random"},
    "trainingService": {"platform": "local"},
}


class SettableClock(LoopClock):
    """Shows the loop's time, wrong by so many seconds, as after someone has set the machine's clock."""

    wrong_by = 0.0

    def now(self) -> float:
        return super().now() + self.wrong_by


class Scene(Simulation):
    """A simulated home, its manager, and the experiment that was created last, whose rows it reads."""

    service: type["SceneService"]
    """What plays every platform."""
    config: dict[str, Any] = SMALL

    def __init__(self, home: Home, loop: VirtualTimeLoop, *, stop_seconds: float = 0.0, **options: Any) -> None:
        """:param stop_seconds: how long a job takes to end after it was asked to stop."""
        super().__init__(home, loop, **options)
        self.clock: SettableClock = SettableClock()
        self.folder = home.path.parent
        self.forms: list[TrialJobForm] = []
        """Of all jobs, in the order of their submission."""
        self.starts: list[float] = []
        """When they were submitted, by the loop's clock."""
        self.asked: list[Any] = []
        """What the services of the test were asked, where they note it."""
        self.problems: list[Exception] = []
        """What the services of the test raise, where they say so."""
        self.failures: list[Exception] = []
        """With which their `run` fails, one after the other, five seconds after its beginning."""
        self.broken: Exception | None = None
        """Why no service can be made."""
        self._stop_seconds = stop_seconds
        self.id = "exp"
        self._running = AsyncExitStack()

    def _create_service(self, platform: str, context: ServiceContext) -> TrainingService:
        if self.broken is not None:
            raise self.broken
        memory = self.platforms.setdefault(context.experiment_id, InMemoryPlatform(self.clock.now))
        service = self.service(self._play, platform=memory, now=self.clock.now, stop_seconds=self._stop_seconds)
        service.scene = self
        return service

    def _play(self, form: TrialJobForm) -> Iterable[Step]:
        self.forms.append(form)
        self.starts.append(self._loop.time())
        return self._script(form)

    async def start(self) -> Manager:
        """Start a manager on the home."""
        self._manager = await self._running.enter_async_context(self.manager())
        return self._manager

    async def end(self) -> None:
        """End the manager as by SIGTERM: jobs keep running."""
        await self._running.aclose()

    async def restart(self) -> Manager:
        """End the manager and start the next one."""
        await self.end()
        return await self.start()

    async def create(
        self, script: Script | None = None, *, seconds: float = 0.0, id: str = "exp", **changes: Any
    ) -> ExperimentRow:
        """An experiment with the changes to `config`, so many seconds after its beginning.

        :param script: what its jobs do, and those of all later experiments.
        """
        self._script, self.id = script or self._script, id
        config = {key: value for key, value in (self.config | changes).items() if value is not None}
        row = await self._manager.create_experiment(config=config, directory=str(self.folder), experiment_id=id)
        await asyncio.sleep(seconds)
        return row

    async def run(self, script: Script | None = None, **changes: Any) -> ExperimentRow:
        """Create an experiment as `create` does, and wait for its end."""
        await self.create(script, **changes)
        return await self.until_ended()

    def connect(self, *node_ids: str, gpus: int = 2) -> None:
        """Machines with GPUs join the pool."""
        for node_id in node_ids:
            self._manager.pool.add(node_id, "remote")
            devices = [Device(index, f"GPU-{node_id}-{index}", "Fake", 80_000, 0, 0) for index in range(gpus)]
            self._manager.pool.connect(node_id, devices, driver_note="", hostname=node_id, version="0", seen_at=1.0)

    async def row(self) -> ExperimentRow:
        return await self._manager.experiment(self.id)

    async def until_ended(self) -> ExperimentRow:
        return await self.ended(self._manager, self.id)

    async def trials(self, id: str = "") -> list[TrialRow]:
        """In the order of their numbers; by default those of the experiment that was created last."""
        return await all_trials(self._manager, id or self.id)

    async def trial(self, number: int = 0) -> TrialRow:
        return (await self.trials())[number]

    async def statuses(self) -> list[TrialStatus]:
        return [trial.status for trial in await self.trials()]

    async def jobs(self, number: int = 0) -> list[TrialJobRow]:
        """All jobs of a trial."""
        return await attempts(self._manager, await self.trial(number))

    async def pauses(self, number: int = 0) -> list[int]:
        """Seconds between the end of each job of a trial and the submission of the next one."""
        found = await self.jobs(number)
        return [round((later.submitted_at or 0) - (earlier.ended_at or 0)) for earlier, later in pairwise(found)]

    async def curve(self, number: int = 0) -> list[tuple[int, int, Any]]:
        """Job, sequence and value of the points of a trial's visible curve."""
        points = await curve(self._manager, await self.trial(number))
        return [(point.job, point.sequence, point.reported) for point in points]

    async def notices(self, id: str = "") -> list[str]:
        """All notices, also those that were given repeatedly."""
        found = await self._manager.control.read(lambda c: events.after(c, 0, experiment_id=id or self.id, limit=1000))
        return [event.data["text"] for event in found if event.kind == events.NOTICE]

    async def inputs(self, kind: str) -> list[dict[str, Any]]:
        """What the dispatcher was sent of this kind."""
        log = await self._manager.control.read(lambda c: dispatcher_inputs.after(c, self.id, 0, 1000))
        return [entry.payload for entry in log if entry.kind == kind]


class SceneService(InMemoryTrainingService):
    """A platform of a scene."""

    scene: Any

    async def run(self) -> None:
        if self.scene.failures:
            failure = self.scene.failures.pop(0)
            with suppress(TimeoutError):
                async with asyncio.timeout(5.0):
                    await super().run()
            raise failure
        await super().run()


Scene.service = SceneService
Scenario = Callable[[Scene, Manager], Awaitable[None]]


class MachineService(SceneService, SupportsNodes):
    """Jobs run on nodes of the pool, by default on one."""

    nodes: tuple[str, ...] = ("m1",)

    def node_ids(self) -> tuple[str, ...]:
        return self.nodes


class CheckpointingService(SceneService, SupportsCheckpoints):
    """Is given checkpoints wherever they lie."""


class CheckpointingScene(Scene):
    """Jobs run on a `CheckpointingService`."""

    service = CheckpointingService


def plays(*steps: Step) -> Script:
    """Every job does the same."""
    return lambda form: steps


def by_attempt(*attempts: Sequence[Step]) -> Script:
    """The first job of each trial does the first, the second one the second …, all later ones the last."""
    return lambda form: attempts[min(form.number, len(attempts)) - 1]


def by_trial(*trials: Sequence[Step]) -> Script:
    """The jobs of the first trial do the first, those of the second one the second …, all later ones the last."""
    return lambda form: trials[min(form.sequence_id, len(trials) - 1)]


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
    scenario: Scenario,
    *,
    script: Script = three_reports,
    kind: Callable[..., Scene] = Scene,
    **options: Any,
) -> None:
    """Run a scenario on a fresh home under virtual time; a manager has been started."""

    async def main(loop: VirtualTimeLoop) -> None:
        scene = kind(Home(tmp_path / "home"), loop, script=script, **options)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(scene.end)
            await scenario(scene, await scene.start())

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
