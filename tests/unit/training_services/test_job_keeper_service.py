"""A service with a keeper per job on a platform that follows the test, with keepers that are played here."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from proctor.sdk.protocol import ENV_CHECKPOINT_STORAGE
from proctor.training_services import hub_service, job_keeper_service
from proctor.training_services.base import JournalChunk, SoftStop, StatusChange, TrialJobForm, TrialJobStatus
from proctor.training_services.capacity import GpuRules
from proctor.training_services.errors import KeeperReplaced, NoJobRuns, ServiceUnavailable, SubmissionRefused
from proctor.training_services.job_keeper_service import JobKeeperService, PlatformJob, PlatformStatus
from proctor.training_services.job_keepers import lifecycle
from proctor.training_services.job_keepers.platform import LeftReport
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.keepers.launches import write_launch
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.registry import ServiceContext
from proctor.training_services.shared_storage import NOTE_FILE
from proctor.training_services.testing import Recorder, serving
from proctor.trial_keeper.linux import backoff
from proctor.trial_keeper.protocol import (
    Chunk,
    Command,
    CommandPoll,
    End,
    EndReason,
    Exit,
    FileAnswer,
    JobReport,
    Launch,
    Registration,
    ReportAnswer,
    ReportHeader,
    Start,
)

pytestmark = pytest.mark.anyio

KEY = b"k" * 32
LINE = b'{"kind":"final","value":1.0,"time":1.0}\n'


class ScriptedService(JobKeeperService):
    """What its platform answers is set by the test; `calls` are the requests that it was sent."""

    place_name = "platform scripted"

    def __init__(self, context: ServiceContext, **options: Any) -> None:
        super().__init__(context, clean_up_seconds=0.01, grace_seconds=0.2, **options)
        self.calls: list[tuple[str, str]] = []
        self.answers: dict[str, list[Exception]] = {"start": [], "stop": [], "list": [], "read": []}
        self.there: dict[str, PlatformJob] = {}
        self.left: dict[str, LeftReport] = {}
        self.changes: asyncio.Queue[PlatformJob | Exception | None] = asyncio.Queue()
        self.may_start = asyncio.Event()
        self.may_start.set()

    def _answer(self, what: str, job_id: str = "") -> None:
        self.calls.append((what, job_id))
        if self.answers[what]:
            raise self.answers[what].pop(0)

    async def start_keeper(self, form: TrialJobForm, secret: str) -> None:
        self._answer("start", form.job_id)
        await self.may_start.wait()
        self.there[form.job_id] = seen(form.job_id)

    async def stop_keeper(self, job_id: str) -> None:
        self._answer("stop", job_id)
        self.there.pop(job_id, None)

    async def list_keepers(self) -> Sequence[PlatformJob]:
        self._answer("list")
        return list(self.there.values())

    async def watch_keepers(self) -> AsyncIterator[PlatformJob]:
        while (item := await self.changes.get()) is not None:
            if isinstance(item, Exception):
                raise item
            yield item

    async def read_left_report(self, job: PlatformJob, *, is_last: bool) -> LeftReport | None:
        self._answer("read", job.job_id)
        return self.left.get(job.job_id)

    def code_place(self, form: TrialJobForm) -> str | None:
        return None if os.path.isdir(form.code_directory) else form.code_directory

    def check(self, form: TrialJobForm) -> None:
        """Everything can run."""

    def launch(self, form: TrialJobForm) -> Launch:
        return write_launch(form, platform="scripted", owner="tests", rules=GpuRules())

    async def set_cluster_metadata(self, key: str, value: Any) -> None:
        raise KeyError(key)

    async def get_cluster_metadata(self, key: str) -> Any:
        raise KeyError(key)


def seen(job_id: str, status: PlatformStatus = PlatformStatus.PENDING, **facts: Any) -> PlatformJob:
    """What the platform says of a job."""
    return PlatformJob(job_id, "t", "e1", status, created_at=1000.0, **facts)


DRAINED = seen("a.1", PlatformStatus.ENDED, reason=EndReason.PREEMPTED, detail="drained")


class Stage:
    """One experiment's service; `keeper` methods play the keepers of its jobs."""

    directory: Path  # of the experiment

    def __init__(self, **options: Any) -> None:
        self.hub = KeeperHub(NodePool(), key=KEY, heartbeat_seconds=60.0)
        context = ServiceContext("e1", self.directory, NodePool(), self.hub)
        self.service = ScriptedService(context, **options)
        self.recorder = Recorder()
        self.recorder.listen(self.service)
        self.sessions: dict[str, str] = {}

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
            code_directory="/code",
            directory=str(self.directory / "trials" / f"17-{job_id}" / "jobs" / "1"),
        )

    def form_with_code(self) -> TrialJobForm:
        """Of a job whose code is sent."""
        code = self.directory / "code"
        code.mkdir(exist_ok=True)
        (code / "trial.py").write_text("pass")
        return replace(self.form(), code_directory=str(code), environment_file="/captured")

    async def send_code(self, form: TrialJobForm) -> Command:
        """Submit a job whose keeper is there and is to fetch the code."""
        await self.submit(form)
        await self.register()
        return await self.order_of("FetchArchive")

    async def fetched(self, asked: Command) -> None:
        """The keeper has fetched an archive, or done what else it was asked."""
        self.hub.answer("job:a.1", FileAnswer(self.sessions["a.1"], asked.order["request"]), b"")

    @asynccontextmanager
    async def recovered(self, *jobs: PlatformJob, started: bool = True) -> AsyncIterator[None]:
        """A new manager, whose service runs, finds these jobs in its database and on the platform."""
        for job in jobs:
            self.service.there[job.job_id] = job
            if started:
                self.hub.expect(job.job_id, "t", "e1", started=True)
        await self.service.reattach([self.form(job.job_id) for job in jobs], [])
        async with serving(self.service):
            yield

    def see(self, job: PlatformJob | Exception | None) -> None:
        """The platform reports a change, or stops to."""
        self.service.changes.put_nowait(job)

    async def report(self, job_id: str = "a.1", **facts: Any) -> ReportAnswer:
        """The keeper of a job reports."""
        return await self.hub.report(f"job:{job_id}", ReportHeader(self.sessions[job_id], **facts), b"")

    async def register(self, job_id: str = "a.1", *jobs: JobReport, instance: str = "uid-1") -> None:
        commands = ["FetchArchive", "RemoveCheckpoint"]
        registration = Registration(
            "k", 1, "boot", "host", "0", "3.11", [], list(jobs), commands=commands, instance=instance
        )
        self.sessions[job_id] = (await self.hub.register(f"job:{job_id}", registration)).session

    async def orders(self, job_id: str = "a.1") -> list[Command]:
        return (await self.hub.poll(f"job:{job_id}", CommandPoll(self.sessions[job_id], 0, 0.0))).commands

    async def order_of(self, kind: str) -> Command:
        """Wait for an order to job a.1."""
        async with asyncio.timeout(20):
            while not (found := [order for order in await self.orders() if order.type == kind]):  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        return found[0]

    async def submit(self, form: TrialJobForm | None = None) -> TrialJobForm:
        """Submit a job, and wait until its platform was asked for its keeper."""
        form = form or self.form()
        await self.service.submit_trial_job(form)
        await self.until_true(lambda: ("start", form.job_id) in self.service.calls)
        return form

    async def connect(self, job_id: str = "a.1") -> TrialJobForm:
        """A job whose keeper has registered and has received the launch."""
        form = await self.submit(self.form(job_id))
        await self.register(job_id)
        await self.orders(job_id)
        return form

    async def run(self, job_id: str = "a.1") -> TrialJobForm:
        """A job that runs."""
        form = await self.connect(job_id)
        await self.begin(job_id)
        return form

    async def begin(self, job_id: str = "a.1") -> None:
        """The keeper says that its trial runs."""
        await self.report(job_id, starts=[Start(job_id, "t", 7, 1.0)])
        await self.recorder.start_of(job_id)

    async def until(self, *calls: tuple[str, str]) -> None:
        """Until these requests were sent to the platform, in this order, with nothing but lists between them."""
        await self.until_true(lambda: [call for call in self.service.calls if call[0] != "list"] == list(calls))

    async def until_true(self, condition: Callable[[], bool]) -> None:
        """Wait for what no event tells."""
        async with asyncio.timeout(20):
            while not condition():  # noqa: ASYNC110
                await asyncio.sleep(0.005)

    def details(self, job_id: str = "a.1") -> list[str]:
        """The reasons that were reported."""
        return [change.detail for change in self.recorder.of(job_id)]


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Stage, "directory", tmp_path, raising=False)


