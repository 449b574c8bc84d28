"""Trials that are paused: what they hold, what is shown, how they come back, also after a restart of the manager."""

import asyncio
import json
import sqlite3
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest
from fakes import small_experiments
from fakes.small_experiments import CheckpointingSimulation, all_trials, attempts, curve, played

from proctor.manager.actors import Actor, Way
from proctor.manager.engine.manager import Manager
from proctor.manager.errors import Conflict
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.store.rows import ExperimentRow, TrialRow
from proctor.manager.store.tables import dispatcher_inputs, events, experiments
from proctor.training_services.base import EndReason, TrialJobForm
from proctor.training_services.in_memory.scripts import Final, Raw, ScriptedExit, ScriptedReport, Step


def ten_minutes(form: TrialJobForm) -> Iterable[Step]:
    """Report 0, 1, 2, … 9, one a minute, and register a checkpoint with each."""
    begin = 0 if form.resume_checkpoint is None else int(form.resume_checkpoint.rpartition("/")[2])
    for step in range(begin, 10):
        yield ScriptedReport(60.0, step)
        record = {"kind": "checkpoint", "path": f"output/checkpoints/{step + 1}", "step": step, "time": 1.0}
        yield Raw(0.0, json.dumps(record).encode() + b"\n")
    yield Final(1.0, form.sequence_id)
    yield ScriptedExit(30.0)


play = partial(small_experiments.play, script=ten_minutes, kind=CheckpointingSimulation)
create = partial(small_experiments.create, seconds=90.0, maxTrialNumber=2, objective={"direction": "maximize"})


async def experiment(manager: Manager) -> ExperimentRow:
    (found,) = (await manager.control.read(experiments.page)).items
    return found


async def trial(manager: Manager, number: int = 0) -> TrialRow:
    rows = await all_trials(manager, (await experiment(manager)).id)
    return next(row for row in rows if row.sequence_id == number)


async def pause(manager: Manager, number: int = 0) -> TrialRow:
    """Pause a trial and wait until it is PAUSED."""
    await manager.trials.pause((await trial(manager, number)).id)
    await asyncio.sleep(1.0)
    row = await trial(manager, number)
    assert row.status is TrialStatus.PAUSED
    return row


async def reported(manager: Manager) -> list[float]:
    """The values of the first trial's visible curve."""
    return [point.reported for point in await curve(manager, await trial(manager))]


async def until_done(manager: Manager) -> None:
    await asyncio.sleep(3600.0)
    assert (await experiment(manager)).status is ExperimentStatus.DONE


