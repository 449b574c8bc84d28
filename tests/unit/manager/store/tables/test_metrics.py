"""Reading metrics: pages, replay, the visible curve, the latest of everything."""

import json
import sqlite3
from typing import Any

import pytest

from proctor.manager.store.tables import metrics


def _report(
    connection: sqlite3.Connection, job: int, values: list[float], *, trial_id: str = "trial000", **names: Any
) -> metrics.StoredChunk:
    """One more chunk of intermediates of a job."""
    member = names.pop("member", 0)
    lines = (json.dumps({"kind": "intermediate", "value": value, "time": 1.0}) + "\n" for value in values)
    offset = metrics.offset_of(connection, trial_id, job, member)
    return metrics.store_chunk(
        connection, trial_id=trial_id, job=job, member=member, offset=offset, data="".join(lines).encode(), **names
    )


def _checkpoint(connection: sqlite3.Connection, job: int) -> int:
    line = json.dumps({"kind": "checkpoint", "path": f"output/checkpoints/{job}", "time": 1.0}).encode() + b"\n"
    offset = metrics.offset_of(connection, "trial000", job)
    chunk = metrics.store_chunk(connection, trial_id="trial000", job=job, member=0, offset=offset, data=line)
    return chunk.checkpoints[0].sequence


def _curve(connection: sqlite3.Connection) -> list[tuple[int, float | None]]:
    return [(row.sequence, row.value) for row in metrics.curve(connection, "trial000")]


def test_the_curve_of_one_job_is_what_it_reported(metrics_database: sqlite3.Connection) -> None:
    _report(metrics_database, 1, [0.1, 0.2])
    _report(metrics_database, 1, [0.3])
    _report(metrics_database, 1, [9.0], trial_id="trial001")
    _report(metrics_database, 1, [9.0], member=1)
    assert _curve(metrics_database) == [(0, 0.1), (1, 0.2), (2, 0.3)]
    assert metrics.curve(metrics_database, "unknown") == []


def test_a_job_from_the_start_replaces_the_curve(metrics_database: sqlite3.Connection) -> None:
    _report(metrics_database, 1, [0.1, 0.2])
    _report(metrics_database, 2, [0.5])
    assert _curve(metrics_database) == [(0, 0.5)]


def test_a_resumed_job_continues_the_curve_from_its_checkpoint(metrics_database: sqlite3.Connection) -> None:
    _report(metrics_database, 1, [0.1, 0.2])
    assert _checkpoint(metrics_database, 1) == 2
    _report(metrics_database, 1, [0.3, 0.4])  # lost with its process
    chunk = _report(metrics_database, 2, [1.3], first_sequence=2)
    assert chunk.intermediates == [(5, 2, 1.3, None, 0.0)]
    assert _checkpoint(metrics_database, 2) == 3
    _report(metrics_database, 2, [1.4, 1.5])
    _report(metrics_database, 3, [2.4], first_sequence=3)
    assert _curve(metrics_database) == [(0, 0.1), (1, 0.2), (2, 1.3), (3, 2.4)]


def test_a_job_that_resumed_earlier_hides_what_lay_between(metrics_database: sqlite3.Connection) -> None:
    _report(metrics_database, 1, [0.1, 0.2, 0.3])
    _report(metrics_database, 2, [1.3, 1.4], first_sequence=2)
    _report(metrics_database, 3, [2.2], first_sequence=1)
    assert _curve(metrics_database) == [(0, 0.1), (1, 2.2)]


def test_a_job_from_the_start_is_no_part_of_the_curve_of_one_that_continues_an_older_job(
    metrics_database: sqlite3.Connection,
) -> None:
    _report(metrics_database, 1, [0.1, 0.2, 0.3])
    _report(metrics_database, 2, [1.1, 1.2])  # the checkpoint of job 1 was away
    _report(metrics_database, 3, [2.4], first_sequence=3, resumed_from=1)
    assert _curve(metrics_database) == [(0, 0.1), (1, 0.2), (2, 0.3), (3, 2.4)]


def test_pages_follow_the_order_of_storing_over_all_kinds(metrics_database: sqlite3.Connection) -> None:
    for job in (1, 2):
        _report(metrics_database, job, [0.1, 0.2])
        _report(metrics_database, job, [5.0], trial_id="trial001")
        _write(metrics_database, _FINAL, job=job)
    first = metrics.page(metrics_database, "trial000", limit=4)
    rest = metrics.page(metrics_database, "trial000", after_id=first[-1].id, limit=4)
    assert [row.id for row in first + rest] == [1, 2, 4, 5, 6, 8]
    finals = metrics.page(metrics_database, "trial000", kind="final", limit=4)
    assert [(row.id, row.job) for row in finals] == [(4, 1), (8, 2)]