@pytest.fixture
async def stage(anyio_backend: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Stage]:
    monkeypatch.setattr(backoff.BackOff, "take", lambda self: 0.01)
    monkeypatch.setattr(job_keeper_service, "LAST_REPORT_SECONDS", 0.05)
    stage = Stage()
    await stage.hub.mark_reattached()
    yield stage
    stage.hub.close()


@pytest.fixture
async def served(stage: Stage) -> AsyncIterator[Stage]:
    """Its service runs."""
    async with serving(stage.service):
        yield stage


def how(end: StatusChange) -> tuple[EndReason, str]:
    assert end.exit is not None
    return end.exit.reason, end.detail


async def test_submitting_only_queues_and_a_keeper_that_registers_is_sent_its_launch(stage: Stage) -> None:
    detail = await stage.service.submit_trial_job(stage.form())
    assert detail.status is TrialJobStatus.SUBMITTED
    assert stage.service.calls == []
    async with serving(stage.service):
        await stage.until(("start", "a.1"))
        await stage.register()
        (launch,) = await stage.orders()
    assert (launch.type, launch.order["job_id"], launch.order["command"]) == ("Launch", "a.1", "python trial.py")


async def test_a_platform_that_is_away_is_asked_again_and_says_why_once(served: Stage) -> None:
    served.service.answers["start"] = [ServiceUnavailable("quota exceeded: pods=10")] * 3
    await served.service.submit_trial_job(served.form())
    await served.until(*[("start", "a.1")] * 4)
    await served.recorder.waiting_of("a.1")
    assert served.details() == ["waiting: quota exceeded: pods=10"]


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (SubmissionRefused("no such image"), (EndReason.UNPLACEABLE, "no such image")),
        (
            RuntimeError("a bug"),
            (
                EndReason.INFRASTRUCTURE,
                "its keeper cannot be started: RuntimeError('a bug'); see the manager's log",
            ),
        ),
    ],
)
async def test_a_job_whose_keeper_cannot_be_started_is_over(
    served: Stage, error: Exception, end: tuple[EndReason, str]
) -> None:
    served.service.answers["start"] = [error]
    await served.service.submit_trial_job(served.form())
    assert how(await served.recorder.end_of("a.1")) == end
    await served.until(("start", "a.1"), ("stop", "a.1"))


