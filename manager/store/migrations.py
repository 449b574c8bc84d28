"""Numbered migrations: `migrations/<schema>/NNNN.sql` bring a database from version NNNN-1 to NNNN.

The version is SQLite's `user_version`; `application_id` tells our files from others.
"""

import sqlite3
from functools import cache
from importlib.resources import files
from typing import Literal

from proctor.manager.store.errors import DatabaseUnusable, NewerDatabase
from proctor.sdk.failpoints import failpoint

SchemaName = Literal["control", "metrics"]

_APPLICATION_IDS: dict[str, int] = {"control": 0x50524331, "metrics": 0x50524D31}


@cache
def load_migrations(schema: SchemaName) -> tuple[str, ...]:
    """The scripts of a schema, in order."""
    folder = files("proctor.manager.store") / "migrations" / schema
    scripts = sorted((item for item in folder.iterdir() if item.name.endswith(".sql")), key=lambda item: item.name)
    return tuple(script.read_text("utf-8") for script in scripts)


def check_version(connection: sqlite3.Connection, path: str, schema: SchemaName) -> int:
    """The version that the file has. Changes nothing.

    Raises NewerDatabase, or DatabaseUnusable when the file belongs to something else.
    """
    known = len(load_migrations(schema))
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    found = int(connection.execute("PRAGMA application_id").fetchone()[0])
    tables = int(connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0])
    if tables and found != _APPLICATION_IDS[schema]:
        raise DatabaseUnusable(
            f"The file {path} is not a Proctor {schema} database (application id {found:#x}, expected "
            f"{_APPLICATION_IDS[schema]:#x}). Move it away, or use another PROCTOR_HOME. Nothing was changed."
        )
    if version > known:
        raise NewerDatabase(
            f"The database {path} has version {version}, written by a newer Proctor; this one reads up to version "
            f"{known}. Update Proctor, or use another PROCTOR_HOME. Nothing was changed."
        )
    return version


def migrate(connection: sqlite3.Connection, version: int, schema: SchemaName) -> None:
    """Bring the database from `version` to this Proctor's, each step in one transaction."""
    for number, script in enumerate(load_migrations(schema)[version:], start=version + 1):
        failpoint(f"{schema}.migrate.before")
        connection.executescript(
            f"BEGIN IMMEDIATE;\n{script}\nPRAGMA application_id = {_APPLICATION_IDS[schema]};\n"
            f"PRAGMA user_version = {number};\nCOMMIT;"
        )
        failpoint(f"{schema}.migrate.after")
