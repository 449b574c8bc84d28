"""The engine under virtual time: real store, real lifecycles, an in-memory training service, built-in algorithms."""

import asyncio
from collections.abc import Iterable
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fakes import small_experiments
from fakes.small_experiments import (
    SMALL,
    CheckpointingService,
    Scene,
    SceneService,
    by_attempt,
    by_trial,
    played,
    plays,
)

from proctor.manager.engine.manager import UNLIMITED, Manager
from proctor.manager.errors import BadRequest, Conflict, NotFound
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.store.tables import jobs
from proctor.manager.store.tables import metrics as metric_store
from proctor.training_services.base import EndReason, JobStart, TrialJobForm
from proctor.training_services.in_memory.scripts import (
    Final,
    Hang,
    Raw,
    Script,
    ScriptedExit,
    ScriptedReport,
    ScriptedStart,
    Step,
    Wait,
)
from proctor.training_services.nodes.pool import NodeStatus

FINAL, LOST = Final(1.0, 0.5), ScriptedExit(1.0, EndReason.NODE_LOST, code=None, detail="node gpu-3 is silent")
FAILED = ScriptedExit(1.0, EndReason.EXITED_ERROR, code=1)
MEDIAN_STOP = {"name": "Medianstop"}


class SixTrials(Scene):
    """An experiment of six trials, two at a time."""

    config = SMALL | {
        "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}, "n": {"_type": "choice", "_value": [1, 2, 3]}},
        "trialConcurrency": 2,
        "maxTrialNumber": 6,
        "seed": 7,
    }


play = partial(small_experiments.play, kind=SixTrials)


@played(play)
async def test_an_experiment_runs_all_its_trials_and_is_done(scene: SixTrials, manager: Manager, /) -> None:
    row = await scene.run()
    assert (row.status, row.reason) == (ExperimentStatus.DONE, "maxTrialNumber 6 is reached")
    found = [(row.sequence_id, row.status, row.intermediate_count, row.final_value) for row in await scene.trials()]
    assert found == [(number, TrialStatus.SUCCEEDED, 3, float(number)) for number in range(6)]
    assert await scene.curve(2) == [(1, 0, 2.0), (1, 1, 2.1), (1, 2, 2.2)]


@played(play)
async def test_two_runs_with_one_seed_try_the_same_parameters(scene: SixTrials, manager: Manager, /) -> None:
    tried = []
    for name in ("one", "two"):
        await scene.run(id=name, tuner={"name": "TPE"}, maxTrialNumber=12)
        tried.append([trial.parameters for trial in await scene.trials()])
    assert tried[0] == tried[1]


@played(play)
async def test_no_more_than_trial_concurrency_jobs_run_at_once(scene: SixTrials, manager: Manager, /) -> None:
    running: set[str] = set()
    most = 0

    def script(form: TrialJobForm) -> Iterable[Step]:
        nonlocal most
        running.add(form.job_id)
        most = max(most, len(running))
        yield Final(5.0, 1.0)
        running.discard(form.job_id)

    await scene.run(script, trialConcurrency=3, maxTrialNumber=10)
    assert most == 3


NO_ROOM = ScriptedExit(0.0, EndReason.NO_ROOM, None, detail="its disk is full (/data); free some space")


@pytest.mark.parametrize(
    ("script", "budgets", "expected"),
    [
        (plays(FAILED), {}, (TrialStatus.FAILED, 1, 0, 0)),
        (by_attempt([FAILED], [FAILED], [FINAL]), {"maxTrialRetries": 2}, (TrialStatus.SUCCEEDED, 3, 2, 0)),
        (plays(LOST), {"maxInfrastructureRetries": 2}, (TrialStatus.SYS_CANCELED, 3, 0, 2)),
        (by_attempt(*[[NO_ROOM]] * 8, [FINAL]), {"maxInfrastructureRetries": 0}, (TrialStatus.SUCCEEDED, 9, 0, 0)),
    ],
    ids=["not by default", "when its command fails", "not forever", "for nothing from a full disk"],
)
@played(play)
async def test_a_trial_runs_again_as_its_budgets_say(
    scene: SixTrials, manager: Manager, /, script: Script, budgets: dict[str, int], expected: tuple[Any, ...]
) -> None:
    await scene.run(script, maxTrialNumber=1, **budgets)
    trial = await scene.trial()
    assert (trial.status, trial.jobs, trial.failures, trial.infrastructure_failures) == expected


