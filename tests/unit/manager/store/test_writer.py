"""The writer while the machine is in the way: nothing is lost, health says so, and it recovers by itself."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from proctor.manager.store.database import HEALTHY, Database
from proctor.manager.store.errors import DatabaseUnusable
from proctor.manager.store.tables import events

pytestmark = pytest.mark.anyio


def _error(code: int, name: str, text: str) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(text)
    error.sqlite_errorcode, error.sqlite_errorname = code, name
    return error


FULL = (sqlite3.SQLITE_FULL, "SQLITE_FULL", "database or disk is full")
IO = (sqlite3.SQLITE_IOERR | 4 << 8, "SQLITE_IOERR_FSYNC", "disk I/O error")


class FaultyConnection(sqlite3.Connection):
    """A connection on which statements that begin with a given word fail until the fault is taken away."""

    faults: ClassVar[dict[str, tuple[int, str, str]]] = {}

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        fault = self.faults.get(sql.split()[0])
        if fault is not None:
            raise _error(*fault)
        return super().execute(sql, *arguments)


@pytest.fixture
def faults() -> Iterator[dict[str, tuple[int, str, str]]]:
    """The faults of the moment, by first word of the statement."""
    yield FaultyConnection.faults
    FaultyConnection.faults.clear()


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the database of a test lies."""
    return str(tmp_path / "control.db")


@pytest.fixture
async def database(path: str, faults: dict[str, tuple[int, str, str]]) -> AsyncIterator[Database]:
    """A database that is open during a test, on which faults can happen."""
    async with await Database.open(path, "control", connection_class=FaultyConnection) as database:
        yield database


def _note(connection: sqlite3.Connection) -> int:
    return events.append(connection, time=1.0, kind=events.NOTICE, data={})


class _HealthLog:
    """Every health that was reported, to be waited for."""

    def __init__(self, database: Database) -> None:
        self.told: asyncio.Queue[str] = asyncio.Queue()
        database.on_health_change(self.told.put_nowait)

    async def next(self) -> str:
        async with asyncio.timeout(30):
            return await self.told.get()


@pytest.mark.parametrize("statement", ["BEGIN", "INSERT", "COMMIT"])
@pytest.mark.parametrize("fault", [FULL, IO])
async def test_writes_wait_until_the_machine_lets_them_through(
    database: Database, path: str, faults: dict[str, tuple[int, str, str]], statement: str, fault: tuple[int, str, str]
) -> None:
    health = _HealthLog(database)
    faults[statement] = fault
    writing = asyncio.gather(*(database.write(_note) for _ in range(3)))
    sentence = await health.next()
    assert sentence == database.health
    assert sentence.startswith(f"The database {path} cannot be written: {fault[2]} ({fault[1]}).")
    assert await database.read(events.last_id) == 0
    assert not writing.done()
    faults.clear()
    assert await writing == [1, 2, 3]
    assert await health.next() == HEALTHY == database.health
    assert await database.read(events.last_id) == 3
    assert database.commits == 1


async def test_a_full_disk_says_what_to_do(database: Database, faults: dict[str, tuple[int, str, str]]) -> None:
    health = _HealthLog(database)
    faults["COMMIT"] = FULL
    writing = database.write(_note)
    assert "free some space" in await health.next()
    faults.clear()
    await writing


async def test_the_fault_is_found_behind_an_error_that_wraps_it(path: str) -> None:
    attempts: list[int] = []

    def wrap(connection: sqlite3.Connection) -> int:
        attempts.append(1)
        if len(attempts) < 3:
            try:
                raise _error(*FULL)
            except sqlite3.Error as error:
                raise LookupError("could not store it") from error
        return _note(connection)

    async with await Database.open(path, "control") as database:
        assert await database.write(wrap) == 1
        assert len(attempts) == 3


async def test_closing_does_not_wait_for_a_machine_that_stays_in_the_way(
    path: str, faults: dict[str, tuple[int, str, str]]
) -> None:
    database = await Database.open(path, "control", connection_class=FaultyConnection)
    health = _HealthLog(database)
    faults["COMMIT"] = FULL
    writing = database.write(_note)
    await health.next()
    await database.close()
    with pytest.raises(DatabaseUnusable, match=r"database or disk is full.*closed meanwhile"):
        await writing
    faults.clear()
    async with await Database.open(path, "control") as reopened:
        assert await reopened.read(events.last_id) == 0


async def test_a_damaged_database_is_told_and_not_tried_for_ever(
    database: Database, faults: dict[str, tuple[int, str, str]]
) -> None:
    health = _HealthLog(database)
    faults["COMMIT"] = (sqlite3.SQLITE_CORRUPT, "SQLITE_CORRUPT", "database disk image is malformed")
    with pytest.raises(DatabaseUnusable, match="is damaged: database disk image is malformed"):
        await database.write(_note)
    assert "is damaged" in await health.next()
    faults.clear()


async def test_an_error_of_the_callers_making_is_never_tried_again(path: str) -> None:
    attempts: list[int] = []

    def clash(connection: sqlite3.Connection) -> None:
        attempts.append(1)
        connection.execute("INSERT INTO nodes (id) VALUES ('n')")

    async with await Database.open(path, "control") as database:
        with pytest.raises(sqlite3.IntegrityError):
            await database.write(clash)
        assert (len(attempts), database.health) == (1, HEALTHY)
