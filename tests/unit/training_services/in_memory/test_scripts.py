"""What scripts can play, under virtual time."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from proctor.manager.simulation.virtual_time import VirtualTimeLoop
from proctor.training_services.base import EndReason, Exit, TrialJobForm, TrialJobStatus
from proctor.training_services.errors import ServiceUnavailable, UnknownTrialJob
from proctor.training_services.in_memory.scripts import hang, one_report
from proctor.training_services.testing import (
    Final,
    InMemoryPlatform,
    InMemoryTrainingService,
    Raw,
    Recorder,
    Script,
    ScriptedExit,
    ScriptedReport,
    ScriptedStart,
    Step,
    Vanish,
    Wait,
    serving,
)

DAY = 86400.0
Scene = Callable[[], Coroutine[object, object, None]]


def played(scene: Scene) -> Callable[[], None]:
    """A test that plays a scene under virtual time."""
    return lasting(None)(scene)


def lasting(seconds: float | None) -> Callable[[Scene], Callable[[], None]]:
    """The same, of which this much virtual time passes."""

    def make_test(scene: Scene) -> Callable[[], None]:
        def test() -> None:
            with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
                runner.run(scene())
                assert seconds in (None, runner.get_loop().time())

        return test

    return make_test


def form(job_id: str = "a.1", parameters: str = "{}") -> TrialJobForm:
    return TrialJobForm(
        job_id=job_id,
        token="t",
        experiment_id="e1",
        trial_id="a",
        sequence_id=0,
        number=1,
        parameter_id=0,
        parameter_file=f'{{"parameters":{parameters}}}',
        command="",
        code_directory="/",
        directory="/",
    )


def script(*steps: Step) -> Script:
    return lambda form: iter(steps)


def loop_time() -> float:
    return asyncio.get_running_loop().time()


def make(script: Script, recorder: Recorder, platform: InMemoryPlatform | None = None) -> InMemoryTrainingService:
    service = InMemoryTrainingService(script, platform=platform, now=loop_time)
    recorder.listen(service)
    return service


async def exit_of(recorder: Recorder) -> Exit:
    """How job a.1 ends."""
    end = await recorder.end_of("a.1")
    assert end.exit is not None
    return end.exit


async def run(script: Script, submitted: TrialJobForm | None = None, *, attempts: int = 1) -> tuple[Recorder, Exit]:
    """Run one job to its end; what was recorded, and the end."""
    recorder = Recorder(patience_seconds=10 * DAY)
    service = make(script, recorder)
    async with serving(service):
        for _ in range(attempts - 1):
            with pytest.raises(ServiceUnavailable):
                await service.submit_trial_job(submitted or form())
        await service.submit_trial_job(submitted or form())
        exit = await exit_of(recorder)
    assert await service.list_trial_jobs() == []
    return recorder, exit


@lasting(0.0)
async def test_by_default_a_job_reports_the_sum_of_its_parameters() -> None:
    recorder, _ = await run(one_report, form(parameters='{"lr":0.5,"layers":2,"name":"x"}'))
    assert recorder.records("a.1") == [("final", 2.5)]


@lasting(4 * DAY)
async def test_delays_are_virtual_and_in_the_records() -> None:
    steps = ScriptedStart(DAY), ScriptedReport(DAY, float("nan")), Final(DAY, {"default": 1}), ScriptedExit(DAY)
    recorder, end = await run(script(*steps))
    assert (end.started_at, end.ended_at) == (DAY, 4 * DAY)
    assert recorder.journals["a.1"] == (
        b'{"kind":"intermediate","value":"NaN","time":172800.000000,"seconds":86400.000000}\n'
        b'{"kind":"final","value":{"default":1},"time":259200.000000,"seconds":172800.000000}\n'
    )


@played
async def test_a_job_that_waits_says_why_before_it_runs() -> None:
    recorder, _ = await run(script(Wait(0, "needs 2 GPUs"), ScriptedStart(DAY, node_id="gpu-3"), ScriptedExit()))
    assert [(change.status, change.detail, change.node_id) for change in recorder.of("a.1")] == [
        (TrialJobStatus.SUBMITTED, "needs 2 GPUs", None),
        (TrialJobStatus.RUNNING, "", "gpu-3"),
        (TrialJobStatus.ENDED, "", None),
    ]


@played
async def test_what_befalls_a_job_ends_it_with_that_reason() -> None:
    for reason in (EndReason.NODE_LOST, EndReason.UNPLACEABLE, EndReason.PREEMPTED):
        _, end = await run(script(ScriptedExit(1.0, reason, code=None, detail="why")))
        assert (end.reason, end.code, end.detail) == (reason, None, "why")


@played
async def test_a_script_can_make_submitting_fail_for_a_while() -> None:
    attempts = iter((1, 2))

    def hesitant(form: TrialJobForm) -> Iterator[Step]:
        if next(attempts) == 1:
            raise ServiceUnavailable("the cluster is being upgraded")
        yield ScriptedExit()

    await run(hesitant, attempts=2)


@played
async def test_a_job_that_vanished_is_unknown_and_starts_again_after_a_restart() -> None:
    platform, recorder = InMemoryPlatform(loop_time), Recorder(patience_seconds=10 * DAY)
    service = make(script(Vanish()), recorder, platform)
    async with serving(service):
        await service.submit_trial_job(form())
        await asyncio.sleep(1.0)
        with pytest.raises(UnknownTrialJob):
            await service.get_trial_job("a.1")
    again = make(script(Final(0, 1.0)), recorder, platform)
    await again.reattach([form()], [])
    async with serving(again):
        await recorder.end_of("a.1")
    assert recorder.records("a.1") == [("final", 1.0)]


@played
async def test_a_job_that_is_refused_after_a_restart_ends_with_the_reason() -> None:
    def unavailable(form: TrialJobForm) -> Iterator[Step]:
        raise ServiceUnavailable("the cluster is being upgraded")
        yield ScriptedExit()

    recorder = Recorder(patience_seconds=10 * DAY)
    service = make(unavailable, recorder)
    await service.reattach([form()], [])
    async with serving(service):
        end = await exit_of(recorder)
    assert (end.reason, end.detail) == (EndReason.INFRASTRUCTURE, "the cluster is being upgraded")


@played
async def test_jobs_that_are_not_ours_after_a_restart_are_stopped() -> None:
    platform, recorder = InMemoryPlatform(loop_time), Recorder(patience_seconds=10 * DAY)
    first = make(hang, recorder, platform)
    await first.submit_trial_job(form("a.1"))
    await first.submit_trial_job(form("b.1"))
    second = make(hang, recorder, platform)
    await second.reattach([form("b.1")], ["a.1"])
    assert [job.id for job in await second.list_trial_jobs()] == ["b.1"]


@played
async def test_bytes_that_were_stored_only_in_part_are_delivered_from_there() -> None:
    offsets: list[int] = []
    service = InMemoryTrainingService(script(Raw(0, b"0123456789\n"), ScriptedExit()), now=loop_time)
    recorder = Recorder(patience_seconds=10 * DAY)
    service.add_status_listener(recorder.take_changes)

    async def store_four_bytes(chunks: "list[object]") -> dict[tuple[str, int], int]:
        [chunk] = chunks
        offsets.append(chunk.offset)  # type: ignore[attr-defined]
        return {("a.1", 0): min(chunk.offset + 4, 11)}  # type: ignore[attr-defined]

    service.add_trial_job_metric_listener(store_four_bytes)  # type: ignore[arg-type]
    async with serving(service):
        await service.submit_trial_job(form())
        await recorder.end_of("a.1")
    assert offsets == [0, 4, 8]


@lasting(DAY)
async def test_a_limit_set_at_submission_ends_the_job() -> None:
    _, end = await run(hang, replace(form(), max_duration_seconds=DAY))
    assert end.reason is EndReason.DEADLINE


@played
async def test_a_service_whose_run_does_not_end_when_it_is_canceled_fails_its_test() -> None:
    class Deaf(InMemoryTrainingService):
        async def run(self) -> None:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(DAY)
            await asyncio.sleep(DAY)

    with pytest.raises(ExceptionGroup, match="unhandled errors") as failure:
        async with serving(Deaf(hang)):
            await asyncio.sleep(0)
    assert "has not ended 60 s after it was canceled" in str(failure.value.exceptions)
    assert loop_time() < DAY
