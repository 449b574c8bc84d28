"""Requests that are answered by trials that exist, which are paused, resumed and cloned; and the same after any
interruption. `tests/chaos/test_every_interruption.py` tries every moment."""

from pathlib import Path

import pytest
from fakes.scheduled_experiment import SCHEDULERS, ScheduledRun, save_often

from proctor.manager.dispatcher.algorithms.schedulers.hyperband import HyperBandScheduler
from proctor.manager.engine.loop import loop
from proctor.manager.lifecycle.states import TrialStatus
from proctor.sdk.protocol import ENV_JUDGED_RANK, ENV_VERDICT_SECONDS, NO_MILESTONE
from proctor.training_services.base import TrialJobDetail, TrialJobForm
from proctor.training_services.in_memory.service import InMemoryTrainingService


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ScheduledRun:
    return ScheduledRun(monkeypatch, tmp_path)


def test_requests_are_answered_by_trials_that_are_resumed_and_cloned(run: ScheduledRun) -> None:
    found = run("Random").found
    ends = [status for status, *_ in found["trials"]]
    stopped = {number for number, status in enumerate(ends) if status is TrialStatus.EARLY_STOPPED}
    assert stopped == {3, 5}  # while it was paused, and by a verdict
    assert ends.count(TrialStatus.SUCCEEDED) == 7
    assert [(kind, trial, donor, job) for _, kind, trial, donor, _, job, _, _ in found["decisions"]][:4] == [
        ("resume", 0, None, 2),
        ("clone", 1, 0, 2),
        ("resume", 0, None, 3),
        ("clone", 2, 4, 2),
    ]
    attempts = {(trial, number): (parameter_id, origin) for trial, number, parameter_id, _, origin, _ in found["jobs"]}
    assert attempts[0, 2] == (0, (0, "1", 3))  # resumed: the same parameters, its own checkpoint
    assert attempts[1, 2] == (5, (0, "2", 3))  # cloned: other parameters, the donor's checkpoint
    assert attempts[2, 3] == (13, (4, "2", 5))  # and cloned again
    assert found["trials"][1][1:3] == (found["decisions"][1][6], 5)
    for points in found["curves"]:
        assert [sequence for sequence, _ in points] == list(range(len(points)))


def test_reports_say_job_step_and_how_long_the_trial_has_run(run: ScheduledRun) -> None:
    outcome = run("Random")
    rows = [row for row in outcome.channels[0].reports if row.trial_id == outcome.channels[0].reports[0].trial_id]
    assert [(row.job_number, row.sequence) for row in rows] == [(1, 0), (1, 1), (1, 2), (2, 3), (2, 4), (3, 5)]
    assert [row.step for row in rows] == [100, 200, 300, 400, 500, 600]
    assert [round(row.seconds or 0.0, 3) for row in rows] == [10.0, 20.0, 30.0, 40.0, 50.0, 60.0]  # pauses do not count


@pytest.mark.parametrize(
    ("tuner", "stride"),
    [
        ("Random", 40),
        pytest.param("TPE", 60, marks=pytest.mark.thorough),
        pytest.param("Random", 13, marks=pytest.mark.thorough),
    ],
)
def test_a_manager_that_is_killed_at_a_commit_changes_nothing(run: ScheduledRun, tuner: str, stride: int) -> None:
    undisturbed = run(tuner)
    for moment in range(stride, undisturbed.commits, stride):
        assert run(tuner, manager_killed_at=moment).found == undisturbed.found, f"killed at commit {moment}"


@pytest.mark.parametrize(
    ("tuner", "stride"),
    [
        ("Random", 20),
        pytest.param("TPE", 30, marks=pytest.mark.thorough),
        pytest.param("Random", 9, marks=pytest.mark.thorough),
    ],
)
def test_a_dispatcher_that_is_killed_at_an_input_changes_nothing(run: ScheduledRun, tuner: str, stride: int) -> None:
    undisturbed = run(tuner)
    for moment in range(stride, undisturbed.inputs, stride):
        outcome = run(tuner, dispatcher_killed_at=moment)
        assert outcome.found == undisturbed.found, f"killed at input {moment}"
        killed, successor = (channel.reports for channel in outcome.channels)
        assert successor[: len(killed)] == killed, f"killed at input {moment}"


