"""The trial_jobs table: everything is fenced by the token."""

import sqlite3
from collections.abc import Callable

import pytest

from proctor.manager.store.errors import RowNotFound, StaleWrite
from proctor.manager.store.rows import ExperimentRow, TrialJobRow, TrialRow
from proctor.manager.store.tables import events, experiments, jobs, trials
from proctor.manager.store.tables.jobs import JobUsage
from proctor.training_services.base import EndReason, TrialJobStatus

pytestmark = pytest.mark.usefixtures("experiment")


@pytest.fixture
def job(
    control: sqlite3.Connection, make_trial: Callable[..., TrialRow], make_job: Callable[..., TrialJobRow]
) -> TrialJobRow:
    """The first job of trial 0, in the database."""
    trials.insert(control, make_trial(0))
    row = make_job(make_trial(0))
    jobs.insert(control, row)
    return row


def test_a_job_comes_back_as_it_was_inserted_and_its_number_is_given_once(
    control: sqlite3.Connection,
    job: TrialJobRow,
    make_job: Callable[..., TrialJobRow],
    make_trial: Callable[..., TrialRow],
) -> None:
    assert jobs.get(control, job.id) == job
    assert jobs.of_trial(control, job.trial_id) == [job]
    with pytest.raises(RowNotFound, match=r"Trial job trial0000\.9"):
        jobs.get(control, "trial0000.9")
    with pytest.raises(sqlite3.IntegrityError):
        jobs.insert(control, make_job(make_trial(0), 1, id="another"))


def test_a_move_changes_the_row_and_tells_of_it(control: sqlite3.Connection, job: TrialJobRow) -> None:
    jobs.move(
        control,
        job.id,
        token="token1",
        expected=[TrialJobStatus.CREATED],
        status=TrialJobStatus.ENDED,
        time=9.0,
        end_reason=EndReason.OUT_OF_MEMORY,
        detail="killed by the kernel",
        ended_at=8.5,
    )
    row = jobs.get(control, job.id)
    assert (row.status, row.end_reason, row.ended_at) == (TrialJobStatus.ENDED, EndReason.OUT_OF_MEMORY, 8.5)
    event = events.after(control, 2, limit=10)[0]
    assert (event.kind, event.job_id, event.trial_id, event.time) == ("job.status", job.id, job.trial_id, 9.0)
    assert event.data == {"status": "ENDED", "detail": "killed by the kernel", "end_reason": "OUT_OF_MEMORY"}


@pytest.mark.parametrize(
    ("token", "expected", "words"),
    [
        ("token0", TrialJobStatus.CREATED, "another fencing token"),
        ("token1", TrialJobStatus.SUBMITTED, "expected to be SUBMITTED; it is CREATED"),
    ],
)
def test_an_old_token_and_an_unexpected_status_move_nothing(
    control: sqlite3.Connection, job: TrialJobRow, token: str, expected: TrialJobStatus, words: str
) -> None:
    last = events.last_id(control)
    with pytest.raises(StaleWrite, match=words):
        jobs.move(control, job.id, token=token, expected=[expected], status=TrialJobStatus.RUNNING, time=9.0)
    assert jobs.get(control, job.id) == job
    assert events.last_id(control) == last


def test_an_update_is_fenced_and_leaves_the_status_alone(control: sqlite3.Connection, job: TrialJobRow) -> None:
    jobs.update(control, job.id, token="token1", pid=17, detail="starting")
    assert (jobs.get(control, job.id).pid, jobs.get(control, job.id).detail) == (17, "starting")
    with pytest.raises(StaleWrite, match="another fencing token"):
        jobs.update(control, job.id, token="token0", pid=18)
    with pytest.raises(RowNotFound):
        jobs.update(control, "unknown.1", token="token1", pid=18)
    with pytest.raises(TypeError, match="move"):
        jobs.update(control, job.id, token="token1", status=TrialJobStatus.ENDED)
    assert jobs.get(control, job.id).pid == 17


def test_the_live_ones_are_those_that_have_not_ended(
    control: sqlite3.Connection,
    job: TrialJobRow,
    make_job: Callable[..., TrialJobRow],
    make_trial: Callable[..., TrialRow],
) -> None:
    for number, status in enumerate(TrialJobStatus, start=2):
        jobs.insert(control, make_job(make_trial(0), number, status=status))
    found = [row.status for row in jobs.live(control, job.experiment_id)]
    assert found == ["CREATED", "CREATED", "SUBMITTED", "RUNNING", "STOPPING"]
    assert jobs.live(control, "another") == []


