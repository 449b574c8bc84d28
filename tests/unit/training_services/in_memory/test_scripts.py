"""What scripts can play, under virtual time."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from dataclasses import replace

import pytest

from proctor.manager.simulation.virtual_time import VirtualTimeLoop
from proctor.training_services.base import EndReason, TrialJobForm, TrialJobStatus
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


def play(main: Callable[[], Coroutine[object, object, None]]) -> float:
    """Run `main` under virtual time; returns how much of it has passed."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(main())
        return runner.get_loop().time()


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


def test_by_default_a_job_reports_the_sum_of_its_parameters() -> None:
    async def main() -> None:
        recorder = Recorder(patience_seconds=10 * DAY)
        service = make(one_report, recorder)
        async with serving(service):
            await service.submit_trial_job(form(parameters='{"lr":0.5,"layers":2,"name":"x"}'))
            await recorder.end_of("a.1")
        assert recorder.records("a.1") == [("final", 2.5)]
        assert await service.list_trial_jobs() == []

    assert play(main) == 0.0


def test_delays_are_virtual_and_in_the_records() -> None:
    async def main() -> None:
        recorder = Recorder(patience_seconds=10 * DAY)
        service = make(
            script(
                ScriptedStart(DAY), ScriptedReport(DAY, float("nan")), Final(DAY, {"default": 1}), ScriptedExit(DAY)
            ),
            recorder,
        )
        async with serving(service):
            await service.submit_trial_job(form())
            end = await recorder.end_of("a.1")
        assert end.exit is not None
        assert (end.exit.started_at, end.exit.ended_at) == (DAY, 4 * DAY)
        assert recorder.journals["a.1"] == (
            b'{"kind":"intermediate","value":"NaN","time":172800.000000}\n'
            b'{"kind":"final","value":{"default":1},"time":259200.000000}\n'
        )

    assert play(main) == 4 * DAY


def test_a_job_that_waits_says_why_before_it_runs() -> None:
    async def main() -> None:
        recorder = Recorder(patience_seconds=10 * DAY)
        service = make(script(Wait(0, "needs 2 GPUs"), ScriptedStart(DAY, node_id="gpu-3"), ScriptedExit()), recorder)
        async with serving(service):
            await service.submit_trial_job(form())
            await recorder.end_of("a.1")
        reported = [(change.status, change.detail, change.node_id) for change in recorder.of("a.1")]
        assert reported == [
            (TrialJobStatus.SUBMITTED, "needs 2 GPUs", None),
            (TrialJobStatus.RUNNING, "", "gpu-3"),
            (TrialJobStatus.ENDED, "", None),
        ]

    play(main)


@pytest.mark.parametrize("reason", [EndReason.NODE_LOST, EndReason.UNPLACEABLE, EndReason.PREEMPTED])
def test_what_befalls_a_job_ends_it_with_that_reason(reason: EndReason) -> None:
    async def main() -> None:
        recorder = Recorder(patience_seconds=10 * DAY)
        service = make(script(ScriptedExit(1.0, reason, code=None, detail="why")), recorder)
        async with serving(service):
            await service.submit_trial_job(form())
            end = await recorder.end_of("a.1")
        assert end.exit is not None
        assert (end.exit.reason, end.exit.code, end.detail) == (reason, None, "why")

    play(main)


def test_a_script_can_make_submitting_fail_for_a_while() -> None:
    attempts = 0

    def hesitant(form: TrialJobForm) -> Iterator[Step]:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise ServiceUnavailable("the cluster is being upgraded")
        yield ScriptedExit()

    async def main() -> None:
        recorder = Recorder(patience_seconds=10 * DAY)
        service = make(hesitant, recorder)
        async with serving(service):
            with pytest.raises(ServiceUnavailable):
                await service.submit_trial_job(form())
            await service.submit_trial_job(form())
            await recorder.end_of("a.1")

    play(main)


def test_a_job_that_vanished_is_unknown_and_starts_again_after_a_restart() -> None:
    async def main() -> None:
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

    play(main)


def test_a_job_that_is_refused_after_a_restart_ends_with_the_reason() -> None:
    def unavailable(form: TrialJobForm) -> Iterator[Step]:
        raise ServiceUnavailable("the cluster is being upgraded")
        yield ScriptedExit()

    async def main() -> None:
        recorder = Recorder(patience_seconds=10 * DAY)
        service = make(unavailable, recorder)
        await service.reattach([form()], [])
        async with serving(service):
            end = await recorder.end_of("a.1")
        assert end.exit is not None
        assert (end.exit.reason, end.detail) == (EndReason.INFRASTRUCTURE, "the cluster is being upgraded")

    play(main)


def test_jobs_that_are_not_ours_after_a_restart_are_stopped() -> None:
    async def main() -> None:
        platform, recorder = InMemoryPlatform(loop_time), Recorder(patience_seconds=10 * DAY)
        first = make(hang, recorder, platform)
        await first.submit_trial_job(form("a.1"))
        await first.submit_trial_job(form("b.1"))
        second = make(hang, recorder, platform)
        await second.reattach([form("b.1")], ["a.1"])
        assert [job.id for job in await second.list_trial_jobs()] == ["b.1"]

    play(main)


def test_a_job_whose_metrics_are_refused_is_stopped_and_forgotten() -> None:
    async def main() -> None:
        recorder = Recorder(patience_seconds=10 * DAY)
        service = InMemoryTrainingService(script(Raw(0, b"not JSON\n"), ScriptedExit()), now=loop_time)
        service.add_status_listener(recorder.take_changes)

        async def refuse(chunks: object) -> dict[tuple[str, int], int]:
            return {}

        service.add_trial_job_metric_listener(refuse)
        async with serving(service):
            await service.submit_trial_job(form())
            await asyncio.sleep(1.0)
        assert recorder.changes == []
        assert await service.list_trial_jobs() == []

    play(main)


def test_bytes_that_were_stored_only_in_part_are_delivered_from_there() -> None:
    async def main() -> None:
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

    play(main)


def test_a_limit_set_at_submission_ends_the_job() -> None:
    async def main() -> None:
        recorder = Recorder(patience_seconds=10 * DAY)
        service = make(hang, recorder)
        async with serving(service):
            await service.submit_trial_job(replace(form(), max_duration_seconds=DAY))
            end = await recorder.end_of("a.1")
        assert end.exit is not None
        assert end.exit.reason is EndReason.DEADLINE

    assert play(main) == DAY


def test_a_service_whose_run_does_not_end_when_it_is_canceled_fails_its_test() -> None:
    class Deaf(InMemoryTrainingService):
        async def run(self) -> None:
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(DAY)
            await asyncio.sleep(DAY)

    async def main() -> None:
        with pytest.raises(ExceptionGroup, match="unhandled errors") as failure:
            async with serving(Deaf(hang)):
                await asyncio.sleep(0)
        assert "has not ended 60 s after it was canceled" in str(failure.value.exceptions)

    assert play(main) < DAY