@played(play, script=by_attempt([ScriptedStart(), LOST], [ScriptedStart(), LOST], [FINAL]))
async def test_a_lost_node_sends_the_trial_back_with_the_reason_and_a_pause(
    scene: SixTrials, manager: Manager, /
) -> None:
    await scene.create(maxTrialNumber=1, seconds=1.5)
    trial = await scene.trial()
    expected = "waiting: runs again in 1 s after NODE_LOST (node gpu-3 is silent)"
    assert (trial.status, trial.reason) == (TrialStatus.WAITING, expected)
    await scene.until_ended()
    assert await scene.statuses() == [TrialStatus.SUCCEEDED]
    assert await scene.pauses() == [1, 2]


@played(play)
async def test_a_trial_is_tried_again_in_time_while_another_one_reports_all_the_time(
    scene: SixTrials, manager: Manager, /
) -> None:
    reports = plays(*[ScriptedReport(0.1, 0.5)] * 300, FINAL)
    lost = by_attempt([LOST], [LOST], [FINAL])
    await scene.run(lambda form: (lost if form.sequence_id else reports)(form), maxTrialNumber=2)
    _, *starts = scene.starts
    assert [after - before for before, after in pairwise(starts)] == pytest.approx([2.0, 3.0], abs=0.2)


GOOD, BAD = [ScriptedReport(1.0, 0.75)] * 20, [ScriptedReport(1.0, 0.25)] * 20


@pytest.mark.parametrize(("given", "result"), [({}, 0.25), ({"includeIntermediateResults": False}, None)])
@played(play, script=by_trial([*GOOD, FINAL], [*GOOD, FINAL], [*GOOD, FINAL], [*BAD, FINAL]))
async def test_the_assessor_stops_a_bad_trial_and_the_tuner_may_hear_its_latest_value(
    scene: SixTrials, manager: Manager, /, given: dict[str, bool], result: float | None
) -> None:
    assessor = {"name": "Medianstop", "classArgs": {"optimize_mode": "maximize", "start_step": 2}}
    tuner = {"name": "Random", **given}
    await scene.run(tuner=tuner, assessor=assessor, maxTrialNumber=4, trialConcurrency=1)
    assert await scene.statuses() == [TrialStatus.SUCCEEDED] * 3 + [TrialStatus.EARLY_STOPPED]
    bad = await scene.trial(3)
    assert bad.reason == "stopped early by the assessor"
    assert bad.intermediate_count < 20
    end = (await scene.inputs("TrialEnd"))[3]
    assert (end["status"], end["value"], end["has_value"]) == ("EARLY_STOPPED", result, result is not None)


@played(play)
async def test_limits_change_while_it_runs_and_bring_a_done_experiment_back(
    scene: SixTrials, manager: Manager, /
) -> None:
    await scene.run(maxTrialNumber=2)
    await manager.update_experiment("exp", max_trial_number=5, trial_concurrency=1)
    assert (await scene.row()).status is ExperimentStatus.RUNNING
    await scene.until_ended()
    assert len(await scene.trials()) == 5
    await manager.update_experiment("exp", max_trial_number=UNLIMITED, max_experiment_seconds=100.0)
    row = await scene.until_ended()
    assert row.reason == "maxExperimentDuration 100 s is over"
    assert 100 <= row.active_seconds < 110


LONG_TRIAL = plays(Final(100.0, 1.0))


