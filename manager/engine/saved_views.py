"""Saved views: what a name, a page and a query string may be, and how many an experiment may have.

The API takes them from people and programs, and `archive` from saved experiments.
"""

import sqlite3
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from proctor.manager.actors import Actor
from proctor.manager.control_characters import is_clean
from proctor.manager.errors import Conflict
from proctor.manager.store.rows import SavedViewRow
from proctor.manager.store.tables import experiments, saved_views

MOST_VIEWS = 100
"""Of one experiment."""
LONGEST_NAME = 80
LONGEST_QUERY = 8192


def _name(value: str) -> str:
    if value != value.strip() or not is_clean(value) or "\n" in value or "\t" in value:
        raise ValueError("a view's name must have no control characters, and no spaces at its ends")
    if value in (".", ".."):
        raise ValueError("a view's name cannot be . or .., which addresses cannot hold")
    return value


def _query(value: str) -> str:
    return value.removeprefix("?")


ViewName = Annotated[str, Field(min_length=1, max_length=LONGEST_NAME), AfterValidator(_name)]
ViewPage = Literal["trials", "curves", "relations"]
ViewQuery = Annotated[str, Field(max_length=LONGEST_QUERY, pattern=r"^[!\"$-~]*$"), AfterValidator(_query)]
"""As an address has it, percent-encoded: printable ASCII without spaces and `#`. A leading question mark is dropped."""


def save(connection: sqlite3.Connection, row: SavedViewRow, *, actor: Actor) -> None:
    """Save a view in place of the one of this name. Raises RowNotFound, and Conflict where there are too many."""
    experiments.get(connection, row.experiment_id)
    names = {found.name for found in saved_views.of_experiment(connection, row.experiment_id)}
    if row.name not in names and len(names) >= MOST_VIEWS:
        raise Conflict(
            f"experiment {row.experiment_id} has {len(names)} saved views, and at most {MOST_VIEWS} are kept; "
            f"delete one or replace one"
        )
    saved_views.save(connection, row, actor=actor)
