"""Trials of several processes under virtual time: the reports of one rank are the trial's, those of all are stored."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from fakes.small_experiments import SMALL

from proctor.manager.dispatcher.protocol import ReportMetrics
from proctor.manager.engine.loop.recovery import InputLog
from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.rows import TrialRow
from proctor.manager.store.tables import dispatcher_inputs, events, trials
from proctor.manager.store.tables import metrics as metric_store
from proctor.training_services.base import EndReason, TrialJobForm
from proctor.training_services.in_memory.scripts import Final, Hang, Raw, Script, ScriptedExit, ScriptedReport, Step

CONFIG = SMALL | {
    "trialCommand": "torchrun trial.py",
    "maxTrialNumber": 1,
    "seed": 7,
    "assessor": {"name": "Medianstop"},
}

Scenario = Callable[[Simulation], Awaitable[None]]


def play(tmp_path: Path, script: Script, scenario: Scenario) -> None:
    """Run a scenario on a fresh home under virtual time."""

    async def main(loop: VirtualTimeLoop) -> None:
        await scenario(Simulation(Home(tmp_path / "home"), loop, script=script))

    run_virtual(main)


async def create(manager: Manager, tmp_path: Path, **changes: Any) -> str:
    return (await manager.create_experiment(config={**CONFIG, **changes}, directory=str(tmp_path))).id


async def the_trial(manager: Manager, experiment_id: str) -> TrialRow:
    page = await manager.control.read(lambda c: trials.page(c, experiment_id, limit=10))
    (row,) = page.items
    return row


def two_ranks(form: TrialJobForm) -> Iterable[Step]:
    for step in range(3):
        yield ScriptedReport(1.0, 10.0 + step, member=1)
        yield ScriptedReport(0.5, float(step))
    yield Final(0.5, 19.0, member=1)
    yield Final(0.5, 9.0)


@pytest.mark.parametrize(
    ("report_from", "final", "latest", "told"),
    [(0, 9.0, 2.0, [0.0, 1.0, 2.0]), (1, 19.0, 12.0, [10.0, 11.0, 12.0])],
)
def test_the_reports_of_one_rank_are_the_trials_and_those_of_all_are_stored(
    report_from: int, final: float, latest: float, told: list[float], tmp_path: Path
) -> None:
    async def scenario(simulation: Simulation) -> None:
        async with simulation.manager() as manager:
            experiment_id = await create(manager, tmp_path, reportFrom=report_from)
            await simulation.ended(manager, experiment_id)
            row = await the_trial(manager, experiment_id)
            assert (row.final_value, row.latest_value, row.intermediate_count) == (final, latest, 3)
            log = await manager.control.read(lambda c: dispatcher_inputs.after(c, experiment_id, 0, 100))
            assert [entry.payload["value"] for entry in log if entry.kind == "TrialEnd"] == [final]
            database = await manager.metrics(experiment_id)
            rows = await database.read(lambda c: metric_store.page(c, row.id, limit=100))
            assert {(stored.member, stored.kind): stored.value for stored in rows} == {
                (0, "intermediate"): 2.0,
                (1, "intermediate"): 12.0,
                (0, "final"): 9.0,
                (1, "final"): 19.0,
            }
            assert len(rows) == 8
            replay = InputLog(manager.control, database, await manager.experiment(experiment_id))
            reports = [message for message in await replay.read(0, 100) if isinstance(message, ReportMetrics)]
            assert [report.value for message in reports for report in message.rows] == told

    play(tmp_path, two_ranks, scenario)


def test_the_final_metric_of_another_rank_is_not_the_trials_and_a_notice_says_so(tmp_path: Path) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        yield Final(1.0, 0.5, member=3)
        yield ScriptedExit(1.0, EndReason.EXITED_ERROR, code=1)

    async def scenario(simulation: Simulation) -> None:
        async with simulation.manager() as manager:
            experiment_id = await create(manager, tmp_path)
            await simulation.ended(manager, experiment_id)
            row = await the_trial(manager, experiment_id)
            assert (row.status, row.final_data) == (TrialStatus.FAILED, None)
            notices = await manager.control.read(lambda c: events.notices(c, experiment_id))
            text = "trial 0 has no final metric: rank 3 has reported one, but the metrics of rank 0 count (reportFrom)"
            assert text in notices

    play(tmp_path, script, scenario)


def test_after_a_restart_the_counting_rank_is_the_same(tmp_path: Path) -> None:
    def script(form: TrialJobForm) -> Iterable[Step]:
        yield ScriptedReport(1.0, 11.0, member=1)
        yield Final(0.0, 19.0, member=1)
        yield ScriptedReport(0.0, 1.0)
        yield ScriptedReport(0.0, 12.0, member=1)
        yield Hang()

    async def scenario(simulation: Simulation) -> None:
        async with simulation.manager() as manager:
            experiment_id = await create(manager, tmp_path)
            await asyncio.sleep(5.0)
            row = await the_trial(manager, experiment_id)
            # What a manager leaves that was killed between the two commits.
            await manager.control.write(lambda c: trials.update(c, row.id, intermediate_count=0, latest_value=None))
        async with simulation.manager() as manager:
            await asyncio.sleep(5.0)
            row = await the_trial(manager, experiment_id)
            assert (row.latest_value, row.intermediate_count, row.final_data) == (1.0, 1, None)

    play(tmp_path, script, scenario)


def test_a_trial_continues_from_a_checkpoint_of_another_rank_at_the_place_of_the_counting_ranks_curve(
    tmp_path: Path,
) -> None:
    resumed: list[str | None] = []

    def script(form: TrialJobForm) -> Iterable[Step]:
        resumed.append(form.resume_checkpoint)
        if form.number == 1:
            (Path(form.directory) / "output" / "checkpoints" / "1").mkdir(parents=True)
            yield ScriptedReport(1.0, 0.1, member=1)
            yield ScriptedReport(1.0, 0.2, member=1)
            record = b'{"kind":"checkpoint","path":"output/checkpoints/1","with_metric":false,"time":1700000002.5}\n'
            yield Raw(0.5, record)
            yield ScriptedReport(1.0, 0.3, member=1)
            yield ScriptedExit(1.0, EndReason.NODE_LOST, code=None)
        yield ScriptedReport(1.0, 1.3, member=1)
        yield Final(1.0, 1.0, member=1)

    async def scenario(simulation: Simulation) -> None:
        async with simulation.manager() as manager:
            experiment_id = await create(manager, tmp_path, reportFrom=1)
            await simulation.ended(manager, experiment_id)
            row = await the_trial(manager, experiment_id)
            database = await manager.metrics(experiment_id)
            curve = await database.read(lambda c: metric_store.curve(c, row.id, member=1))
            assert [(point.job, point.sequence, point.value) for point in curve] == [
                (1, 0, 0.1),
                (1, 1, 0.2),
                (2, 2, 1.3),
            ]
        assert resumed[1] is not None

    play(tmp_path, script, scenario)
