"""The trial_jobs table: everything is fenced by the token."""

import sqlite3
from collections.abc import Callable

import pytest

from proctor.manager.store.errors import RowNotFound, StaleWrite
from proctor.manager.store.rows import TrialJobRow, TrialRow
from proctor.manager.store.tables import events, jobs, trials
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


def test_a_job_comes_back_as_it_was_inserted(control: sqlite3.Connection, job: TrialJobRow) -> None:
    assert jobs.get(control, job.id) == job
    assert jobs.of_trial(control, job.trial_id) == [job]
    with pytest.raises(RowNotFound, match=r"Trial job trial0000\.9"):
        jobs.get(control, "trial0000.9")


def test_a_number_is_given_once(
    control: sqlite3.Connection,
    job: TrialJobRow,
    make_job: Callable[..., TrialJobRow],
    make_trial: Callable[..., TrialRow],
) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        jobs.insert(control, make_job(make_trial(0), 1, id="another"))


def test_a_move_changes_the_row_and_tells_of_it(control: sqlite3.Connection, job: TrialJobRow) -> None:
    row = jobs.move(
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
    assert jobs.get(control, job.id) == row
    assert (row.status, row.end_reason, row.ended_at) == (TrialJobStatus.ENDED, EndReason.OUT_OF_MEMORY, 8.5)
    event = events.after(control, 2, limit=10)[0]
    assert (event.kind, event.job_id, event.trial_id, event.time) == ("job.status", job.id, job.trial_id, 9.0)
    assert event.data == {"status": "ENDED", "detail": "killed by the kernel", "end_reason": "OUT_OF_MEMORY"}


def test_an_old_token_moves_nothing(control: sqlite3.Connection, job: TrialJobRow) -> None:
    last = events.last_id(control)
    with pytest.raises(StaleWrite, match="another fencing token"):
        jobs.move(
            control,
            job.id,
            token="token0",
            expected=[TrialJobStatus.CREATED],
            status=TrialJobStatus.RUNNING,
            time=9.0,
        )
    assert jobs.get(control, job.id) == job
    assert events.last_id(control) == last


def test_an_unexpected_status_moves_nothing(control: sqlite3.Connection, job: TrialJobRow) -> None:
    with pytest.raises(StaleWrite, match="expected to be SUBMITTED; it is CREATED"):
        jobs.move(
            control,
            job.id,
            token="token1",
            expected=[TrialJobStatus.SUBMITTED],
            status=TrialJobStatus.RUNNING,
            time=9.0,
        )


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
