"""What a job is offered to continue from, and what follows from what its service takes."""

import asyncio
import json
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proctor.manager.config.experiment import ExperimentConfig
from proctor.manager.engine.loop import placing
from proctor.manager.engine.loop.context import JobFormBuilder
from proctor.manager.engine.loop.retention import gather_facts
from proctor.manager.engine.manager import Manager
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.rows import TrialJobRow, TrialRow
from proctor.manager.store.tables import dispatcher_inputs, jobs, metrics, trials
from proctor.sdk.checkpoints.saving import save_checkpoint
from proctor.training_services.base import (
    CheckpointOffer,
    EndReason,
    JobStart,
    SupportsCheckpoints,
    TrainingService,
    TrialJobForm,
    describe_start,
)
from proctor.training_services.errors import ServiceUnavailable
from proctor.training_services.in_memory.scripts import Final, Raw, ScriptedExit, ScriptedReport, Step, Wait
from proctor.training_services.in_memory.service import InMemoryPlatform, InMemoryTrainingService
from proctor.training_services.registry import ServiceContext

Play = Callable[..., Awaitable[None]]
Damage = Callable[[Path], None]
SAVED = 4
"""Checkpoints of the first job, one with each of its points."""


class CheckpointingSimulation(Simulation):
    """Its service is offered checkpoints wherever they lie."""

    def _create_service(self, platform: str, context: ServiceContext) -> TrainingService:
        class Service(InMemoryTrainingService, SupportsCheckpoints):
            pass

        played = self.platforms.setdefault(context.experiment_id, InMemoryPlatform(self.clock.now))
        return Service(self._script, platform=played, now=self.clock.now)


