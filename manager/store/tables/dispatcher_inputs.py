"""The input log of an experiment's dispatcher: the dispatcher_inputs table, which is their total order, and what was
answered to the requests in it; and the states that dispatchers have saved, each in place of the inputs before it.

A request is answered by a new trial, which is a row of `trials` with the request's position, or by a decision on one
that exists: a row of `decisions`.
"""

import json
import sqlite3
from collections.abc import Collection
from typing import Any

from proctor.manager.store.rows import DecisionRow, InputRow
from proctor.manager.store.statements import decode, encode, query


def append(
    connection: sqlite3.Connection, experiment_id: str, position: int, kind: str, payload: dict[str, Any]
) -> None:
    """Write down one input. Raises sqlite3.IntegrityError when the position is taken."""
    values = {"experiment_id": experiment_id, "position": position, "kind": kind, "payload": encode(payload)}
    connection.execute(query("inputs.append"), values)


def after(connection: sqlite3.Connection, experiment_id: str, position: int, limit: int) -> list[InputRow]:
    """At most `limit` inputs behind `position`, in order."""
    values = {"experiment_id": experiment_id, "position": position, "limit": limit}
    return [InputRow.from_row(row) for row in connection.execute(query("inputs.after"), values)]


def imported(connection: sqlite3.Connection, experiment_id: str) -> list[dict[str, Any]]:
    """The results from elsewhere that the tuner was given: rows of {"parameter", "value"}, in order. Those of an
    experiment that was loaded begin with the results of its own trials."""
    found = connection.execute(query("inputs.imported"), {"experiment_id": experiment_id})
    return [row for (payload,) in found for row in decode(payload)["rows"]]


def unanswered(connection: sqlite3.Connection, experiment_id: str) -> set[int]:
    """The parameter ids of which it was never decided which trial they are for. For a restart: it reads the log, as far
    as it is not part of a dispatcher's saved state."""
    row = connection.execute(query("states.position"), {"experiment_id": experiment_id}).fetchone()
    values = {"experiment_id": experiment_id, "position": 0 if row is None else row[0]}
    requested = {row[0] for row in connection.execute(query("inputs.requested"), values)}
    return requested.difference(row[0] for row in connection.execute(query("inputs.answered"), values))


def last_news(connection: sqlite3.Connection, experiment_id: str) -> InputRow | None:
    """The last input that is no request, if there is one."""
    row = connection.execute(query("inputs.last_news"), {"experiment_id": experiment_id}).fetchone()
    return None if row is None else InputRow.from_row(row)


def suggestions(connection: sqlite3.Connection, experiment_id: str, position: int) -> list[tuple[int, Any, Any]]:
    """(parameter id, parameters, algorithm's state) of the new trials that answered the request at `position`, as they
    were suggested."""
    rows = connection.execute(query("inputs.suggestions"), {"experiment_id": experiment_id, "position": position})
    return [(number, decode(text), None if state is None else decode(state)) for number, text, state in rows]


# ---- states of dispatchers -----------------------------------------------------------------------------------------


def save_state(connection: sqlite3.Connection, experiment_id: str, position: int, state: str) -> None:
    """Keep the state of the experiment's algorithms after the input at `position`, instead of an earlier one."""
    values = {"experiment_id": experiment_id, "position": position, "state": state}
    connection.execute(query("states.save"), values)


def read_state(connection: sqlite3.Connection, experiment_id: str) -> tuple[int, str | None]:
    """The position of the newest state, and the state; 0 and None where there is none."""
    row = connection.execute(query("states.get"), {"experiment_id": experiment_id}).fetchone()
    return (0, None) if row is None else (row[0], row[1])


# ---- decisions on trials that exist --------------------------------------------------------------------------------


def record(connection: sqlite3.Connection, row: DecisionRow) -> None:
    """Write down one decision. Raises sqlite3.IntegrityError when its parameter id is answered already."""
    connection.execute(query("decisions.insert"), row.to_columns())


def decisions(connection: sqlite3.Connection, experiment_id: str, position: int) -> list[DecisionRow]:
    """Those that answered the request at `position`, by parameter id."""
    values = {"experiment_id": experiment_id, "position": position}
    return [DecisionRow.from_row(row) for row in connection.execute(query("decisions.at"), values)]


def of_trial(connection: sqlite3.Connection, trial_id: str) -> list[tuple[DecisionRow, int | None]]:
    """What was decided of a trial, in order, each with the number of the trial that it was to continue from."""
    rows = connection.execute(query("decisions.of_trial"), {"trial_id": trial_id})
    return [(DecisionRow.from_row(found[:-1]), found[-1]) for found in rows]


def pending(connection: sqlite3.Connection, trial_ids: Collection[str]) -> dict[str, DecisionRow]:
    """By trial the newest decision that its next job is to carry out."""
    rows = connection.execute(query("decisions.pending"), {"trial_ids": json.dumps(list(trial_ids))})
    return {row.trial_id: row for row in (DecisionRow.from_row(found[:-1]) for found in rows)}


def newest_clone(connection: sqlite3.Connection, trial_id: str, job: int) -> DecisionRow | None:
    """The decision by which the trial has continued last from another one's checkpoint, up to this job of it."""
    row = connection.execute(query("decisions.newest_clone"), {"trial_id": trial_id, "job": job}).fetchone()
    return None if row is None else DecisionRow.from_row(row)


def carry_out(connection: sqlite3.Connection, decision: DecisionRow, job: int) -> None:
    """The trial's job of this number begins with a decision."""
    values = {"experiment_id": decision.experiment_id, "parameter_id": decision.parameter_id, "job": job}
    connection.execute(query("decisions.carry_out"), values)
