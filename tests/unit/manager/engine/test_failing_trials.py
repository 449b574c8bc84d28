"""Experiments whose trials fail with one cause, or too often: they go to ERROR, and a resume starts over."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from fakes.small_experiments import all_trials, play, played
from unit.manager.engine.test_engine_run import create

from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.rows import ExperimentRow
from proctor.manager.store.tables import events
from proctor.training_services.base import EndReason, TrialJobForm
from proctor.training_services.in_memory.scripts import Final, Hang, Script, ScriptedExit, Step

DONE, ERROR = ExperimentStatus.DONE, ExperimentStatus.ERROR
ADVICE = "; correct it, then resume the experiment"


def failing(form: TrialJobForm) -> Iterable[Step]:
    detail = f"exit code 1: OSError: /scratch/{form.trial_id}/part-{form.sequence_id} at 0x7f{form.sequence_id:04x}"
    yield ScriptedExit(1.0, EndReason.EXITED_ERROR, code=1, detail=detail)


def ending_as(*ends: EndReason | None) -> Script:
    """Trials that end so in the order of their numbers, those after them as the last one; None: they succeed."""

    def script(form: TrialJobForm) -> Iterable[Step]:
        end = ends[min(form.sequence_id, len(ends) - 1)]
        yield Final(1.0, 1.0) if end is None else ScriptedExit(1.0, end)

    return script


def outcome(tmp_path: Path, script: Script, **changes: Any) -> tuple[ExperimentRow, dict[TrialStatus, int]]:
    """Where an experiment comes to rest, and how many trials are in each status."""
    found: list[ExperimentRow] = []
    counts: dict[TrialStatus, int] = {}

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        experiment_id = await create(manager, tmp_path, **changes)
        found.append(await simulation.ended(manager, experiment_id))
        for trial in await all_trials(manager, experiment_id):
            counts[trial.status] = counts.get(trial.status, 0) + 1

    play(tmp_path, scenario, script=script)
    return found[0], counts


def test_ten_first_trials_that_fail_with_one_cause_end_the_experiment(tmp_path: Path) -> None:
    row, counts = outcome(tmp_path, failing, maxTrialNumber=100, trialConcurrency=1)
    assert row.status is ERROR
    assert row.reason.startswith("the first 10 trials that have ended failed with one cause: EXITED_ERROR (exit code 1")
    assert row.reason.endswith(ADVICE)
    assert counts == {TrialStatus.FAILED: 10}


@pytest.mark.parametrize(("number", "said"), [(1, "the only finished trial failed"), (3, "all 3 trials")])
def test_fewer_trials_that_all_fail_with_one_cause_are_an_error_when_they_are_all(
    tmp_path: Path, number: int, said: str
) -> None:
    row, counts = outcome(tmp_path, failing, maxTrialNumber=number)
    assert row.status is ERROR
    assert row.reason.startswith(said)
    assert counts == {TrialStatus.FAILED: number}


def test_one_trial_among_the_first_ten_that_works_lets_the_experiment_go_on(tmp_path: Path) -> None:
    for number, works in enumerate((None, EndReason.DEADLINE, EndReason.EARLY_STOPPED)):
        ends = [EndReason.EXITED_ERROR] * 9 + [works, EndReason.EXITED_ERROR]
        row, counts = outcome(tmp_path / str(number), ending_as(*ends), maxTrialNumber=30, trialConcurrency=1)
        assert (row.status, counts[TrialStatus.FAILED]) == (DONE, 29)


def test_different_causes_let_the_experiment_go_on(tmp_path: Path) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        error = "ValueError: depth" if form.sequence_id == 9 else "KeyError: width"
        yield ScriptedExit(1.0, EndReason.EXITED_ERROR, code=1, detail=f"exit code 1: {error}")

    row, _ = outcome(tmp_path / "messages", script, maxTrialNumber=12, trialConcurrency=1)
    assert row.status is DONE
    ends = [EndReason.EXITED_ERROR] * 9 + [EndReason.OUT_OF_MEMORY]
    row, _ = outcome(tmp_path / "reasons", ending_as(*ends), maxTrialNumber=12, trialConcurrency=1)
    assert row.status is DONE


def test_what_infrastructure_ends_is_no_failure_of_the_trials(tmp_path: Path) -> None:
    for number, end in enumerate((EndReason.NODE_LOST, EndReason.CANCELED, EndReason.INFRASTRUCTURE)):
        changes = {"maxTrialNumber": 12, "maxInfrastructureRetries": 0, "maxFailedTrials": 2}
        row, counts = outcome(tmp_path / str(number), ending_as(end), **changes)
        assert (row.status, counts) == (DONE, {TrialStatus.SYS_CANCELED: 12})


def test_an_exit_code_that_is_to_be_retried_is_charged_to_infrastructure(tmp_path: Path) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        if form.number <= 7:
            yield ScriptedExit(1.0, EndReason.EXITED_ERROR, code=75 if form.sequence_id == 0 else 1)
        yield Final(1.0, 1.0)

    budgets = {"maxTrialRetries": 0, "maxInfrastructureRetries": -1}
    _, counts = outcome(tmp_path, script, maxTrialNumber=2, retryExitCodes=75, **budgets)
    assert counts == {TrialStatus.SUCCEEDED: 1, TrialStatus.FAILED: 1}


def test_trials_that_the_platform_refuses_for_good_fail_with_one_cause(tmp_path: Path) -> None:
    row, counts = outcome(tmp_path, ending_as(EndReason.UNPLACEABLE), maxTrialNumber=30, trialConcurrency=1)
    assert (row.status, counts) == (ERROR, {TrialStatus.SYS_CANCELED: 10})


def test_trials_that_the_user_kills_are_no_failures(tmp_path: Path) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        if form.sequence_id < 9:
            yield ScriptedExit(1.0, EndReason.EXITED_ERROR)
        yield Hang()

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        experiment_id = await create(manager, tmp_path, maxTrialNumber=11, trialConcurrency=1, maxFailedTrials=10)
        for number in (9, 10):
            await asyncio.sleep(60.0)
            rows = await all_trials(manager, experiment_id)
            assert rows[number].status is TrialStatus.RUNNING
            assert (await manager.experiment(experiment_id)).status is not ERROR
            await manager.trials.kill(rows[number].id)
        row = await simulation.ended(manager, experiment_id)
        assert row.status is ERROR  # its other nine trials have failed, and no more come
        assert row.reason.startswith("all 9 trials that have ended failed with one cause")

    play(tmp_path, scenario, script=script)


def test_max_failed_trials_counts_failures_of_all_causes(tmp_path: Path) -> None:
    ends = [None, EndReason.EXITED_ERROR, None, EndReason.OUT_OF_MEMORY, None, EndReason.EXITED_ERROR]
    row, counts = outcome(tmp_path, ending_as(*ends), maxTrialNumber=50, trialConcurrency=1, maxFailedTrials=4)
    assert row.status is ERROR
    assert row.reason.startswith("4 trials have failed, maxFailedTrials is 4; the first one: EXITED_ERROR (")
    assert counts == {TrialStatus.SUCCEEDED: 3, TrialStatus.FAILED: 4}


def test_a_retried_trial_fails_once(tmp_path: Path) -> None:
    changes = {"maxTrialNumber": 3, "maxTrialRetries": 4, "maxFailedTrials": 4, "trialConcurrency": 1}
    row, counts = outcome(tmp_path, ending_as(EndReason.EXITED_ERROR, None), **changes)
    assert (row.status, counts) == (DONE, {TrialStatus.FAILED: 1, TrialStatus.SUCCEEDED: 2})


def test_running_trials_go_on_and_nothing_new_is_started(tmp_path: Path) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        yield Final(500.0, 1.0) if form.sequence_id == 0 else ScriptedExit(1.0, EndReason.EXITED_ERROR)

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        experiment_id = await create(manager, tmp_path, maxTrialNumber=50)
        row = await simulation.ended(manager, experiment_id)
        before = [trial.status for trial in await all_trials(manager, experiment_id)]
        assert (row.status, before[0], before.count(TrialStatus.FAILED)) == (ERROR, TrialStatus.RUNNING, 10)
        await asyncio.sleep(1000.0)
        after = [trial.status for trial in await all_trials(manager, experiment_id)]
        assert (after[0], after[1:]) == (TrialStatus.SUCCEEDED, before[1:])

    play(tmp_path, scenario, script=script)


def test_a_resumed_experiment_counts_anew_and_leaves_out_what_ran_before(tmp_path: Path) -> None:
    is_repaired = False

    def script(form: TrialJobForm) -> Iterable[Step]:
        if form.sequence_id >= 10:  # these are running when the experiment fails, and end after it was resumed
            yield from () if is_repaired else (ScriptedExit(300.0, EndReason.EXITED_ERROR),)
        elif not is_repaired:
            yield ScriptedExit(1.0, EndReason.EXITED_ERROR)
        yield Final(1.0, 1.0)

    async def scenario(simulation: Simulation, manager: Manager) -> None:
        nonlocal is_repaired
        experiment_id = await create(manager, tmp_path, maxTrialNumber=40, trialConcurrency=20, maxFailedTrials=10)
        assert (await simulation.ended(manager, experiment_id)).status is ERROR
        is_repaired = True
        await manager.resume_experiment(experiment_id)
        row = await simulation.ended(manager, experiment_id)
        statuses = [trial.status for trial in await all_trials(manager, experiment_id)]
        assert (row.status, row.resumes) == (DONE, 1)
        assert statuses.count(TrialStatus.FAILED) == 20
        assert statuses.count(TrialStatus.SUCCEEDED) == 20

    play(tmp_path, scenario, script=script)


@played(play, script=failing)
async def test_a_resume_that_has_nothing_left_to_do_does_not_fail_again(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    experiment_id = await create(manager, tmp_path, maxTrialNumber=3)
    assert (await simulation.ended(manager, experiment_id)).status is ERROR
    await manager.resume_experiment(experiment_id)
    row = await simulation.ended(manager, experiment_id)
    assert (row.status, row.reason) == (DONE, "maxTrialNumber 3 is reached")
    await manager.update_experiment(experiment_id, max_trial_number=20)
    row = await simulation.ended(manager, experiment_id)
    statuses = [trial.status for trial in await all_trials(manager, experiment_id)]
    assert (row.status, row.failed_trials, statuses.count(TrialStatus.FAILED)) == (ERROR, 10, 13)


@pytest.mark.parametrize("restarts", [1, 4])
def test_the_counts_survive_restarts_of_the_manager(tmp_path: Path, restarts: int) -> None:
    async def main(loop: VirtualTimeLoop) -> None:
        simulation = Simulation(Home(tmp_path / "home"), loop, script=failing)
        async with simulation.manager() as manager:
            experiment_id = await create(manager, tmp_path, maxTrialNumber=100, trialConcurrency=1)
        for number in range(1, restarts + 1):
            async with simulation.manager() as manager:
                await asyncio.sleep(2.0)
                row = await manager.experiment(experiment_id)
                assert (row.status, row.failed_trials >= number) == (ExperimentStatus.RUNNING, True)
        async with simulation.manager() as manager:
            row = await simulation.ended(manager, experiment_id)
            rows = await all_trials(manager, experiment_id)
        assert (row.status, len(rows)) == (ERROR, 10)

    run_virtual(main)


@played(play, script=ending_as(EndReason.EXITED_OK))
async def test_a_trial_without_a_final_metric_is_noticed_and_says_so(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    experiment_id = await create(manager, tmp_path, maxTrialNumber=12, trialConcurrency=1)
    assert (await simulation.ended(manager, experiment_id)).status is DONE
    rows = await all_trials(manager, experiment_id)
    assert {(row.status, row.reason) for row in rows} == {(TrialStatus.SUCCEEDED, "no final metric was reported")}
    shown = await manager.control.read(lambda c: events.notices(c, experiment_id))
    found = [text for text in shown if "without a final metric" in text]
    assert [text.split(":")[0] for text in found] == [
        "trial 0 has ended without a final metric (it is the first one)",
        "trial 9 has ended without a final metric (10 trials have by now)",
    ]


@played(play, script=ending_as(None))
async def test_a_trial_with_a_final_metric_gives_no_such_notice(
    simulation: Simulation, manager: Manager, /, tmp_path: Path
) -> None:
    experiment_id = await create(manager, tmp_path, maxTrialNumber=2)
    await simulation.ended(manager, experiment_id)
    assert {row.reason for row in await all_trials(manager, experiment_id)} == {""}
    shown = await manager.control.read(lambda c: events.notices(c, experiment_id))
    assert not [text for text in shown if "final metric" in text]
