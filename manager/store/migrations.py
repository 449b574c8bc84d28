"""Numbered migrations: `migrations/<schema>/NNNN.sql` bring a database from version NNNN-1 to NNNN.

The version is SQLite's `user_version`; `application_id` tells our files from others.
"""

import sqlite3
from functools import cache
from importlib.resources import files
from typing import Literal

from proctor.manager.store.errors import DatabaseUnusable, NewerDatabase

Schema = Literal["control", "metrics"]

_APPLICATION_IDS: dict[str, int] = {"control": 0x50524331, "metrics": 0x50524D31}


@cache
def load_migrations(schema: Schema) -> tuple[str, ...]:
    """The scripts of a schema, in order."""
    folder = files("proctor.manager.store") / "migrations" / schema
    scripts = sorted((item for item in folder.iterdir() if item.name.endswith(".sql")), key=lambda item: item.name)
    return tuple(script.read_text("utf-8") for script in scripts)


def migrate(connection: sqlite3.Connection, path: str, schema: Schema) -> None:
    """Bring the database to this version's schema, each step in one transaction.

    Raises NewerDatabase, or DatabaseUnusable when the file belongs to something else.
    """
    scripts = load_migrations(schema)
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > len(scripts):
        raise NewerDatabase(
            f"The database {path} has version {version}, written by a newer Proctor; this one reads up to version "
            f"{len(scripts)}. Update Proctor, or use another PROCTOR_HOME. Nothing was changed."
        )
    _check_owner(connection, path, schema)
    for number, script in enumerate(scripts[version:], start=version + 1):
        connection.executescript(
            f"BEGIN IMMEDIATE;\n{script}\nPRAGMA application_id = {_APPLICATION_IDS[schema]};\n"
            f"PRAGMA user_version = {number};\nCOMMIT;"
        )


def _check_owner(connection: sqlite3.Connection, path: str, schema: Schema) -> None:
    found = int(connection.execute("PRAGMA application_id").fetchone()[0])
    tables = int(connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0])
    if tables and found != _APPLICATION_IDS[schema]:
        raise DatabaseUnusable(
            f"The file {path} is not a Proctor {schema} database (application id {found:#x}, expected "
            f"{_APPLICATION_IDS[schema]:#x}). Move it away, or use another PROCTOR_HOME."
        )
