"""What has changed in an experiment since one of its events: which trials, and which points of their curves are new.

Events name trials whose status or job has changed, and ranges of stored metrics; the ranges are looked up here. What
is read may be newer than the events: reading a change twice changes nothing.
"""

import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from proctor.manager.store.rows import EventRow, MetricRow
from proctor.manager.store.statements import encode, query
from proctor.manager.store.tables import events, metrics

MAX_TRIALS = 2_000
MAX_POINTS = 20_000
_MAX_EVENTS = 20_000
"""One for each trial and its jobs, and for each batch of metrics: far more than trials may change."""

MetricRanges = Sequence[tuple[int, int]]
"""First and last ids of metrics."""


@dataclass(frozen=True)
class ChangesSince:
    """What the events after one say. `revision` is the event to ask from next; `missed`: some of what was asked for is
    gone, or there is too much of it, so that everything is to be read again."""

    revision: int
    missed: bool = False
    has_events: bool = False
    trial_ids: frozenset[str] = frozenset()
    metrics: MetricRanges = ()


@dataclass
class NewPoints:
    """The points of a trial's visible curve from the `first` one on; what it had there and after it is replaced."""

    trial_id: str
    first: int
    steps: list[int] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)

    def add(self, row: MetricRow) -> None:
        """One more point. A value that is not a finite number is None."""
        self.steps.append(row.sequence if row.step is None else row.step)
        self.values.append(row.value)


def since(connection: sqlite3.Connection, experiment_id: str, after: int) -> ChangesSince:
    """What the experiment's events after the event `after` say; of the control database."""
    pruned = events.pruned_to(connection)
    revision = max(events.revision(connection, experiment_id), pruned)
    if not pruned <= after <= events.last_id(connection):
        return ChangesSince(revision, missed=True)
    rows = events.after(connection, after, experiment_id=experiment_id, limit=_MAX_EVENTS + 1)
    trial_ids = frozenset(row.trial_id for row in rows if row.trial_id is not None)
    ranges = _joined(row for row in rows if row.kind == events.METRICS)
    amount = sum(last - first + 1 for first, last in ranges)
    if len(rows) > _MAX_EVENTS or len(trial_ids) > MAX_TRIALS or amount > MAX_POINTS:
        return ChangesSince(revision, missed=True)
    return ChangesSince(max(revision, after), has_events=bool(rows), trial_ids=trial_ids, metrics=ranges)


def _joined(rows: Iterable[EventRow]) -> MetricRanges:
    """The ranges of some events, those that touch as one."""
    found: list[tuple[int, int]] = []
    for first, last in sorted((int(row.data["first"]), int(row.data["last"])) for row in rows):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return found


def new_points(connection: sqlite3.Connection, ranges: MetricRanges, *, member: int) -> list[NewPoints] | None:
    """The points of a member in these ranges, in the order to be applied; of a metrics database. None: too many.

    Of a trial of which more than one job has reported, all points of its curve: a new job may continue another part
    than the curve had before, and a report of an earlier job, which came late, is not part of it.
    """
    found: dict[str, NewPoints] = {}
    restarted: set[str] = set()
    points = 0
    for first, last in ranges:
        for row, _ in metrics.intermediates_between(connection, first, last, member=member):
            if row.trial_id not in found:
                found[row.trial_id] = NewPoints(row.trial_id, row.sequence)
                if metrics.newest_job(connection, row.trial_id) > 1:
                    restarted.add(row.trial_id)
            if row.trial_id not in restarted:
                found[row.trial_id].add(row)
                points += 1
    for trial_id in restarted:
        found[trial_id] = NewPoints(trial_id, 0)
        for row in metrics.curve(connection, trial_id, member=member, limit=MAX_POINTS + 1 - points):
            found[trial_id].add(row)
            points += 1
        if points > MAX_POINTS:
            return None
    return list(found.values())


def numbers(connection: sqlite3.Connection, trial_ids: Iterable[str]) -> dict[str, int]:
    """The numbers of trials by their ids; of the control database."""
    return dict(connection.execute(query("trials.numbers"), {"ids": encode(sorted(trial_ids))}).fetchall())
