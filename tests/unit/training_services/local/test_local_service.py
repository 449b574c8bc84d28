"""The local service between the engine's listeners and a hub whose keeper is played here."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from proctor.training_services import hub_service
from proctor.training_services.base import CheckpointOffer, JobStart, NodePlacement, TrialJobForm, TrialJobStatus
from proctor.training_services.errors import ServiceUnavailable, SubmissionRefused
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.local.service import LocalTrainingService
from proctor.training_services.nodes.pool import NodePool, NodeStatus
from proctor.training_services.registry import ServiceContext
from proctor.training_services.testing import Recorder, serving
from proctor.trial_keeper.protocol import (
    COMMAND_TYPES,
    Chunk,
    Command,
    CommandPoll,
    End,
    EndReason,
    Exit,
    FileAnswer,
    GpuSlot,
    JobReport,
    Launch,
    Registration,
    ReportAnswer,
    ReportHeader,
    Start,
    VerifyCheckpoint,
    from_json,
)

pytestmark = pytest.mark.anyio

LINE = b'{"kind":"final","value":1.0,"time":1.0}\n'


class Stage:
    """One experiment's local service; `keeper` methods play node `local`'s."""

    def __init__(self, code: Path) -> None:
        self.code = code
        self.pool = NodePool()
        self.hub = KeeperHub(self.pool)
        self.pool.add("local", "local", reason="its keeper is being started")
        self.hub.add_node("local", "secret")
        settings = {"platform": "local", "gpu_indices": [0, 1], "max_trial_number_per_gpu": 2}
        context = ServiceContext("e1", Path("/home/x/experiments/e1"), self.pool, self.hub, settings)
        self.service = LocalTrainingService(context, clean_up_seconds=0.01)
        self.recorder = Recorder()
        self.recorder.listen(self.service)
        self.session = ""

    def form(self, job_id: str = "a.1") -> TrialJobForm:
        return TrialJobForm(
            job_id=job_id,
            token="t",
            experiment_id="e1",
            trial_id=job_id,
            sequence_id=17,
            number=1,
            parameter_id=0,
            parameter_file="{}",
            command="python trial.py",
            code_directory=str(self.code),
            directory="/job",
            placement=NodePlacement("local"),
        )

    def continuing(self) -> TrialJobForm:
        """A job that continues from a checkpoint."""
        return replace(self.form("a.2"), trial_id="a", checkpoints=OFFERS)

    async def register(self, *jobs: JobReport, commands: Iterable[str] = COMMAND_TYPES) -> None:
        await self.hub.mark_reattached()
        registration = Registration("k", 1, "boot", "host", "0", "3.11", [], list(jobs), commands=list(commands))
        self.session = (await self.hub.register("local", registration)).session

    async def begin(self, form: TrialJobForm | None = None) -> None:
        """The keeper registers, and a job is submitted."""
        await self.register()
        await self.service.submit_trial_job(form or self.form())

    def stop_listening(self) -> None:
        self.service.remove_trial_job_metric_listener(self.recorder.take_metrics)
        self.service.remove_status_listener(self.recorder.take_changes)

    async def orders(self) -> list[Command]:
        return (await self.hub.poll("local", CommandPoll(self.session, 0, 0.0))).commands

    async def say(self, *, start: str = "", chunk: str = "", end: str = "") -> ReportAnswer:
        ended = Exit(EndReason.EXITED_OK, 0, None, 1.0, 2.0)
        header = ReportHeader(
            self.session,
            chunks=[Chunk(chunk, "t", "0", 0, len(LINE))] if chunk else [],
            starts=[Start(start, "t", 7, 1.0)] if start else [],
            ends=[End(end, "t", ended)] if end else [],
        )
        return await self.hub.report("local", header, LINE if chunk else b"")


@pytest.fixture
async def stage(anyio_backend: str, tmp_path: Path) -> AsyncIterator[Stage]:
    stage = Stage(tmp_path)
    yield stage
    stage.hub.close()


async def test_a_form_becomes_a_launch(stage: Stage) -> None:
    form = replace(
        stage.form(),
        gpu_number=1,
        placement=NodePlacement("local", (GpuSlot("GPU-0", 1),)),
        environment={"A": "b"},
        environment_file="/home/x/environment.json",
        max_duration_seconds=60.0,
        lease_seconds=30.0,
    )
    launch = stage.service.launch(form)
    assert launch.gpus == [GpuSlot("GPU-0", 1)]
    assert launch.environment == {"A": "b"}
    assert (launch.directory, launch.code_directory) == ("/job", str(stage.code))
    assert (launch.environment_file, launch.resume_checkpoint) == ("/home/x/environment.json", None)
    assert (launch.max_duration_seconds, launch.lease_seconds) == (60.0, 30.0)
    assert "manager /home/x, experiment e1, trial 17" in launch.holder


@pytest.mark.parametrize(
    ("gpu_number", "gpus", "expected"), [(None, None, None), (0, (), []), (0, None, []), (None, (), [])]
)
async def test_unmanaged_gpus_are_told_from_none(
    stage: Stage, gpu_number: int | None, gpus: tuple[GpuSlot, ...] | None, expected: list[GpuSlot] | None
) -> None:
    form = replace(stage.form(), gpu_number=gpu_number, placement=NodePlacement("local", gpus))
    assert stage.service.launch(form).gpus == expected


async def test_what_can_never_run_is_refused_with_a_sentence(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "trial.py"
    file.touch()
    for change, sentence in (
        ({"command": "  "}, "trialCommand is empty"),
        ({"code_directory": str(tmp_path / "missing")}, "it does not exist"),
        ({"code_directory": str(file)}, "it is a file"),
        ({"gpu_number": 2}, "needs 2 GPUs and its placement names 0"),
    ):
        with pytest.raises(SubmissionRefused, match=sentence):
            await stage.service.submit_trial_job(replace(stage.form(), **change))  # type: ignore[arg-type]
    assert await stage.service.list_trial_jobs() == []


async def test_what_no_keeper_can_read_is_refused_before_it_is_sent(stage: Stage) -> None:
    await stage.register()
    sentence = "no keeper can read the Launch of trial job a.1: milestone: expected a number"
    with pytest.raises(SubmissionRefused, match=sentence):
        await stage.service.submit_trial_job(replace(stage.form(), milestone=2**63))
    async with serving(stage.service):
        await stage.service.reattach([replace(stage.form(), milestone=2**63)], [])
        end = await stage.recorder.end_of("a.1")
        assert end.exit is not None
        assert (end.exit.reason, sentence in end.exit.detail) == (EndReason.UNPLACEABLE, True)
    assert await stage.orders() == []


async def test_another_token_for_a_known_job_is_refused(stage: Stage) -> None:
    await stage.service.submit_trial_job(stage.form())
    with pytest.raises(SubmissionRefused, match="another token"):
        await stage.service.submit_trial_job(replace(stage.form(), token="u"))


async def test_a_node_that_is_gone_makes_the_service_unavailable(stage: Stage) -> None:
    stage.hub.remove_node("local")
    with pytest.raises(ServiceUnavailable, match="no node local"):
        await stage.service.submit_trial_job(stage.form())
    assert await stage.service.list_trial_jobs() == []


async def test_a_job_that_waits_for_its_node_says_so(stage: Stage) -> None:
    async with serving(stage.service):
        await stage.service.submit_trial_job(stage.form())
        await stage.recorder.until(lambda: len(stage.recorder.of("a.1")) == 1)
        stage.pool.set_status("local", NodeStatus.FAILED, "its keeper cannot be started: no space left")
        await stage.recorder.until(lambda: len(stage.recorder.of("a.1")) == 2)
    assert [change.detail for change in stage.recorder.of("a.1")] == [
        "waiting: node local is connecting: its keeper is being started",
        "waiting: node local is failed: its keeper cannot be started: no space left",
    ]
    assert {change.status for change in stage.recorder.of("a.1")} == {TrialJobStatus.SUBMITTED}


async def test_before_anybody_listens_nothing_is_acknowledged(stage: Stage) -> None:
    await stage.begin()
    stage.stop_listening()
    answer = await stage.say(start="a.1", chunk="a.1", end="a.1")
    assert (answer.acknowledged, answer.ended, answer.fenced) == ([], [], [])
    stage.recorder.listen(stage.service)
    answer = await stage.say(chunk="a.1", end="a.1")
    assert answer.ended == ["a.1"]
    assert stage.recorder.statuses("a.1") == [TrialJobStatus.RUNNING, TrialJobStatus.ENDED]


async def test_an_early_stop_shows_in_the_detail(stage: Stage) -> None:
    await stage.begin()
    await stage.orders()
    await stage.say(start="a.1")
    await stage.service.cancel_trial_job("a.1", is_early_stopped=True)
    detail = await stage.service.get_trial_job("a.1")
    assert (detail.status, detail.is_early_stopped) == (TrialJobStatus.STOPPING, True)
    assert [command.type for command in await stage.orders()] == ["Launch", "Cancel"]


async def test_when_the_service_stops_serving_the_keeper_keeps_what_it_has(stage: Stage) -> None:
    await stage.register()
    async with serving(stage.service):
        await stage.service.submit_trial_job(stage.form())
        await asyncio.sleep(0)
    assert (await stage.say(end="a.1")).ended == []


async def test_cleaning_up_gives_up_jobs_that_do_not_end(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    await stage.begin()
    await stage.orders()
    await stage.service.clean_up()
    assert "a.1" in caplog.text
    assert await stage.service.list_trial_jobs() == []
    assert (await stage.say(start="a.1")).fenced == ["a.1"]


async def test_cleaning_up_takes_the_last_words_of_jobs_that_nobody_listens_to(stage: Stage) -> None:
    await stage.begin()
    await stage.orders()
    stage.stop_listening()
    stage.service._clean_up_seconds = 20.0
    async with asyncio.TaskGroup() as group:
        cleaning = group.create_task(stage.service.clean_up())
        await asyncio.sleep(0)
        assert (await stage.say(chunk="a.1", end="a.1")).ended == ["a.1"]
    assert cleaning.done()


async def test_placement_keeps_to_the_settings_of_now(stage: Stage) -> None:
    rules = stage.service.gpu_rules("local")
    assert (rules.max_trials_per_gpu, rules.gpu_indices, rules.use_active_gpu) == (2, (0, 1), False)
    await stage.service.set_cluster_metadata("use_active_gpu", True)
    assert stage.service.gpu_rules("local").use_active_gpu


async def answer_verification(stage: Stage, damage: dict[str, str], *, after: int = 0) -> Launch:
    """Answer questions about checkpoints, by the path of each, until a job is launched."""
    cursor = after
    async with asyncio.timeout(20):
        while True:
            batch = await stage.hub.poll("local", CommandPoll(stage.session, cursor, 60.0))
            for command in batch.commands:
                cursor = command.number
                body = from_json(COMMAND_TYPES[command.type], command.order)
                if isinstance(body, Launch):
                    return body
                assert isinstance(body, VerifyCheckpoint)
                stage.hub.answer("local", FileAnswer(stage.session, body.request, damage=damage[body.folder]), b"")


OFFERS = (CheckpointOffer("a.1", "/job/1/3", 30, "local", "ff"), CheckpointOffer("a.1", "/job/1/2", 20, "local"))


@pytest.mark.parametrize(
    ("damage", "path", "start"),
    [
        ({"/job/1/3": ""}, "/job/1/3", JobStart(OFFERS[0], "from checkpoint 3 of job 1")),
        (
            {"/job/1/3": "model is missing", "/job/1/2": ""},
            "/job/1/2",
            JobStart(OFFERS[1], "from checkpoint 2 of job 1; checkpoint 3 was passed over: model is missing"),
        ),
        (
            {"/job/1/3": "model is missing", "/job/1/2": "its folder is gone"},
            None,
            JobStart(
                None,
                "from the start: none of 2 checkpoints is whole; "
                "checkpoint 3 of job 1 was passed over: model is missing; "
                "checkpoint 2 of job 1 was passed over: its folder is gone",
            ),
        ),
    ],
)
async def test_a_job_continues_from_the_first_checkpoint_that_its_keeper_finds_whole(
    stage: Stage, damage: dict[str, str], path: str | None, start: JobStart
) -> None:
    async with serving(stage.service):
        await stage.begin(stage.continuing())
        launch = await answer_verification(stage, damage)
        assert launch.resume_checkpoint == path
        assert [(change.status, change.start) for change in stage.recorder.of("a.2")] == [
            (TrialJobStatus.SUBMITTED, start)  # before it is launched
        ]
        await stage.say(start="a.2")
        assert stage.recorder.of("a.2")[-1].start == start


async def test_what_a_job_has_waited_for_is_no_longer_its_reason_when_it_is_sent(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def back_again(offer: CheckpointOffer, environment: object, notify: Callable[[str], None]) -> str:
        notify("s3://b/3 cannot be reached; tried again in 1 s")
        return ""

    monkeypatch.setattr(hub_service, "await_verified", back_again)
    form = replace(stage.continuing(), checkpoints=(CheckpointOffer("a.1", "s3://b/3", 30),))
    async with serving(stage.service):
        await stage.begin(form)
        assert (await answer_verification(stage, {})).resume_checkpoint == "s3://b/3"
        details = [change.detail for change in stage.recorder.of("a.2") if change.detail]
    assert details == [
        "waiting: s3://b/3 cannot be reached; tried again in 1 s",
        "waiting: its job is being started",
    ]


async def test_a_job_that_must_continue_from_another_trials_checkpoint_ends_where_none_is_whole(stage: Stage) -> None:
    clone = replace(stage.continuing(), trial_id="b", job_id="b.1", number=1)
    async with serving(stage.service), asyncio.TaskGroup() as group:
        await stage.begin(clone)
        damage = {"/job/1/3": "model is missing", "/job/1/2": "its folder is gone"}
        answering = group.create_task(answer_verification(stage, damage))
        end = await stage.recorder.end_of("b.1")
        answering.cancel()
    assert end.exit is not None
    assert (end.exit.reason, end.exit.detail) == (
        EndReason.LAUNCH_FAILED,
        "it continues from another trial's checkpoint, and none of 2 checkpoints is whole; "
        "checkpoint 3 of job 1 of trial a was passed over: model is missing; "
        "checkpoint 2 of job 1 of trial a was passed over: its folder is gone",
    )


async def test_a_clone_whose_donors_checkpoint_is_known_to_be_damaged_does_not_begin_at_the_start(stage: Stage) -> None:
    own, donors = stage.continuing().checkpoints
    clone = replace(
        stage.continuing(),
        trial_id="b",
        job_id="b.2",
        checkpoints=(replace(own, job_id="b.1"),),
        damaged=(replace(donors, damage="its folder is gone"),),
    )
    async with serving(stage.service), asyncio.TaskGroup() as group:
        await stage.begin(clone)
        answering = group.create_task(answer_verification(stage, {"/job/1/3": "model is missing"}))
        end = await stage.recorder.end_of("b.2")
        answering.cancel()
    assert end.exit is not None
    assert end.exit.reason is EndReason.LAUNCH_FAILED
    assert "none of 2 checkpoints is whole" in end.exit.detail


async def test_a_job_that_is_canceled_while_its_checkpoint_is_verified_is_not_launched(stage: Stage) -> None:
    async with serving(stage.service):
        await stage.begin(stage.continuing())
        assert (await stage.hub.poll("local", CommandPoll(stage.session, 0, 60.0))).commands
        await stage.service.cancel_trial_job("a.2")
        end = await stage.recorder.end_of("a.2")
        assert end.exit is not None
        assert (end.exit.reason, end.exit.detail) == (EndReason.CANCELED, "stopped before it was started")
        assert "Launch" not in [command.type for command in await stage.orders()]


async def test_a_job_whose_keeper_cannot_verify_checkpoints_ends_with_the_reason_and_loses_none(stage: Stage) -> None:
    async with serving(stage.service):
        await stage.register(commands=["Launch", "Cancel"])
        await stage.service.submit_trial_job(stage.continuing())
        end = await stage.recorder.end_of("a.2")
        assert end.exit is not None
        assert (end.exit.reason, end.exit.detail, end.start) == (
            EndReason.INFRASTRUCTURE,
            "the keeper of node local is of another version (0) and cannot verify checkpoints",
            None,
        )
        assert await stage.orders() == []


@pytest.mark.parametrize("arrived", [True, False])
async def test_after_a_restart_a_job_that_was_launched_is_not_launched_again(stage: Stage, arrived: bool) -> None:
    await stage.service.reattach([stage.continuing()], [])
    async with serving(stage.service):
        await stage.register(*[JobReport("a.2", "t", 7, 1.0)] * arrived)
        if arrived:
            await stage.recorder.start_of("a.2")
            assert stage.recorder.of("a.2")[-1].start is None  # as it was stored before
            assert await stage.orders() == []
        else:
            assert (await answer_verification(stage, {"/job/1/3": ""})).job_id == "a.2"


async def test_a_checkpoint_that_cannot_be_read_for_lack_of_descriptors_is_not_passed_over(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_service, "RETRY_SECONDS", 0.01)
    async with serving(stage.service):
        await stage.begin(stage.continuing())
        [command] = (await stage.hub.poll("local", CommandPoll(stage.session, 0, 60.0))).commands
        problem = FileAnswer(stage.session, command.order["request"], error="model: Too many open files", passing=True)
        stage.hub.answer("local", problem, b"")
        assert (
            await answer_verification(stage, {"/job/1/3": ""}, after=command.number)
        ).resume_checkpoint == "/job/1/3"
        assert "model: Too many open files; try again" in stage.recorder.of("a.2")[0].detail


async def test_a_keeper_that_dies_while_it_verifies_is_asked_again(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_service, "RETRY_SECONDS", 0.01)
    async with serving(stage.service):
        await stage.begin(stage.continuing())
        assert (await stage.hub.poll("local", CommandPoll(stage.session, 0, 60.0))).commands
        await stage.register()  # another keeper
        assert (await answer_verification(stage, {"/job/1/3": ""})).resume_checkpoint == "/job/1/3"
