"""The engine under virtual time: real store, real lifecycles, an in-memory training service, built-in algorithms."""

import asyncio
import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fakes.small_experiments import (
    CheckpointingSimulation,
    all_trials,
    attempts,
    curve,
    play,
    played,
    saved,
    three_reports,
)

from proctor.manager.engine.manager import UNLIMITED, Manager
from proctor.manager.errors import BadRequest, Conflict, NotFound
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.tables import dispatcher_inputs, events, jobs
from proctor.manager.store.tables import metrics as metric_store
from proctor.training_services.base import EndReason, JobStart, TrainingService, TrialJobForm
from proctor.training_services.in_memory.scripts import (
    Final,
    Hang,
    Raw,
    ScriptedExit,
    ScriptedReport,
    ScriptedStart,
    Step,
    Wait,
)
from proctor.training_services.in_memory.service import InMemoryPlatform, InMemoryTrainingService
from proctor.training_services.nodes.pool import NodeStatus
from proctor.training_services.registry import ServiceContext

SPACE = {"x": {"_type": "uniform", "_value": [0, 1]}, "n": {"_type": "choice", "_value": [1, 2, 3]}}


def config(**changes: Any) -> dict[str, Any]:
    base = {
        "searchSpace": SPACE,
        "trialCommand": "python trial.py",
        "trialConcurrency": 2,
        "maxTrialNumber": 6,
        "seed": 7,
        "objective": {"direction": "maximize"},
        "tuner": {"name": "Random"},
        "trainingService": {"platform": "local"},
    }
    return {key: value for key, value in {**base, **changes}.items() if value is not None}


async def create(manager: Manager, tmp_path: Path, **changes: Any) -> str:
    row = await manager.create_experiment(config=config(**changes), directory=str(tmp_path))
    return row.id


