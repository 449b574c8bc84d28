"""What people see of a trial scheduler: the newest tables, with the trials' numbers."""

import sqlite3
from collections.abc import Callable
from typing import Any

import pytest

from proctor.manager.store.rows import SchedulerTablesRow, TrialJobRow, TrialRow
from proctor.manager.store.tables import experiments, jobs, scheduler_tables, trials

E = "Ab3dE5f7"
MakeTrial = Callable[..., TrialRow]
MakeJob = Callable[..., TrialJobRow]
pytestmark = pytest.mark.usefixtures("experiment")


def population(*rows: list[Any]) -> dict[str, Any]:
    columns = ["trial", "value", "clone of"]
    return {"title": "Population", "columns": columns, "rows": list(rows), "trial_columns": [0, 2]}


def test_a_trial_is_known_by_its_first_parameters_even_after_it_was_cloned(
    control: sqlite3.Connection, make_trial: MakeTrial, make_job: MakeJob
) -> None:
    for number, first in enumerate([10, 12, 17]):
        row = make_trial(number, parameter_id=first)
        trials.insert(control, row)
        if number < 2:
            jobs.insert(control, make_job(row, parameter_id=first))
            trials.update(control, row.id, jobs=1)
    cloned = make_trial(1)
    jobs.insert(control, make_job(cloned, number=2, parameter_id=15))
    trials.update(control, cloned.id, parameter_id=15, jobs=2)
    shown = population([12, 0.9, None], [10, 12, 12], [17, None, 10], [15, 0.1, 99])
    scheduler_tables.replace_described(control, E, [shown], time=5.0)
    found = scheduler_tables.get(control, E)
    assert found == SchedulerTablesRow(
        E, [population([1, 0.9, None], [0, 12, 1], [2, None, 0], [None, 0.1, None])], 5.0
    )
    ids = {number: make_trial(number).id for number in range(3)}
    assert scheduler_tables.trial_ids(control, found) == ids
    assert shown["rows"][0] == [12, 0.9, None]


def test_new_tables_replace_the_old_ones_and_go_with_their_experiment(control: sqlite3.Connection) -> None:
    assert scheduler_tables.get(control, E) is None
    scheduler_tables.replace_described(control, E, [population()], time=5.0)
    scheduler_tables.replace_described(control, E, [], time=6.0)
    assert scheduler_tables.get(control, E) == SchedulerTablesRow(E, [], 6.0)
    experiments.delete(control, E, time=7.0)
    assert scheduler_tables.get(control, E) is None
    with pytest.raises(sqlite3.IntegrityError):
        scheduler_tables.replace_described(control, E, [], time=8.0)