@played(play)
async def test_a_paused_trial_gives_up_its_place_and_continues_from_its_checkpoint(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    await create(manager, tmp_path)
    assert (await pause(manager)).reason == "paused by the user"
    assert (await trial(manager, 1)).status is TrialStatus.RUNNING
    await manager.trials.resume((await trial(manager)).id)
    assert (await trial(manager)).reason == "waiting: trialConcurrency 1 is used up"
    await until_done(manager)
    assert [row.end_reason for row in await attempts(manager, await trial(manager))] == [
        EndReason.PAUSED,
        EndReason.EXITED_OK,
    ]
    first, second = await attempts(manager, await trial(manager))
    assert (first.detail, second.start_reason) == ("paused by the user", "from checkpoint 1 of job 1")
    assert await reported(manager) == list(range(10))
    assert (await trial(manager)).final_data == 0


@played(play)
async def test_an_experiment_with_nothing_but_paused_trials_is_not_done_and_says_why(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    await create(manager, tmp_path, maxTrialNumber=1)
    row = await pause(manager)
    await asyncio.sleep(3600.0)
    assert (await experiment(manager)).status is ExperimentStatus.NO_MORE_TRIAL
    clause = "1 trial is PAUSED: resume or kill it to finish the experiment"
    assert manager.held_up(await experiment(manager)) == clause
    await manager.trials.resume(row.id)
    assert manager.held_up(await experiment(manager)) == ""
    await until_done(manager)


@played(play)
async def test_a_trial_that_waits_is_paused_at_once(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    experiment_id = await create(manager, tmp_path, maxTrialNumber=1)
    waiting = await manager.trials.add(experiment_id, {"x": 0.5})
    await manager.trials.pause(waiting.id)
    assert (await trial(manager, 1)).status is TrialStatus.PAUSED
    await asyncio.sleep(3600.0)
    assert (await attempts(manager, await trial(manager, 1))) == []
    await manager.trials.resume(waiting.id)
    await until_done(manager)


@played(play)
async def test_a_trial_that_is_being_paused_says_so_and_can_be_killed_but_not_resumed(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    await create(manager, tmp_path, maxTrialNumber=1)
    row = await trial(manager)
    pausing = manager.trials.pause(row.id)
    refused, _ = await asyncio.gather(manager.trials.resume(row.id), pausing, return_exceptions=True)
    assert str(refused) == f"trial {row.id} is RUNNING; only a PAUSED trial can be resumed"
    await asyncio.sleep(1.0)
    await manager.trials.resume(row.id)
    await asyncio.sleep(1.0)
    answers = await asyncio.gather(
        manager.trials.pause(row.id),
        manager.trials.resume(row.id),
        manager.trials.kill(row.id),
        return_exceptions=True,
    )
    assert str(answers[1]) == (
        f"trial {row.id} is still being paused (stopping: paused by the user); resume it when it is PAUSED"
    )
    await asyncio.sleep(1.0)
    killed = await trial(manager)
    assert (killed.status, killed.reason) == (TrialStatus.USER_CANCELED, "canceled by the user")
    assert [job.end_reason for job in await attempts(manager, killed)] == [
        EndReason.PAUSED,
        EndReason.USER_CANCELED,
    ]
    await until_done(manager)


@played(play)
async def test_a_paused_trial_can_be_killed_and_its_tuner_gets_its_end(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    experiment_id = await create(manager, tmp_path, maxTrialNumber=1)
    row = await pause(manager)
    await manager.trials.kill(row.id)
    await until_done(manager)
    assert (await trial(manager)).status is TrialStatus.USER_CANCELED
    inputs = await manager.control.read(lambda c: dispatcher_inputs.after(c, experiment_id, 0, 100))
    assert [one.kind for one in inputs] == ["RequestTrialJobs", "TrialEnd"]


@played(play)
async def test_what_cannot_be_paused_or_resumed_is_refused_with_its_status(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    await create(manager, tmp_path, maxTrialNumber=1)
    row = await trial(manager)
    with pytest.raises(Conflict, match="is RUNNING; only a PAUSED trial can be resumed"):
        await manager.trials.resume(row.id)
    await asyncio.gather(manager.trials.pause(row.id), manager.trials.pause(row.id))
    await pause(manager)  # idempotent
    await manager.trials.kill(row.id)
    with pytest.raises(Conflict, match="is USER_CANCELED; only a WAITING or RUNNING trial can be paused"):
        await manager.trials.pause(row.id)
    with pytest.raises(Conflict, match="is USER_CANCELED; only a PAUSED trial can be resumed"):
        await manager.trials.resume(row.id)


@played(play)
async def test_a_trial_that_is_being_stopped_is_not_paused(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    await create(manager, tmp_path)
    row = await trial(manager)
    kill, pause = manager.trials.kill(row.id), manager.trials.pause(row.id)
    answers = await asyncio.gather(kill, pause, return_exceptions=True)
    assert str(answers[1]) == f"trial {row.id} is being stopped already (canceled by the user)"


@played(play)
async def test_a_trial_with_a_final_metric_is_not_kept_but_has_succeeded(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    await create(manager, tmp_path)
    await asyncio.sleep(520.0)
    row = await trial(manager)
    assert (row.status, row.final_data) == (TrialStatus.RUNNING, 0)
    await manager.trials.pause(row.id)
    await until_done(manager)
    row = await trial(manager)
    assert row.status is TrialStatus.SUCCEEDED
    assert row.reason == "its final metric is stored; its job ended afterwards as PAUSED (paused by the user)"


def test_it_stays_paused_when_the_manager_is_restarted_or_the_experiment_is_stopped(tmp_path: Path) -> None:
    async def paused(simulation: Simulation, manager: Manager) -> None:
        await create(manager, tmp_path)
        await pause(manager)

    async def stopped(simulation: Simulation, manager: Manager) -> None:
        row = await experiment(manager)
        await manager.stop_experiment(row.id)
        await asyncio.sleep(60.0)
        assert (await trial(manager)).status is TrialStatus.PAUSED
        with pytest.raises(Conflict, match="is not running; resume it first"):
            await manager.trials.resume((await trial(manager)).id)

    async def resumed(simulation: Simulation, manager: Manager) -> None:
        row = await experiment(manager)
        await manager.resume_experiment(row.id)
        await asyncio.sleep(3600.0)
        assert (await trial(manager)).status is TrialStatus.PAUSED
        assert (await experiment(manager)).status is ExperimentStatus.NO_MORE_TRIAL
        await manager.trials.resume((await trial(manager)).id)
        await until_done(manager)
        assert await reported(manager) == list(range(10))

    play(tmp_path, paused, stopped, resumed)


@played(play)
async def test_an_experiment_is_paused_and_resumed_with_its_trials(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    experiment_id = await create(manager, tmp_path, trialConcurrency=2, maxTrialNumber=3)
    await manager.pause_experiment(experiment_id, trials=True)
    await asyncio.sleep(600.0)
    both = [await trial(manager, number) for number in (0, 1)]
    assert [(row.status, row.reason) for row in both] == [(TrialStatus.PAUSED, "paused with its experiment")] * 2
    await manager.resume_experiment(experiment_id)
    await asyncio.sleep(60.0)
    assert (await trial(manager, 2)).status is TrialStatus.RUNNING
    assert (await trial(manager)).status is TrialStatus.PAUSED
    await manager.resume_experiment(experiment_id, trials=True)
    await until_done(manager)
    assert [row.end_reason for row in await attempts(manager, await trial(manager, 1))] == [
        EndReason.PAUSED,
        EndReason.EXITED_OK,
    ]


@played(play)
async def test_a_trial_that_is_resumed_in_a_paused_experiment_says_what_it_waits_for(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    experiment_id = await create(manager, tmp_path)
    await manager.pause_experiment(experiment_id, trials=True)
    await asyncio.sleep(60.0)
    await manager.trials.resume((await trial(manager)).id)
    assert (await trial(manager)).reason == "waiting: the experiment is paused; resume it, too"
    await manager.resume_experiment(experiment_id)
    await until_done(manager)


def test_what_follows_from_a_persons_command_is_that_persons_and_the_reason_says_so(tmp_path: Path) -> None:
    alice, bob = Actor("alice", Way.PAGE), Actor("bob", Way.CLI)

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        await create(manager, tmp_path)
        first = await trial(manager)
        await manager.trials.kill(first.id, actor=alice)
        await asyncio.sleep(1.0)
        row = await trial(manager)
        assert (row.status, row.reason) == (TrialStatus.USER_CANCELED, "canceled by alice (page)")

        def read(connection: sqlite3.Connection) -> list[tuple[str, str | None]]:
            found = events.after(connection, 0, limit=1000)
            return [(str(each.data.get("status")), each.actor) for each in found if each.trial_id == first.id]

        seen = await manager.control.read(read)
        assert ("WAITING", "tuner") in seen
        assert ("STOPPING", "alice@page") in seen
        assert ("ENDED", "alice@page") in seen
        assert seen.count(("USER_CANCELED", "alice@page")) == 1
        assert ("USER_CANCELED", "manager") not in seen
        await manager.stop_experiment((await experiment(manager)).id, actor=bob)
        await asyncio.sleep(60.0)
        assert (await experiment(manager)).reason == "stopped by bob (cli)"

    play(tmp_path, scenario)
