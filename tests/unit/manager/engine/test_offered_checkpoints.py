"""What a job is offered to continue from, and what follows from what its service takes."""

import asyncio
import json
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fakes import small_experiments
from fakes.small_experiments import SMALL, CheckpointingService, Scene, played

from proctor.manager.config.experiment import ExperimentConfig
from proctor.manager.engine.loop import placing, tuning
from proctor.manager.engine.loop.context import JobFormBuilder
from proctor.manager.engine.loop.retention import gather_facts
from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.lifecycle.trial import DecisionKind
from proctor.manager.store.rows import DecisionRow
from proctor.manager.store.tables import metrics, trials
from proctor.sdk.checkpoints.saving import save_checkpoint
from proctor.training_services.base import CheckpointOffer, EndReason, JobStart, TrialJobForm, describe_start
from proctor.training_services.errors import ServiceUnavailable
from proctor.training_services.in_memory.scripts import Final, Raw, ScriptedExit, ScriptedReport, Step, Wait

SAVED = 4
"""Checkpoints of the first job, one with each of its points."""
LOST = ScriptedExit(1.0, EndReason.NODE_LOST, code=None)


class OneTrial(Scene):
    """An experiment of one trial, which keeps all its checkpoints."""

    config = SMALL | {
        "maxTrialNumber": 1,
        "assessor": {"name": "Medianstop"},
        "keepCheckpoints": {"newest": "all"},
    }

    async def restarts(self) -> list[int]:
        """Where the curve continued, each time that the tuner was notified."""
        return [restart["from_sequence"] for restart in await self.inputs("TrialRestarted")]

    def offers(self, form: int) -> list[str]:
        """The numbers of the checkpoints that the nth job was offered."""
        return [Path(offer.path).name for offer in self.forms[form].checkpoints]


class Offered(OneTrial):
    """Its service is offered checkpoints wherever they lie."""

    service = CheckpointingService


