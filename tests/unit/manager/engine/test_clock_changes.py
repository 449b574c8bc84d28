"""The machine's clock is set while something waits, under virtual time: every wait takes as long as it should."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from fakes.small_experiments import Scene, SettableClock, by_attempt, play, played, plays

from proctor.manager.engine.loop.messages import JobsChanged, substitutes
from proctor.manager.engine.loop.state import LiveTrial, seconds_since_start
from proctor.manager.engine.loop.stopping import soft_stop
from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store.rows import TrialJobRow
from proctor.manager.store.tables import jobs
from proctor.manager.store.trial_table import table
from proctor.sdk.scheduler import TIME_TOTAL
from proctor.training_services.base import EndReason, Exit, StatusChange, TrialJobForm, TrialJobStatus
from proctor.training_services.in_memory.scripts import Final, Hang, Raw, ScriptedExit, ScriptedReport, Step
from proctor.training_services.keepers.jobs import ExpectedJob
from proctor.training_services.keepers.reports import abandoned

HOUR = 3600.0
LOST = ScriptedExit(1.0, EndReason.NODE_LOST, code=None)
LOST_TWICE = by_attempt([LOST], [LOST], [Final(1.0, 0.5)])


@pytest.mark.parametrize("hours", [-1, 1])
@played(play, script=LOST_TWICE)
async def test_a_retry_does_not_wait_longer_or_shorter_when_the_clock_is_set(
    scene: Scene, manager: Manager, /, hours: int
) -> None:
    await scene.create(maxTrialNumber=1, seconds=1.5)  # the first job was lost, the second one comes a second later
    assert (await scene.trial()).status is TrialStatus.WAITING
    scene.clock.wrong_by = hours * HOUR
    await scene.until_ended()
    first, second, third = scene.starts
    assert (second - first, third - second) == pytest.approx((2.0, 3.0))


@played(play, script=LOST_TWICE)
async def test_a_restarted_manager_does_not_wait_longer_for_a_retry_than_its_delay(
    scene: Scene, manager: Manager, /
) -> None:
    await scene.create(maxTrialNumber=1, seconds=1.5)
    assert (await scene.trial()).status is TrialStatus.WAITING
    scene.clock.wrong_by = -HOUR
    await scene.restart()
    await scene.until_ended()
    assert (await scene.trial()).status is TrialStatus.SUCCEEDED
    assert asyncio.get_running_loop().time() <= 1.5 + 120.0  # it is looked at once in a minute


@played(play, script=LOST_TWICE)
async def test_a_restarted_manager_waits_for_what_is_left_of_a_retrys_delay(scene: Scene, manager: Manager, /) -> None:
    await scene.create(maxTrialNumber=1, seconds=1.5)
    await scene.restart()
    await scene.until_ended()
    assert scene.starts[1] - scene.starts[0] == pytest.approx(2.0)


@played(play, script=plays(Final(1.0, 0.5), Hang()))
async def test_max_trial_duration_is_not_longer_when_the_clock_is_set_back(scene: Scene, manager: Manager, /) -> None:
    await scene.create(maxTrialNumber=1, seconds=10.0)
    scene.clock.wrong_by = -HOUR
    await manager.update_experiment("exp", max_trial_seconds=30.0)
    await scene.until_ended()
    assert (await scene.trial()).status is TrialStatus.EARLY_STOPPED
    assert asyncio.get_running_loop().time() <= 120.0


BY_TIME = {
    "trialScheduler": {"name": "ASHA", "classArgs": {"time_attr": TIME_TOTAL, "max_t": 600, "grace_period": 60}},
    "maxTrialNumber": 1,
}
TWENTY_STEPS = plays(*(ScriptedReport(10.0, 0.5) for _ in range(20)), Final(1.0, 0.5))


@pytest.mark.parametrize("hours", [-1, 1])
@played(play, script=TWENTY_STEPS)
async def test_the_time_total_of_a_trial_does_not_change_when_the_clock_is_set(
    scene: Scene, manager: Manager, /, hours: int
) -> None:
    await scene.create(**BY_TIME, seconds=25.0)
    scene.clock.wrong_by = hours * HOUR
    await scene.until_ended()
    trial = await scene.trial()
    assert (trial.status, trial.intermediate_count) == (TrialStatus.SUCCEEDED, 20)
    assert [job.seconds for job in await scene.jobs()] == pytest.approx([201.0])
    usage = await manager.control.read(lambda c: jobs.usage_of_trial(c, trial.id, now=scene.clock.now()))
    assert usage.run_seconds == pytest.approx(201.0)
    assert not [notice for notice in await scene.notices() if TIME_TOTAL in notice]


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("before", [False, True], ids=["while it runs", "before its start"])
@pytest.mark.parametrize("hours", [-1, 1])
@played(play, script=TWENTY_STEPS)
async def test_how_long_a_running_trial_has_run_does_not_change_when_the_clock_is_set(
    scene: Scene, manager: Manager, /, hours: int, before: bool, restarts: bool
) -> None:
    scene.clock.steady()
    scene.clock.wrong_by = hours * HOUR * before
    await scene.create(maxTrialNumber=1, seconds=20.0)
    if restarts:
        scene.clock = SettableClock()  # as another process has it
    scene.clock.wrong_by = hours * HOUR
    manager = await scene.restart() if restarts else manager
    trial = await scene.trial()
    now = scene.clock.steady()
    usage = await manager.control.read(lambda c: jobs.usage_of_trial(c, trial.id, now=now))
    assert usage.run_seconds == pytest.approx(20.0, abs=1.5)
    [time] = (await manager.control.read(lambda c: table.read(c, "exp", now=now, columns=["time"], limit=1))).columns
    assert time.values == pytest.approx([20.0], abs=1.5)


@pytest.mark.parametrize("restarts", [False, True])
@played(play, script=TWENTY_STEPS)
async def test_a_job_whose_end_nobody_has_seen_ran_until_its_last_report(
    scene: Scene, manager: Manager, /, restarts: bool
) -> None:
    await scene.create(maxTrialNumber=1, seconds=35.0)
    job = (await scene.jobs())[0]
    manager = await scene.restart() if restarts else manager
    lost = ExpectedJob(job.id, job.token, "exp")
    change = abandoned(lost, EndReason.NODE_LOST, detail="lost", now=scene.clock.now() + 60 * HOUR)
    manager._supervisor.loop("exp").inbox.post(JobsChanged((change,)))
    await asyncio.sleep(1.0)
    [first, *_] = await scene.jobs()
    assert (first.end_reason, first.seconds) == (EndReason.NODE_LOST, pytest.approx(30.0, abs=1.0))


@pytest.mark.parametrize(("known", "expected"), [(None, 50.0), (20.0, 20.0)], ids=["by times", "known"])
def test_an_end_whose_words_cannot_be_stored_keeps_how_long_the_job_ran(known: float | None, expected: float) -> None:
    end = Exit(EndReason.EXITED_OK, 0, None, 100.0, 150.0, run_seconds=known)
    change = StatusChange("T.1", "t", TrialJobStatus.ENDED, datetime.fromtimestamp(150.0, UTC), exit=end)
    short, _ = substitutes(JobsChanged((change,)), "too long", 9999.0)
    assert isinstance(short, JobsChanged)
    assert short.changes[0].exit is not None
    assert short.changes[0].exit.run_seconds == expected


def _without_seconds(form: TrialJobForm) -> Iterator[Step]:
    for second in (1.0, 2.0):
        record = {"kind": "intermediate", "value": 0.5, "time": 1_700_000_000.0 + second}
        yield Raw(1.0, json.dumps(record).encode() + b"\n")
    yield Final(1.0, 0.5)


@played(play, script=_without_seconds)
async def test_records_of_an_earlier_version_count_by_the_clock_and_a_notice_says_so(
    scene: Scene, manager: Manager, /
) -> None:
    await scene.run(**BY_TIME)
    (notice,) = [notice for notice in await scene.notices() if TIME_TOTAL in notice]
    assert notice == (
        f"trial 0 reports by a proctor or a keeper of an earlier version: its {TIME_TOTAL} is counted by its machine's "
        "clock, and is wrong if that is set while the trial runs"
    )


@pytest.mark.parametrize("hours", [-1, 1])
@played(play, script=plays(Final(1.0, 0.5), Hang()))
async def test_a_trial_that_is_stopped_softly_may_save_as_long_as_it_should_when_the_clock_was_set(
    scene: Scene, manager: Manager, /, hours: int
) -> None:
    """After a restart it is asked again: never for less; and its keeper holds to the deadline that came first."""
    await scene.create(maxTrialNumber=1, seconds=5.0)
    (job,) = await scene.jobs()
    trial = LiveTrial(await scene.trial(), replace(job, save_until=scene.clock.now() + 20.0))
    scene.clock.wrong_by = hours * HOUR
    stop = soft_stop(trial, 20.0, scene.clock.now())
    assert stop is not None
    assert stop.save_seconds == 20.0


PAIRED = by_attempt([ScriptedReport(4.0, 0.5), LOST], [ScriptedReport(4.0, 0.5), Hang()])


@played(play, script=PAIRED)
async def test_max_trial_duration_counts_all_jobs_of_a_trial_and_no_pause(scene: Scene, manager: Manager, /) -> None:
    await scene.create(maxTrialNumber=1, maxTrialDuration="20s", seconds=11.0)
    first, _ = await scene.jobs()
    assert first.end_reason is EndReason.NODE_LOST
    assert [form.max_duration_seconds for form in scene.forms] == [20.0, pytest.approx(20.0 - first.seconds)]
    trial = await scene.trial()
    await manager.trials.pause(trial.id)
    await asyncio.sleep(1000.0)
    await manager.trials.resume(trial.id)
    await scene.until_ended()
    trial, found = await scene.trial(), await scene.jobs()
    assert trial.status is TrialStatus.EARLY_STOPPED
    assert [job.end_reason for job in found] == [EndReason.NODE_LOST, EndReason.PAUSED, EndReason.DEADLINE]
    assert sum(job.seconds for job in found) == pytest.approx(20.0)
    assert trial.reason == "its jobs ran longer in total than maxTrialDuration"


@played(play, script=plays(ScriptedReport(4.0, 0.5), Hang()))
async def test_a_limit_that_is_changed_counts_the_earlier_jobs_too(scene: Scene, manager: Manager, /) -> None:
    await scene.create(maxTrialNumber=1, seconds=10.0)
    trial = await scene.trial()
    await manager.trials.pause(trial.id)
    await asyncio.sleep(100.0)
    await manager.trials.resume(trial.id)
    manager = await scene.restart()
    await asyncio.sleep(5.0)
    await manager.update_experiment("exp", max_trial_seconds=30.0)
    await scene.until_ended()
    assert sum(job.seconds for job in await scene.jobs()) == pytest.approx(30.0)


@pytest.mark.parametrize(
    ("ahead", "expected"), [(0.0, 4.0), (HOUR, 0.0), (-HOUR, 5.0)], ids=["right", "ahead", "behind"]
)
def test_gpus_are_not_counted_for_longer_than_since_the_submission_whatever_the_clock_of_the_machine(
    ahead: float, expected: float
) -> None:
    job = TrialJobRow(
        "T.1", "T", "e", 1, "t", TrialJobStatus.RUNNING, 0, {}, submitted_at=95.0, started_at=96.0 + ahead
    )
    assert seconds_since_start(job, 100.0) == expected
