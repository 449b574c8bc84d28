"""The metrics databases of all experiments: any number is known, a few are open.

An open database holds up to seven descriptors and three threads. That of an experiment that is DONE or was stopped is
needed now and then, so a database closes its file when it was idle for a while, and the one that was idle for longest
does when too many are open.
"""

import asyncio
from types import TracebackType
from typing import Self
from weakref import WeakValueDictionary

from proctor.manager.store.database import Database
from proctor.manager.store.migrations import SchemaName

IDLE_SECONDS = 30.0


class OpenDatabases:
    """Databases by the paths of their files. Closes them all when it is left as a context manager.

    :param most: how many may be open before those that were idle for longest are closed early.
    :param threads: as of `Database.open`; without them a database stays open.
    """

    def __init__(self, *, most: int, threads: bool = True, idle_seconds: float = IDLE_SECONDS) -> None:
        self._most = most
        self._threads = threads
        self._idle_seconds = idle_seconds
        self._databases: dict[str, Database] = {}
        self._used: dict[str, Database] = {}  # those that may be open, the one that was used last at the end
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Of paths: a database is not closed while it is being opened. Held by those who wait for them."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for path in list(self._databases):
            await self.close(path)

    async def open(self, path: str, schema: SchemaName) -> Database:
        """The database of a file that must be there. Raises DatabaseUnusable or NewerDatabase."""
        async with self._lock(path):
            if path not in self._databases:
                database = await Database.open(
                    path,
                    schema,
                    on_use=self._record_use,
                    threads=self._threads,
                    create=False,
                    idle_seconds=self._idle_seconds,
                )
                self._databases[path] = database
                self._record_use(database)
            return self._databases[path]

    def known(self) -> list[Database]:
        """Those that were opened, whether they hold their files open at the moment or not."""
        return list(self._databases.values())

    async def close(self, path: str) -> None:
        """Close a database for good; one that is not there is allowed, and one that is being opened is waited for."""
        async with self._lock(path):
            database = self._databases.pop(path, None)
            self._used.pop(path, None)
            if database is not None:
                await database.close()

    def _lock(self, path: str) -> asyncio.Lock:
        lock = self._locks.get(path)
        if lock is None:
            self._locks[path] = lock = asyncio.Lock()
        return lock

    def _record_use(self, database: Database) -> None:
        """A database is about to be used; where that opens its file, others may have to close theirs."""
        is_newcomer = database.path not in self._used or not database.is_open
        self._used.pop(database.path, None)
        self._used[database.path] = database
        if is_newcomer and self._threads:
            self._make_room()

    def _make_room(self) -> None:
        *others, newcomer = self._used.values()
        opened = [database for database in others if database.is_open]
        surplus = max(len(opened) + 1 - self._most, 0)
        for database in opened[:surplus]:
            database.rest()
        self._used = {database.path: database for database in (*opened[surplus:], newcomer)}