@pytest.fixture
def saving_often(monkeypatch: pytest.MonkeyPatch) -> None:
    save_often(monkeypatch)


BUILT_IN = [name for name in SCHEDULERS if name != "pausing"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheduler", "succeeded", "stopped"),
    [
        ("ASHA, stopping", 4, 5),
        ("ASHA, promotion", 1, 8),
        ("HyperBand", 7, 2),
        ("BOHB", 1, 8),
        ("MedianStopping", 4, 5),
        ("MedianStopping, pausing", 9, 0),
        ("PBT", 4, 0),
        ("PBT, synchronous", 4, 0),
    ],
)
def test_every_trial_of_every_scheduler_comes_to_an_end(
    run: ScheduledRun, scheduler: str, succeeded: int, stopped: int
) -> None:
    found = run("TPE", scheduler).found
    ends = [status for status, *_ in found["trials"]]
    assert len(ends) == succeeded + stopped
    assert ends.count(TrialStatus.SUCCEEDED) == succeeded
    assert ends.count(TrialStatus.EARLY_STOPPED) == stopped
    for points in found["curves"]:
        assert [sequence for sequence, _ in points] == list(range(len(points)))


def test_what_a_scheduler_has_shown_last_is_stored(run: ScheduledRun) -> None:
    (table,) = run("Random", "ASHA, promotion").tables
    assert table["title"] == "Rungs"
    assert table["rows"][0][:2] == [100, 9]  # every trial has come to the lowest rung


@pytest.mark.slow
@pytest.mark.parametrize(("scheduler", "tuner"), list(zip(BUILT_IN, ["Random", "TPE"] * 4, strict=True)))
def test_no_kill_changes_what_a_scheduler_decides(run: ScheduledRun, scheduler: str, tuner: str) -> None:
    undisturbed = run(tuner, scheduler)
    for share in (0.4, 0.8):
        moment = round(share * undisturbed.commits)
        outcome = run(tuner, scheduler, manager_killed_at=moment)
        assert outcome.found == undisturbed.found, f"the manager was killed at commit {moment}"
    moment = round(0.6 * undisturbed.inputs)
    outcome = run(tuner, scheduler, dispatcher_killed_at=moment)
    assert outcome.found == undisturbed.found, f"the dispatcher was killed at input {moment}"


@pytest.mark.thorough
def test_a_final_metric_that_was_stored_before_a_kill_is_no_report(run: ScheduledRun) -> None:
    """The last trials end while others wait that may run again: what is no news does not make them asked for again."""
    undisturbed = run("Random", "PBT")
    for moment in range(undisturbed.commits - 20, undisturbed.commits):
        outcome = run("Random", "PBT", manager_killed_at=moment)
        assert outcome.found == undisturbed.found, f"the manager was killed at commit {moment}"