@played(play, script=LONG_TRIAL)
async def test_the_time_that_it_runs_goes_on_while_its_last_trials_do_but_not_in_a_pause(
    scene: SixTrials, manager: Manager, /
) -> None:
    async def running_for() -> float:
        return manager.active_seconds(await scene.row())

    await scene.create(maxTrialNumber=3, trialConcurrency=1, seconds=50.0)  # nothing happens, and nothing is written
    assert await running_for() == pytest.approx(50.0, abs=2.0)
    await manager.pause_experiment("exp")
    await asyncio.sleep(500.0)
    assert await running_for() == pytest.approx(50.0, abs=2.0)
    await manager.resume_experiment("exp")
    await asyncio.sleep(150.0)
    assert (await scene.row()).status is ExperimentStatus.NO_MORE_TRIAL
    assert await running_for() == pytest.approx(200.0, abs=2.0)
    row = await scene.until_ended()
    await asyncio.sleep(50.0)
    assert row.active_seconds == await running_for() == pytest.approx(250.0, abs=2.0)


@played(play, script=LONG_TRIAL)
async def test_a_limit_that_takes_the_place_of_a_raised_one_is_named(scene: SixTrials, manager: Manager, /) -> None:
    await scene.create(maxTrialNumber=1, trialConcurrency=1, maxExperimentDuration=60, seconds=80.0)
    assert (await scene.row()).reason == "maxTrialNumber 1 is reached"
    row = await manager.update_experiment("exp", max_trial_number=5)
    assert (row.status, row.reason) == (ExperimentStatus.NO_MORE_TRIAL, "maxExperimentDuration 60 s is over")
    await manager.update_experiment("exp", max_experiment_seconds=1000.0)
    await scene.until_ended()
    assert len(await scene.trials()) == 5


@played(play)
async def test_a_finite_space_ends_when_the_tuner_has_no_more(scene: SixTrials, manager: Manager, /) -> None:
    space = {"n": {"_type": "choice", "_value": [1, 2, 3]}}
    row = await scene.run(searchSpace=space, tuner={"name": "GridSearch"}, maxTrialNumber=None)
    assert (row.status, row.reason) == (ExperimentStatus.DONE, "the tuner has no more suggestions")
    assert [trial.parameters for trial in await scene.trials()] == [{"n": 1}, {"n": 2}, {"n": 3}]
    wider = {"n": {"_type": "choice", "_value": [1, 2, 3, 4]}}
    await manager.update_experiment("exp", search_space=wider)
    await scene.until_ended()
    assert {"n": 4} in [trial.parameters for trial in await scene.trials()]


@played(play)
async def test_stop_keeps_waiting_and_running_trials_for_a_resume(scene: SixTrials, manager: Manager, /) -> None:
    await scene.create(seconds=6.0)
    await manager.stop_experiment("exp")
    assert (await scene.until_ended()).status is ExperimentStatus.STOPPED
    assert {status for status in await scene.statuses() if not status.is_terminal} == {TrialStatus.WAITING}
    await manager.resume_experiment("exp")
    await scene.until_ended()
    assert await scene.statuses() == [TrialStatus.SUCCEEDED] * 6
    assert len({trial.parameter_id for trial in await scene.trials()}) == 6


@played(play)
async def test_pause_creates_no_new_trials_until_resumed(scene: SixTrials, manager: Manager, /) -> None:
    await scene.create(seconds=1.0)
    await manager.pause_experiment("exp")
    await asyncio.sleep(100.0)
    assert len(await scene.trials()) == 2
    await manager.resume_experiment("exp")
    await scene.until_ended()
    assert len(await scene.trials()) == 6


