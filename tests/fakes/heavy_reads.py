"""Functions for the process of heavy reads, which has to import them."""

import os
import sqlite3
from typing import Any

from proctor.manager.errors import BadRequest
from proctor.manager.store.errors import QueryRefused

_ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT count(*) FROM n"


def one(connection: sqlite3.Connection, number: int) -> bytes:
    return b"%d" % connection.execute("SELECT ?", (number,)).fetchone()


def whole(connection: sqlite3.Connection) -> tuple[int, bytes]:
    print("this is no answer")
    return os.getpid(), bytes(3_000_000)


def endless(connection: sqlite3.Connection, *_: Any) -> Any:
    return connection.execute(_ENDLESS).fetchone()


def endless_code(connection: sqlite3.Connection) -> Any:
    while True:
        pass


class _NotCopied(Exception):
    """Can be pickled, and not be unpickled."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def raise_what_cannot_be_copied(connection: sqlite3.Connection) -> None:
    raise _NotCopied("two", "words")


def write(connection: sqlite3.Connection) -> None:
    connection.execute("CREATE TABLE x (y)")


def refuse(connection: sqlite3.Connection) -> None:
    raise QueryRefused("filter", position=3, expected="a", found="b", nearest="c")


def refuse_all(connection: sqlite3.Connection) -> None:
    raise BadRequest("too much", ["a problem"])


def die(connection: sqlite3.Connection) -> None:
    os._exit(3)
