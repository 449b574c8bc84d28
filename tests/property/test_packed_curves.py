"""A packed curve is what the rows give, whatever was reported after it was packed."""

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.manager.store.migrations import migrate
from proctor.manager.store.rows import MetricRow
from proctor.manager.store.tables import curves, metrics
from proctor.manager.store.tables.journals import finite_number
from proctor.manager.store.tables.metrics import VisiblePoint
from proctor.sdk.client.flattening import flatten


@dataclass(frozen=True)
class Report:
    """A job's member reports so many times; `packs`: then all curves are packed."""

    trial: int
    job: int
    member: int
    values: tuple[object, ...]
    packs: bool


numbers = st.sampled_from([0.5, 1, -2.25, 1e39, "NaN", None])
values = numbers | st.dictionaries(
    st.sampled_from(["default", "loss", "top", ""]), numbers | st.just({"5": 2}), max_size=3
)
reports = st.builds(
    Report,
    st.integers(0, 2),
    st.integers(1, 3),
    st.integers(0, 1),
    st.lists(values, max_size=12).map(tuple),
    st.booleans(),
)


def write(connection: sqlite3.Connection, report: Report) -> None:
    place = {"trial_id": f"trial00{report.trial}", "job": report.job, "member": report.member}
    lines = b"".join(
        json.dumps({"kind": "intermediate", "value": value, "step": 3 * at, "time": 100.0 + at}).encode() + b"\n"
        for at, value in enumerate(report.values)
    )
    metrics.store_chunk(connection, **place, offset=metrics.offset_of(connection, *place.values()), data=lines)


def pack(connection: sqlite3.Connection, trials: list[str]) -> None:
    for member in (0, 1):
        for packed in curves.pack_some(connection, trials, member=member):
            curves.store(connection, packed, member=member)


def packed_rows(trial: str, rows: list[MetricRow], key: str | None) -> curves.Curve:
    points = []
    for row in rows:
        flat = flatten(row.data) if isinstance(row.data, dict) else {}
        value = row.value if key is None else finite_number(flat.get(key))
        points.append(VisiblePoint(row.sequence if row.step is None else row.step, value, row.time))
    return curves.pack(trial, points)


@pytest.mark.slow
@given(st.lists(reports, max_size=8))
def test_curves_are_those_of_the_rows_whether_they_are_packed_or_not(life: list[Report]) -> None:
    trials = [f"trial00{number}" for number in range(3)]
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        migrate(connection, 0, "metrics")
        for report in life:
            write(connection, report)
            if report.packs:
                pack(connection, trials)
            for member in (0, 1):
                for key in (None, "loss", "top.5", "", "default", "nonesuch"):
                    rows = {each: metrics.curve(connection, each, member=member) for each in trials}
                    expected = {each: packed_rows(each, found, key) for each, found in rows.items() if found}
                    found = {each.trial_id: each for each in curves.read_all(connection, member=member, key=key)}
                    assert {each: curve for each, curve in found.items() if curve.points} == expected
                    for each in trials:
                        one = curves.read_one(connection, each, member=member, key=key)
                        assert one == expected.get(each, one)
                        assert one.points == len(rows[each])
