"""A service with a keeper per job keeps the contract, on a platform whose pods are processes, with real keepers behind
the real routes; and what becomes of jobs whose pods, keepers, platform or manager fail."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fakes.keeper_listeners import listening
from fakes.process_platform import ProcessPlatform, ProcessService

from proctor.training_services.base import EndReason, StatusChange, TrialJobForm, TrialJobStatus
from proctor.training_services.errors import KeeperReplaced, ServiceUnavailable
from proctor.training_services.job_keeper_service import PlatformStatus
from proctor.training_services.job_keepers import lifecycle
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.registry import ServiceContext
from proctor.training_services.testing import (
    COMMANDS,
    VALUES,
    Behavior,
    Recorder,
    ServiceHarness,
    TrainingServiceContract,
    serving,
)
from proctor.trial_keeper.protocol import End, Exit, JobReport, Registration, ReportHeader

pytestmark = pytest.mark.anyio

EXPERIMENT = "Ab3dE5f7"
KEY = b"k" * 32
JOBS = (("a.1", "t"), ("a.1", "t"), ("a.1", "u"))
NO_GPUS = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"


class JobKeeperHarness(ServiceHarness):
    metadata = ("pending_timeout_seconds", 600.0)
    shows_milestones = True

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.experiment_directory = directory / "home" / "experiments" / EXPERIMENT
        self.experiment_directory.mkdir(parents=True)
        (directory / "code").mkdir()
        self.settings = settings
        self.pointer = directory / "socket"
        self.platform = ProcessPlatform(directory / "pods", self.pointer, linger_seconds=3.0)
        self._open = AsyncExitStack()
        self._sockets = 0

    async def open(self) -> None:
        """Open a manager's end whose hub and service know nothing; the keepers find it by the pointer."""
        self._sockets += 1
        self.pool = NodePool()
        self.hub = KeeperHub(self.pool, key=KEY, heartbeat_seconds=0.5, reattach_patience_seconds=30.0)
        self.service: ProcessService = self.make_service()
        socket = self.directory / f"{self._sockets}.sock"
        await self._open.enter_async_context(listening(self.hub, socket))
        draft = self.directory / "pointer"
        draft.write_text(str(socket))
        draft.rename(self.pointer)

    def make_service(self) -> ProcessService:
        """The service on this platform."""
        context = ServiceContext(EXPERIMENT, self.experiment_directory, self.pool, self.hub, self.settings)
        return ProcessService(context, self.platform)

    async def close(self) -> None:
        """Close it again."""
        await self._open.aclose()

    def form(self, behavior: Behavior, name: str = "first") -> TrialJobForm:
        return self.form_of(COMMANDS[behavior], name)

    def impossible_form(self) -> TrialJobForm:
        return replace(self.form_of("true"), code_directory=str(self.directory / "missing"))

    def form_of(self, command: str, name: str = "first") -> TrialJobForm:
        """A form for a job that runs this command."""
        return TrialJobForm(
            job_id=f"{name}.1",
            token=f"token of {name}",
            experiment_id=EXPERIMENT,
            trial_id=name,
            sequence_id=0,
            number=1,
            parameter_id=0,
            parameter_file='{"parameter_id":0,"parameters":{}}',
            command=command,
            code_directory=str(self.directory / "code"),
            directory=str(self.experiment_directory / "trials" / f"0-{name}" / "jobs" / "1"),
        )

    async def restart(self) -> ProcessService:
        await self.close()
        await self.open()
        return self.service

    async def reattached(self) -> None:
        await self.hub.mark_reattached()

    async def block(self) -> ProcessService:
        self.platform.hold(NO_GPUS)
        return self.service

    async def unblock(self) -> None:
        self.platform.unhold()

    async def processes(self) -> list[str]:
        return await _until_none(self._processes)

    async def leftovers(self) -> list[str]:
        return await _until_none(lambda: [str(path) for path in self.platform.folder.glob("*.pod")] + self._processes())

    def _processes(self) -> list[str]:
        """Every process that carries the tag of a job in its environment."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(item.startswith(f"PROCTOR_JOB_DIR={self.directory}".encode()) for item in environment):
                found.append(entry.name)
        return found


async def _until_none(find: Callable[[], list[str]]) -> list[str]:
    """What is found, which is given a while to go away."""
    try:
        async with asyncio.timeout(20):
            while found := find():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    except TimeoutError:
        pass
    return found


@pytest.fixture
async def harness(tmp_path: Path, anyio_backend: str) -> AsyncIterator[JobKeeperHarness]:
    harness = JobKeeperHarness(tmp_path)
    await harness.open()
    await harness.reattached()
    yield harness
    await harness.close()
    harness.platform.close()


class TestJobKeeperService(TrainingServiceContract):
    """The suite, on the fixture above."""


async def _running(harness: JobKeeperHarness, recorder: Recorder, name: str = "first") -> TrialJobForm:
    """A job that runs and has reported."""
    form = harness.form(Behavior.HANG, name)
    await harness.service.submit_trial_job(form)
    await recorder.start_of(form.job_id)
    await recorder.until(lambda: bool(recorder.journals.get(form.job_id)))
    return form


def _how(end: StatusChange) -> tuple[EndReason, str]:
    assert end.exit is not None
    return end.exit.reason, end.detail


async def _until(look: Callable[[], object]) -> None:
    """For what no event tells of."""
    async with asyncio.timeout(30):
        while not look():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_a_job_runs_on_a_machine_of_its_platform_and_its_keeper_is_no_node(harness: JobKeeperHarness) -> None:
    recorder = Recorder()
    recorder.listen(harness.service)
    async with serving(harness.service):
        form = await _running(harness, recorder)
        assert harness.pool.nodes() == ()
        started = next(change for change in recorder.of(form.job_id) if change.status is TrialJobStatus.RUNNING)
        assert started.node_id in {None, "worker-1"}  # as soon as the platform has said it
        await harness.service.cancel_trial_job(form.job_id)
        assert (await recorder.end_of(form.job_id)).node_id == "worker-1"
        assert await harness.leftovers() == []


async def test_how_a_job_ended_that_its_keeper_could_not_report_is_what_the_platform_says(
    harness: JobKeeperHarness,
) -> None:
    ends: dict[str, tuple[EndReason | None, str]] = {
        "a": (EndReason.OUT_OF_MEMORY, "OOMKilled, exit code 137"),
        "b": (EndReason.PREEMPTED, "Evicted: the node was low on resource: ephemeral-storage"),
        "c": (EndReason.NODE_LOST, "node worker-1 does not answer"),
        "d": (None, "exit code 137"),
    }
    recorder = Recorder()
    recorder.listen(harness.service)
    async with serving(harness.service):
        forms = {name: await _running(harness, recorder, name) for name in ends}
        for name, (reason, detail) in ends.items():
            await asyncio.to_thread(harness.platform.end, forms[name].job_id, reason, detail)
        found = {name: _how(await recorder.end_of(form.job_id)) for name, form in forms.items()}
        assert await harness.leftovers() == []
    unreported = "its keeper ended and has not reported how the job did; exit code 137"
    assert found == {**ends, "d": (EndReason.EXIT_UNKNOWN, unreported)}


async def test_a_keeper_that_never_comes_up_ends_its_job_with_what_it_printed(harness: JobKeeperHarness) -> None:
    python = harness.directory / "python"
    python.write_text("#!/bin/sh\necho 'libffi.so.8: cannot open shared object file' >&2\nexit 127\n")
    python.chmod(0o755)
    harness.platform.python = str(python)
    form, recorder = harness.form(Behavior.REPORT), Recorder()
    recorder.listen(harness.service)
    async with serving(harness.service):
        await harness.service.submit_trial_job(form)
        reason, detail = _how(await recorder.end_of(form.job_id))
        assert await harness.leftovers() == []
    printed = "it printed last: libffi.so.8: cannot open shared object file"
    assert reason is EndReason.LAUNCH_FAILED
    assert detail == f"its keeper ended before it had connected; exit code 127; {printed}"


async def test_what_the_platform_refuses_is_unplaceable(harness: JobKeeperHarness) -> None:
    form, recorder = harness.form_of("refuse"), Recorder()
    recorder.listen(harness.service)
    async with serving(harness.service):
        await harness.service.submit_trial_job(form)
        found = _how(await recorder.end_of(form.job_id))
    assert found == (EndReason.UNPLACEABLE, "this platform runs no command that is called refuse")


async def test_a_job_waits_in_the_words_of_its_scheduler_and_at_most_for_the_pending_timeout(
    harness: JobKeeperHarness,
) -> None:
    await harness.service.set_cluster_metadata("pending_timeout_seconds", 0.2)
    harness.platform.hold(NO_GPUS)
    form, recorder = harness.form(Behavior.REPORT), Recorder()
    recorder.listen(harness.service)
    async with serving(harness.service):
        await harness.service.submit_trial_job(form)
        assert (await recorder.waiting_of(form.job_id)).detail == f"waiting: {NO_GPUS}"
        found = _how(await recorder.end_of(form.job_id))
        assert await harness.leftovers() == []
    assert found == (EndReason.UNPLACEABLE, f"it waited for 0.2 s, which is pendingTimeout: {NO_GPUS}")


@pytest.mark.parametrize("is_listed", [False, True])
async def test_a_second_keeper_is_turned_away_and_the_job_ends(harness: JobKeeperHarness, is_listed: bool) -> None:
    recorder = Recorder()
    recorder.listen(harness.service)
    async with serving(harness.service):
        form = await _running(harness, recorder)
        await asyncio.to_thread(harness.platform.start_second, form.job_id, is_listed=is_listed)
        found = _how(await recorder.end_of(form.job_id))
        assert await harness.leftovers() == []
    assert found == (EndReason.PREEMPTED, "the platform has ended its pod (SIGTERM)")  # as the first one reports


async def test_a_second_keeper_from_before_a_restart_ends_the_job(harness: JobKeeperHarness) -> None:
    before, after = Recorder(), Recorder()
    before.listen(harness.service)
    async with serving(harness.service):
        form = await _running(harness, before)
    await harness.close()
    await asyncio.to_thread(harness.platform.start_second, form.job_id, is_listed=True)
    await harness.open()
    after.listen(harness.service)
    await harness.service.reattach([form], [])
    await harness.reattached()
    async with serving(harness.service):
        reason, _ = _how(await after.end_of(form.job_id))
        assert await harness.leftovers() == []
    assert reason in {EndReason.PREEMPTED, EndReason.NODE_LOST}  # whether the first one was faster or not


async def test_what_a_pod_has_printed_that_ended_without_a_manager_is_delivered_to_the_next_one(
    harness: JobKeeperHarness,
) -> None:
    before, after = Recorder(), Recorder()
    before.listen(harness.service)
    gate, report = harness.directory / "gate", COMMANDS[Behavior.REPORT]
    form = harness.form_of(f"{report}; while [ ! -e {gate} ]; do sleep 0.05; done; {report}")
    async with serving(harness.service):
        await harness.service.submit_trial_job(form)
        await before.until(lambda: len(before.records(form.job_id)) == len(VALUES) + 1)
    await harness.close()
    gate.touch()
    await _until(lambda: harness.platform.look() and harness.platform.keeper_pid(form.job_id) is None)
    await harness.open()
    after.journals.update(before.journals)  # what is stored
    after.listen(harness.service)
    harness.hub.expect(form.job_id, form.token, EXPERIMENT, started=True)
    await harness.service.reattach([form], [])
    await harness.reattached()
    async with serving(harness.service):
        assert _how(await after.end_of(form.job_id))[0] is EndReason.EXITED_OK
        assert await harness.leftovers() == []
    assert after.records(form.job_id) == 2 * before.records(form.job_id)


async def test_a_pod_that_leaves_because_it_never_had_a_manager_costs_its_trial_nothing(
    harness: JobKeeperHarness,
) -> None:
    recorder, form = Recorder(), harness.form(Behavior.HANG)
    await harness.close()
    await asyncio.to_thread(harness.platform.start, form, "job:first.1", "a secret")
    await _until(lambda: [seen.status for seen in harness.platform.look()] == [PlatformStatus.ENDED])
    await harness.open()
    recorder.listen(harness.service)
    await harness.service.reattach([form], [])
    await harness.reattached()
    async with serving(harness.service):
        found = _how(await recorder.end_of(form.job_id))
        assert await harness.leftovers() == []
    assert found == (EndReason.PREEMPTED, "its keeper left, because no manager answered it; exit code 0")


async def test_while_the_platform_is_away_trials_report_and_new_ones_wait(harness: JobKeeperHarness) -> None:
    recorder = Recorder()
    recorder.listen(harness.service)
    gate = harness.directory / "gate"
    command = f"while [ ! -e {gate} ]; do sleep 0.05; done; {COMMANDS[Behavior.REPORT]}"
    first, second = harness.form_of(command), harness.form(Behavior.REPORT, "second")
    async with serving(harness.service):
        await harness.service.submit_trial_job(first)
        await recorder.start_of(first.job_id)
        harness.platform.leave("the API server at 10.0.0.1 refuses connections")
        gate.touch()
        assert _how(await recorder.end_of(first.job_id))[0] is EndReason.EXITED_OK
        await harness.service.submit_trial_job(second)
        waiting = await recorder.waiting_of(second.job_id)
        assert waiting.detail == "waiting: the API server at 10.0.0.1 refuses connections"
        harness.platform.come_back()
        assert _how(await recorder.end_of(second.job_id))[0] is EndReason.EXITED_OK
        assert await harness.leftovers() == []


async def test_after_a_restart_a_job_that_its_platform_lost_is_over_and_one_that_waits_can_be_stopped(
    harness: JobKeeperHarness,
) -> None:
    before, after = Recorder(), Recorder()
    before.listen(harness.service)
    async with serving(harness.service):
        lost = await _running(harness, before)
        harness.platform.hold(NO_GPUS)
        waiting = harness.form(Behavior.HANG, "second")
        await harness.service.submit_trial_job(waiting)
        await before.waiting_of(waiting.job_id)
    await harness.close()
    await asyncio.to_thread(harness.platform.stop, lost.job_id)
    await harness.open()
    after.listen(harness.service)
    harness.hub.expect(lost.job_id, lost.token, EXPERIMENT, started=True)  # as the manager announces it
    await harness.service.reattach([lost, waiting], [])
    await harness.service.cancel_trial_job(waiting.job_id)
    await harness.reattached()
    async with serving(harness.service):
        assert _how(await after.end_of(lost.job_id)) == (EndReason.EXIT_UNKNOWN, "its platform no longer has it")
        assert _how(await after.end_of(waiting.job_id))[0] is EndReason.CANCELED
        assert await harness.leftovers() == []


async def test_a_job_that_the_user_removes_from_the_platform_before_it_runs_runs_again(
    harness: JobKeeperHarness,
) -> None:
    harness.platform.hold(NO_GPUS)
    form, recorder = harness.form(Behavior.REPORT), Recorder()
    recorder.listen(harness.service)
    async with serving(harness.service):
        await harness.service.submit_trial_job(form)
        await recorder.waiting_of(form.job_id)
        await asyncio.to_thread(harness.platform.stop, form.job_id)
        found = _how(await recorder.end_of(form.job_id))
    assert found == (EndReason.PREEMPTED, "its platform no longer has it")  # free: its trial gets another job


async def test_a_job_whose_keeper_does_not_answer_is_stopped_by_its_platform(
    harness: JobKeeperHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "STOP_SECONDS", 0.1)
    recorder = Recorder()
    recorder.listen(harness.service)
    async with serving(harness.service):
        form = await _running(harness, recorder)
        pid = harness.platform.keeper_pid(form.job_id)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        silent = "no report from its keeper for 1.5 s"
        await recorder.until(lambda: any(change.detail == silent for change in recorder.of(form.job_id)))
        with pytest.raises(ServiceUnavailable, match=silent):
            await harness.hub.list_files(harness.service.keeper_of(form), form.directory)
        await harness.service.cancel_trial_job(form.job_id)
        reason, detail = _how(await recorder.end_of(form.job_id))
        assert await harness.leftovers() == []
    assert reason is EndReason.CANCELED
    assert detail.startswith("stopped by its platform, because no report from its keeper for ")


async def test_what_is_left_on_the_platform_is_removed_if_the_database_explains_it_and_reported_if_not(
    harness: JobKeeperHarness,
) -> None:
    harness.platform.hold(NO_GPUS)
    before = Recorder()
    before.listen(harness.service)
    names = ("deleted", "lost", "live")
    forms = {name: harness.form(Behavior.HANG, name) for name in names}
    async with serving(harness.service):
        for form in forms.values():
            await harness.service.submit_trial_job(form)
            await before.waiting_of(form.job_id)
    await harness.restart()
    live = forms["live"]  # of an experiment that is not loaded
    harness.hub.expect(live.job_id, live.token, "another")

    async def may_be_stopped(unknown: Sequence[JobReport]) -> set[str]:
        assert {(job.job_id, job.experiment_id) for job in unknown} == {
            (forms[name].job_id, EXPERIMENT) for name in ("deleted", "lost")
        }
        return {forms["deleted"].job_id}

    await harness.service.reattach([], [])
    await harness.hub.mark_reattached(may_be_stopped)
    async with serving(harness.service):
        await _until(lambda: not harness.platform.folder_of(forms["deleted"].job_id).exists())
    assert [(where, job.job_id) for where, job in harness.hub.unknown_jobs()] == [
        ("platform processes", forms["lost"].job_id)
    ]
    assert {path.name for path in harness.platform.folder.glob("*.pod")} == {
        harness.platform.folder_of(forms[name].job_id).name for name in ("lost", "live")
    }


async def test_each_job_has_a_secret_that_the_next_manager_knows_too(harness: JobKeeperHarness) -> None:
    first, again, other = (harness.hub.add_job_keeper(*job, harness.service) for job in JOBS)
    assert first == again != other
    assert KeeperHub(NodePool(), key=KEY).add_job_keeper(*JOBS[0], harness.service) == first
    assert KeeperHub(NodePool()).add_job_keeper(*JOBS[0], harness.service) != first
    assert harness.hub.authenticate("job:a.1", other)  # of the newest token
    assert not harness.hub.authenticate("job:b.1", first)


async def test_the_keeper_of_a_job_that_is_over_is_turned_away(harness: JobKeeperHarness) -> None:
    harness.hub.add_job_keeper("a.1", "t", harness.service)
    registration = Registration("k", 1, "boot", "host", "0", "3.11", [], [], instance="first")
    with pytest.raises(KeeperReplaced, match=r"trial job a\.1 is over and needs no keeper"):
        await harness.hub.register("job:a.1", registration)


async def test_the_keeper_of_a_job_cannot_report_on_another_job(harness: JobKeeperHarness) -> None:
    form, recorder = harness.form(Behavior.HANG), Recorder()
    recorder.listen(harness.service)
    harness.platform.hold(NO_GPUS)
    async with serving(harness.service):
        await harness.service.submit_trial_job(form)
        for job_id in ("other.1", "announced.1"):
            harness.hub.expect(job_id, "t", EXPERIMENT, node_id="gpu-3" if job_id == "other.1" else None)
        registration = Registration("k", 1, "boot", "host", "0", "3.11", [], [], instance="first")
        answer = await harness.hub.register(harness.service.keeper_of(form), registration)
        exit = Exit(EndReason.EXITED_OK, 0, None, 1.0, 2.0)
        ends = [End(job_id, "t", exit) for job_id in ("other.1", "announced.1")]
        reported = await harness.hub.report(
            harness.service.keeper_of(form), ReportHeader(answer.session, ends=ends), b""
        )
        assert reported.ended == []
        assert {change.job_id for change in recorder.changes} <= {form.job_id}
