"""The visible curve of a trial, whatever its jobs were: without a gap, nothing twice, and only what the newest job and
those that it continues have reported."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.manager.store.migrations import migrate
from proctor.manager.store.tables import metrics
from proctor.manager.store.trial_table import changes

Points = tuple[tuple[int, float], ...]
"""(job, value) of each point."""


@dataclass(frozen=True)
class Job:
    """What one job does: `records` are reports (True: with a checkpoint) and checkpoints of their own (None). It
    continues from the checkpoint that is `origin`-th newest of all, if there are so many; else it begins anew."""

    origin: int | None
    records: tuple[bool | None, ...]
    chunk_size: int


jobs = st.builds(
    Job,
    st.none() | st.integers(0, 3),
    st.lists(st.sampled_from([True, False, None]), max_size=6).map(tuple),
    st.integers(1, 200),
)


@dataclass
class Trial:
    """Runs jobs against a database, and knows what the curve must be after each."""

    connection: sqlite3.Connection
    saved: list[tuple[int, Points]] = field(default_factory=list)
    curve: Points = ()
    number: int = 0

    def run(self, job: Job) -> None:
        self.number += 1
        continues = job.origin is not None and job.origin < len(self.saved)
        resumed_from, points = self.saved[-1 - job.origin] if continues and job.origin is not None else (None, ())
        first = len(points)
        journal = b""
        for place, kind in enumerate(job.records):
            value = self.number + place / 100
            if kind is not None:
                points = (*points, (self.number, value))
                journal += _line({"kind": "intermediate", "value": value, "time": 1.0})
            if kind is not False:
                self.saved.append((self.number, points))
                path = f"output/checkpoints/{place}"
                journal += _line({"kind": "checkpoint", "path": path, "with_metric": bool(kind), "time": 1.0})
        for end in range(job.chunk_size, len(journal) + job.chunk_size, job.chunk_size):
            stored = metrics.offset_of(self.connection, "trial000", self.number)
            metrics.store_chunk(
                self.connection,
                trial_id="trial000",
                job=self.number,
                member=0,
                offset=stored,
                data=journal[stored:end],
                first_sequence=first,
                resumed_from=resumed_from,
            )
        if journal:
            self.curve = points


def _line(record: dict[str, object]) -> bytes:
    return json.dumps(record).encode() + b"\n"


def pages(connection: sqlite3.Connection, limit: int) -> Iterator[metrics.MetricRow]:
    after_id = 0
    while page := metrics.curve(connection, "trial000", after_id=after_id, limit=limit):
        yield from page
        after_id = page[-1].id


@pytest.mark.slow
@given(st.lists(jobs, min_size=1, max_size=6), st.integers(1, 5))
def test_the_curve_is_what_the_newest_job_and_those_it_continues_have_reported(life: list[Job], limit: int) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        migrate(connection, 0, "metrics")
        trial = Trial(connection)
        for job in life:
            trial.run(job)
            shown = metrics.curve(connection, "trial000")
            assert [(point.sequence, (point.job, point.value)) for point in shown] == list(enumerate(trial.curve))
            assert list(pages(connection, limit)) == shown


@pytest.mark.slow
@given(st.lists(jobs, min_size=1, max_size=6))
def test_a_reader_that_applies_what_is_new_has_the_same_curve(life: list[Job]) -> None:
    with closing(sqlite3.connect(":memory:")) as connection:
        migrate(connection, 0, "metrics")
        trial, known = Trial(connection), list[float | None]()
        for job in life:
            before = metrics.last_id(connection)
            trial.run(job)
            found = changes.new_points(connection, [(before + 1, metrics.last_id(connection))], member=0)
            for new in found or ():
                known[new.first :] = new.values
            if found:
                assert known == [value for _, value in trial.curve]
