"""Pages of trials: every row once, in order, while others come and change."""

import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.store.connections import open_writer
from proctor.manager.store.errors import BadCursor
from proctor.manager.store.rows import ExperimentRow, TrialRow
from proctor.manager.store.tables import experiments, trials
from proctor.manager.store.tables.trials import SORTS, encode_cursor

E = "Ab3dE5f7"

_TRIALS = st.lists(
    st.tuples(
        st.sampled_from([TrialStatus.RUNNING, TrialStatus.SUCCEEDED, TrialStatus.FAILED]),
        st.sampled_from([None, 0.0, 0.5, -1.0, 1e300, -1e300]),
    ),
    max_size=25,
)


def _in_order(rows: list[TrialRow], sort: str) -> list[int]:
    backwards = sort.startswith("-")
    if sort.endswith("sequence_id"):
        return sorted((row.sequence_id for row in rows), reverse=backwards)
    valued = [row for row in rows if row.final_value is not None]
    valued.sort(key=lambda row: (row.final_value, row.sequence_id), reverse=backwards)
    return [row.sequence_id for row in [*valued, *(row for row in rows if row.final_value is None)]]


def _follow(connection: sqlite3.Connection, **asked: Any) -> Iterator[list[int]]:
    """The numbers of the trials of each page; a page is read when it is asked for."""
    page = trials.page(connection, E, **asked)
    yield [row.sequence_id for row in page.items]
    while page.next_cursor is not None:
        page = trials.page(connection, E, cursor=page.next_cursor, **asked)
        yield [row.sequence_id for row in page.items]


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 3 // 5)
@given(
    given_trials=_TRIALS,
    sort=st.sampled_from(SORTS),
    limit=st.integers(1, 7),
    statuses=st.none() | st.lists(st.sampled_from([TrialStatus.RUNNING, TrialStatus.SUCCEEDED])),
)
def test_following_the_pages_shows_every_trial_once_in_order(
    given_trials: list[tuple[TrialStatus, float | None]],
    sort: str,
    limit: int,
    statuses: list[TrialStatus] | None,
    make_experiment: Callable[..., ExperimentRow],
    make_trial: Callable[..., TrialRow],
) -> None:
    rows = [make_trial(n, status=status, final_value=value) for n, (status, value) in enumerate(given_trials)]
    wanted = [row for row in rows if statuses is None or row.status in statuses]
    with tempfile.TemporaryDirectory() as folder:
        connection = open_writer(f"{folder}/control.db", "control")
        experiments.insert(connection, make_experiment())
        for row in rows:
            trials.insert(connection, row)
        pages = list(_follow(connection, statuses=statuses, sort=sort, limit=limit))
        connection.close()
    assert max(map(len, pages)) <= limit
    seen = list(chain.from_iterable(pages))
    assert seen == _in_order(wanted, sort)


@pytest.mark.parametrize("sort", SORTS)
def test_trials_that_are_there_all_the_time_are_seen_once_while_others_come(
    control: sqlite3.Connection, experiment: ExperimentRow, make_trial: Callable[..., TrialRow], sort: str
) -> None:
    def insert(number: int) -> None:
        value = None if number % 3 == 0 else float(number * 7 % 10)
        trials.insert(control, make_trial(number, final_value=value, status=list(TrialStatus)[number % 4]))

    for number in range(0, 40, 2):
        insert(number)
    seen: list[int] = []
    for arriving, page in enumerate(_follow(control, sort=sort, limit=3)):
        seen += page
        insert(2 * arriving + 1)
    assert len(seen) == len(set(seen))
    assert [number for number in seen if number % 2 == 0] == [
        number for number in _in_order(trials.page(control, experiment.id, limit=1000).items, sort) if number % 2 == 0
    ]


def test_a_cursor_belongs_to_its_order(
    control: sqlite3.Connection, experiment: ExperimentRow, make_trial: Callable[..., TrialRow]
) -> None:
    for number in range(3):
        trials.insert(control, make_trial(number))
    cursor = trials.page(control, experiment.id, sort="value", limit=1).next_cursor
    assert cursor is not None
    with pytest.raises(BadCursor):
        trials.page(control, experiment.id, sort="-value", cursor=cursor, limit=1)


def test_an_unknown_order_is_refused_with_those_there_are(
    control: sqlite3.Connection, experiment: ExperimentRow
) -> None:
    with pytest.raises(ValueError, match="sequence_id, -sequence_id, value, -value"):
        trials.page(control, experiment.id, sort="age")


@pytest.mark.parametrize(
    ("sort", "key"),
    [
        ("sequence_id", (None, 10**30)),
        ("-sequence_id", (None, -(10**30))),
        ("value", (0.5, 10**30)),
        ("value", (10**30, 1)),
        ("value", (True, 1)),
        ("-value", (None, -2)),
    ],
)
def test_a_cursor_with_a_number_that_no_row_has_is_refused(
    control: sqlite3.Connection, experiment: ExperimentRow, sort: str, key: tuple[float | None, int]
) -> None:
    with pytest.raises(BadCursor, match="was not made here"):
        trials.page(control, experiment.id, sort=sort, cursor=encode_cursor(sort, key))