def saving(form: TrialJobForm, number: int) -> Step:
    """Save checkpoint `number`, whose file has that number of bytes."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "model").write_bytes(b"w" * number)
        stored = save_checkpoint(folder, form.directory)
    assert stored is not None
    return checkpoint(path=stored.path, bytes=stored.size, manifest=stored.manifest)


def checkpoint(**record: Any) -> Step:
    return Raw(0.0, json.dumps({"kind": "checkpoint", "with_metric": True, "time": 1.0, **record}).encode() + b"\n")


def first_job(form: TrialJobForm) -> Iterable[Step]:
    for number in range(1, SAVED + 1):
        yield ScriptedReport(1.0, number)
        yield saving(form, number)
    yield ScriptedReport(1.0, 99)  # behind the newest checkpoint


play = partial(small_experiments.play, kind=OneTrial)


@pytest.mark.parametrize(
    ("damaged", "taken", "reason"),
    [
        ([], 4, "from checkpoint 4 of job 1"),
        ([4], 3, "from checkpoint 3 of job 1; checkpoint 4 was passed over: model has 0 bytes, 4 expected"),
        (
            [2, 3, 4],
            1,
            "from checkpoint 1 of job 1; checkpoint 4 was passed over: model has 0 bytes, 4 expected; "
            "checkpoint 3 was passed over: model has 0 bytes, 3 expected; "
            "checkpoint 2 was passed over: model has 0 bytes, 2 expected",
        ),
        (
            [1, 2, 3, 4],
            0,
            "from the start: none of 4 checkpoints is whole; "
            "checkpoint 4 of job 1 was passed over: model has 0 bytes, 4 expected; "
            "checkpoint 3 of job 1 was passed over: model has 0 bytes, 3 expected; "
            "checkpoint 2 of job 1 was passed over: model has 0 bytes, 2 expected; 1 more was passed over",
        ),
    ],
)
@played(play)
async def test_a_job_continues_from_the_newest_that_is_whole(
    scene: OneTrial, manager: Manager, /, damaged: list[int], taken: int, reason: str
) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        """The second job reports 100, 101, …, by the size of what it continues from."""
        if form.number == 1:
            yield from first_job(form)
            for number in damaged:
                Path(form.directory, "output", "checkpoints", str(number), "model").write_bytes(b"")
            yield LOST
        size = 0 if form.resume_checkpoint is None else Path(form.resume_checkpoint, "model").stat().st_size
        yield ScriptedReport(1.0, 100 + size)
        yield Final(1.0, 1.0)

    await scene.run(script)
    first, job = await scene.jobs()
    assert (job.start_reason, job.resumed_from_step) == (reason, taken or None)
    assert (job.parent_job, job.resumed_from_job) == (first.id, first.id if taken else None)
    before = [(1, sequence, sequence + 1) for sequence in range(taken)]
    assert await scene.curve() == [*before, (2, taken, 100 + taken)]
    (restart,) = await scene.inputs("TrialRestarted")
    assert (restart["job_number"], restart["from_sequence"]) == (2, taken)


@pytest.mark.parametrize(
    ("answers", "step", "reason"),
    [
        (["it is gone", ""], 3, "from checkpoint 3 of job 1; checkpoint 4 was passed over: it is gone"),
        ([ServiceUnavailable("s3://b/4 cannot be read")], 4, "from checkpoint 4 of job 1"),
    ],
    ids=["one is gone", "the storage is away"],
)
@played(play)
async def test_a_service_that_does_not_verify_is_given_a_checkpoint_under_a_url(
    scene: OneTrial, manager: Manager, /, monkeypatch: pytest.MonkeyPatch, answers: list[Any], step: int, reason: str
) -> None:
    asked: list[str] = []

    async def answer(offer: CheckpointOffer, environment: Mapping[str, str], *, time_limit: float) -> str:
        asked.append(offer.path)
        found = answers[len(asked) - 1]
        if isinstance(found, ServiceUnavailable):
            raise found
        return str(found)

    def script(form: TrialJobForm) -> Iterable[Step]:
        for number in range(1, SAVED + 1):
            yield ScriptedReport(1.0, number)
            yield checkpoint(path=f"s3://b/{number}", bytes=1, manifest="0" * 64)
        yield LOST if form.number == 1 else Final(1.0, 1.0)

    monkeypatch.setattr(placing, "verify_stored", answer)
    await scene.run(script)
    _, job = await scene.jobs()
    assert (job.start_reason, job.resumed_from_step) == (reason, step)
    assert asked == [f"s3://b/{number}" for number in range(SAVED, step - 1, -1)]
    assert [form.resume_checkpoint for form in scene.forms] == [None, f"s3://b/{step}"]


@played(play, kind=Offered)
async def test_what_a_service_takes_decides_where_the_curve_continues(scene: Offered, manager: Manager, /) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        if form.number == 1:
            yield from first_job(form)
            yield LOST
        newest, second, *_ = form.checkpoints
        start = describe_start(form.trial_id, second, [(newest, "model is missing")], ", which is on this node")
        yield Wait(0.0, "waiting: the code is being copied", start)
        yield ScriptedReport(1.0, 100)
        yield Final(1.0, 1.0)

    await scene.run(script)
    first, job = await scene.jobs()
    offered = scene.forms[1].checkpoints
    offers = [(Path(offer.path).name, offer.sequence, bool(offer.manifest)) for offer in offered]
    assert offers == [("4", 4, True), ("3", 3, True), ("2", 2, True), ("1", 1, True)]
    assert (job.resumed_from_job, job.resumed_from_step, job.resume_checkpoint) == (first.id, 3, offered[1].path)
    assert job.start_reason == (
        "from checkpoint 3 of job 1, which is on this node; checkpoint 4 was passed over: model is missing"
    )
    assert await scene.curve() == [(1, 0, 1), (1, 1, 2), (1, 2, 3), (2, 3, 100)]
    assert await scene.restarts() == [4, 3]


@played(play, kind=Offered)
async def test_a_restarted_manager_offers_the_same(scene: Offered, manager: Manager, /) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        if form.number == 1:
            yield from first_job(form)
            yield LOST
        yield Wait(0.0, "", JobStart(form.checkpoints[1], "from checkpoint 3 of job 1"))
        yield Wait(3600.0, "waiting: the machine is away")

    await scene.create(script, seconds=60.0)
    await scene.end()
    scene.platforms.clear()  # the job has not arrived
    await scene.start()
    await asyncio.sleep(60.0)
    _, job = await scene.jobs()
    assert job.resumed_from_step == 3
    assert [form.number for form in scene.forms] == [1, 2, 2]
    assert scene.forms[1].checkpoints == scene.forms[2].checkpoints
    assert len(scene.forms[2].checkpoints) == 4


def found_damaged(form: TrialJobForm, path: str | None) -> Step:
    record = {"kind": "lost", "why": "model is damaged", "damaged": path, "time": 1.0}
    return Raw(0.0, json.dumps(record).encode() + b"\n")


def lose_checkpoints(form: TrialJobForm, jobs: int = 1, *, seconds: float = 1.0) -> Iterable[Step]:
    """The first job saves, and its machine is lost; as many after it as `jobs` says find theirs damaged, and fail."""
    if form.number == 1:
        yield from first_job(form)
        yield LOST
    elif form.number <= 1 + jobs:
        yield found_damaged(form, form.resume_checkpoint)
        yield ScriptedExit(seconds, EndReason.EXITED_ERROR, 1)


@played(play, kind=Offered)
async def test_a_checkpoint_that_is_damaged_where_it_is_downloaded_costs_no_retry_and_is_not_offered_again(
    scene: Offered, manager: Manager, /
) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        yield from lose_checkpoints(form, 2)
        yield Wait(0.0, "", describe_start(form.trial_id, form.checkpoints[0], form.passed_over))
        yield Final(1.0, 1.0)

    await scene.run(script, maxInfrastructureRetries=1)
    jobs = await scene.jobs()
    damaged = EndReason.CHECKPOINT_DAMAGED
    passed_over = " was passed over: it was damaged when it was downloaded"
    reasons = [f"from checkpoint 3 of job 1; checkpoint 4{passed_over}"]
    reasons += [f"from checkpoint 2 of job 1; checkpoint 4{passed_over}; checkpoint 3{passed_over}"]
    assert [job.start_reason for job in jobs[2:]] == reasons
    assert [job.end_reason for job in jobs] == [EndReason.NODE_LOST, damaged, damaged, EndReason.EXITED_OK]
    assert jobs[1].detail == f"{jobs[1].resume_checkpoint}, from which it was to continue, is damaged"
    row = await scene.trial()
    assert (row.failures, row.infrastructure_failures) == (0, 1)
    assert [scene.offers(form) for form in (1, 2, 3)] == [["4", "3", "2", "1"], ["3", "2", "1"], ["2", "1"]]
    assert "trial 0: model is damaged" in await scene.notices()


@played(play, kind=Offered)
async def test_those_that_were_damaged_before_are_counted_among_those_that_are_not_whole(
    scene: Offered, manager: Manager, /
) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        yield from lose_checkpoints(form)
        torn = [(offer, "model is missing") for offer in form.checkpoints]
        yield Wait(0.0, "", describe_start(form.trial_id, None, [*form.passed_over, *torn]))
        yield Wait(3600.0, "waiting: the machine is away")

    await scene.create(script, seconds=60.0)
    await scene.end()
    scene.platforms.clear()  # the job has not arrived
    await scene.start()
    await asyncio.sleep(60.0)
    *_, job = await scene.jobs()
    assert job.start_reason is not None
    assert job.start_reason.startswith("from the start: none of 4 checkpoints is whole; checkpoint 4 of job 1 was")
    assert job.start_reason.endswith("; 1 more was passed over")
    assert [len(form.passed_over) for form in scene.forms if form.number == 3] == [1, 1]


@played(play, kind=Offered)
async def test_a_damaged_checkpoint_that_was_stored_while_the_manager_was_killed_costs_no_retry(
    scene: Offered, manager: Manager, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        yield from lose_checkpoints(form, seconds=100.0)
        yield Final(1.0, 1.0)

    with monkeypatch.context() as killed:  # between the commits of the two databases
        killed.setattr(tuning, "on_damaged_checkpoint", lambda *_: None)
        await scene.create(script, seconds=30.0)
        assert [job.end_reason for job in await scene.jobs()] == [EndReason.NODE_LOST, None]
        await scene.end()
    await scene.start()
    await scene.until_ended()
    reasons = [job.end_reason for job in await scene.jobs()]
    assert reasons == [EndReason.NODE_LOST, EndReason.CHECKPOINT_DAMAGED, EndReason.EXITED_OK]
    assert scene.offers(-1) == ["3", "2", "1"]
    assert (await scene.trial()).failures == 0


@played(play, kind=Offered)
async def test_a_trial_that_calls_all_its_checkpoints_damaged_begins_from_the_start_and_a_clone_fails(
    scene: Offered, manager: Manager, /
) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        if form.sequence_id == 0 and form.number == 1:
            yield from first_job(form)
            yield replace(LOST, delay=60.0)
        if form.resume_checkpoint is not None:
            yield found_damaged(form, form.resume_checkpoint)
            yield ScriptedExit(1.0, EndReason.EXITED_ERROR, 1)
        yield found_damaged(form, "output/checkpoints/1")  # it was handed none
        yield Final(1.0, 1.0)

    await scene.create(script, seconds=30.0, trialConcurrency=2)
    clone = await manager.trials.clone((await scene.trial()).id, {})
    await scene.until_ended()
    own, row = await scene.trial(), await scene.trial(1)
    assert (own.status, own.jobs) == (TrialStatus.SUCCEEDED, 6)
    start = (await scene.jobs())[-1].start_reason
    why = "from the start: none of 4 checkpoints is whole; checkpoint 4 of job 1 was passed over: it was damaged when"
    assert start is not None
    assert start.startswith(why)
    assert (row.id, row.status, row.jobs) == (clone.id, TrialStatus.FAILED, 4)
    assert row.reason.startswith("it continues from another trial's checkpoint, and none of 4 checkpoints is whole; ")


@played(play, kind=Offered)
async def test_what_was_deleted_is_not_offered(scene: Offered, manager: Manager, /) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        yield from first_job(form)
        yield replace(LOST, delay=60.0)

    await scene.create(script, seconds=30.0)
    database = await manager.metrics("exp")
    await database.write(lambda c: c.execute("UPDATE checkpoints SET deleted_at = 1.0 WHERE path LIKE '%/3'"))
    await asyncio.sleep(60.0)
    assert scene.offers(1) == ["4", "2", "1"]


@played(play, kind=Offered)
async def test_a_clone_is_offered_its_own_checkpoints_and_then_that_of_its_origin(
    scene: Offered, manager: Manager, /
) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        yield ScriptedReport(1.0, 1)
        yield saving(form, form.number)
        yield replace(LOST, delay=60.0)

    await scene.create(script, seconds=30.0)
    donor = await scene.trial()
    clone = await manager.trials.clone(donor.id, {})
    await manager.trials.kill(donor.id)
    await asyncio.sleep(100.0)
    offers = [form.checkpoints for form in scene.forms if form.trial_id == clone.id][:2]
    own, origin = (f"{clone.id}.1", 1), (f"{donor.id}.1", 0)
    assert [[(offer.job_id, offer.sequence) for offer in given] for given in offers] == [[origin], [own, origin]]
    assert all(offer.manifest for offer in offers[1])


@played(play, kind=Offered)
async def test_a_clone_is_offered_all_from_which_its_donor_could_have_continued(
    scene: Offered, manager: Manager, /
) -> None:
    """Whether a user or a trial scheduler has cloned it, and of a clone that has saved nothing, too."""

    def script(form: TrialJobForm) -> Iterable[Step]:
        if form.sequence_id == 0:
            yield from first_job(form)
        yield replace(LOST, delay=600.0)

    await scene.create(script, seconds=30.0, trialConcurrency=3)
    donor = await scene.trial()
    clone = await manager.trials.clone(donor.id, {})
    second = await manager.trials.clone(clone.id, {})
    assert (second.origin_trial, second.origin_job) == (clone.id, f"{donor.id}.1")
    await asyncio.sleep(1.0)
    for trial in (clone, second):
        (offers,) = (form.checkpoints for form in scene.forms if form.trial_id == trial.id)
        found = [(offer.job_id, Path(offer.path).name, offer.sequence, bool(offer.manifest)) for offer in offers]
        assert found == [(f"{donor.id}.1", str(number), 0, True) for number in (4, 3, 2, 1)]
    experiment = await scene.row()
    forms = JobFormBuilder(ExperimentConfig.from_canonical(experiment.config), Path(experiment.directory))
    stores = placing.CheckpointStores(manager.control, await manager.metrics("exp"), forms, 0)
    place = forms.checkpoint_place(donor, 1, "output/checkpoints/3")
    decision = DecisionRow("exp", 9, 9, DecisionKind.CLONE, clone.id, 0.0)
    decision = replace(decision, donor_job=f"{donor.id}.1", donor_checkpoint=place, donor_sequence=2)
    exploited = await placing.find_offers(stores, await scene.trial(1), decision=decision)
    assert [(Path(offer.path).name, offer.sequence) for offer in exploited] == [("3", 2), ("2", 2), ("1", 1), ("4", 2)]


@played(play, kind=Offered)
async def test_what_a_job_was_offered_of_another_trial_is_kept_until_it_has_started(
    scene: Offered, manager: Manager, /
) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        if form.sequence_id == 0:
            yield from first_job(form)
        else:
            yield Wait(100.0, "waiting: the code is being copied")
            yield Wait(100.0, "", JobStart(form.checkpoints[0], ""))
        yield replace(LOST, delay=600.0)

    await scene.create(script, seconds=30.0, trialConcurrency=2)
    donor = await scene.trial()
    await manager.trials.clone(donor.id, {})

    async def kept() -> list[str]:
        origins = await manager.control.read(lambda c: trials.origins(c, [donor.id]))
        assert {trial_id for trial_id, _ in origins} == {donor.id}
        return sorted(Path(path).name for _, path in origins)

    await asyncio.sleep(1.0)
    assert await kept() == ["1", "2", "3", "4"]
    await asyncio.sleep(300.0)
    assert await kept() == ["4"]


@pytest.mark.parametrize(("started_at", "given"), [(None, ["2", "3"]), (5.0, ["2"])])
@played(play)
async def test_what_a_job_was_offered_is_kept_until_it_has_started(
    scene: OneTrial, manager: Manager, /, tmp_path: Path, started_at: float | None, given: list[str]
) -> None:
    await scene.create(first_job, seconds=60.0)
    trial = await scene.trial()
    (first, *_) = await scene.jobs()
    database = await manager.metrics("exp")
    rows = await database.read(lambda c: metrics.checkpoints(c, trial.id, limit=10))
    forms = JobFormBuilder(ExperimentConfig.from_canonical((await scene.row()).config), tmp_path)
    offers = [{"path": f"{forms.job_directory(trial, 1)}/output/checkpoints/{number}"} for number in (3, 2)]
    job = replace(first, started_at=started_at, checkpoints=offers, resume_checkpoint=offers[1]["path"])
    facts = gather_facts(trial, rows, forms, job=job, origins=())
    found = [Path(row.path).name for row, fact in zip(rows, facts, strict=True) if fact.is_given]
    assert found == given
