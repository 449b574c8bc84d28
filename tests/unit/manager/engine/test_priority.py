"""Which experiment gets free GPUs first, and whose trials are stopped for it."""

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import Any

import pytest
from fakes import small_experiments
from fakes.small_experiments import SMALL, MachineService, Scene, attempts, played, saved

from proctor.manager.clock import LoopClock
from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.store.rows import TrialRow
from proctor.training_services.base import (
    EndReason,
    SoftStop,
    SupportsCheckpoints,
    SupportsSoftStop,
    TrialJobForm,
)
from proctor.training_services.in_memory.scripts import Final, ScriptedReport, ScriptedStart, Step

MINUTES = 20


class OneMachine(MachineService, SupportsCheckpoints, SupportsSoftStop):
    """Jobs continue from checkpoints, and end when they have been asked to save."""

    async def cancel_softly(self, job_id: str, stop: SoftStop) -> None:
        self.scene.asked.append((job_id, stop.request))
        if (job := self.platform.jobs.get(job_id)) is not None:
            end = self.platform.end
            asyncio.get_running_loop().call_later(5.0, lambda: end(job, EndReason.CANCELED, detail="it has saved"))


class OneMachineScene(Scene):
    """A machine with GPUs, on which all experiments run."""

    service = OneMachine
    config = SMALL | {"trialConcurrency": 2, "maxTrialNumber": 2, "trialGpuNumber": 1}

    def __init__(self, *arguments: Any, gpus: int = 2, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._gpus = gpus

    async def start(self) -> Manager:
        manager = await super().start()
        self.connect("m1", gpus=self._gpus)
        await asyncio.sleep(1.0)
        return manager

    async def add(self, name: str, *, seconds: float = 0.0, **changes: Any) -> None:
        """An experiment of this name, so many seconds after its first trials could start."""
        await self.create(id=name, seconds=1.0 + seconds, **changes)

    async def running(self, name: str) -> list[int]:
        return [row.sequence_id for row in await self.trials(name) if row.status is TrialStatus.RUNNING]

    async def preempted(self, name: str) -> list[int]:
        """The numbers of the trials whose jobs were ever preempted, each as often as that happened."""
        found = []
        for row in await self.trials(name):
            jobs = await attempts(self._manager, row)
            found += [row.sequence_id for job in jobs if job.stop_reason is EndReason.PREEMPTED]
        return found

    async def preempt(self) -> TrialRow:
        """A trial of experiment `low` that is being preempted by `high`."""
        await self.add("low", preemptible=True, seconds=600.0)
        await self.add("high", priority=5, maxTrialNumber=1)
        (number,) = await self.preempted("low")
        return (await self.trials("low"))[number]


def twenty_minutes(form: TrialJobForm) -> Iterable[Step]:
    """Reports once a minute, with a checkpoint, unless its command says that it has none."""
    begin = 0 if form.resume_checkpoint is None else int(form.resume_checkpoint.rpartition("/")[2])
    yield ScriptedStart()
    for step in range(begin, MINUTES):
        yield ScriptedReport(60.0, step)
        if "forgets" not in form.command:
            yield saved(form, step + 1, step=step, time=LoopClock().now())
    yield Final(1.0, form.sequence_id)


play = partial(small_experiments.play, kind=OneMachineScene, script=twenty_minutes)


@pytest.mark.slow
@played(play)
async def test_what_becomes_free_goes_to_the_higher_priority_at_once_and_the_other_says_so(
    scene: OneMachineScene, manager: Manager, /
) -> None:
    await scene.add("low", maxTrialNumber=4, seconds=600.0)
    await scene.add("high", priority=5, maxTrialNumber=3, trialGpuNumber=2, trialConcurrency=1, seconds=30.0)
    assert await scene.running("low") == [0, 1]  # nothing is stopped for it
    await asyncio.sleep(600.0)
    assert (await scene.running("low"), await scene.running("high")) == ([], [0])
    for row in (await scene.trials("low"))[2:]:
        assert row.reason.startswith("waiting: needs 1 GPU, node m1 has 0 free (GPU 0 held by trial 0 of experiment h")
    await manager.update_experiment("high", trial_concurrency=2)
    await asyncio.sleep(1.0)
    for row in (await scene.trials("low"))[2:]:
        assert row.reason.startswith("waiting: GPUs go to experiment high first (priority 5); needs 1 GPU, node m1 ")
    await asyncio.sleep(1200.0)
    assert (await scene.running("low"), await scene.running("high")) == ([], [1])
    await scene.ended(manager, "high")
    await scene.ended(manager, "low")
    assert await scene.preempted("low") == []


@played(play)
async def test_a_preemptible_trial_saves_gives_up_its_gpu_and_continues_from_its_checkpoint(
    scene: OneMachineScene, manager: Manager, /
) -> None:
    await scene.add("low", preemptible=True, seconds=600.0)
    await scene.add("high", priority=5, maxTrialNumber=1, seconds=10.0)
    assert (len(await scene.running("low")), await scene.running("high")) == (1, [0])
    (number,) = await scene.preempted("low")
    trial = (await scene.trials("low"))[number]
    assert trial.status is TrialStatus.WAITING
    assert trial.reason.startswith("waiting: preempted by experiment high (priority 5); needs 1 GPU, node m1 has 0 ")
    assert (trial.failures, trial.infrastructure_failures) == (0, 0)
    (job,) = await attempts(manager, trial)
    assert (job.end_reason, job.detail) == (EndReason.PREEMPTED, "preempted by experiment high (priority 5)")
    assert scene.asked == [(job.id, "preempt")]
    await scene.ended(manager, "high")
    await scene.ended(manager, "low")
    _, again = await attempts(manager, trial)
    assert (again.resumed_from_job, again.resumed_from_step) == (job.id, 10)
    assert await scene.preempted("low") == [number]
    assert {row.status for row in await scene.trials("low")} == {TrialStatus.SUCCEEDED}


@played(play, gpus=4)
async def test_as_many_are_preempted_as_are_needed_those_first_that_lose_the_least(
    scene: OneMachineScene, manager: Manager, /
) -> None:
    for number in range(4):  # each has saved later than the one before
        await scene.add(f"low{number}", preemptible=True, maxTrialNumber=1)
        await asyncio.sleep(7.0)
    await asyncio.sleep(600.0)
    await scene.add("high", priority=1, maxTrialNumber=1, trialGpuNumber=2, seconds=10.0)
    assert await scene.running("high") == [0]
    assert [await scene.preempted(f"low{number}") for number in range(4)] == [[], [], [0], [0]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "priority"),
    [
        ({}, 5),  # not preemptible
        ({"preemptible": True, "trialCommand": "forgets"}, 5),  # has nothing to continue from
        ({"preemptible": True, "priority": 5}, 5),
        ({"preemptible": True}, -1),
    ],
)
@played(play)
async def test_trials_that_must_not_be_preempted_are_not(
    scene: OneMachineScene, manager: Manager, /, changes: dict[str, Any], priority: int
) -> None:
    await scene.add("low", **changes, seconds=400.0)
    await scene.add("high", priority=priority, maxTrialNumber=1, seconds=100.0)
    assert (await scene.running("low"), await scene.running("high")) == ([0, 1], [])
    assert await scene.preempted("low") == []
    await scene.ended(manager, "high")