def test_what_jobs_have_used_is_summed_up_by_trial_experiment_and_node(
    control: sqlite3.Connection,
    make_experiment: Callable[..., ExperimentRow],
    make_trial: Callable[..., TrialRow],
    make_job: Callable[..., TrialJobRow],
) -> None:
    experiments.insert(control, make_experiment("other"))
    for number, owner in ((0, "Ab3dE5f7"), (1, "Ab3dE5f7"), (2, "other")):
        trials.insert(control, make_trial(number, experiment_id=owner))
    ended, begun = {"status": TrialJobStatus.ENDED}, {"status": TrialJobStatus.RUNNING, "started_at": 100.0}
    first = make_trial(0)
    jobs.insert(control, make_job(first, 1, **begun, counted_gpus=2.0, node_id="a"))
    jobs.insert(control, make_job(first, 2, **begun, counted_gpus=0.5, node_id="b"))
    jobs.insert(
        control, make_job(make_trial(1), 1, **ended, counted_gpus=9.0, node_id="a", ended_at=5.0)
    )  # not started
    loaded = {**ended, "started_at": 10.0, "ended_at": 20.0, "cpu_seconds": 4.0}
    jobs.insert(control, make_job(make_trial(2, experiment_id="other"), 1, **loaded, counted_gpus=1.0))
    assert jobs.usage_of_trial(control, first.id, now=110.0) == JobUsage(25.0, 0.0, 2, 20.0)
    expected = [TrialJobStatus.RUNNING]
    end = {"expected": expected, "status": TrialJobStatus.ENDED, "time": 9.0, "ended_at": 130.0}
    jobs.move(control, f"{first.id}.1", token="token1", **end, cpu_seconds=7.5)
    assert jobs.usage_of_trial(control, first.id, now=110.0) == JobUsage(65.0, 7.5, 1, 40.0)
    jobs.move(control, f"{first.id}.2", token="token2", **end)
    for now in (110.0, 1e9):  # nothing runs
        assert jobs.usage_of_trial(control, first.id, now=now) == JobUsage(75.0, 7.5, 1, 60.0)
        assert jobs.usage_of_experiment(control, "Ab3dE5f7", now=now) == JobUsage(75.0, 7.5, 1)
    assert jobs.gpu_seconds_of_ended(control, "Ab3dE5f7") == 75.0
    assert jobs.usage_by_experiment_and_node(control, now=0.0) == {
        ("Ab3dE5f7", "a"): JobUsage(60.0, 7.5, 0),
        ("Ab3dE5f7", "b"): JobUsage(15.0, 0.0, 1),
        ("other", ""): JobUsage(10.0, 4.0, 0),
    }
    experiments.delete(control, "Ab3dE5f7", time=9.0)
    assert jobs.usage_by_node(control, now=0.0) == {"": JobUsage(10.0, 4.0, 0)}


@pytest.mark.parametrize("hours", [-1, 1])
def test_what_a_job_has_used_does_not_change_when_the_clock_was_set_while_it_ran(
    control: sqlite3.Connection,
    make_trial: Callable[..., TrialRow],
    make_job: Callable[..., TrialJobRow],
    hours: int,
) -> None:
    trial = make_trial(0)
    trials.insert(control, trial)
    jobs.insert(control, make_job(trial, 1, status=TrialJobStatus.RUNNING, started_at=5000.0, counted_gpus=2.0))
    end = {"expected": [TrialJobStatus.RUNNING], "status": TrialJobStatus.ENDED, "time": 9.0}
    times = {"ended_at": 5010.0 + hours * 3600.0, "run_seconds": 10.0, "verdict_seconds": 4.0}
    jobs.move(control, f"{trial.id}.1", token="token1", **end, **times)
    [job] = jobs.of_trial(control, trial.id)
    assert (job.seconds, job.gpu_seconds) == (10.0, 20.0)
    assert jobs.usage_of_trial(control, trial.id, now=1.0).run_seconds == 10.0
    assert jobs.gpu_seconds_of_ended(control, job.experiment_id) == 20.0
    [(started, ended, gpus)] = jobs.recent_gpu_jobs(control, job.experiment_id)
    assert (ended - started, gpus) == (10.0, 2.0)
    assert jobs.run_before(control, [trial.id, "other"]) == {trial.id: 6.0}
