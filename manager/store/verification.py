"""Looking at a database before it is opened: nothing is changed, so that a lost one can still be put back."""

import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from proctor.manager.store import database_identity
from proctor.manager.store.connections import RESTORE, advise, describe, primary_code
from proctor.manager.store.database_identity import Identity
from proctor.manager.store.errors import DatabaseUnusable
from proctor.manager.store.migrations import SchemaName, check_version
from proctor.manager.store.tables import experiments, home_place
from proctor.manager.store.tables.home_place import HomePlace

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


@dataclass(frozen=True)
class DatabaseFacts:
    """A database that can be read. `identity` is None where it was written before databases had one."""

    identity: Identity | None
    folders: Mapping[str, str]
    """Of the experiments, by id."""
    size_bytes: int
    place: HomePlace | None = None
    """Where its home was last; None where an earlier version has written it."""


def inspect(path: str, schema: SchemaName) -> DatabaseFacts | None:
    """What a database file is; None where it is not there or empty. Raises DatabaseUnusable, NewerDatabase."""
    try:
        size = os.stat(path).st_size
        if size == 0:  # SQLite would drop its log
            return None
        with _open(path) as connection:
            if check_version(connection, path, schema) == 0:
                return None
            table = connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'home'").fetchone()
            known = None if table is None else database_identity.read(connection)
            place = None if table is None else home_place.read(connection)
            return DatabaseFacts(known, experiments.folders(connection), size, place)
    except FileNotFoundError:
        return None
    except (OSError, sqlite3.Error) as error:
        raise _unusable(path, error) from error


def check_pages(path: str) -> None:
    """Read the whole file and see that its pages fit together: 3 s for each GB, and as long as the disk takes. Raises
    DatabaseUnusable."""
    try:
        with _open(path) as connection:
            found = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.Error as error:
        raise _unusable(path, error) from error
    if found != "ok":
        raise DatabaseUnusable(f"The database {path} is damaged: {' '.join(found.split())}. {RESTORE}")


@contextmanager
def _open(path: str) -> Iterator[sqlite3.Connection]:
    """A connection that changes neither the file nor its log."""
    uri = f"file:{quote(str(Path(path).absolute()))}?mode=ro"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        yield connection


def _unusable(path: str, error: Exception) -> DatabaseUnusable:
    if not isinstance(error, sqlite3.Error):
        return DatabaseUnusable(f"The database {path} cannot be read: {error}; check its folder and its disk.")
    if primary_code(error) in _DAMAGED:
        return DatabaseUnusable(f"The database {path} is damaged: {error}. {RESTORE}")
    return DatabaseUnusable(f"The database {path} cannot be read: {describe(error)}; {advise(error, path)}.")
