"""A trial whose final metric is stored, under virtual time: it is over, however its job ends."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from fakes.small_experiments import SMALL

from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.rows import TrialJobRow, TrialRow
from proctor.manager.store.tables import dispatcher_inputs, events, jobs, trials
from proctor.training_services.base import EndReason, TrialJobForm
from proctor.training_services.in_memory.scripts import Final, Hang, Script, ScriptedExit, Step, Wait

CONFIG = SMALL | {"maxTrialNumber": 1, "maxInfrastructureRetries": 0, "seed": 7}

Scenario = Callable[[Simulation, Manager, str], Awaitable[None]]


def play(tmp_path: Path, script: Script, scenario: Scenario, **changes: Any) -> None:
    """Create an experiment of one trial on a fresh home under virtual time, and run the scenario."""

    async def main(loop: VirtualTimeLoop) -> None:
        simulation = Simulation(Home(tmp_path / "home"), loop, script=script)
        async with simulation.manager() as manager:
            row = await manager.create_experiment(config={**CONFIG, **changes}, directory=str(tmp_path))
            await scenario(simulation, manager, row.id)

    run_virtual(main)


async def the_trial(manager: Manager, experiment_id: str) -> tuple[TrialRow, list[TrialJobRow]]:
    """The only trial, and its jobs."""
    page = await manager.control.read(lambda c: trials.page(c, experiment_id, limit=10))
    (row,) = page.items
    return row, await manager.control.read(lambda c: jobs.of_trial(c, row.id))


@pytest.mark.parametrize(
    "reason", [EndReason.SIGNALED, EndReason.EXIT_UNKNOWN, EndReason.NODE_LOST, EndReason.OUT_OF_MEMORY]
)
def test_a_trial_that_is_killed_after_its_final_metric_has_succeeded_and_does_not_run_again(
    reason: EndReason, tmp_path: Path
) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        yield Final(1.0, 0.5 if form.number == 1 else 0.9)
        yield ScriptedExit(1.0, reason, code=None, detail="it was killed")

    async def scenario(simulation: Simulation, manager: Manager, experiment_id: str) -> None:
        await simulation.ended(manager, experiment_id)
        row, attempts = await the_trial(manager, experiment_id)
        assert (row.status, row.final_value, len(attempts)) == (TrialStatus.SUCCEEDED, 0.5, 1)
        how = f"its final metric is stored; its job ended afterwards as {reason.value} (it was killed)"
        assert row.reason == how
        notices = await manager.control.read(lambda c: events.notices(c, experiment_id))
        assert f"trial 0 has succeeded: {how}" in notices
        log = await manager.control.read(lambda c: dispatcher_inputs.after(c, experiment_id, 0, 100))
        assert [(row.payload["status"], row.payload["value"]) for row in log if row.kind == "TrialEnd"] == [
            ("SUCCEEDED", 0.5)
        ]

    play(tmp_path, script, scenario, maxInfrastructureRetries=3)


def test_a_command_that_fails_after_its_final_metric_has_failed_and_is_not_retried(tmp_path: Path) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        yield Final(1.0, 0.5)
        yield ScriptedExit(1.0, EndReason.EXITED_ERROR, code=3)

    async def scenario(simulation: Simulation, manager: Manager, experiment_id: str) -> None:
        await simulation.ended(manager, experiment_id)
        row, attempts = await the_trial(manager, experiment_id)
        assert (row.status, row.reason, len(attempts)) == (TrialStatus.FAILED, "exit code 3", 1)

    play(tmp_path, script, scenario, maxTrialRetries=5)


def test_a_trial_that_is_stopped_with_its_experiment_after_its_final_metric_does_not_run_again_on_resume(
    tmp_path: Path,
) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        yield Final(1.0, 0.5)
        yield Hang()

    async def scenario(simulation: Simulation, manager: Manager, experiment_id: str) -> None:
        await asyncio.sleep(10.0)
        await manager.stop_experiment(experiment_id)
        assert (await simulation.ended(manager, experiment_id)).status is ExperimentStatus.STOPPED
        row, attempts = await the_trial(manager, experiment_id)
        assert (row.status, attempts[0].end_reason) == (TrialStatus.SUCCEEDED, EndReason.EXPERIMENT_STOPPED)

    play(tmp_path, script, scenario)


def test_a_trial_that_the_user_cancels_after_its_final_metric_is_canceled(tmp_path: Path) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        yield Final(1.0, 0.5)
        yield Hang()

    async def scenario(simulation: Simulation, manager: Manager, experiment_id: str) -> None:
        await asyncio.sleep(10.0)
        row, _ = await the_trial(manager, experiment_id)
        await manager.trials.kill(row.id)
        await simulation.ended(manager, experiment_id)
        row, _ = await the_trial(manager, experiment_id)
        assert (row.status, row.final_value) == (TrialStatus.USER_CANCELED, 0.5)

    play(tmp_path, script, scenario)


def test_a_waiting_trial_of_an_earlier_version_whose_final_metric_is_stored_does_not_run_again(tmp_path: Path) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        yield Wait(1.0, "waiting: no node takes it")
        yield ScriptedExit(0.0, EndReason.NODE_LOST, code=None)

    async def main(loop: VirtualTimeLoop) -> None:
        simulation = Simulation(Home(tmp_path / "home"), loop, script=script)
        async with simulation.manager() as manager:
            config = {**CONFIG, "maxInfrastructureRetries": 5}
            experiment_id = (await manager.create_experiment(config=config, directory=str(tmp_path))).id
            await asyncio.sleep(1.5)
            row, _ = await the_trial(manager, experiment_id)
            assert row.status is TrialStatus.WAITING
            await manager.control.write(lambda c: trials.update(c, row.id, final_value=0.5, final_data=0.5))
        async with simulation.manager() as manager:
            assert (await simulation.ended(manager, experiment_id)).status is ExperimentStatus.DONE
            row, attempts = await the_trial(manager, experiment_id)
            assert (row.status, len(attempts)) == (TrialStatus.SUCCEEDED, 1)

    run_virtual(main)
