"""Which experiment gets free GPUs first, and whose trials are stopped for it."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from fakes.settable_clock import SettableClock
from fakes.small_experiments import SMALL, played

from proctor.manager.clock import LoopClock
from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.rows import TrialJobRow, TrialRow
from proctor.manager.store.tables import jobs, trials
from proctor.training_services.base import (
    EndReason,
    SoftStop,
    SupportsCheckpoints,
    SupportsNodes,
    SupportsSoftStop,
    TrainingService,
    TrialJobForm,
)
from proctor.training_services.in_memory.scripts import Final, Raw, ScriptedReport, ScriptedStart, Step
from proctor.training_services.in_memory.service import InMemoryPlatform, InMemoryTrainingService
from proctor.training_services.registry import ServiceContext
from proctor.trial_keeper.protocol import Device

Scenario = Callable[["Machines", Manager], Awaitable[None]]
MINUTES = 20


class OneMachine(InMemoryTrainingService, SupportsNodes, SupportsCheckpoints, SupportsSoftStop):
    """Jobs run on `m1`, continue from checkpoints, and end when they have been asked to save."""

    def node_ids(self) -> tuple[str, ...]:
        return ("m1",)

    async def cancel_softly(self, job_id: str, stop: SoftStop) -> None:
        asked.append((job_id, stop.request))
        job = self.platform.jobs.get(job_id)
        if job is not None:
            end = self.platform.end
            asyncio.get_running_loop().call_later(5.0, lambda: end(job, EndReason.CANCELED, detail="it has saved"))


asked: list[tuple[str, str]] = []


class Machines(Simulation):
    """A machine with GPUs, on which all experiments run."""

    gpus = 2

    def _create_service(self, platform: str, context: ServiceContext) -> TrainingService:
        played = self.platforms.setdefault(context.experiment_id, InMemoryPlatform(self.clock.now))
        return OneMachine(self._script, platform=played, now=self.clock.now)

    def connect(self, manager: Manager) -> None:
        """The machine is there."""
        manager.pool.add("m1", "remote")
        devices = [Device(index, f"GPU-{index}", "Fake", 80_000, 0, 0) for index in range(self.gpus)]
        manager.pool.connect("m1", devices, driver_note="", hostname="m1", version="0", seen_at=1.0)


def twenty_minutes(form: TrialJobForm) -> Iterable[Step]:
    """Reports once a minute, with a checkpoint, unless its command says that it has none."""
    begin = 0 if form.resume_checkpoint is None else int(form.resume_checkpoint.rpartition("/")[2])
    yield ScriptedStart()
    for step in range(begin, MINUTES):
        yield ScriptedReport(60.0, step)
        if "forgets" not in form.command:
            record = {"kind": "checkpoint", "path": f"output/checkpoints/{step + 1}", "step": step}
            record["time"] = LoopClock().now()
            yield Raw(0.0, json.dumps(record).encode() + b"\n")
    yield Final(1.0, form.sequence_id)


def play(tmp_path: Path, *scenarios: Scenario, gpus: int = 2) -> None:
    """Each scenario with a manager of its own, on one home: between them the manager is restarted."""
    asked.clear()

    async def main(loop: VirtualTimeLoop) -> None:
        machines = Machines(Home(tmp_path / "home"), loop, script=twenty_minutes)
        machines.clock, machines.gpus = SettableClock(), gpus
        for scenario in scenarios:
            async with machines.manager() as manager:
                machines.connect(manager)
                await asyncio.sleep(1.0)
                await scenario(machines, manager)

    run_virtual(main)


async def create(manager: Manager, tmp_path: Path, name: str, **changes: Any) -> str:
    config = SMALL | {"trialConcurrency": 2, "maxTrialNumber": 2, "trialGpuNumber": 1, **changes}
    await manager.create_experiment(config=config, directory=str(tmp_path), experiment_id=name)
    await asyncio.sleep(1.0)
    return name


async def trials_of(manager: Manager, name: str) -> list[TrialRow]:
    page = await manager.control.read(lambda c: trials.page(c, name, limit=100))
    return sorted(page.items, key=lambda row: row.sequence_id)


async def running(manager: Manager, name: str) -> list[int]:
    return [row.sequence_id for row in await trials_of(manager, name) if row.status is TrialStatus.RUNNING]


async def attempts(manager: Manager, trial: TrialRow) -> list[TrialJobRow]:
    return await manager.control.read(lambda c: jobs.of_trial(c, trial.id))


async def preempted(manager: Manager, name: str) -> list[int]:
    """The numbers of the trials whose jobs were ever preempted, each as often as that happened."""
    found = []
    for row in await trials_of(manager, name):
        found += [row.sequence_id for job in await attempts(manager, row) if job.stop_reason is EndReason.PREEMPTED]
    return found


@played(play)
async def test_what_becomes_free_goes_to_the_higher_priority_at_once_and_the_other_says_so(
    machines: Machines, manager: Manager, /, tmp_path: Path
) -> None:
    await create(manager, tmp_path, "low", maxTrialNumber=4)
    await asyncio.sleep(600.0)
    await create(manager, tmp_path, "high", priority=5, maxTrialNumber=3, trialGpuNumber=2, trialConcurrency=1)
    await asyncio.sleep(30.0)
    assert await running(manager, "low") == [0, 1]  # nothing is stopped for it
    await asyncio.sleep(600.0)
    assert (await running(manager, "low"), await running(manager, "high")) == ([], [0])
    for row in (await trials_of(manager, "low"))[2:]:
        assert row.reason.startswith("waiting: needs 1 GPU, node m1 has 0 free (GPU 0 held by trial 0 of experiment h")
    await manager.update_experiment("high", trial_concurrency=2)
    await asyncio.sleep(1.0)
    for row in (await trials_of(manager, "low"))[2:]:
        assert row.reason.startswith("waiting: GPUs go to experiment high first (priority 5); needs 1 GPU, node m1 ")
    await asyncio.sleep(1200.0)
    assert (await running(manager, "low"), await running(manager, "high")) == ([], [1])
    await machines.ended(manager, "high")
    await machines.ended(manager, "low")
    assert await preempted(manager, "low") == []


@played(play)
async def test_a_preemptible_trial_saves_gives_up_its_gpu_and_continues_from_its_checkpoint(
    machines: Machines, manager: Manager, /, tmp_path: Path
) -> None:
    await create(manager, tmp_path, "low", preemptible=True)
    await asyncio.sleep(600.0)
    await create(manager, tmp_path, "high", priority=5, maxTrialNumber=1)
    await asyncio.sleep(10.0)
    assert (len(await running(manager, "low")), await running(manager, "high")) == (1, [0])
    (number,) = await preempted(manager, "low")
    trial = (await trials_of(manager, "low"))[number]
    assert trial.status is TrialStatus.WAITING
    assert trial.reason.startswith("waiting: preempted by experiment high (priority 5); needs 1 GPU, node m1 has 0 ")
    assert (trial.failures, trial.infrastructure_failures) == (0, 0)
    (job,) = await attempts(manager, trial)
    assert (job.end_reason, job.detail) == (EndReason.PREEMPTED, "preempted by experiment high (priority 5)")
    assert asked == [(job.id, "preempt")]
    await machines.ended(manager, "high")
    await machines.ended(manager, "low")
    _, again = await attempts(manager, trial)
    assert (again.resumed_from_job, again.resumed_from_step) == (job.id, 10)
    assert await preempted(manager, "low") == [number]
    assert {row.status for row in await trials_of(manager, "low")} == {TrialStatus.SUCCEEDED}


@played(play, gpus=4)
async def test_as_many_are_preempted_as_are_needed_those_first_that_lose_the_least(
    machines: Machines, manager: Manager, /, tmp_path: Path
) -> None:
    for number in range(4):  # each has saved later than the one before
        await create(manager, tmp_path, f"low{number}", preemptible=True, maxTrialNumber=1)
        await asyncio.sleep(7.0)
    await asyncio.sleep(600.0)
    await create(manager, tmp_path, "high", priority=1, maxTrialNumber=1, trialGpuNumber=2)
    await asyncio.sleep(10.0)
    assert await running(manager, "high") == [0]
    assert [await preempted(manager, f"low{number}") for number in range(4)] == [[], [], [0], [0]]


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
    machines: Machines, manager: Manager, /, tmp_path: Path, changes: dict[str, Any], priority: int
) -> None:
    await create(manager, tmp_path, "low", **changes)
    await asyncio.sleep(400.0)
    await create(manager, tmp_path, "high", priority=priority, maxTrialNumber=1)
    await asyncio.sleep(100.0)
    assert (await running(manager, "low"), await running(manager, "high")) == ([0, 1], [])
    assert await preempted(manager, "low") == []
    await machines.ended(manager, "high")


@played(play)
async def test_a_trial_that_saves_by_itself_is_preempted_where_the_user_gives_it_time(
    machines: Machines, manager: Manager, /, tmp_path: Path
) -> None:
    await create(manager, tmp_path, "low", preemptible=True, trialCommand="forgets", saveSeconds=60)
    await asyncio.sleep(400.0)
    await create(manager, tmp_path, "high", priority=5, maxTrialNumber=1)
    await asyncio.sleep(10.0)
    assert await running(manager, "high") == [0]
    assert len(await preempted(manager, "low")) == 1


@played(play)
async def test_two_experiments_give_way_together_where_neither_is_enough(
    machines: Machines, manager: Manager, /, tmp_path: Path
) -> None:
    for name in ("low0", "low1"):
        await create(manager, tmp_path, name, preemptible=True, maxTrialNumber=1)
    await asyncio.sleep(400.0)
    await create(manager, tmp_path, "high", priority=5, maxTrialNumber=1, trialGpuNumber=2)
    await asyncio.sleep(10.0)
    assert await running(manager, "high") == [0]
    assert [await preempted(manager, name) for name in ("low0", "low1")] == [[0], [0]]
    for name in ("high", "low0", "low1"):
        await machines.ended(manager, name)


@played(play)
async def test_trials_of_a_paused_experiment_run_to_their_end_and_another_one_gives_way(
    machines: Machines, manager: Manager, /, tmp_path: Path
) -> None:
    for name in ("low0", "low1"):
        await create(manager, tmp_path, name, preemptible=True, maxTrialNumber=2, trialConcurrency=1)
        await asyncio.sleep(30.0)
    await asyncio.sleep(400.0)
    await manager.pause_experiment("low1")  # which would lose the least
    await create(manager, tmp_path, "high", priority=5, maxTrialNumber=1)
    await asyncio.sleep(10.0)
    assert await running(manager, "high") == [0]
    assert [await preempted(manager, name) for name in ("low0", "low1")] == [[0], []]


@played(play)
async def test_a_raised_priority_preempts_while_it_runs(
    machines: Machines, manager: Manager, /, tmp_path: Path
) -> None:
    await create(manager, tmp_path, "low", preemptible=True)
    await asyncio.sleep(400.0)
    await create(manager, tmp_path, "other", maxTrialNumber=1)
    await asyncio.sleep(100.0)
    assert await preempted(manager, "low") == []
    row = await manager.update_experiment("other", priority=3)
    assert row.priority == 3
    await asyncio.sleep(10.0)
    assert await running(manager, "other") == [0]
    assert len(await preempted(manager, "low")) == 1


def test_a_preemption_survives_a_restart_and_is_not_made_twice(tmp_path: Path) -> None:
    async def before(machines: Machines, manager: Manager) -> None:
        await create(manager, tmp_path, "low", preemptible=True)
        await asyncio.sleep(600.0)
        await create(manager, tmp_path, "high", priority=5, maxTrialNumber=1)
        assert len(await preempted(manager, "low")) == 1  # it saves
        assert await running(manager, "high") == []

    async def after(machines: Machines, manager: Manager) -> None:
        await asyncio.sleep(20.0)
        assert await running(manager, "high") == [0]
        assert len(await preempted(manager, "low")) == 1
        await machines.ended(manager, "low")
        assert len(await preempted(manager, "low")) == 1

    play(tmp_path, before, after)


@pytest.mark.parametrize("act", ["kill", "pause"])
@played(play)
async def test_what_the_user_decides_of_a_trial_that_is_being_preempted_counts(
    machines: Machines, manager: Manager, /, tmp_path: Path, act: str
) -> None:
    await create(manager, tmp_path, "low", preemptible=True)
    await asyncio.sleep(600.0)
    await create(manager, tmp_path, "high", priority=5, maxTrialNumber=1)
    (number,) = await preempted(manager, "low")
    trial = (await trials_of(manager, "low"))[number]
    await (manager.trials.kill(trial.id) if act == "kill" else manager.trials.pause(trial.id))
    await asyncio.sleep(10.0)
    status = (await trials_of(manager, "low"))[number].status
    assert status is (TrialStatus.USER_CANCELED if act == "kill" else TrialStatus.PAUSED)
    assert await running(manager, "high") == [0]


@played(play)
async def test_a_trial_that_saves_because_it_is_preempted_may_go_on_saving_when_it_is_paused(
    machines: Machines, manager: Manager, /, tmp_path: Path
) -> None:
    await create(manager, tmp_path, "low", preemptible=True)
    await asyncio.sleep(600.0)
    await create(manager, tmp_path, "high", priority=5, maxTrialNumber=1)
    (number,) = await preempted(manager, "low")
    trial = (await trials_of(manager, "low"))[number]
    (before,) = await attempts(manager, trial)
    assert before.save_until is not None
    await asyncio.sleep(2.0)
    await manager.trials.pause(trial.id)
    (after,) = await attempts(manager, trial)
    assert (after.stop_reason, after.save_until) == (EndReason.PAUSED, before.save_until)
    left = before.save_until - machines.clock.now()
    reason = (await trials_of(manager, "low"))[number].reason
    assert reason == f"stopping: paused by the user; it may save for at most {round(left, 1):g} s"
    await asyncio.sleep(10.0)
    (job,) = await attempts(manager, trial)
    assert (job.end_reason, (await trials_of(manager, "low"))[number].status) == (
        EndReason.PAUSED,
        TrialStatus.PAUSED,
    )


@played(play)
async def test_experiments_of_one_priority_take_turns_by_what_they_have_used(
    machines: Machines, manager: Manager, /, tmp_path: Path
) -> None:
    await create(manager, tmp_path, "old", maxTrialNumber=20)
    await asyncio.sleep(50.0)
    await create(manager, tmp_path, "new", maxTrialNumber=20)
    took: list[str] = []
    for _ in range(8):
        await asyncio.sleep(1200.0)
        for name in ("old", "new"):
            took += [name] * len(await running(manager, name))
    assert abs(took.count("old") - took.count("new")) <= 4, took
    assert (await manager.experiment("new")).status is ExperimentStatus.RUNNING
