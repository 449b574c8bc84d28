"""Decisions of the assessor under virtual time: each is for one job of a trial, whenever it arrives."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial

from fakes import small_experiments
from fakes.small_experiments import SMALL, Scene, SceneService, played

from proctor.manager.config.experiment import ExperimentConfig
from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.client.client import Opener
from proctor.manager.dispatcher.client.in_process import InProcessChannel
from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store.rows import ExperimentRow
from proctor.manager.store.tables import dispatcher_inputs
from proctor.training_services.base import EndReason, TrialJobForm, TrialJobStatus
from proctor.training_services.in_memory.scripts import Final, ScriptedExit, ScriptedReport, Step


class SlowChannel(InProcessChannel):
    """A dispatcher whose answers to reports arrive late: a job may end between a report and the verdict on it."""

    async def lines(self) -> AsyncIterator[bytes]:
        async for line in super().lines():
            if isinstance(protocol.decode(line), protocol.KillTrial):
                await asyncio.sleep(0.5)
            yield line


def slow_dispatchers(row: ExperimentRow, config: ExperimentConfig) -> Opener:
    """Every experiment gets a slow dispatcher."""

    @asynccontextmanager
    async def open_slow() -> AsyncIterator[SlowChannel]:
        channel = SlowChannel()
        try:
            yield channel
        finally:
            channel.close()

    return open_slow


class Judged(Scene):
    """The second of its two trials is judged."""

    config = SMALL | {"maxTrialNumber": 2, "seed": 7, "assessor": {"name": "Medianstop"}}


play = partial(small_experiments.play, kind=Judged, open_dispatcher=slow_dispatchers)


def lost_after_a_bad_report(form: TrialJobForm) -> Iterable[Step]:
    if form.sequence_id == 1 and form.number == 1:
        yield ScriptedReport(1.0, 1.0)  # the verdict on this one arrives when the job has ended
        yield ScriptedExit(0.1, EndReason.SIGNALED, code=None, signal=9)
    value = 9.0 if form.sequence_id == 1 else 5.0
    yield ScriptedReport(1.0, value)
    yield Final(1000.0 if form.sequence_id == 1 else 0.0, value)


@played(play, script=lost_after_a_bad_report)
async def test_a_replayed_verdict_on_a_lost_job_does_not_stop_the_job_that_runs_now(
    scene: Judged, manager: Manager, /
) -> None:
    await scene.create(seconds=10.0)
    await scene.restart()  # its dispatcher receives the whole log, and judges again
    await scene.until_ended()
    assert [job.stop_reason for job in await scene.jobs(1)] == [None, None]
    row = await scene.trial(1)
    assert (row.status, row.final_value) == (TrialStatus.SUCCEEDED, 9.0)


def a_bad_second_trial(form: TrialJobForm) -> Iterable[Step]:
    yield ScriptedReport(1.0, 1.0 if form.sequence_id else 5.0)
    yield Final(1000.0 if form.sequence_id else 0.0, 5.0)


@played(play, script=a_bad_second_trial)
async def test_a_verdict_that_was_not_committed_when_the_manager_died_is_carried_out_by_the_next_one(
    scene: Judged, manager: Manager, /
) -> None:
    await scene.create(seconds=2.25)  # the report is stored, the verdict is on its way
    await scene.restart()
    assert [job.stop_reason for job in await scene.jobs(1)] == [None]
    await scene.until_ended()
    assert (await scene.trial(1)).status is TrialStatus.EARLY_STOPPED
    assert [job.stop_reason for job in await scene.jobs(1)] == [EndReason.EARLY_STOPPED]


class DeafService(SceneService):
    """Its jobs keep running when they are canceled; the scene keeps the requests."""

    async def cancel_trial_job(self, job_id: str, is_early_stopped: bool = False) -> None:
        self.scene.asked.append((job_id, is_early_stopped))


class Deaf(Judged):
    """Jobs run on a `DeafService`."""

    service = DeafService


@played(play, script=a_bad_second_trial, kind=Deaf)
async def test_a_verdict_is_committed_with_its_position_and_recognized_when_it_is_replayed(
    scene: Deaf, manager: Manager, /
) -> None:
    await scene.create(seconds=10.0)
    manager = await scene.restart()
    await asyncio.sleep(10.0)
    (job,) = await scene.jobs(1)
    log = await manager.control.read(lambda c: dispatcher_inputs.after(c, "exp", 0, 100))
    assert (log[-1].kind, log[-1].position) == ("ReportMetrics", job.stop_position)
    # The restarted manager repeats what it may not have done, once, and in the same words.
    assert scene.asked == [(job.id, True)] * 2
    assert (await scene.trial(1)).status is TrialStatus.RUNNING
    assert job.status is TrialJobStatus.STOPPING