@played(play)
async def test_a_trial_that_saves_by_itself_is_preempted_where_the_user_gives_it_time(
    scene: OneMachineScene, manager: Manager, /
) -> None:
    await scene.add("low", preemptible=True, trialCommand="forgets", saveSeconds=60, seconds=400.0)
    await scene.add("high", priority=5, maxTrialNumber=1, seconds=10.0)
    assert await scene.running("high") == [0]
    assert len(await scene.preempted("low")) == 1


@played(play)
async def test_two_experiments_give_way_together_where_neither_is_enough(
    scene: OneMachineScene, manager: Manager, /
) -> None:
    for name in ("low0", "low1"):
        await scene.add(name, preemptible=True, maxTrialNumber=1, seconds=400.0)
    await scene.add("high", priority=5, maxTrialNumber=1, trialGpuNumber=2, seconds=10.0)
    assert await scene.running("high") == [0]
    assert [await scene.preempted(name) for name in ("low0", "low1")] == [[0], [0]]
    for name in ("high", "low0", "low1"):
        await scene.ended(manager, name)


@played(play)
async def test_trials_of_a_paused_experiment_run_to_their_end_and_another_one_gives_way(
    scene: OneMachineScene, manager: Manager, /
) -> None:
    for name in ("low0", "low1"):
        await scene.add(name, preemptible=True, maxTrialNumber=2, trialConcurrency=1)
        await asyncio.sleep(30.0)
    await asyncio.sleep(400.0)
    await manager.pause_experiment("low1")  # which would lose the least
    await scene.add("high", priority=5, maxTrialNumber=1, seconds=10.0)
    assert await scene.running("high") == [0]
    assert [await scene.preempted(name) for name in ("low0", "low1")] == [[0], []]


