"""Metrics of an experiment that comes from elsewhere: written as they were, without the journals they came from."""

import sqlite3
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

from proctor.manager.store.journal_records import split_value
from proctor.manager.store.journals import KIND_UNREADABLE
from proctor.manager.store.queries import query
from proctor.manager.store.rows import MetricRow
from proctor.sdk.protocol import KIND_FINAL, KIND_INTERMEDIATE, KIND_LOST

_AT_ONCE = 10_000
_COUNTER = {
    KIND_INTERMEDIATE: "intermediates",
    KIND_FINAL: "finals",
    KIND_LOST: "losses",
    KIND_UNREADABLE: "unreadables",
}

Journals = dict[tuple[str, int, int], dict[str, int]]


def insert(
    connection: sqlite3.Connection, rows: Iterable[MetricRow], *, first_sequences: Mapping[tuple[str, int], int]
) -> int:
    """Write the records of jobs that are over; returns the greatest id. `row.data` is what was reported.

    :param first_sequences: by (trial id, job number) the point of the trial's curve at which the job resumed.
    Raises sqlite3.IntegrityError for an id that is taken.
    """
    journals: Journals = {}
    remaining, last = iter(rows), 0
    while batch := list(islice(remaining, _AT_ONCE)):
        connection.executemany(query("metrics.insert"), [_values(row, journals) for row in batch])
        last = max(last, *(row.id for row in batch))
    for (trial_id, job, member), counts in journals.items():
        key = {"trial_id": trial_id, "job": job, "member": member}
        first = first_sequences.get((trial_id, job), 0)
        connection.execute(query("journals.advance"), {**key, **counts, "first_sequence": first})
    return last


def _values(row: MetricRow, journals: Journals) -> tuple[Any, ...]:
    """A row to insert. It gets a place of its own in its journal, which is not here any more."""
    counts = journals.setdefault(
        (row.trial_id, row.job, row.member), {"offset": 0, **dict.fromkeys(_COUNTER.values(), 0)}
    )
    value, data, _ = split_value(row.data)
    place = counts["offset"]
    counts["offset"] += 1
    counts[_COUNTER[row.kind]] += 1
    return (
        row.id, row.trial_id, row.job, row.member, place, row.kind, row.sequence, row.step, value, data, row.time
    )  # fmt: skip