async def test_what_is_wrong_with_storages_on_the_managers_machine_is_waited_for(
    served: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be wrong for the job's next attempt, too, wherever that is."""
    for name in ("FIRST", "LONGEST"):
        monkeypatch.setattr(hub_service, f"{name}_STORAGE_PAUSE_SECONDS", 0.001)
    note = served.directory / NOTE_FILE
    note.mkdir()
    storage = f"/shared/e1/{served.form().trial_id}/1"
    await served.submit(replace(served.form(), environment={ENV_CHECKPOINT_STORAGE: storage}))
    await served.register()
    expected = f"waiting: trials on platform scripted cannot store checkpoints: the manager cannot use {note}: Is a dir"
    await served.until_true(
        lambda: sum(detail.startswith(expected) for detail in served.details()) > hub_service.STORAGE_ATTEMPTS
    )
    note.rmdir()
    await served.order_of("Launch")


async def test_a_job_that_is_canceled_while_its_keeper_is_asked_for_is_removed_after_that(served: Stage) -> None:
    served.service.may_start.clear()
    await served.submit()
    await served.service.cancel_trial_job("a.1")
    assert how(await served.recorder.end_of("a.1")) == (EndReason.CANCELED, "stopped before it was started")
    await asyncio.sleep(0.1)  # enough for a removal that does not wait for the request
    assert ("stop", "a.1") not in served.service.calls
    served.service.may_start.set()
    await served.until(("start", "a.1"), ("stop", "a.1"))
    assert served.service.there == {}


async def test_a_removal_is_tried_again_until_the_platform_takes_it(served: Stage) -> None:
    served.service.answers["stop"] = [ServiceUnavailable("no right to delete jobs"), RuntimeError("a bug")]
    await served.submit()
    await served.service.cancel_trial_job("a.1")
    await served.recorder.end_of("a.1")
    await served.until(("start", "a.1"), *[("stop", "a.1")] * 3)


async def test_what_was_missed_while_nothing_was_watched_is_found_in_the_next_list(served: Stage) -> None:
    await served.submit()
    served.see(seen("a.1", detail="0/3 nodes are available"))
    await served.recorder.waiting_of("a.1")
    del served.service.there["a.1"]
    served.see(None)  # the watch has expired
    found = how(await served.recorder.end_of("a.1"))
    assert found == (EndReason.PREEMPTED, "its platform no longer has it")  # free: its trial gets another job


async def test_a_list_that_was_asked_for_before_a_keeper_was_started_says_nothing_of_it(stage: Stage) -> None:
    asked, may_answer = asyncio.Event(), asyncio.Event()

    async def list_late() -> Sequence[PlatformJob]:
        asked.set()
        await may_answer.wait()
        return []

    stage.service.list_keepers = list_late  # type: ignore[method-assign]
    async with serving(stage.service):
        await asked.wait()
        await stage.submit()
        await stage.register()
        may_answer.set()
        await stage.begin()
    assert stage.recorder.statuses("a.1") == [TrialJobStatus.RUNNING]


async def test_a_job_waits_for_its_keeper_to_connect(served: Stage) -> None:
    running = seen("a.1", PlatformStatus.RUNNING, node="worker-1", instances=("uid-1",))
    await served.service.submit_trial_job(served.form())
    served.see(running)
    waiting = await served.recorder.waiting_of("a.1")
    assert waiting.detail == "waiting: its keeper was started on worker-1 and has not connected yet"
    with pytest.raises(ServiceUnavailable, match="its keeper was started on worker-1 and has not connected yet"):
        await served.hub.list_files("job:a.1", "/job")
    await served.register()
    await served.begin()
    assert served.recorder.of("a.1")[-1].node_id == "worker-1"


async def test_the_pending_timeout_counts_from_when_the_platform_took_the_job(anyio_backend: str) -> None:
    stage = Stage(pending_timeout_seconds=600.0, now=lambda: 1000.0 + 599.9)
    await stage.hub.mark_reattached()
    async with stage.recovered(seen("a.1", detail="ImagePullBackOff: no such image"), started=False):
        end = how(await stage.recorder.end_of("a.1"))
    assert end == (
        EndReason.UNPLACEABLE,
        "it waited for 600 s, which is pendingTimeout: ImagePullBackOff: no such image",
    )
    assert ("stop", "a.1") in stage.service.calls


async def test_a_keeper_that_has_connected_is_no_longer_pending(anyio_backend: str) -> None:
    stage = Stage(pending_timeout_seconds=600.0, now=lambda: 1000.0 + 599.9)
    await stage.hub.mark_reattached()
    async with stage.recovered(seen("a.1", PlatformStatus.RUNNING), started=False):
        await stage.recorder.waiting_of("a.1")
        await stage.register()
        await asyncio.sleep(0.2)
        assert stage.recorder.statuses("a.1") == []
        assert [job.id for job in await stage.service.list_trial_jobs()] == ["a.1"]


async def test_a_job_whose_second_keeper_registers_ends_as_the_platform_says_of_the_first(served: Stage) -> None:
    await served.submit()
    await served.register(instance="uid-1")
    await served.register(instance="uid-1")  # the same one, connected again
    evicted = seen("a.1", instances=("uid-1", "uid-2"), reason=EndReason.PREEMPTED, detail="Evicted")
    served.see(evicted)
    why = "its platform has started another keeper for it, so the first one is lost; Evicted"
    assert how(await served.recorder.end_of("a.1")) == (EndReason.PREEMPTED, why)
    await served.until(("start", "a.1"), ("stop", "a.1"))


async def test_a_second_keeper_is_refused_before_it_gets_the_launch(served: Stage) -> None:
    await served.submit()
    await served.register(instance="uid-1")
    with pytest.raises(KeeperReplaced, match=r"the keeper of trial job a\.1 is instance uid-1, not uid-2"):
        await served.register(instance="uid-2")
    assert how(await served.recorder.end_of("a.1"))[0] is EndReason.NODE_LOST
    assert list((served.directory / "keeper-instances").iterdir()) == []  # what was recorded has gone with the job


async def test_how_a_job_ended_that_its_keeper_could_not_report_is_what_the_platform_says(served: Stage) -> None:
    ends: dict[str, tuple[EndReason | None, str]] = {
        "a.1": (EndReason.OUT_OF_MEMORY, "OOMKilled, exit code 137"),
        "b.1": (EndReason.PREEMPTED, "Evicted: the node was low on resource: ephemeral-storage"),
        "c.1": (EndReason.NODE_LOST, "node worker-1 does not answer"),
        "d.1": (None, "exit code 137"),
    }
    for job_id, (reason, detail) in ends.items():
        await served.run(job_id)
        served.see(seen(job_id, PlatformStatus.ENDED, reason=reason, detail=detail))
    await served.run("e.1")
    served.see(seen("e.1", PlatformStatus.GONE, reason=EndReason.PREEMPTED, detail="its pod was deleted"))
    ends["e.1"] = (EndReason.PREEMPTED, "its platform no longer has it; its pod was deleted")
    found = {job_id: how(await served.recorder.end_of(job_id)) for job_id in ends}
    unreported = "its keeper ended and has not reported how the job did; exit code 137"
    assert found == {**ends, "d.1": (EndReason.EXIT_UNKNOWN, unreported)}


async def test_a_keeper_that_never_comes_up_ends_its_job_with_what_it_printed(served: Stage) -> None:
    said = "libffi.so.8: cannot open shared object file"
    await served.submit()
    served.see(seen("a.1", PlatformStatus.ENDED, detail="exit code 127", output=said))
    end = how(await served.recorder.end_of("a.1"))
    await served.until(("start", "a.1"), ("read", "a.1"), ("stop", "a.1"))
    detail = f"its keeper ended before it had connected; exit code 127; it printed last: {said}"
    assert end == (EndReason.LAUNCH_FAILED, detail)


async def test_a_keeper_that_leaves_because_it_never_had_a_manager_costs_its_trial_nothing(stage: Stage) -> None:
    async with stage.recovered(seen("a.1", PlatformStatus.ENDED, exit_code=0, detail="exit code 0"), started=False):
        end = how(await stage.recorder.end_of("a.1"))
    assert end == (EndReason.PREEMPTED, "its keeper left, because no manager answered it; exit code 0")


async def test_after_a_restart_a_job_that_its_platform_lost_is_over_and_one_that_waits_can_be_stopped(
    stage: Stage,
) -> None:
    stage.service.there["waiting.1"] = seen("waiting.1", detail="0/3 nodes are available")
    stage.hub.expect("lost.1", "t", "e1", started=True)  # as the manager announces it
    await stage.service.reattach([stage.form("lost.1"), stage.form("waiting.1")], [])
    await stage.service.cancel_trial_job("waiting.1")
    async with serving(stage.service):
        lost = how(await stage.recorder.end_of("lost.1"))
        assert lost == (EndReason.EXIT_UNKNOWN, "its platform no longer has it")
        assert how(await stage.recorder.end_of("waiting.1"))[0] is EndReason.CANCELED
        await stage.until_true(lambda: not stage.service.there)


async def test_what_is_left_on_the_platform_is_removed_if_the_database_explains_it_and_reported_if_not(
    anyio_backend: str,
) -> None:
    stage, asked = Stage(), []
    stage.service.there = {job_id: seen(job_id) for job_id in ("deleted.1", "lost.1", "live.1")}
    stage.hub.expect("live.1", "t", "another")  # of an experiment that is not loaded

    async def may_be_stopped(unknown: Sequence[JobReport]) -> set[str]:
        asked.append({(job.job_id, job.experiment_id) for job in unknown})
        return {"deleted.1"}

    await stage.service.reattach([], [])
    await stage.hub.mark_reattached(may_be_stopped)
    async with serving(stage.service):
        await stage.until(("stop", "deleted.1"))
    stage.hub.close()
    assert asked[0] == {("deleted.1", "e1"), ("lost.1", "e1")}
    assert [(where, job.job_id) for where, job in stage.hub.unknown_jobs()] == [("platform scripted", "lost.1")]


async def test_each_job_has_a_secret_that_the_next_manager_knows_too(stage: Stage) -> None:
    jobs = (("a.1", "t"), ("a.1", "t"), ("a.1", "u"))
    first, again, other = (stage.hub.add_job_keeper(*job, stage.service) for job in jobs)
    assert first == again != other
    assert KeeperHub(NodePool(), key=KEY).add_job_keeper(*jobs[0], stage.service) == first
    assert KeeperHub(NodePool()).add_job_keeper(*jobs[0], stage.service) != first
    assert stage.hub.authenticate("job:a.1", other)  # of the newest token
    assert not stage.hub.authenticate("job:b.1", first)


async def test_the_keeper_of_a_job_that_is_over_is_turned_away(stage: Stage) -> None:
    stage.hub.add_job_keeper("a.1", "t", stage.service)
    with pytest.raises(KeeperReplaced, match=r"trial job a\.1 is over and needs no keeper"):
        await stage.register()


async def test_the_keeper_of_a_job_cannot_report_on_another_job(served: Stage) -> None:
    for job_id, node_id in {"other.1": "gpu-3", "announced.1": None}.items():
        served.hub.expect(job_id, "t", "e1", node_id=node_id)
    exit = Exit(EndReason.EXITED_OK, 0, None, 1.0, 2.0)
    ends = [End(job_id, "t", exit) for job_id in ("other.1", "announced.1")]
    await served.connect()
    answer = await served.report(ends=ends)
    assert answer.ended == []
    assert {change.job_id for change in served.recorder.changes} <= {"a.1"}


async def test_a_keeper_whose_machine_the_platform_has_lost_is_given_up(served: Stage) -> None:
    await served.submit()
    await served.register()
    served.service.silent("job:a.1", "no report from its keeper for 15 s")
    lost = seen("a.1", PlatformStatus.RUNNING, instances=("uid-1",), reason=EndReason.NODE_LOST, detail="overdue")
    served.see(lost)
    assert how(await served.recorder.end_of("a.1")) == (EndReason.NODE_LOST, "overdue")
    await served.until(("start", "a.1"), ("stop", "a.1"))


async def test_a_first_keeper_that_is_replaced_while_it_saves_reports_the_end_itself(served: Stage) -> None:
    await served.run()
    served.service.answers["stop"] = [ServiceUnavailable("away")] * 1000
    served.see(seen("a.1", instances=("uid-1", "uid-2")))
    preempted = Exit(EndReason.PREEMPTED, None, 15, 1.0, 2.0, "the platform has ended its pod")
    await served.report(ends=[End("a.1", "t", preempted)])
    found = how(await served.recorder.end_of("a.1"))
    assert found == (EndReason.PREEMPTED, "the platform has ended its pod")


async def test_a_stop_reaches_the_keeper_with_the_time_to_save(served: Stage) -> None:
    await served.run()
    await served.service.cancel_softly("a.1", SoftStop("paused by the user", 30.0, only_if_able=True))
    cancel = (await served.orders())[-1]
    assert (cancel.type, cancel.order["save_seconds"], cancel.order["reason"]) == (
        "Cancel",
        30.0,
        "paused by the user",
    )
    served.see(seen("a.1", PlatformStatus.ENDED, detail="exit code 0"))
    assert how(await served.recorder.end_of("a.1"))[0] is EndReason.CANCELED


async def test_a_keeper_that_answers_and_does_not_end_its_job_says_why_until_its_platform_ends_it(
    served: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "STOP_SECONDS", 0.05)
    suspended = "its end cannot be noticed: its reaper (pid 7) is stopped (SIGSTOP); resume it with: kill -CONT 7"
    plain = "its keeper answers and has not ended it yet"
    await served.run()
    await served.service.cancel_trial_job("a.1")
    await served.recorder.until(lambda: served.details()[-1] == plain)
    await served.report(stopped={"a.1": suspended})
    await served.recorder.until(lambda: served.details()[-2:] == [suspended] * 2)  # from the hub, and as the reason
    assert ("stop", "a.1") not in served.service.calls
    monkeypatch.setattr(lifecycle, "LONGEST_STOP_SECONDS", 0.0)
    end = how(await served.recorder.end_of("a.1"))
    await served.until(("start", "a.1"), ("stop", "a.1"))
    assert end == (EndReason.CANCELED, f"stopped by its platform, because {suspended}")


async def test_a_job_whose_end_is_reported_and_cannot_be_stored_keeps_its_keeper(
    served: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "STOP_SECONDS", 0.05)
    monkeypatch.setattr(lifecycle, "LONGEST_STOP_SECONDS", 0.0)
    is_full = True

    async def refuse(changes: Sequence[StatusChange]) -> None:
        if is_full and any(change.exit for change in changes):
            raise OSError("no space left on device")

    served.service.add_status_listener(refuse)
    await served.run()
    end = End("a.1", "t", Exit(EndReason.CANCELED, None, 15, 1.0, 2.0))
    await served.report(ends=[end])
    await served.service.cancel_trial_job("a.1")
    clause = "its keeper has reported its end, which is not stored yet"
    await served.recorder.until(lambda: served.details()[-1] == clause)
    await asyncio.sleep(0.2)  # several rounds
    assert ("stop", "a.1") not in served.service.calls
    is_full = False
    await served.report(ends=[end])
    assert how(await served.recorder.end_of("a.1"))[0] is EndReason.CANCELED


async def test_of_several_requests_to_stop_a_job_the_earliest_deadline_counts(
    served: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "STOP_SECONDS", 0.05)
    await served.run()
    served.service.silent("job:a.1", "no report from its keeper for 15 s")
    await served.service.cancel_softly("a.1", SoftStop("paused by the user", 1000.0, only_if_able=False))
    await served.service.cancel_softly("a.1", SoftStop("paused by the user", 2000.0, only_if_able=False))
    await asyncio.sleep(0.1)
    assert [task.get_name() for task in asyncio.all_tasks() if "stop of a.1" in task.get_name()] == [
        "experiment e1: stop of a.1"
    ]
    assert [job.id for job in await served.service.list_trial_jobs()] == ["a.1"]
    await served.service.cancel_trial_job("a.1")
    await served.service.cancel_softly("a.1", SoftStop("paused by the user", 1000.0, only_if_able=False))
    end = how(await served.recorder.end_of("a.1"))
    assert end == (EndReason.CANCELED, "stopped by its platform, because no report from its keeper for 15 s")


async def test_why_a_job_cannot_be_removed_is_logged_when_that_changes(
    served: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    served.service.answers["stop"] = [ServiceUnavailable(why) for why in ("away", "away", "away", "forbidden")]
    await served.submit()
    served.hub.end("a.1", EndReason.NODE_LOST, "gone")
    await served.until(("start", "a.1"), *[("stop", "a.1")] * 5)
    logged = [record.getMessage() for record in caplog.records if "cannot be removed" in record.getMessage()]
    assert logged == [f"job a.1 cannot be removed from its platform now: {why}" for why in ("away", "forbidden")]


async def test_the_keeper_of_a_job_that_is_over_is_asked_for_its_files_before_it_is_ordered_to_exit(
    served: Stage,
) -> None:
    await served.connect()
    served.service.answers["stop"] = [ServiceUnavailable("away")] * 1000
    served.hub.end("a.1", EndReason.NODE_LOST, "gone")
    await served.recorder.end_of("a.1")
    asked = await served.order_of("ListFiles")
    assert asked.order["folder"] == "experiments/e1/trials/17-a.1/jobs/1"
    assert ("stop", "a.1") not in served.service.calls
    answer = FileAnswer(served.sessions["a.1"], asked.order["request"], missing=True)
    served.hub.answer("job:a.1", answer, b"")
    await served.order_of("Shutdown")


async def test_a_deleted_experiment_does_not_wait_for_files_that_are_being_collected(served: Stage) -> None:
    await served.connect()
    served.hub.end("a.1", EndReason.NODE_LOST, "gone")
    await served.recorder.end_of("a.1")
    await served.order_of("ListFiles")  # and it is not answered
    served.service.end_collection()
    await served.until(("start", "a.1"), ("stop", "a.1"))


async def test_the_clean_up_of_a_deleted_experiment_collects_nothing(stage: Stage) -> None:
    stage.service.there = {"a.1": seen("a.1", PlatformStatus.RUNNING, instances=("uid-1",))}  # it has not connected
    stage.service.end_collection()
    await stage.service.clean_up()
    assert stage.service.there == {}


async def test_a_checkpoint_in_a_mounted_folder_is_deleted_by_any_job_that_runs(served: Stage) -> None:
    path = "/checkpoints/e1/ended/1/1"
    with pytest.raises(NoJobRuns, match="none runs; they are deleted once one does"):
        await served.service.delete_checkpoint(served.form("ended.1"), path)
    await served.submit()
    with pytest.raises(NoJobRuns):
        await served.service.delete_checkpoint(served.form("ended.1"), path)
    await served.register()
    deleting = asyncio.ensure_future(served.service.delete_checkpoint(served.form("ended.1"), path))
    asked = await served.order_of("RemoveCheckpoint")
    assert asked.order["folder"] == path
    await served.fetched(asked)
    await deleting


async def test_the_silence_of_a_keeper_is_shown_with_its_job_and_loses_nothing(served: Stage) -> None:
    clause = "no report from its keeper for 15 s"
    await served.run()
    served.service.silent("job:a.1", clause)
    await served.recorder.until(lambda: served.details()[-1] == clause)
    await served.report()
    await served.recorder.until(lambda: served.details()[-1] == "")
    served.service.silent("job:unknown.1", clause)  # of a job that is over: nothing to show
    assert served.recorder.statuses("a.1") == [TrialJobStatus.RUNNING]


async def test_what_a_keeper_left_when_it_ended_without_a_manager_is_read_and_delivered(stage: Stage) -> None:
    chunks = [Chunk("a.1", "t", "0", 0, len(LINE)), Chunk("b.1", "t", "0", 0, 2)]
    end = End("a.1", "t", Exit(EndReason.EXITED_OK, 0, None, 1.0, 2.0))
    stage.service.left["a.1"] = LeftReport(ReportHeader("", chunks, [Start("a.1", "t", 7, 1.0)], [end]), LINE + b"{}")
    stage.service.answers["read"] = [ServiceUnavailable("away")]
    recorder = Recorder(refusals=1)
    recorder.listen(stage.service)
    async with stage.recovered(seen("a.1", PlatformStatus.ENDED, detail="exit code 0"), started=False):
        assert how(await recorder.end_of("a.1"))[0] is EndReason.EXITED_OK
        await stage.until(*[("read", "a.1")] * 3, ("stop", "a.1"))
    assert recorder.journals == {"a.1": LINE}
    assert recorder.statuses("a.1") == [TrialJobStatus.RUNNING, TrialJobStatus.ENDED]
    assert stage.hub.abandon("e1") == []


async def test_of_a_report_that_was_cut_off_what_is_there_is_stored(stage: Stage) -> None:
    for job_id, data in {"a.1": LINE, "b.1": LINE[:3]}.items():
        stage.service.left[job_id] = LeftReport(ReportHeader("", [Chunk(job_id, "t", "0", 0, len(LINE))]), data)
    async with stage.recovered(DRAINED, replace(DRAINED, job_id="b.1")):
        for job_id in ("a.1", "b.1"):
            assert how(await stage.recorder.end_of(job_id)) == (EndReason.PREEMPTED, "drained")
    assert stage.recorder.journals == {"a.1": LINE}


async def test_a_left_report_that_cannot_be_read_is_named_and_given_up_when_its_job_is_to_stop(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_keeper_service, "LEFT_REPORT_STOP_SECONDS", 0.0)
    stage.service.answers["read"] = [ServiceUnavailable("its node is away") for _ in range(1000)]
    async with stage.recovered(DRAINED):
        clause = "it has ended, and its last report cannot be read: its node is away"
        await stage.recorder.until(lambda: clause in stage.details())
        await stage.service.cancel_trial_job("a.1")
        assert how(await stage.recorder.end_of("a.1"))[0] in (EndReason.PREEMPTED, EndReason.CANCELED)


async def test_what_a_cut_report_lacks_is_stored_as_lost(stage: Stage) -> None:
    header = ReportHeader("", [Chunk("a.1", "t", "0", 100, len(LINE))])
    stage.service.left["a.1"] = LeftReport(header, LINE, is_cut=True)
    stored: list[JournalChunk] = []

    async def store(chunks: Sequence[JournalChunk]) -> Mapping[tuple[str, int], int]:
        stored.extend(chunks)
        return {(chunk.job_id, chunk.member): chunk.end for chunk in chunks}

    stage.service.store_chunks = store  # type: ignore[method-assign]
    async with stage.recovered(DRAINED):
        await stage.recorder.end_of("a.1")
    assert [(chunk.offset, chunk.data, chunk.after_loss) for chunk in stored] == [(100, LINE, True)]


async def test_a_job_whose_keeper_does_not_come_back_to_a_new_manager_says_so(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_keeper_service, "RECONNECT_SECONDS", 0.05)
    clause = "no report from its keeper, which has not connected since the manager was started"
    async with stage.recovered(seen("a.1", PlatformStatus.RUNNING, node="worker-1", instances=("uid-1",))):
        await stage.recorder.until(lambda: stage.details() == [clause])
        await stage.register("a.1", JobReport("a.1", "t", 7, 1.0), instance="uid-1")
        await stage.recorder.until(lambda: stage.details()[-1] == "")
    assert stage.recorder.statuses("a.1") == [TrialJobStatus.RUNNING]


async def test_a_platform_that_goes_away_is_listed_again(served: Stage) -> None:
    await served.submit()
    served.service.answers["list"] = [ServiceUnavailable("connection refused")] * 2
    served.see(ServiceUnavailable("connection reset"))
    await served.until_true(lambda: served.service.calls.count(("list", "")) >= 4)
    served.see(DRAINED)
    assert how(await served.recorder.end_of("a.1")) == (EndReason.PREEMPTED, "drained")


async def test_cleaning_up_removes_what_the_platform_has_of_this_experiment_alone(stage: Stage) -> None:
    stage.service.there = {"a.1": seen("a.1"), "b.1": replace(seen("b.1"), experiment_id="e2")}
    await stage.service.clean_up()
    assert stage.service.there.keys() == {"b.1"}
    stage.service.there["a.2"] = seen("a.2")
    stage.service.answers["stop"] = [ServiceUnavailable("away")]
    with pytest.raises(ServiceUnavailable):  # it is owed, and asked for again
        await stage.service.clean_up()


async def test_what_no_service_has_sent_to_a_keeper_is_not_expected_for_ever(stage: Stage) -> None:
    stage.hub.expect("a.1", "t", "e1")
    stage.hub.expect("plug-in.1", "t", "e1", started=True)
    stage.hub.expect("other.1", "t", "not loaded", started=True)
    await stage.service.reattach([stage.form()], [])
    stage.hub.forget_unsent("e1")
    assert (stage.hub.was_started("plug-in.1"), stage.hub.was_started("other.1")) == (False, True)
    assert stage.hub.abandon("e1") == ["a.1"]


async def test_a_job_is_launched_once_its_code_has_arrived_however_often_its_keeper_connects(served: Stage) -> None:
    await served.send_code(served.form_with_code())
    await served.register()  # its link was broken
    asked = await served.order_of("FetchArchive")
    assert asked.order["folder"].startswith("code/")
    assert [order.type for order in await served.orders()] == ["FetchArchive"]
    await served.fetched(asked)
    launch = (await served.order_of("Launch")).order
    await served.register()  # before it has taken the launch
    orders = await served.orders()
    assert [order.type for order in orders] == ["Launch"]
    assert (launch["code_directory"], launch["directory"]) == (
        asked.order["folder"],
        "experiments/e1/trials/17-a.1/jobs/1",
    )
    assert launch["environment_file"] is None


async def test_after_a_restart_a_job_that_its_keeper_has_is_sent_nothing_again(stage: Stage) -> None:
    stage.service.there["a.1"] = seen("a.1", PlatformStatus.RUNNING, instances=("uid-1",))
    await stage.service.reattach([stage.form_with_code()], [])
    async with serving(stage.service):
        await stage.register("a.1", JobReport("a.1", "t", 7, 1.0))
        await stage.recorder.start_of("a.1")
        await asyncio.sleep(0.05)  # enough for a launch
        assert await stage.orders() == []


async def test_after_a_restart_a_job_that_was_not_launched_yet_is_sent_what_it_needs(stage: Stage) -> None:
    stage.service.there["a.1"] = seen("a.1", PlatformStatus.RUNNING, instances=("uid-1",))
    await stage.service.reattach([stage.form_with_code()], [])
    async with serving(stage.service):
        await stage.register()
        await stage.fetched(await stage.order_of("FetchArchive"))
        await stage.order_of("Launch")


async def test_a_keeper_that_ends_before_its_job_is_launched_costs_the_trial_nothing(served: Stage) -> None:
    await served.send_code(served.form_with_code())
    served.see(seen("a.1", PlatformStatus.ENDED, exit_code=0, detail="exit code 0"))
    end = how(await served.recorder.end_of("a.1"))
    assert end == (EndReason.PREEMPTED, "its keeper ended before the job was launched; exit code 0")


async def test_a_job_that_is_stopped_while_its_code_is_sent_is_over_at_once(served: Stage) -> None:
    await served.send_code(served.form_with_code())
    await served.service.cancel_trial_job("a.1")
    assert how(await served.recorder.end_of("a.1")) == (EndReason.CANCELED, "stopped before it was started")
    asked = await served.order_of("ListFiles")
    assert "Launch" not in {order.type for order in await served.orders()}
    served.hub.answer("job:a.1", FileAnswer(served.sessions["a.1"], asked.order["request"], missing=True), b"")
    await served.until(("start", "a.1"), ("stop", "a.1"))


async def test_a_keeper_that_arrives_after_its_job_was_removed_is_removed_again(stage: Stage) -> None:
    stage.service.may_start.clear()
    async with stage.recovered(seen("a.1", detail="0/3 nodes are available"), started=False):
        await stage.until(("start", "a.1"))  # not all of it may be there
        await stage.service.cancel_trial_job("a.1")
        await stage.recorder.end_of("a.1")
        await stage.until(("start", "a.1"), ("stop", "a.1"))
        stage.service.may_start.set()
        await stage.until(("start", "a.1"), ("stop", "a.1"), ("stop", "a.1"))
        assert stage.service.there == {}