@played(play)
async def test_a_killed_trial_is_canceled_by_the_user_and_can_be_run_again_as_a_new_one(
    scene: SixTrials, manager: Manager, /
) -> None:
    await scene.create(seconds=1.5)
    first = await scene.trial()
    await manager.trials.kill(first.id)
    await scene.until_ended()
    killed = await scene.trial()
    assert (killed.status, killed.reason) == (TrialStatus.USER_CANCELED, "canceled by the user")
    with pytest.raises(Conflict, match="is USER_CANCELED already"):
        await manager.trials.kill(first.id)
    again = await manager.trials.retry(first.id)
    await asyncio.sleep(60.0)
    again = await manager.trials.get(again.id)
    assert (again.status, again.parameters) == (TrialStatus.SUCCEEDED, first.parameters)


@played(play)
async def test_a_customized_trial_is_told_to_the_tuner_with_its_result(scene: SixTrials, manager: Manager, /) -> None:
    await scene.create()
    added = await manager.trials.add("exp", {"x": 0.25, "n": 2})
    await scene.until_ended()
    assert (await manager.trials.get(added.id)).status is TrialStatus.SUCCEEDED
    assert [told["parameters"] for told in await scene.inputs("AddCustomizedTrial")] == [{"x": 0.25, "n": 2}]
    ends = [end["parameter_id"] for end in await scene.inputs("TrialEnd") if end["customized"]]
    assert ends == [added.parameter_id]


@played(play)
async def test_a_restarted_manager_goes_on_with_the_same_jobs(scene: SixTrials, manager: Manager, /) -> None:
    await scene.create(seconds=5.5)
    manager = await scene.restart()
    await scene.until_ended()
    assert [(trial.jobs, trial.intermediate_count) for trial in await scene.trials()] == [(1, 3)] * 6
    assert await manager.control.read(lambda c: jobs.live(c, "exp")) == []


@played(play, script=plays(Final(0.0, 1.0), ScriptedExit(0.0)))
async def test_an_idle_trial_costs_at_most_three_commits_of_the_control_and_metrics_databases(
    scene: SixTrials, manager: Manager, /
) -> None:
    await scene.run(trialConcurrency=1, maxTrialNumber=50)
    metrics = await manager.metrics("exp")
    assert (manager.control.commits + metrics.commits) / 50 <= 3.2  # and a few for the experiment itself


class Remote(SixTrials):
    """Its service is offered checkpoints that do not lie on this machine."""

    service = CheckpointingService


CHECKPOINT = Raw(0.0, b'{"kind":"checkpoint","path":"output/checkpoints/1","step":1,"time":1.0}\n')
FROM_THE_START = JobStart(None, "from the start: checkpoint 1 of job 1 is on node gpu-1, which is lost")
COPYING = Wait(0.0, "waiting: the code is being copied", FROM_THE_START)


@played(
    play,
    kind=Remote,
    script=by_attempt([ScriptedReport(1.0, 0.1), CHECKPOINT, LOST], [COPYING, ScriptedReport(1.0, 0.3), FINAL]),
)
async def test_a_service_that_cannot_read_the_checkpoint_says_so_and_the_curve_starts_over(
    scene: Remote, manager: Manager, /
) -> None:
    await scene.run(maxTrialNumber=1, assessor=MEDIAN_STOP)
    first, second = scene.forms
    assert second.resume_checkpoint == f"{first.directory}/output/checkpoints/1"  # not on this machine
    _, job = await scene.jobs()
    assert (job.resumed_from_job, job.resumed_from_step, job.resume_checkpoint) == (None, None, None)
    assert job.start_reason == FROM_THE_START.reason
    assert await scene.curve() == [(2, 0, 0.3)]
    assert [restart["from_sequence"] for restart in await scene.inputs("TrialRestarted")] == [1, 0]


@played(
    play,
    kind=Remote,
    script=by_attempt(
        [*(ScriptedReport(1.0, step / 10) for step in range(3)), CHECKPOINT, LOST],
        [COPYING, ScriptedReport(1.0, 0.5), LOST],
        [ScriptedReport(1.0, 0.3), FINAL],
    ),
)
async def test_a_job_that_continues_an_older_one_than_the_last_continues_its_curve(
    scene: Remote, manager: Manager, /
) -> None:
    await scene.run(maxTrialNumber=1)
    assert await scene.curve() == [(1, 0, 0.0), (1, 1, 0.1), (1, 2, 0.2), (3, 3, 0.3)]