@played(play)
async def test_a_raised_priority_preempts_while_it_runs(scene: OneMachineScene, manager: Manager, /) -> None:
    await scene.add("low", preemptible=True, seconds=400.0)
    await scene.add("other", maxTrialNumber=1, seconds=100.0)
    assert await scene.preempted("low") == []
    row = await manager.update_experiment("other", priority=3)
    assert row.priority == 3
    await asyncio.sleep(10.0)
    assert await scene.running("other") == [0]
    assert len(await scene.preempted("low")) == 1


@played(play)
async def test_a_preemption_survives_a_restart_and_is_not_made_twice(
    scene: OneMachineScene, manager: Manager, /
) -> None:
    await scene.preempt()  # it saves
    assert await scene.running("high") == []
    manager = await scene.restart()
    await asyncio.sleep(20.0)
    assert await scene.running("high") == [0]
    assert len(await scene.preempted("low")) == 1
    await scene.ended(manager, "low")
    assert len(await scene.preempted("low")) == 1


@pytest.mark.parametrize(("act", "status"), [("kill", TrialStatus.USER_CANCELED), ("pause", TrialStatus.PAUSED)])
@played(play)
async def test_what_the_user_decides_of_a_trial_that_is_being_preempted_counts(
    scene: OneMachineScene, manager: Manager, /, act: str, status: TrialStatus
) -> None:
    trial = await scene.preempt()
    await getattr(manager.trials, act)(trial.id)
    await asyncio.sleep(10.0)
    assert (await manager.trials.get(trial.id)).status is status
    assert await scene.running("high") == [0]


@played(play)
async def test_a_trial_that_saves_because_it_is_preempted_may_go_on_saving_when_it_is_paused(
    scene: OneMachineScene, manager: Manager, /
) -> None:
    trial = await scene.preempt()
    (before,) = await attempts(manager, trial)
    assert before.save_until is not None
    await asyncio.sleep(2.0)
    await manager.trials.pause(trial.id)
    (after,) = await attempts(manager, trial)
    assert (after.stop_reason, after.save_until) == (EndReason.PAUSED, before.save_until)
    left = before.save_until - scene.clock.now()
    reason = (await manager.trials.get(trial.id)).reason
    assert reason == f"stopping: paused by the user; it may save for at most {round(left, 1):g} s"
    await asyncio.sleep(10.0)
    (job,) = await attempts(manager, trial)
    assert job.end_reason is EndReason.PAUSED
    assert (await manager.trials.get(trial.id)).status is TrialStatus.PAUSED


@pytest.mark.slow
@played(play)
async def test_experiments_of_one_priority_take_turns_by_what_they_have_used(
    scene: OneMachineScene, manager: Manager, /
) -> None:
    await scene.add("old", maxTrialNumber=20, seconds=50.0)
    await scene.add("new", maxTrialNumber=20)
    took: list[str] = []
    for _ in range(8):
        await asyncio.sleep(1200.0)
        for name in ("old", "new"):
            took += [name] * len(await scene.running(name))
    assert abs(took.count("old") - took.count("new")) <= 4, took
    assert (await manager.experiment("new")).status is ExperimentStatus.RUNNING