def saving(form: TrialJobForm, number: int) -> Step:
    """Save checkpoint `number`, whose file has that number of bytes."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "model").write_bytes(b"w" * number)
        stored = save_checkpoint(folder, form.directory)
    assert stored is not None
    record = {"kind": "checkpoint", "path": stored.path, "bytes": stored.size, "manifest": stored.manifest}
    return Raw(0.0, json.dumps({**record, "with_metric": True, "time": 1.0}).encode() + b"\n")


def first_job(form: TrialJobForm) -> Iterable[Step]:
    for number in range(1, SAVED + 1):
        yield ScriptedReport(1.0, number)
        yield saving(form, number)
    yield ScriptedReport(1.0, 99)  # behind the newest checkpoint
    yield ScriptedExit(1.0, EndReason.NODE_LOST, code=None)


def play(tmp_path: Path, scenario: Play, script: Any, *, kind: type[Simulation] = Simulation) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        simulation = kind(Home(tmp_path / "home"), loop, script=script)
        async with simulation.manager() as manager:
            experiment_id = await create(manager, tmp_path)
            await scenario(simulation, manager, experiment_id)

    run_virtual(main)


async def create(manager: Manager, tmp_path: Path) -> str:
    config = {
        "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
        "trialCommand": "python trial.py",
        "trialConcurrency": 1,
        "maxTrialNumber": 1,
        "tuner": {"name": "Random"},
        "assessor": {"name": "Medianstop"},
        "keepCheckpoints": {"newest": "all"},
        "trainingService": {"platform": "local"},
    }
    return (await manager.create_experiment(config=config, directory=str(tmp_path))).id


async def only_trial(manager: Manager, experiment_id: str) -> TrialRow:
    (trial,) = (await manager.control.read(lambda c: trials.page(c, experiment_id, limit=2))).items
    return trial


async def attempts(manager: Manager, trial: TrialRow) -> list[TrialJobRow]:
    return await manager.control.read(lambda c: jobs.of_trial(c, trial.id))


async def curve(manager: Manager, trial: TrialRow) -> list[tuple[int, int, Any]]:
    database = await manager.metrics(trial.experiment_id)
    points = await database.read(lambda c: metrics.curve(c, trial.id))
    return [(point.job, point.sequence, point.value) for point in points]


async def restarts(manager: Manager, experiment_id: str) -> list[int]:
    log = await manager.control.read(lambda c: dispatcher_inputs.after(c, experiment_id, 0, 1000))
    return [row.payload["from_sequence"] for row in log if row.kind == "TrialRestarted"]


def continuing(form: TrialJobForm) -> Iterable[Step]:
    """The second job reports 100, 101, …, its size first."""
    if form.number == 1:
        yield from first_job(form)
    size = 0 if form.resume_checkpoint is None else Path(form.resume_checkpoint, "model").stat().st_size
    yield ScriptedReport(1.0, 100 + size)
    yield Final(1.0, 1.0)


def truncate(place: Path, *numbers: int) -> None:
    for number in numbers:
        (place / str(number) / "model").write_bytes(b"")


@pytest.mark.parametrize(
    ("damaged", "taken", "reason"),
    [
        ([], 4, "from checkpoint 4 of job 1"),
        ([4], 3, "from checkpoint 3 of job 1; checkpoint 4 was passed over: model has 0 bytes, 4 expected"),
        (
            [2, 3, 4],
            0,
            "from the start: checkpoint 4 of job 1 was passed over: model has 0 bytes, 4 expected; "
            "checkpoint 3 of job 1 was passed over: model has 0 bytes, 3 expected; "
            "checkpoint 2 of job 1 was passed over: model has 0 bytes, 2 expected",
        ),
    ],
)
def test_a_job_continues_from_the_newest_of_three_that_is_whole(
    tmp_path: Path, damaged: list[int], taken: int, reason: str
) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        if form.number == 1:
            yield from first_job(form)
            return
        yield from continuing(form)

    def damaging(form: TrialJobForm) -> Iterable[Step]:
        for step in script(form):
            if isinstance(step, ScriptedExit):
                truncate(Path(form.directory) / "output" / "checkpoints", *damaged)
            yield step

    async def scenario(simulation: Simulation, manager: Manager, experiment_id: str) -> None:
        await simulation.ended(manager, experiment_id)
        trial = await only_trial(manager, experiment_id)
        _, job = await attempts(manager, trial)
        assert (job.start_reason, job.resumed_from_step) == (reason, taken or None)
        before = [(1, sequence, sequence + 1.0) for sequence in range(taken)]
        assert await curve(manager, trial) == [*before, (2, taken, 100.0 + taken)]
        assert await restarts(manager, experiment_id) == [taken]

    play(tmp_path, scenario, damaging)


@pytest.mark.parametrize(
    ("answers", "step", "reason"),
    [
        (["it is gone", ""], 3, "from checkpoint 3 of job 1; checkpoint 4 was passed over: it is gone"),
        ([ServiceUnavailable("s3://b/4 cannot be read")], 4, "from checkpoint 4 of job 1"),
    ],
    ids=["one is gone", "the storage is away"],
)
def test_a_service_that_does_not_verify_is_given_a_checkpoint_under_a_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answers: list[Any], step: int, reason: str
) -> None:
    asked: list[str] = []

    async def answer(offer: CheckpointOffer, environment: Mapping[str, str], *, time_limit: float) -> str:
        asked.append(offer.path)
        found = answers[len(asked) - 1]
        if isinstance(found, ServiceUnavailable):
            raise found
        return str(found)

    monkeypatch.setattr(placing, "verify_stored", answer)
    handed: list[str | None] = []

    def script(form: TrialJobForm) -> Iterable[Step]:
        if form.number == 1:
            for number in range(1, SAVED + 1):
                yield ScriptedReport(1.0, number)
                record = {"kind": "checkpoint", "path": f"s3://b/{number}", "bytes": 1, "manifest": "0" * 64}
                yield Raw(0.0, json.dumps({**record, "with_metric": True, "time": 1.0}).encode() + b"\n")
            yield ScriptedExit(1.0, EndReason.NODE_LOST, code=None)
            return
        handed.append(form.resume_checkpoint)
        yield Final(1.0, 1.0)

    async def scenario(simulation: Simulation, manager: Manager, experiment_id: str) -> None:
        await simulation.ended(manager, experiment_id)
        _, job = await attempts(manager, await only_trial(manager, experiment_id))
        assert (job.start_reason, job.resumed_from_step) == (reason, step)

    play(tmp_path, scenario, script)
    assert asked == [f"s3://b/{number}" for number in range(SAVED, step - 1, -1)]
    assert handed == [f"s3://b/{step}"]


def test_what_a_service_takes_decides_where_the_curve_continues(tmp_path: Path) -> None:
    forms: list[TrialJobForm] = []

    def script(form: TrialJobForm) -> Iterable[Step]:
        forms.append(form)
        if form.number == 1:
            yield from first_job(form)
            return
        newest, second, _ = form.checkpoints
        start = describe_start(form.trial_id, second, [(newest, "model is missing")], ", which is on this node")
        yield Wait(0.0, "waiting: the code is being copied", start)
        yield ScriptedReport(1.0, 100)
        yield Final(1.0, 1.0)

    async def scenario(simulation: Simulation, manager: Manager, experiment_id: str) -> None:
        await simulation.ended(manager, experiment_id)
        trial = await only_trial(manager, experiment_id)
        _, job = await attempts(manager, trial)
        offers = [(Path(offer.path).name, offer.sequence, bool(offer.manifest)) for offer in forms[1].checkpoints]
        assert offers == [("4", 4, True), ("3", 3, True), ("2", 2, True)]
        assert (job.resumed_from_job, job.resumed_from_step) == (f"{trial.id}.1", 3)
        assert job.resume_checkpoint == forms[1].checkpoints[1].path
        assert job.start_reason == (
            "from checkpoint 3 of job 1, which is on this node; checkpoint 4 was passed over: model is missing"
        )
        assert await curve(manager, trial) == [(1, 0, 1.0), (1, 1, 2.0), (1, 2, 3.0), (2, 3, 100.0)]
        assert await restarts(manager, experiment_id) == [4, 3]

    play(tmp_path, scenario, script, kind=CheckpointingSimulation)


def test_a_restarted_manager_offers_the_same(tmp_path: Path) -> None:
    forms: list[TrialJobForm] = []

    def script(form: TrialJobForm) -> Iterable[Step]:
        forms.append(form)
        if form.number == 1:
            yield from first_job(form)
            return
        yield Wait(0.0, "", JobStart(form.checkpoints[1], "from checkpoint 3 of job 1"))
        yield Wait(3600.0, "waiting: the machine is away")

    async def main(loop: VirtualTimeLoop) -> None:
        simulation = CheckpointingSimulation(Home(tmp_path / "home"), loop, script=script)
        async with simulation.manager() as manager:
            experiment_id = await create(manager, tmp_path)
            await asyncio.sleep(60.0)
        simulation.platforms.clear()  # the job has not arrived
        async with simulation.manager() as manager:
            await asyncio.sleep(60.0)
            _, job = await attempts(manager, await only_trial(manager, experiment_id))
            assert job.resumed_from_step == 3
        assert [form.number for form in forms] == [1, 2, 2]
        assert forms[1].checkpoints == forms[2].checkpoints
        assert len(forms[2].checkpoints) == 3

    run_virtual(main)


def test_what_was_deleted_is_not_offered(tmp_path: Path) -> None:
    forms: list[TrialJobForm] = []

    def script(form: TrialJobForm) -> Iterable[Step]:
        forms.append(form)
        yield from (step for step in first_job(form) if not isinstance(step, ScriptedExit))
        yield ScriptedExit(60.0, EndReason.NODE_LOST, code=None)

    async def scenario(simulation: Simulation, manager: Manager, experiment_id: str) -> None:
        await asyncio.sleep(30.0)
        database = await manager.metrics(experiment_id)
        await database.write(lambda c: c.execute("UPDATE checkpoints SET deleted_at = 1.0 WHERE path LIKE '%/3'"))
        await asyncio.sleep(60.0)
        assert [Path(offer.path).name for offer in forms[1].checkpoints] == ["4", "2", "1"]

    play(tmp_path, scenario, script, kind=CheckpointingSimulation)


def test_a_clone_is_offered_its_own_checkpoints_and_then_that_of_its_origin(tmp_path: Path) -> None:
    forms: list[TrialJobForm] = []

    def script(form: TrialJobForm) -> Iterable[Step]:
        forms.append(form)
        yield ScriptedReport(1.0, 1)
        yield saving(form, form.number)
        yield ScriptedExit(60.0, EndReason.NODE_LOST, code=None)

    async def scenario(simulation: Simulation, manager: Manager, experiment_id: str) -> None:
        await asyncio.sleep(30.0)
        donor = await only_trial(manager, experiment_id)
        clone = await manager.trials.clone(donor.id, {})
        await manager.trials.kill(donor.id)
        await asyncio.sleep(100.0)
        first, second = [form for form in forms if form.trial_id == clone.id][:2]
        assert [(offer.job_id, offer.sequence) for offer in first.checkpoints] == [(f"{donor.id}.1", 0)]
        assert [(offer.job_id, offer.sequence) for offer in second.checkpoints] == [
            (f"{clone.id}.1", 1),
            (f"{donor.id}.1", 0),
        ]
        assert all(offer.manifest for offer in second.checkpoints)

    play(tmp_path, scenario, script, kind=CheckpointingSimulation)


@pytest.mark.parametrize(("started_at", "given"), [(None, ["2", "3"]), (5.0, ["2"])])
def test_what_a_job_was_offered_is_kept_until_it_has_started(
    tmp_path: Path, started_at: float | None, given: list[str]
) -> None:
    async def scenario(simulation: Simulation, manager: Manager, experiment_id: str) -> None:
        await asyncio.sleep(60.0)
        trial = await only_trial(manager, experiment_id)
        (first, *_) = await attempts(manager, trial)
        database = await manager.metrics(experiment_id)
        rows = await database.read(lambda c: metrics.checkpoints(c, trial.id, limit=10))
        row = await manager.experiment(experiment_id)
        forms = JobFormBuilder(ExperimentConfig.from_canonical(row.config), tmp_path)
        offers = [{"path": f"{forms.job_directory(trial, 1)}/output/checkpoints/{number}"} for number in (3, 2)]
        job = replace(first, started_at=started_at, checkpoints=offers, resume_checkpoint=offers[1]["path"])
        facts = gather_facts(trial, rows, forms, job=job, origins=())
        found = [Path(row.path).name for row, fact in zip(rows, facts, strict=True) if fact.is_given]
        assert found == given

    play(tmp_path, scenario, continuing)
