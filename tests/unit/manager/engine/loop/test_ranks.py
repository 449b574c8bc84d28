"""Trials of several processes under virtual time: the reports of one rank are the trial's, those of all are stored."""

import asyncio
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest
from fakes import small_experiments
from fakes.small_experiments import SMALL, Scene, played, plays

from proctor.manager.dispatcher.protocol import ReportMetrics
from proctor.manager.engine.loop.recovery import InputLog
from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store.tables import metrics as metric_store
from proctor.manager.store.tables import trials
from proctor.training_services.base import EndReason, TrialJobForm
from proctor.training_services.in_memory.scripts import Final, Hang, Raw, ScriptedExit, ScriptedReport, Step


class RanksScene(Scene):
    """An experiment of one trial of several processes."""

    config = SMALL | {"trialCommand": "torchrun trial.py", "maxTrialNumber": 1, "assessor": {"name": "Medianstop"}}


play = partial(small_experiments.play, kind=RanksScene)


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
@played(play, script=two_ranks)
async def test_the_reports_of_one_rank_are_the_trials_and_those_of_all_are_stored(
    scene: RanksScene, manager: Manager, /, report_from: int, final: float, latest: float, told: list[float]
) -> None:
    await scene.run(reportFrom=report_from)
    row = await scene.trial()
    assert (row.final_value, row.latest_value, row.intermediate_count) == (final, latest, 3)
    assert [end["value"] for end in await scene.inputs("TrialEnd")] == [final]
    database = await manager.metrics("exp")
    rows = await database.read(lambda c: metric_store.page(c, row.id, limit=100))
    assert {(stored.member, stored.kind): stored.value for stored in rows} == {
        (0, "intermediate"): 2.0,
        (1, "intermediate"): 12.0,
        (0, "final"): 9.0,
        (1, "final"): 19.0,
    }
    assert len(rows) == 8
    replay = InputLog(manager.control, database, await scene.row())
    reports = [message for message in await replay.read(0, 100) if isinstance(message, ReportMetrics)]
    assert [report.value for message in reports for report in message.rows] == told


@played(play, script=plays(Final(1.0, 0.5, member=3), ScriptedExit(1.0, EndReason.EXITED_ERROR, code=1)))
async def test_the_final_metric_of_another_rank_is_not_the_trials_and_a_notice_says_so(
    scene: RanksScene, manager: Manager, /
) -> None:
    await scene.run()
    row = await scene.trial()
    assert (row.status, row.final_data) == (TrialStatus.FAILED, None)
    text = "trial 0 has no final metric: rank 3 has reported one, but the metrics of rank 0 count (reportFrom)"
    assert text in await scene.notices()


@played(play)
async def test_after_a_restart_the_counting_rank_is_the_same(scene: RanksScene, manager: Manager, /) -> None:
    other = ScriptedReport(1.0, 11.0, member=1), Final(0.0, 19.0, member=1), ScriptedReport(0.0, 12.0, member=1)
    await scene.create(plays(*other[:2], ScriptedReport(0.0, 1.0), other[2], Hang()), seconds=5.0)
    row = await scene.trial()
    # What a manager leaves that was killed between the two commits.
    await manager.control.write(lambda c: trials.update(c, row.id, intermediate_count=0, latest_value=None))
    await scene.restart()
    await asyncio.sleep(5.0)
    row = await scene.trial()
    assert (row.latest_value, row.intermediate_count, row.final_data) == (1.0, 1, None)


def lost_after_a_checkpoint_of_rank_0(form: TrialJobForm) -> Iterable[Step]:
    """The other rank reports."""
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


@played(play, script=lost_after_a_checkpoint_of_rank_0)
async def test_a_trial_continues_from_a_checkpoint_of_another_rank_at_the_place_of_the_counting_ranks_curve(
    scene: RanksScene, manager: Manager, /
) -> None:
    await scene.run(reportFrom=1)
    row = await scene.trial()
    database = await manager.metrics("exp")
    curve = await database.read(lambda c: metric_store.curve(c, row.id, member=1))
    assert [(point.job, point.sequence, point.value) for point in curve] == [(1, 0, 0.1), (1, 1, 0.2), (2, 2, 1.3)]
    assert scene.forms[1].resume_checkpoint is not None
