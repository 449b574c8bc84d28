"""Databases that hold their files open only while they are in use, which their users do not notice."""

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from proctor.manager.store.connections import open_reader, open_writer
from proctor.manager.store.database import HEALTHY, Database
from proctor.manager.store.errors import DatabaseUnusable
from proctor.manager.store.open_databases import OpenDatabases

pytestmark = pytest.mark.anyio


@pytest.fixture
async def path(tmp_path: Path) -> str:
    """A metrics database that is not in use."""
    return await made(tmp_path / "metrics.db")


@pytest.fixture
async def database(path: str) -> AsyncIterator[Database]:
    """A metrics database that can be used, and rest, during a test."""
    async with OpenDatabases(most=8) as databases:
        yield await databases.open(path, "metrics")


async def made(path: Path) -> str:
    async with await Database.open(str(path), "metrics") as database:
        await database.write(lambda c: c.execute("CREATE TABLE notes (text TEXT)").fetchall())
    return str(path)


def add(text: str) -> Callable[[sqlite3.Connection], None]:
    def run(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO notes VALUES (?)", (text,))

    return run


def texts(connection: sqlite3.Connection) -> list[str]:
    return [row[0] for row in connection.execute("SELECT text FROM notes ORDER BY rowid")]


def descriptors(path: str) -> int:
    """How many this process has of a database file and what belongs to it."""
    found = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            found += os.readlink(f"/proc/self/fd/{number}").startswith(path)
        except FileNotFoundError:
            continue
    return found


def threads() -> int:
    return sum(thread.name.startswith("store ") for thread in threading.enumerate())


async def until_closed(database: Database) -> None:
    """Until nothing of it is open and no thread serves it."""
    async with asyncio.timeout(90):
        while database.is_open or descriptors(database.path) or threads():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def rest(database: Database) -> None:
    database.rest()
    await until_closed(database)


async def until_few_are_open(databases: OpenDatabases, few: int) -> None:
    async with asyncio.timeout(90):
        while sum(database.is_open for database in databases.known()) > few:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_a_database_at_rest_holds_neither_descriptors_nor_threads_and_comes_back(
    database: Database, path: str
) -> None:
    for number in range(3):
        await database.write(add(str(number)))
        assert await database.read(texts) == [str(n) for n in range(number + 1)]
        assert descriptors(path) > 0
        await rest(database)
        assert not os.path.exists(f"{path}-wal"), "what is at rest is one whole file"
    assert (database.health, database.pending) == (HEALTHY, 0)


async def test_connections_that_close_at_the_same_time_leave_one_whole_file(database: Database, path: str) -> None:
    for number in range(120):
        await database.write(add(str(number)))
        await asyncio.gather(database.read(texts), database.read(texts))
        await rest(database)
        assert not os.path.exists(f"{path}-wal")


async def test_an_idle_database_closes_its_file_by_itself(path: str) -> None:
    async with OpenDatabases(most=8, idle_seconds=0.05) as databases:
        database = await databases.open(path, "metrics")
        await until_closed(database)
        for number in range(3):
            await database.write(add(str(number)))
            await until_closed(database)
        assert await database.read(texts) == ["0", "1", "2"]
        await until_closed(database)


async def test_requests_are_carried_out_in_order_whenever_the_file_is_closed_and_opened(path: str) -> None:
    async with OpenDatabases(most=8, idle_seconds=0.0) as databases:
        database = await databases.open(path, "metrics")
        writing = []
        for number in range(200):
            writing.append(database.write(add(str(number))))
            if number % 7 == 0:
                await asyncio.sleep(0.002)
            if number % 31 == 0:
                await writing[-1]
                reads = [database.read(texts) for _ in range(5)]
                for read in reads:
                    assert (await read)[: number + 1] == [str(n) for n in range(number + 1)]
        await asyncio.gather(*writing)
        assert await database.read(texts) == [str(n) for n in range(200)]
        assert database.commits >= 7, "commits are counted on"


async def test_a_read_that_is_under_way_is_finished_before_the_file_is_closed(database: Database) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow(connection: sqlite3.Connection) -> list[str]:
        begun.set()
        go_on.wait(30)
        return texts(connection)

    await database.write(add("one"))
    reading = database.read(slow)
    await asyncio.to_thread(begun.wait, 30)
    database.rest()
    another = database.read(texts)
    assert await another == ["one"]
    assert database.is_open
    go_on.set()
    assert await reading == ["one"]
    await rest(database)


async def test_of_many_databases_few_are_open(tmp_path: Path) -> None:
    paths = [await made(tmp_path / f"{number}.db") for number in range(12)]
    async with OpenDatabases(most=4) as databases:
        for number, path in enumerate(paths):
            await (await databases.open(path, "metrics")).write(add(str(number)))
        await until_few_are_open(databases, 4)
        is_open = [database.is_open for database in databases.known()]
        assert is_open == [False] * 8 + [True] * 4, "those that were idle for longest are closed"
        for number, path in enumerate(paths):
            assert await (await databases.open(path, "metrics")).read(texts) == [str(number)]
        await until_few_are_open(databases, 4)


async def test_one_that_is_used_all_the_time_is_not_closed_early(tmp_path: Path) -> None:
    busy, *others = [await made(tmp_path / f"{number}.db") for number in range(9)]
    async with OpenDatabases(most=2) as databases:
        database = await databases.open(busy, "metrics")
        for path in others:
            await (await databases.open(path, "metrics")).read(texts)
            await database.write(add("again"))
        await until_few_are_open(databases, 2)
        assert database.is_open


async def test_two_who_ask_for_a_database_at_once_get_the_same(path: str) -> None:
    async with OpenDatabases(most=8) as databases:
        one, another = await asyncio.gather(databases.open(path, "metrics"), databases.open(path, "metrics"))
        assert one is another


async def test_while_the_file_cannot_be_opened_reads_fail_and_writes_wait_with_the_reason(
    database: Database, path: str, tmp_path: Path
) -> None:
    away = tmp_path / "away.db"
    await rest(database)
    os.rename(path, away)
    changes: asyncio.Queue[str] = asyncio.Queue()
    database.on_health_change(changes.put_nowait)
    with pytest.raises(DatabaseUnusable, match="cannot be read: unable to open database file"):
        await database.read(texts)
    assert not os.path.exists(path), "a read makes no file"
    assert database.health == HEALTHY
    writing = database.write(add("one"))
    async with asyncio.timeout(90):
        sentence = await changes.get()
        assert "cannot be opened: No such file or directory" in sentence
        assert sentence.endswith("It is tried again until it works.")
        with pytest.raises(DatabaseUnusable):
            database.require_writable()
        os.rename(away, path)
        await writing
        assert await changes.get() == HEALTHY
    assert await database.read(texts) == ["one"]


async def test_a_file_that_was_replaced_by_no_database_fails_writes_too(database: Database, path: str) -> None:
    await rest(database)
    for content, problem in ((b"this is no database" * 1000, "not a database"), (b"", "is empty")):
        Path(path).write_bytes(content)
        with pytest.raises(DatabaseUnusable, match=problem):
            await database.write(add("one"))
        assert problem in database.health


async def test_what_was_asked_is_carried_out_before_the_end_and_nothing_after(path: str) -> None:
    async with OpenDatabases(most=8) as databases:
        database = await databases.open(path, "metrics")
        await rest(database)
        writing = [database.write(add(str(number))) for number in range(5)]
    await asyncio.gather(*writing)
    assert descriptors(path) == 0
    with pytest.raises(DatabaseUnusable, match="is closed"):
        database.read(texts)
    connection = sqlite3.connect(path)
    assert texts(connection) == ["0", "1", "2", "3", "4"]
    connection.close()


async def test_a_database_that_is_being_opened_is_closed_once_it_is_open(path: str) -> None:
    async with OpenDatabases(most=8) as databases, asyncio.TaskGroup() as group:
        opening = group.create_task(databases.open(path, "metrics"))
        await asyncio.sleep(0)
        await databases.close(path)
        with pytest.raises(DatabaseUnusable, match="is closed"):
            (await opening).read(texts)
        assert (descriptors(path), databases.known()) == (0, [])


async def test_a_database_that_was_closed_for_good_can_be_opened_again(path: str) -> None:
    async with OpenDatabases(most=8) as databases:
        await (await databases.open(path, "metrics")).write(add("one"))
        await databases.close(path)
        assert (descriptors(path), threads()) == (0, 0)
        await databases.close(path)
        assert await (await databases.open(path, "metrics")).read(texts) == ["one"]


async def test_while_no_thread_can_be_started_reads_fail_and_writes_wait_with_the_reason(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith("store "):
            raise RuntimeError("can't start new thread")
        start(thread)

    start = threading.Thread.start
    await rest(database)
    changes: asyncio.Queue[str] = asyncio.Queue()
    database.on_health_change(changes.put_nowait)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(DatabaseUnusable, match="can't start new thread"):
            await database.read(texts)
        writing = database.write(add("one"))
        async with asyncio.timeout(90):
            assert "cannot be written: can't start new thread" in await changes.get()
    async with asyncio.timeout(90):
        await writing
        assert await changes.get() == HEALTHY
    assert await database.read(texts) == ["one"]


async def test_what_no_thread_could_take_is_carried_out_at_the_end(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with OpenDatabases(most=8) as databases:
        database = await databases.open(path, "metrics")
        await rest(database)
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        await asyncio.to_thread(int)  # the only thread, which closes it, is there already
        monkeypatch.setattr(threading.Thread, "start", refuse)
        writing = database.write(add("one"))
    await writing
    assert (database.is_open, descriptors(path)) == (False, 0)


@pytest.mark.slow  # a process of its own
async def test_a_writer_that_opens_the_file_beside_readers_keeps_its_log_from_other_processes(path: str) -> None:
    """SQLite's locks are the process's: to open and close the file in another way would drop those of the readers, and
    another process that leaves would remove the log, with all that is written from then on."""
    with closing(open_reader(path)) as reader:
        assert texts(reader) == []
        with closing(open_writer(path, "metrics", create=False)) as writer:
            add("one")(writer)
            program = f"from proctor.manager.store.connections import open_reader as o; c = o({path!r}); "
            program += "print(*c.execute('SELECT text FROM notes').fetchone()); c.close()"
            done = await asyncio.to_thread(subprocess.run, [sys.executable, "-P", "-c", program], capture_output=True)
            assert done.stdout == b"one\n"
            assert os.path.exists(f"{path}-wal")