def test_rows_are_replayed_by_their_ids(metrics_database: sqlite3.Connection) -> None:
    _report(metrics_database, 1, [0.1, 0.2])
    _report(metrics_database, 1, [0.3], trial_id="trial001")
    _report(metrics_database, 1, [9.0], member=1)
    replayed = metrics.intermediates_between(metrics_database, 2, 4)
    assert [(row.trial_id, row.value) for row, _ in replayed] == [("trial000", 0.2), ("trial001", 0.3)]
    assert metrics.last_id(metrics_database) == 4


def test_an_empty_database_has_nothing_latest(metrics_database: sqlite3.Connection) -> None:
    assert metrics.last_id(metrics_database) == 0
    assert metrics.latest_intermediate(metrics_database, "trial000") is None
    assert metrics.latest_checkpoint(metrics_database, "trial000") is None


def test_the_latest_are_those_stored_last(metrics_database: sqlite3.Connection) -> None:
    _report(metrics_database, 1, [0.1])
    _checkpoint(metrics_database, 1)
    _checkpoint(metrics_database, 2)
    _report(metrics_database, 2, [0.2])
    latest = metrics.latest_intermediate(metrics_database, "trial000")
    checkpoint = metrics.latest_checkpoint(metrics_database, "trial000")
    assert (latest and latest.value, checkpoint and checkpoint.job) == (0.2, 2)


def _write(connection: sqlite3.Connection, *records: dict[str, Any], job: int = 1, member: int = 0) -> None:
    """Store records of a job, each in a chunk of its own: an SDK's one write may be read in two parts."""
    for record in records:
        offset = metrics.offset_of(connection, "trial000", job, member)
        line = json.dumps({"time": 1.0, **record}).encode() + b"\n"
        metrics.store_chunk(connection, trial_id="trial000", job=job, member=member, offset=offset, data=line)


_FINAL = {"kind": "final", "value": 0.5}


def _resumed_curve(connection: sqlite3.Connection) -> list[tuple[int, float | None]]:
    """The curve once a second job has continued from the newest checkpoint of the first one."""
    checkpoint = metrics.latest_checkpoint(connection, "trial000")
    assert checkpoint is not None
    _report(connection, 2, [9.0], first_sequence=checkpoint.sequence)
    return _curve(connection)


_PATH = "output/checkpoints/1"


@pytest.mark.parametrize(
    "records",
    [
        [
            {"kind": "intermediate", "value": 0.2, "time": 5.0},
            {"kind": "checkpoint", "path": _PATH, "with_metric": True, "time": 5.0},
            {"kind": "intermediate", "value": 0.3, "time": 5.0001},  # a fast trial's next report
        ],
        [
            {"kind": "checkpoint", "path": _PATH, "step": 2, "time": 5.000002},
            {"kind": "intermediate", "value": 0.2, "step": 2, "time": 5.00001},
            {"kind": "intermediate", "value": 0.3, "step": 3, "time": 6.0},
        ],
    ],
    ids=["said so", "an earlier SDK wrote it after its checkpoint"],
)
def test_a_metric_that_was_reported_with_a_checkpoint_is_in_the_curve_after_a_resume(
    metrics_database: sqlite3.Connection, records: list[dict[str, Any]]
) -> None:
    _report(metrics_database, 1, [0.1])
    _write(metrics_database, *records)
    assert _resumed_curve(metrics_database) == [(0, 0.1), (1, 0.2), (2, 9.0)]


@pytest.mark.parametrize(
    ("checkpoint", "next_metric"),
    [
        ({"with_metric": False, "time": 5.0}, {"time": 5.0}),
        ({"time": 5.0}, {"time": 5.5}),
        ({"time": 5.0, "step": 2}, {"time": 5.0, "step": 3}),
    ],
    ids=["said so", "much later", "of another step"],
)
def test_a_metric_that_was_reported_after_a_checkpoint_alone_is_not_in_the_curve_after_a_resume(
    metrics_database: sqlite3.Connection, checkpoint: dict[str, Any], next_metric: dict[str, Any]
) -> None:
    _report(metrics_database, 1, [0.1])
    _write(
        metrics_database,
        {"kind": "checkpoint", "path": _PATH, **checkpoint},
        {"kind": "intermediate", "value": 0.2, **next_metric},
    )
    assert _resumed_curve(metrics_database) == [(0, 0.1), (1, 9.0)]