@played(play)
async def test_the_log_tells_of_every_move_with_the_ids_it_is_about(
    scene: SixTrials, manager: Manager, /, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await scene.run(maxTrialNumber=1)
    trial = await scene.trial()
    logged = [
        (line.getMessage(), line.action, line.trial_id if hasattr(line, "trial_id") else None)  # type: ignore[attr-defined]
        for line in caplog.records
        if getattr(line, "experiment_id", None) == "exp"
    ]
    assert logged == [
        ("experiment exp is RUNNING", "experiment.start", None),
        ("experiment exp is NO_MORE_TRIAL: maxTrialNumber 1 is reached", "experiment.reach_limit", None),
        ("trial 0 is RUNNING", "trial.start", trial.id),
        ("trial 0 is SUCCEEDED", "trial.succeed", trial.id),
        ("experiment exp is DONE: maxTrialNumber 1 is reached", "experiment.drain", None),
    ]


@played(play)
async def test_stop_all_leaves_what_is_done_as_it_is(scene: SixTrials, manager: Manager, /) -> None:
    await scene.run(id="done", maxTrialNumber=1)
    await scene.create(id="running", seconds=1.0)
    assert await manager.stop_all() == ["running"]
    assert (await scene.until_ended()).status is ExperimentStatus.STOPPED
    assert (await manager.experiment("done")).status is ExperimentStatus.DONE


@played(play, script=plays(ScriptedReport(1.0, 0.5), Raw(1.0, b'{"kind": "intermediate", "val'), FAILED))
async def test_a_torn_last_record_is_shown_and_not_dropped(scene: SixTrials, manager: Manager, /) -> None:
    await scene.run(maxTrialNumber=1)
    trial = await scene.trial()
    rows = await (await manager.metrics("exp")).read(lambda c: metric_store.page(c, trial.id, limit=10))
    assert [row.kind for row in rows] == ["intermediate", "unreadable"]
    assert "1 journal record could not be read" in await scene.notices()


@played(play, script=plays(Raw(1.0, b'{"kind":"unjudged","step":27,"waited":600.0,"time":1.0}\n'), FAILED))
async def test_a_trial_that_has_trained_past_its_rung_is_noticed(scene: SixTrials, manager: Manager, /) -> None:
    await scene.run(maxTrialNumber=1)
    text = "trial 0 has trained past step 27, where its trial scheduler decides: there was no verdict within 600 s"
    assert f"{text} (verdictTimeout)" in await scene.notices()


@played(
    play, script=plays(Raw(1.0, b'{"kind": "lost", "why": "the trial rewrote its journal", "time": 1.0}\n'), FAILED)
)
async def test_a_journal_that_was_written_anew_is_noticed_with_the_number_of_its_trial(
    scene: SixTrials, manager: Manager, /
) -> None:
    await scene.run(maxTrialNumber=1)
    assert "trial 0: the trial rewrote its journal" in await scene.notices()


@played(play)
async def test_a_tuner_that_had_nothing_to_suggest_is_asked_again_when_a_trial_ends(
    scene: SixTrials, manager: Manager, /, tmp_path: Path
) -> None:
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
    assert (
        await scene.run(tuner={"className": "patient.Patient", "codeDirectory": str(tmp_path)}, maxTrialNumber=3)
    ).reason == "maxTrialNumber 3 is reached"
    first, *others = await scene.trials()
    assert (first.parameters["x"], len(others)) == (0, 2)


@played(play)
async def test_wrong_configurations_and_unknown_ids_are_refused_with_a_sentence(
    scene: SixTrials, manager: Manager, /
) -> None:
    with pytest.raises(BadRequest, match="trialConcurrency"):
        await scene.create(trialConcurrency="many")
    with pytest.raises(NotFound, match="there is no experiment 'nowhere'"):
        await manager.stop_experiment("nowhere")
    await scene.create()
    with pytest.raises(Conflict, match="already exists"):
        await scene.create()
    with pytest.raises(Conflict, match="stop it before you delete it"):
        await manager.delete_experiment("exp")


class DeafService(SceneService):
    """Its jobs do not hear that they should end."""

    async def cancel_trial_job(self, job_id: str, is_early_stopped: bool = False) -> None:
        return


class Deaf(SixTrials):
    """Jobs run on a `DeafService`."""

    service = DeafService


@played(play, kind=Deaf, script=by_trial([ScriptedStart(1.0, "gpu-1"), Hang()], [ScriptedStart(1.0, "gpu-2"), Hang()]))
async def test_an_experiment_that_is_being_stopped_names_the_machine_it_waits_for(
    scene: Deaf, manager: Manager, /
) -> None:
    scene.connect("gpu-1", "gpu-2")
    manager.pool.set_status("gpu-1", NodeStatus.SILENT, "it hung up")
    await scene.create(seconds=60.0)
    assert manager.awaited(await scene.row()) == ""
    await manager.stop_experiment("exp")
    row = await scene.row()
    assert row.status is ExperimentStatus.STOPPING
    waits = "waits for 1 trial on node gpu-1 (node gpu-1 is silent: it hung up) and 1 trial on node gpu-2"
    assert manager.awaited(row) == waits
    with pytest.raises(Conflict) as refused:
        await manager.delete_experiment("exp")
    assert str(refused.value) == f"experiment exp is being stopped: it {waits}; delete it when it is STOPPED"


@played(play, kind=Deaf, script=plays(ScriptedStart(1.0, node_id="hpc-17"), Hang()))
async def test_a_node_that_only_the_platform_knows_is_not_called_unknown(scene: Deaf, manager: Manager, /) -> None:
    await scene.create(seconds=60.0)
    await manager.stop_experiment("exp")
    assert manager.awaited(await scene.row()) == "waits for 2 trials on node hpc-17"


ONE_LOST = ScriptedExit(lost=1, lost_finals=(0,), detail="1 report was lost, its final metric among them")
THREE_LOST = ScriptedExit(lost=3, lost_finals=(1,), detail="3 reports were lost: its disk was full")


@played(play)
async def test_a_trial_whose_final_was_lost_runs_again_and_has_not_succeeded_without_one(
    scene: SixTrials, manager: Manager, /
) -> None:
    """Trial 0 loses it once, trial 1 every time; trial 2 loses intermediates and that of rank 1, which does not
    count."""

    def script(form: TrialJobForm) -> Iterable[Step]:
        yield ScriptedReport(1.0, 1.0)
        if form.sequence_id == 0 and form.number == 2:
            yield FINAL
        else:
            yield THREE_LOST if form.sequence_id == 2 else ONE_LOST

    await scene.run(script, maxTrialNumber=3, maxInfrastructureRetries=1)
    again, never, without = await scene.trials()
    assert (again.status, again.final_value, again.jobs) == (TrialStatus.SUCCEEDED, 0.5, 2)
    assert (never.status, never.final_value, never.jobs) == (TrialStatus.FAILED, None, 2)
    assert "its final metric among them" in never.reason
    assert (without.status, without.jobs) == (TrialStatus.SUCCEEDED, 1)
    assert (await scene.jobs())[0].end_reason is EndReason.RESULT_LOST


@played(play, script=plays(Raw(1.0, b'{"kind": "lost", "count": 7, "why": "no room", "time": 1}\n'), Final(1.0, 1.0)))
async def test_reports_that_a_trial_has_lost_are_counted_in_a_notice(scene: SixTrials, manager: Manager, /) -> None:
    await scene.run(maxTrialNumber=1)
    assert "7 reports lost: the trial's disk was full" in await scene.notices()