@played(play)
async def test_an_experiment_runs_all_its_trials_and_is_done(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    experiment_id = await create(manager, tmp_path)
    row = await simulation.ended(manager, experiment_id)
    assert (row.status, row.reason) == (ExperimentStatus.DONE, "maxTrialNumber 6 is reached")
    rows = await all_trials(manager, experiment_id)
    assert [trial.sequence_id for trial in rows] == list(range(6))
    assert {trial.status for trial in rows} == {TrialStatus.SUCCEEDED}
    assert [trial.final_value for trial in rows] == [float(n) for n in range(6)]
    assert {trial.intermediate_count for trial in rows} == {3}
    assert [point.value for point in await curve(manager, rows[2])] == [2.0, 2.1, 2.2]


def test_two_runs_with_one_seed_try_the_same_parameters(tmp_path: Path) -> None:
    tried: list[list[dict[str, Any]]] = []

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        experiment_id = await create(manager, tmp_path, tuner={"name": "TPE"}, maxTrialNumber=12)
        await simulation.ended(manager, experiment_id)
        tried.append([trial.parameters for trial in await all_trials(manager, experiment_id)])

    play(tmp_path / "one", scenario)
    play(tmp_path / "two", scenario)
    assert tried[0] == tried[1]


def test_no_more_than_trial_concurrency_jobs_run_at_once(tmp_path: Path) -> None:
    running: set[str] = set()
    most = 0

    def script(form: TrialJobForm) -> Iterable[Step]:
        nonlocal most
        running.add(form.job_id)
        most = max(most, len(running))
        yield Final(5.0, 1.0)
        running.discard(form.job_id)

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        await simulation.ended(manager, await create(manager, tmp_path, trialConcurrency=3, maxTrialNumber=10))
        assert most == 3

    play(tmp_path, scenario, script=script)


def test_a_failing_command_fails_its_trial_and_is_not_retried(tmp_path: Path) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        yield ScriptedExit(1.0, EndReason.EXITED_ERROR, code=3)

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        experiment_id = await create(manager, tmp_path, maxTrialNumber=2)
        await simulation.ended(manager, experiment_id)
        for trial in await all_trials(manager, experiment_id):
            assert (trial.status, trial.reason, trial.jobs) == (TrialStatus.FAILED, "exit code 3", 1)

    play(tmp_path, scenario, script=script)


def test_max_trial_retries_gives_a_failing_command_more_jobs(tmp_path: Path) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        if form.number < 3:
            yield ScriptedExit(1.0, EndReason.EXITED_ERROR, code=1)
        yield Final(1.0, 0.5)

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        experiment_id = await create(manager, tmp_path, maxTrialNumber=1, maxTrialRetries=2)
        await simulation.ended(manager, experiment_id)
        (trial,) = await all_trials(manager, experiment_id)
        assert (trial.status, trial.jobs, trial.failures) == (TrialStatus.SUCCEEDED, 3, 2)

    play(tmp_path, scenario, script=script)


def test_a_lost_node_sends_the_trial_back_with_the_reason_and_a_pause(tmp_path: Path) -> None:
    starts: list[float] = []

    def script(form: TrialJobForm) -> Iterable[Step]:
        starts.append(asyncio.get_running_loop().time())
        yield ScriptedStart()
        if form.number < 3:
            yield ScriptedExit(1.0, EndReason.NODE_LOST, code=None, detail="node gpu-3 is silent")
        yield Final(1.0, 0.5)

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        experiment_id = await create(manager, tmp_path, maxTrialNumber=1)
        await asyncio.sleep(1.5)
        (trial,) = await all_trials(manager, experiment_id)
        assert trial.status is TrialStatus.WAITING
        assert trial.reason == "waiting: runs again in 1 s after NODE_LOST (node gpu-3 is silent)"
        await simulation.ended(manager, experiment_id)
        (trial,) = await all_trials(manager, experiment_id)
        assert (trial.status, trial.jobs, trial.infrastructure_failures) == (TrialStatus.SUCCEEDED, 3, 2)
        gaps = [round(after - before) for before, after in pairwise(starts)]
        assert gaps == [2, 3]  # one second of work, then pauses of 1 and 2 seconds

    play(tmp_path, scenario, script=script)


def test_a_trial_is_tried_again_in_time_while_another_one_reports_all_the_time(tmp_path: Path) -> None:
    starts: list[float] = []

    def script(form: TrialJobForm) -> Iterable[Step]:
        if form.sequence_id == 0:
            for step in range(300):
                yield ScriptedReport(0.1, float(step))
        else:
            starts.append(asyncio.get_running_loop().time())
            if form.number < 3:
                yield ScriptedExit(1.0, EndReason.NODE_LOST, code=None)
        yield Final(1.0, 1.0)

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        await simulation.ended(manager, await create(manager, tmp_path, maxTrialNumber=2))
        assert [after - before for before, after in pairwise(starts)] == pytest.approx([2.0, 3.0], abs=0.2)

    play(tmp_path, scenario, script=script)


def test_infrastructure_that_fails_for_ever_ends_the_trial_as_canceled_by_the_system(tmp_path: Path) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        yield ScriptedExit(1.0, EndReason.EXIT_UNKNOWN, code=None)

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        experiment_id = await create(manager, tmp_path, maxTrialNumber=1, maxInfrastructureRetries=2)
        await simulation.ended(manager, experiment_id)
        (trial,) = await all_trials(manager, experiment_id)
        assert (trial.status, trial.jobs) == (TrialStatus.SYS_CANCELED, 3)

    play(tmp_path, scenario, script=script)


@pytest.mark.parametrize(("given", "result"), [({}, 0.25), ({"includeIntermediateResults": False}, None)])
def test_the_assessor_stops_a_bad_trial_and_the_tuner_may_hear_its_latest_value(
    tmp_path: Path, given: dict[str, bool], result: float | None
) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        for _ in range(20):
            yield ScriptedReport(1.0, 0.25 if form.sequence_id == 3 else 0.75)
        yield Final(1.0, 0.9)

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        assessor = {"name": "Medianstop", "classArgs": {"optimize_mode": "maximize", "start_step": 2}}
        limits = {"maxTrialNumber": 4, "trialConcurrency": 1}
        tuner = {"name": "Random", **given}
        experiment_id = await create(manager, tmp_path, tuner=tuner, assessor=assessor, **limits)
        await simulation.ended(manager, experiment_id)
        rows = await all_trials(manager, experiment_id)
        assert [trial.status for trial in rows[:3]] == [TrialStatus.SUCCEEDED] * 3
        assert rows[3].status is TrialStatus.EARLY_STOPPED
        assert rows[3].reason == "stopped early by the assessor"
        assert rows[3].intermediate_count < 20
        log = await manager.control.read(lambda c: dispatcher_inputs.after(c, experiment_id, 0, 1000))
        ends = [row.payload for row in log if row.kind == "TrialEnd"]
        assert (ends[3]["status"], ends[3]["value"]) == ("EARLY_STOPPED", result)
        assert ends[3]["has_value"] is (result is not None)

    play(tmp_path, scenario, script=script)


@played(play)
async def test_limits_change_while_it_runs_and_bring_a_done_experiment_back(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    experiment_id = await create(manager, tmp_path, maxTrialNumber=2)
    await simulation.ended(manager, experiment_id)
    await manager.update_experiment(experiment_id, max_trial_number=5, trial_concurrency=1)
    assert (await manager.experiment(experiment_id)).status is ExperimentStatus.RUNNING
    await simulation.ended(manager, experiment_id)
    assert len(await all_trials(manager, experiment_id)) == 5
    await manager.update_experiment(experiment_id, max_trial_number=UNLIMITED, max_experiment_seconds=100.0)
    row = await simulation.ended(manager, experiment_id)
    assert row.reason == "maxExperimentDuration 100 s is over"
    assert 100 <= row.active_seconds < 110


def test_the_time_that_it_runs_goes_on_while_its_last_trials_do_but_not_in_a_pause(tmp_path: Path) -> None:
    def long_trial(form: TrialJobForm) -> Iterable[Step]:
        yield Final(100.0, 1.0)

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        experiment_id = await create(manager, tmp_path, maxTrialNumber=3, trialConcurrency=1)

        async def running_for() -> float:
            return manager.active_seconds(await manager.experiment(experiment_id))

        await asyncio.sleep(50.0)  # nothing happens, and nothing is written
        assert await running_for() == pytest.approx(50.0, abs=2.0)
        await manager.pause_experiment(experiment_id)
        await asyncio.sleep(500.0)
        assert await running_for() == pytest.approx(50.0, abs=2.0)
        await manager.resume_experiment(experiment_id)
        await asyncio.sleep(150.0)
        assert (await manager.experiment(experiment_id)).status is ExperimentStatus.NO_MORE_TRIAL
        assert await running_for() == pytest.approx(200.0, abs=2.0)
        row = await simulation.ended(manager, experiment_id)
        await asyncio.sleep(50.0)
        assert row.active_seconds == await running_for() == pytest.approx(250.0, abs=2.0)

    play(tmp_path, scenario, script=long_trial)


def test_a_limit_that_takes_the_place_of_a_raised_one_is_named(tmp_path: Path) -> None:
    def long_trial(form: TrialJobForm) -> Iterable[Step]:
        yield Final(100.0, 1.0)

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        experiment_id = await create(manager, tmp_path, maxTrialNumber=1, trialConcurrency=1, maxExperimentDuration=60)
        await asyncio.sleep(80.0)
        assert (await manager.experiment(experiment_id)).reason == "maxTrialNumber 1 is reached"
        row = await manager.update_experiment(experiment_id, max_trial_number=5)
        assert (row.status, row.reason) == (ExperimentStatus.NO_MORE_TRIAL, "maxExperimentDuration 60 s is over")
        await manager.update_experiment(experiment_id, max_experiment_seconds=1000.0)
        await simulation.ended(manager, experiment_id)
        assert len(await all_trials(manager, experiment_id)) == 5

    play(tmp_path, scenario, script=long_trial)


@played(play)
async def test_a_finite_space_ends_when_the_tuner_has_no_more(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    space = {"n": {"_type": "choice", "_value": [1, 2, 3]}}
    experiment_id = await create(
        manager, tmp_path, searchSpace=space, tuner={"name": "GridSearch"}, maxTrialNumber=None
    )
    row = await simulation.ended(manager, experiment_id)
    assert (row.status, row.reason) == (ExperimentStatus.DONE, "the tuner has no more suggestions")
    assert [t.parameters for t in await all_trials(manager, experiment_id)] == [{"n": 1}, {"n": 2}, {"n": 3}]
    wider = {"n": {"_type": "choice", "_value": [1, 2, 3, 4]}}
    await manager.update_experiment(experiment_id, search_space=wider)
    await simulation.ended(manager, experiment_id)
    assert {"n": 4} in [t.parameters for t in await all_trials(manager, experiment_id)]


@played(play)
async def test_stop_keeps_waiting_and_running_trials_for_a_resume(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    experiment_id = await create(manager, tmp_path, maxTrialNumber=6)
    await asyncio.sleep(6.0)
    await manager.stop_experiment(experiment_id)
    row = await simulation.ended(manager, experiment_id)
    assert row.status is ExperimentStatus.STOPPED
    kept = [trial for trial in await all_trials(manager, experiment_id) if not trial.status.is_terminal]
    assert {trial.status for trial in kept} == {TrialStatus.WAITING}
    assert kept
    await manager.resume_experiment(experiment_id)
    await simulation.ended(manager, experiment_id)
    rows = await all_trials(manager, experiment_id)
    assert len(rows) == 6
    assert {trial.status for trial in rows} == {TrialStatus.SUCCEEDED}
    assert len({trial.parameter_id for trial in rows}) == 6


@played(play)
async def test_pause_creates_no_new_trials_until_resumed(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    experiment_id = await create(manager, tmp_path)
    await asyncio.sleep(1.0)
    await manager.pause_experiment(experiment_id)
    await asyncio.sleep(100.0)
    assert len(await all_trials(manager, experiment_id)) == 2
    await manager.resume_experiment(experiment_id)
    await simulation.ended(manager, experiment_id)
    assert len(await all_trials(manager, experiment_id)) == 6


@played(play)
async def test_a_killed_trial_is_canceled_by_the_user_and_can_be_run_again_as_a_new_one(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    experiment_id = await create(manager, tmp_path)
    await asyncio.sleep(1.5)
    first = (await all_trials(manager, experiment_id))[0]
    await manager.trials.kill(first.id)
    await simulation.ended(manager, experiment_id)
    killed = await manager.trials.get(first.id)
    assert (killed.status, killed.reason) == (TrialStatus.USER_CANCELED, "canceled by the user")
    with pytest.raises(Conflict, match="is USER_CANCELED already"):
        await manager.trials.kill(first.id)
    again = await manager.trials.retry(first.id)
    await asyncio.sleep(60.0)
    again = await manager.trials.get(again.id)
    assert (again.status, again.parameters) == (TrialStatus.SUCCEEDED, first.parameters)


@played(play)
async def test_a_customized_trial_is_told_to_the_tuner_with_its_result(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    experiment_id = await create(manager, tmp_path)
    added = await manager.trials.add(experiment_id, {"x": 0.25, "n": 2})
    await simulation.ended(manager, experiment_id)
    assert (await manager.trials.get(added.id)).status is TrialStatus.SUCCEEDED
    log = await manager.control.read(lambda c: dispatcher_inputs.after(c, experiment_id, 0, 1000))
    assert [row.payload["parameters"] for row in log if row.kind == "AddCustomizedTrial"] == [{"x": 0.25, "n": 2}]
    (end,) = [row.payload for row in log if row.kind == "TrialEnd" and row.payload["customized"]]
    assert end["parameter_id"] == added.parameter_id


def test_a_restarted_manager_goes_on_with_the_same_jobs(tmp_path: Path) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        simulation = Simulation(Home(tmp_path / "home"), loop, script=three_reports)
        async with simulation.manager() as manager:
            experiment_id = await create(manager, tmp_path)
            await asyncio.sleep(5.5)
        async with simulation.manager() as manager:
            await simulation.ended(manager, experiment_id)
            rows = await all_trials(manager, experiment_id)
            assert [trial.jobs for trial in rows] == [1] * 6
            assert {trial.intermediate_count for trial in rows} == {3}
            live = await manager.control.read(lambda c: jobs.live(c, experiment_id))
            assert live == []

    run_virtual(main)


def test_an_idle_trial_costs_at_most_three_commits_of_the_control_and_metrics_databases(tmp_path: Path) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        yield Final(0.0, 1.0)
        yield ScriptedExit(0.0)

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        experiment_id = await create(manager, tmp_path, trialConcurrency=1, maxTrialNumber=50)
        await simulation.ended(manager, experiment_id)
        metrics = await manager.metrics(experiment_id)
        assert (manager.control.commits + metrics.commits) / 50 <= 3.2  # and a few for the experiment itself

    play(tmp_path, scenario, script=script)


def test_a_retried_trial_continues_from_its_newest_registered_checkpoint(tmp_path: Path) -> None:
    forms: list[TrialJobForm] = []

    def script(form: TrialJobForm) -> Iterable[Step]:
        forms.append(form)
        yield ScriptedReport(1.0, 0.1)
        yield ScriptedReport(1.0, 0.2)
        if form.number == 1:
            yield saved(form, 1, step=2)
            yield ScriptedReport(1.0, 0.9)  # after the checkpoint: it is not part of the curve that continues
            yield ScriptedExit(1.0, EndReason.NODE_LOST, code=None)
        yield Final(1.0, 0.5)

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        experiment_id = await create(manager, tmp_path, maxTrialNumber=1, assessor={"name": "Medianstop"})
        await simulation.ended(manager, experiment_id)
        first, second = forms
        assert first.resume_checkpoint is None
        assert second.resume_checkpoint == f"{first.directory}/output/checkpoints/1"
        (trial,) = await all_trials(manager, experiment_id)
        assert [(point.job, point.sequence, point.value) for point in await curve(manager, trial)] == [
            (1, 0, 0.1),
            (1, 1, 0.2),
            (2, 2, 0.1),
            (2, 3, 0.2),
        ]
        _, job = await attempts(manager, trial)
        assert (job.parent_job, job.resumed_from_job, job.resumed_from_step) == (f"{trial.id}.1", f"{trial.id}.1", 2)
        log = await manager.control.read(lambda c: dispatcher_inputs.after(c, experiment_id, 0, 1000))
        (restart,) = [row.payload for row in log if row.kind == "TrialRestarted"]
        assert (restart["job_number"], restart["from_sequence"]) == (2, 2)
        assert job.start_reason == "from checkpoint 1 of job 1"

    play(tmp_path, scenario, script=script)


def test_a_service_that_cannot_read_the_checkpoint_says_so_and_the_curve_starts_over(tmp_path: Path) -> None:
    forms: list[TrialJobForm] = []

    def script(form: TrialJobForm) -> Iterable[Step]:
        forms.append(form)
        if form.number == 1:
            yield ScriptedReport(1.0, 0.1)
            record = {"kind": "checkpoint", "path": "output/checkpoints/1", "step": 1, "time": 1.0}
            yield Raw(0.0, json.dumps(record).encode() + b"\n")
            yield ScriptedExit(1.0, EndReason.NODE_LOST, code=None)
        reason = "from the start: checkpoint 1 of job 1 is on node gpu-1, which is lost"
        yield Wait(0.0, "waiting: the code is being copied", JobStart(None, reason))
        yield ScriptedReport(1.0, 0.3)
        yield Final(1.0, 0.5)

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        experiment_id = await create(manager, tmp_path, maxTrialNumber=1, assessor={"name": "Medianstop"})
        await simulation.ended(manager, experiment_id)
        first, second = forms
        assert second.resume_checkpoint == f"{first.directory}/output/checkpoints/1"  # not on this machine
        (trial,) = await all_trials(manager, experiment_id)
        _, job = await attempts(manager, trial)
        assert (job.resumed_from_job, job.resumed_from_step, job.resume_checkpoint) == (None, None, None)
        assert job.start_reason.startswith("from the start: checkpoint 1 of job 1")
        assert [(point.job, point.sequence) for point in await curve(manager, trial)] == [(2, 0)]
        log = await manager.control.read(lambda c: dispatcher_inputs.after(c, experiment_id, 0, 1000))
        restarts = [row.payload["from_sequence"] for row in log if row.kind == "TrialRestarted"]
        assert restarts == [1, 0]

    play(tmp_path, scenario, script=script, kind=CheckpointingSimulation)


def test_a_job_that_continues_an_older_one_than_the_last_continues_its_curve(tmp_path: Path) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        if form.number == 1:
            for step in range(3):
                yield ScriptedReport(1.0, step / 10)
            record = {"kind": "checkpoint", "path": "output/checkpoints/1", "step": 3, "time": 1.0}
            yield Raw(0.0, json.dumps(record).encode() + b"\n")
        if form.number == 2:
            yield Wait(0.0, "", JobStart(None, "from the start: checkpoint 1 of job 1 is on node gpu-1"))
            yield ScriptedReport(1.0, 0.5)
        if form.number < 3:
            yield ScriptedExit(1.0, EndReason.NODE_LOST, code=None)
        yield ScriptedReport(1.0, 0.3)
        yield Final(1.0, 0.5)

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        experiment_id = await create(manager, tmp_path, maxTrialNumber=1)
        await simulation.ended(manager, experiment_id)
        (trial,) = await all_trials(manager, experiment_id)
        points = [(point.job, point.sequence, point.value) for point in await curve(manager, trial)]
        assert points == [(1, 0, 0.0), (1, 1, 0.1), (1, 2, 0.2), (3, 3, 0.3)]

    play(tmp_path, scenario, script=script, kind=CheckpointingSimulation)


def test_the_log_tells_of_every_move_with_the_ids_it_is_about(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        experiment_id = await create(manager, tmp_path, maxTrialNumber=1)
        await simulation.ended(manager, experiment_id)
        (trial,) = await all_trials(manager, experiment_id)
        logged = [
            (line.getMessage(), line.action, line.trial_id if hasattr(line, "trial_id") else None)  # type: ignore[attr-defined]
            for line in caplog.records
            if getattr(line, "experiment_id", None) == experiment_id
        ]
        assert logged == [
            (f"experiment {experiment_id} is RUNNING", "experiment.start", None),
            (
                f"experiment {experiment_id} is NO_MORE_TRIAL: maxTrialNumber 1 is reached",
                "experiment.reach_limit",
                None,
            ),
            ("trial 0 is RUNNING", "trial.start", trial.id),
            ("trial 0 is SUCCEEDED", "trial.succeed", trial.id),
            (f"experiment {experiment_id} is DONE: maxTrialNumber 1 is reached", "experiment.drain", None),
        ]

    play(tmp_path, scenario)


@played(play)
async def test_stop_all_leaves_what_is_done_as_it_is(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    done = await create(manager, tmp_path, maxTrialNumber=1)
    await simulation.ended(manager, done)
    running = await create(manager, tmp_path)
    await asyncio.sleep(1.0)
    assert await manager.stop_all() == [running]
    assert (await simulation.ended(manager, running)).status is ExperimentStatus.STOPPED
    assert (await manager.experiment(done)).status is ExperimentStatus.DONE


def test_a_torn_last_record_is_shown_and_not_dropped(tmp_path: Path) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        yield ScriptedReport(1.0, 0.5)
        yield Raw(1.0, b'{"kind": "intermediate", "val')
        yield ScriptedExit(0.0, EndReason.EXITED_ERROR, code=1)

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        experiment_id = await create(manager, tmp_path, maxTrialNumber=1)
        await simulation.ended(manager, experiment_id)
        (trial,) = await all_trials(manager, experiment_id)
        metrics = await manager.metrics(experiment_id)
        rows = await metrics.read(lambda c: metric_store.page(c, trial.id, limit=10))
        assert [row.kind for row in rows] == ["intermediate", "unreadable"]
        happened = await manager.control.read(lambda c: events.after(c, 0, experiment_id=experiment_id, limit=1000))
        notices = [event.data["text"] for event in happened if event.kind == "notice"]
        assert "1 journal records could not be read" in notices

    play(tmp_path, scenario, script=script)


def test_a_journal_that_was_written_anew_is_noticed_with_the_number_of_its_trial(tmp_path: Path) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        yield ScriptedReport(1.0, 0.5)
        yield Raw(1.0, b'{"kind": "lost", "why": "the trial rewrote its journal", "time": 1.0}\n')
        yield ScriptedExit(0.0, EndReason.EXITED_ERROR, code=1)

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        experiment_id = await create(manager, tmp_path, maxTrialNumber=1)
        await simulation.ended(manager, experiment_id)
        notices = await manager.control.read(lambda c: events.notices(c, experiment_id))
        assert "trial 0: the trial rewrote its journal" in notices

    play(tmp_path, scenario, script=script)


def test_a_tuner_that_had_nothing_to_suggest_is_asked_again_when_a_trial_ends(tmp_path: Path) -> None:
    (tmp_path / "patient.py").write_text(
        "import proctor.sdk.tuner as base\n"
        "class Patient(base.Tuner):\n"
        "    results = 0\n"
        "    def update_search_space(self, search_space): pass\n"
        "    def generate_parameters(self, parameter_id, **kwargs):\n"
        "        if parameter_id > 0 and self.results == 0:\n"
        "            raise base.NoMoreTrialError('the first result first')\n"
        "        return {'x': self.results}\n"
        "    def receive_trial_result(self, *args, **kwargs): self.results += 1\n"
    )

    async def main(loop: VirtualTimeLoop) -> None:
        simulation = Simulation(Home(tmp_path / "home"), loop, script=three_reports)
        async with simulation.manager() as manager:
            tuner = {"className": "patient.Patient", "codeDirectory": str(tmp_path)}
            experiment_id = await create(manager, tmp_path, tuner=tuner, maxTrialNumber=3)
            row = await simulation.ended(manager, experiment_id)
            assert row.reason == "maxTrialNumber 3 is reached"
            assert (await all_trials(manager, experiment_id))[0].parameters["x"] == 0
            assert len(await all_trials(manager, experiment_id)) == 3

    run_virtual(main)


@played(play)
async def test_wrong_configurations_and_unknown_ids_are_refused_with_a_sentence(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    with pytest.raises(BadRequest, match="trialConcurrency"):
        await create(manager, tmp_path, trialConcurrency="many")
    with pytest.raises(NotFound, match="there is no experiment 'nowhere'"):
        await manager.stop_experiment("nowhere")
    experiment_id = await create(manager, tmp_path)
    with pytest.raises(Conflict, match="already exists"):
        await manager.create_experiment(config=config(), directory=str(tmp_path), experiment_id=experiment_id)
    with pytest.raises(Conflict, match="stop it before you delete it"):
        await manager.delete_experiment(experiment_id)


class DeafService(InMemoryTrainingService):
    """Its jobs do not hear that they should end."""

    async def cancel_trial_job(self, job_id: str, is_early_stopped: bool = False) -> None:
        return


class DeafSimulation(Simulation):
    """Jobs run on a `DeafService`."""

    def _create_service(self, platform: str, context: ServiceContext) -> TrainingService:
        jobs = self.platforms.setdefault(context.experiment_id, InMemoryPlatform(self.clock.now))
        return DeafService(self._script, platform=jobs, now=self.clock.now)


def test_an_experiment_that_is_being_stopped_names_the_machine_it_waits_for(tmp_path: Path) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        yield ScriptedStart(1.0, node_id="gpu-2" if form.sequence_id else "gpu-1")
        yield Hang()

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        for node_id, status in (("gpu-1", NodeStatus.SILENT), ("gpu-2", NodeStatus.CONNECTED)):
            manager.pool.add(node_id, "remote")
            manager.pool.set_status(node_id, status, "it hung up" if status is NodeStatus.SILENT else "")
        experiment_id = await create(manager, tmp_path)
        await asyncio.sleep(60.0)
        assert manager.awaited(await manager.experiment(experiment_id)) == ""
        await manager.stop_experiment(experiment_id)
        row = await manager.experiment(experiment_id)
        assert row.status is ExperimentStatus.STOPPING
        waits = "waits for 1 trial on node gpu-1 (node gpu-1 is silent: it hung up) and 1 trial on node gpu-2"
        assert manager.awaited(row) == waits
        with pytest.raises(Conflict) as refused:
            await manager.delete_experiment(experiment_id)
        assert str(refused.value) == (
            f"experiment {experiment_id} is being stopped: it {waits}; delete it when it is STOPPED"
        )

    play(tmp_path, scenario, script=script, kind=DeafSimulation)


def test_a_node_that_only_the_platform_knows_is_not_called_unknown(tmp_path: Path) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        yield ScriptedStart(1.0, node_id="hpc-17")
        yield Hang()

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        experiment_id = await create(manager, tmp_path)
        await asyncio.sleep(60.0)
        await manager.stop_experiment(experiment_id)
        assert manager.awaited(await manager.experiment(experiment_id)) == "waits for 2 trials on node hpc-17"

    play(tmp_path, scenario, script=script, kind=DeafSimulation)


@played(play)
async def test_deleting_an_experiment_leaves_no_row_and_no_folder(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    experiment_id = await create(manager, tmp_path)
    await asyncio.sleep(1.0)
    await manager.stop_experiment(experiment_id)
    row = await simulation.ended(manager, experiment_id)
    await asyncio.sleep(1.0)
    await manager.delete_experiment(experiment_id)
    assert not Path(row.directory).exists()
    with pytest.raises(NotFound):
        await manager.experiment(experiment_id)


def test_a_trial_whose_final_was_lost_runs_again_and_has_not_succeeded_without_one(tmp_path: Path) -> None:
    """Trial 0 loses it once, trial 1 every time; trial 2 loses intermediates and that of rank 1, which does not
    count."""

    def script(form: TrialJobForm) -> Iterable[Step]:
        yield ScriptedReport(1.0, 1.0)
        if form.sequence_id == 2:
            yield ScriptedExit(lost=3, lost_finals=(1,), detail="3 reports were lost: its disk was full")
        elif form.sequence_id == 0 and form.number == 2:
            yield Final(1.0, 0.5)
        else:
            yield ScriptedExit(lost=1, lost_finals=(0,), detail="1 report was lost, its final metric among them")

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        experiment_id = await create(manager, tmp_path, maxTrialNumber=3, maxInfrastructureRetries=1)
        await simulation.ended(manager, experiment_id)
        again, never, without = await all_trials(manager, experiment_id)
        assert (again.status, again.final_value, again.jobs) == (TrialStatus.SUCCEEDED, 0.5, 2)
        assert (never.status, never.final_value, never.jobs) == (TrialStatus.FAILED, None, 2)
        assert "its final metric among them" in never.reason
        assert (without.status, without.jobs) == (TrialStatus.SUCCEEDED, 1)
        first = await manager.control.read(lambda c: jobs.get(c, f"{again.id}.1"))
        assert first.end_reason is EndReason.RESULT_LOST

    play(tmp_path, scenario, script=script)


def test_a_trial_given_back_by_a_full_disk_costs_nothing_however_often(tmp_path: Path) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        if form.number < 9:
            yield ScriptedExit(0.0, EndReason.NO_ROOM, None, detail="its disk is full (/data); free some space")
        yield Final(1.0, 0.5)

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        experiment_id = await create(manager, tmp_path, maxTrialNumber=1, maxInfrastructureRetries=0)
        await simulation.ended(manager, experiment_id)
        (trial,) = await all_trials(manager, experiment_id)
        assert (trial.status, trial.jobs) == (TrialStatus.SUCCEEDED, 9)
        assert (trial.failures, trial.infrastructure_failures) == (0, 0)

    play(tmp_path, scenario, script=script)