def _register(connection: sqlite3.Connection, job: int, member: int, time: float) -> None:
    """A checkpoint of a member, whose path names it."""
    record = {"kind": "checkpoint", "path": f"output/checkpoints/{member}", "with_metric": False, "time": time}
    _write(connection, record, job=job, member=member)


@pytest.mark.parametrize(("member", "path"), [(0, "0"), (1, "1"), (2, "0")])
def test_the_latest_checkpoint_is_that_of_the_member_that_counts_or_of_the_lowest_one(
    metrics_database: sqlite3.Connection, member: int, path: str
) -> None:
    for time, other in enumerate((1, 0, 1, 3)):
        _register(metrics_database, 1, other, float(time))
    found = metrics.latest_checkpoint(metrics_database, "trial000", member=member)
    assert found is not None
    assert found.path == f"output/checkpoints/{path}"


def test_a_checkpoint_of_another_member_lies_at_the_place_of_the_curve_that_counts(
    metrics_database: sqlite3.Connection,
) -> None:
    for job, first in ((1, 0), (2, 2)):
        _report(metrics_database, job, [0.1, 0.2], member=1, first_sequence=first)  # at time 1.0
    _register(metrics_database, 2, 0, 1.5)
    found = metrics.latest_checkpoint(metrics_database, "trial000", member=1)
    assert found is not None
    assert (found.member, found.sequence) == (0, 4)


def test_each_rank_of_the_newest_job_is_summed_up(metrics_database: sqlite3.Connection) -> None:
    _report(metrics_database, 1, [9.0], member=2)
    _report(metrics_database, 2, [0.1, 0.2])
    _report(metrics_database, 2, [0.3], member=1)
    for member in (1, 3):
        _write(metrics_database, _FINAL, job=2, member=member)
    found = [
        (rank.member, rank.intermediates, rank.latest and rank.latest.value, rank.final and rank.final.value)
        for rank in metrics.ranks(metrics_database, "trial000")
    ]
    assert found == [(0, 2, 0.2, None), (1, 1, 0.3, 0.5), (3, 0, None, 0.5)]
    assert metrics.ranks(metrics_database, "unknown") == []


def test_a_page_may_hold_the_records_of_one_member(metrics_database: sqlite3.Connection) -> None:
    for member in (0, 1):
        _report(metrics_database, 1, [float(member)], member=member)
    assert [row.value for row in metrics.page(metrics_database, "trial000", member=1, limit=9)] == [1.0]
    latest = [metrics.latest_intermediate(metrics_database, "trial000", member=member) for member in (0, 1, 2)]
    assert [row and row.value for row in latest] == [0.0, 1.0, None]


def test_a_checkpoint_that_is_registered_late_stands_at_its_step(metrics_database: sqlite3.Connection) -> None:
    """The trainer stores it beside the training, which continues."""

    def store(*records: dict[str, Any], job: int = 1, first: int = 0) -> metrics.StoredChunk:
        offset = metrics.offset_of(metrics_database, "trial000", job)
        data = "".join(json.dumps({"time": 1.0, **record}) + "\n" for record in records).encode()
        key = {"trial_id": "trial000", "job": job, "member": 0}
        return metrics.store_chunk(metrics_database, **key, offset=offset, data=data, first_sequence=first)

    def points(*steps: int) -> list[dict[str, Any]]:
        return [{"kind": "intermediate", "value": step / 10, "step": step} for step in steps]

    def saved(step: int, **more: Any) -> dict[str, Any]:
        return {"kind": "checkpoint", "path": f"output/checkpoints/{step}", "step": step, "with_metric": False, **more}

    store(*points(1, 2, 3, 4))
    chunk = store(*points(5, 6), saved(3), saved(6), saved(5, with_metric=True), saved(0), saved(9))
    assert [(row.step, row.sequence, row.value) for row in chunk.checkpoints] == [
        (3, 3, 0.3),
        (6, 6, 0.6),
        (5, 6, 0.6),  # its metric was reported just before it
        (0, 0, None),
        (9, 6, 0.6),
    ]
    chunk = store(*points(4), saved(3), job=2, first=3)  # the points of the job before are not this one's
    assert [(row.sequence, row.value) for row in chunk.checkpoints] == [(3, 0.3)]
    latest = metrics.latest_checkpoint(metrics_database, "trial000")
    assert latest is not None
    assert (latest.step, latest.sequence) == (3, 3)
