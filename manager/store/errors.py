"""The errors of the store.

StoreError
├── RowNotFound        no row has this id
├── StaleWrite         the row is no longer in an expected status, or the fencing token is an old one
├── OffsetGap          a journal chunk begins after what is stored (`expected` is where it should begin)
├── BadCursor          a page cursor that this store did not make
├── QueryRefused       a filter, a sort order or a list of columns of a table is wrong (`position` says where)
├── ValueRefused       SQLite cannot hold a value: too large, too deep, not of its column's type
├── ReadTimeout        a read ran longer than its time limit
└── DatabaseUnusable   the file cannot be used: closed, damaged, not ours, not writable
    └── NewerDatabase  … written by a newer version of Proctor
"""

from functools import partial
from typing import Any


class StoreError(Exception):
    """The store could not do what was asked."""


class RowNotFound(StoreError):
    """No row has this id."""


class StaleWrite(StoreError):
    """The row has changed since the writer looked at it; nothing of this write was applied."""


class OffsetGap(StoreError):
    """Bytes of a journal are missing before this chunk. `expected` is the byte offset at which it should begin."""

    def __init__(self, message: str, expected: int) -> None:
        super().__init__(message)
        self.expected = expected


class BadCursor(StoreError):
    """The page cursor was not made by this store, or for another order."""


class QueryRefused(StoreError):
    """A part of a query is wrong: `key` names the part, `position` is the character in it, from 0, `found` what is
    there; `nearest` is a known name that looks like it."""

    def __init__(self, key: str, *, position: int, expected: str, found: str, nearest: str | None = None) -> None:
        hint = f"; did you mean {nearest}?" if nearest else ""
        super().__init__(f"{key}: expected {expected}, found {found}{hint} (position {position})")
        self.key = key
        self.position = position
        self.expected = expected
        self.found = found
        self.nearest = nearest

    def __reduce__(self) -> tuple[Any, ...]:
        parts = {name: getattr(self, name) for name in ("position", "expected", "found", "nearest")}
        return partial(QueryRefused, **parts), (self.key,)


class ValueRefused(StoreError):
    """A value cannot be stored; nothing of this write was applied."""


class NotJson(ValueRefused, TypeError):
    """A value of a JSON column is of a type that JSON does not have."""


class ReadTimeout(StoreError):
    """A read ran longer than its time limit and was interrupted."""


class DatabaseUnusable(StoreError):
    """The database file cannot be used."""


class NewerDatabase(DatabaseUnusable):
    """The database was written by a newer version of Proctor."""