@pytest.mark.thorough
@pytest.mark.usefixtures("saving_often")
def test_trials_that_do_not_run_again_end_in_several_turns_as_in_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is killed meanwhile: the scheduler is not asked in between, when it might have others of them run."""
    one, several = tmp_path / "one", tmp_path / "several"
    one.mkdir()
    several.mkdir()
    in_one_turn = ScheduledRun(monkeypatch, one)("Random", "ASHA, promotion")
    monkeypatch.setattr(loop, "FORGOTTEN_AT_ONCE", 1)
    run = ScheduledRun(monkeypatch, several)
    undisturbed = run("Random", "ASHA, promotion")
    assert undisturbed.found == in_one_turn.found
    for moment in range(in_one_turn.commits - 3, undisturbed.commits):
        outcome = run("Random", "ASHA, promotion", manager_killed_at=moment)
        assert outcome.found == undisturbed.found, f"the manager was killed at commit {moment}"
    for moment in range(undisturbed.inputs - 8, undisturbed.inputs):
        outcome = run("Random", "ASHA, promotion", dispatcher_killed_at=moment)
        assert outcome.found == undisturbed.found, f"the dispatcher was killed at input {moment}"


@pytest.mark.slow
@pytest.mark.usefixtures("saving_often")
@pytest.mark.parametrize("scheduler", BUILT_IN)
def test_a_saved_state_and_the_inputs_after_it_are_as_good_as_all_inputs(run: ScheduledRun, scheduler: str) -> None:
    tuner = "TPE" if any(word in scheduler for word in ("pausing", "PBT", "promotion", "BOHB")) else "Random"
    undisturbed = run(tuner, scheduler)
    for share in (0.5, 0.9):
        moment = round(share * undisturbed.inputs)
        outcome = run(tuner, scheduler, dispatcher_killed_at=moment)
        assert outcome.found == undisturbed.found, f"the dispatcher was killed at input {moment}"
        assert outcome.inputs < undisturbed.inputs + moment - 5, "all inputs were sent again"
    moment = round(0.7 * undisturbed.commits)
    assert run(tuner, scheduler, manager_killed_at=moment).found == undisturbed.found


@pytest.mark.slow
@pytest.mark.usefixtures("saving_often")
def test_a_state_that_cannot_be_read_costs_only_time(run: ScheduledRun, monkeypatch: pytest.MonkeyPatch) -> None:
    undisturbed = run("Random", "HyperBand")
    monkeypatch.setattr(HyperBandScheduler, "load_state_dict", lambda scheduler, state: 1 / 0)
    moment = round(0.8 * undisturbed.inputs)
    outcome = run("Random", "HyperBand", dispatcher_killed_at=moment)
    assert outcome.found == undisturbed.found
    assert outcome.inputs >= undisturbed.inputs + moment - 5


class Milestones:
    """What an experiment's service is given of milestones: by trial and job, with the form and then by updates."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given: dict[tuple[int, int], list[int | None]] = {}
        submit, update = InMemoryTrainingService.submit_trial_job, InMemoryTrainingService.update_trial_job

        async def submit_trial_job(service: InMemoryTrainingService, form: TrialJobForm) -> TrialJobDetail:
            self.given.setdefault((form.sequence_id, form.number), []).append(form.milestone)
            judged = {name: form.environment[name] for name in (ENV_JUDGED_RANK, ENV_VERDICT_SECONDS)}
            assert judged == {ENV_JUDGED_RANK: "0", ENV_VERDICT_SECONDS: "600"}
            return await submit(service, form)

        async def update_trial_job(service: InMemoryTrainingService, job_id: str, form: TrialJobForm) -> TrialJobDetail:
            self.given[form.sequence_id, form.number].append(form.milestone)
            return await update(service, job_id, form)

        monkeypatch.setattr(InMemoryTrainingService, "submit_trial_job", submit_trial_job)
        monkeypatch.setattr(InMemoryTrainingService, "update_trial_job", update_trial_job)


def test_jobs_are_given_their_milestones_and_every_later_one(
    run: ScheduledRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    milestones = Milestones(monkeypatch)
    run("Random", "ASHA, stopping")
    assert {given[0] for given in milestones.given.values()} == {100}
    assert max(milestones.given.values(), key=len) == [100, 200, 400, 500]


def test_a_job_that_is_resumed_begins_with_its_next_milestone(
    run: ScheduledRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    milestones = Milestones(monkeypatch)
    run("Random", "ASHA, promotion")
    assert {tuple(given) for (_, number), given in milestones.given.items() if number == 1} == {(100,)}
    assert {tuple(given) for (_, number), given in milestones.given.items() if number == 2} == {(200,)}
    assert {tuple(given) for (_, number), given in milestones.given.items() if number == 3} == {(400,)}


@pytest.mark.slow
@pytest.mark.parametrize("killed", ["manager", "dispatcher"])
def test_after_a_kill_a_job_is_given_no_milestone_of_long_ago(
    run: ScheduledRun, monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    milestones = Milestones(monkeypatch)
    undisturbed = run("Random", "ASHA, stopping")
    moments = undisturbed.commits if killed == "manager" else undisturbed.inputs
    for moment in range(15, moments, 60 if killed == "manager" else 12):
        milestones.given.clear()
        run("Random", "ASHA, stopping", **{f"{killed}_killed_at": moment})
        for given in milestones.given.values():
            known = [milestone for milestone in given if milestone is not None]
            assert known == sorted(known), f"killed at {moment}"
            assert known, f"killed at {moment}"
            assert NO_MILESTONE not in given
