"""Heavy reads in a process of their own: as in the reader threads, and nothing stays behind."""

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from fakes import heavy_reads
from fakes.heavy_reads import (
    die,
    endless,
    endless_code,
    one,
    raise_what_cannot_be_copied,
    refuse,
    refuse_all,
    whole,
    write,
)

from proctor.manager.errors import BadRequest
from proctor.manager.store.connections import open_writer
from proctor.manager.store.database import Database
from proctor.manager.store.errors import DatabaseUnusable, QueryRefused, ReadTimeout
from proctor.manager.store.read_process import ReadProcess

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> str:
    open_writer(str(tmp_path / "control.db"), "control").close()
    return str(tmp_path / "control.db")


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(heavy_reads.__file__).parents[1]))


@pytest.fixture
async def reads() -> AsyncIterator[ReadProcess]:
    async with ReadProcess.open() as opened:
        yield opened


def is_alive(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


async def test_a_read_runs_in_one_process_that_ends_with_it(path: str) -> None:
    async with ReadProcess.open() as reads:
        assert reads.pid is None
        pid, data = await reads.read(path, whole)
        assert (pid, len(data)) == (reads.pid, 3_000_000)
        assert await asyncio.gather(*(reads.read(path, one, number) for number in range(3))) == [b"0", b"1", b"2"]
        assert reads.pid == pid != os.getpid()
    assert not is_alive(pid)
    with pytest.raises(DatabaseUnusable, match="the manager ends"):
        await reads.read(path, whole)


async def test_errors_arrive_as_from_a_reader_thread(reads: ReadProcess, path: str, tmp_path: Path) -> None:
    with pytest.raises(QueryRefused) as refused:
        await reads.read(path, refuse)
    assert (refused.value.key, refused.value.position, refused.value.nearest) == ("filter", 3, "c")
    with pytest.raises(BadRequest, match="too much") as bad:
        await reads.read(path, refuse_all)
    assert bad.value.problems == ("a problem",)
    with pytest.raises(ReadTimeout, match=r"longer than 0\.05 s"):
        await reads.read(path, endless, time_limit_seconds=0.05)
    with pytest.raises(DatabaseUnusable, match="cannot be read"):
        await reads.read(str(tmp_path / "nonesuch.db"), one, 1)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        await reads.read(path, write)
    with pytest.raises(RuntimeError, match="_NotCopied: two words"):
        await reads.read(path, raise_what_cannot_be_copied)
    assert await reads.read(path, one, 5) == b"5"


async def test_a_read_whose_caller_is_canceled_does_not_hold_up_the_next(reads: ReadProcess, path: str) -> None:
    pid, _ = await reads.read(path, whole)
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(reads.read(path, endless, time_limit_seconds=600.0))
        queued = group.create_task(reads.read(path, die))
        await asyncio.sleep(0)
        while reads._current == 0:  # noqa: ASYNC110
            await asyncio.sleep(0)
        waiting.cancel()
        queued.cancel()
    assert await reads.read(path, one, 7) == b"7"
    assert reads.pid == pid


async def cancel_begun(reads: ReadProcess, path: str, function: Any, **held: Any) -> None:
    """Cancel a read as soon as it has its turn."""
    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(reads.read(path, function, time_limit_seconds=600.0, **held))
        while reads._current == 0:  # noqa: ASYNC110
            await asyncio.sleep(0)
        waiting.cancel()


async def test_a_canceled_read_in_python_code_ends_with_its_process(reads: ReadProcess, path: str) -> None:
    pid, _ = await reads.read(path, whole)
    await cancel_begun(reads, path, endless_code)
    async with asyncio.timeout(60):  # of 630
        assert await reads.read(path, one, 7) == b"7"
    assert not is_alive(pid)


async def test_a_read_that_is_canceled_while_its_process_starts_is_not_begun(reads: ReadProcess, path: str) -> None:
    await cancel_begun(reads, path, die)
    pid, _ = await reads.read(path, whole)
    assert reads.pid == pid
    assert not reads._unwanted


async def test_what_is_held_for_a_canceled_read_is_held_until_the_process_has_ended_it(
    reads: ReadProcess, path: str
) -> None:
    found = []

    @contextmanager
    def held() -> Iterator[None]:
        found.append("begin")
        yield
        found.append(f"end of {reads._current}")

    await reads.read(path, whole)
    await cancel_begun(reads, path, endless, held=held())
    assert found == ["begin"]
    assert await reads.read(path, one, 7) == b"7"
    assert len(found) == 2


async def test_a_process_that_was_killed_is_replaced(reads: ReadProcess, path: str) -> None:
    pid, _ = await reads.read(path, whole)
    os.kill(pid, signal.SIGKILL)
    assert (await reads.read(path, whole))[0] != pid
    with pytest.raises(DatabaseUnusable, match="the process that reads it has ended"):
        await reads.read(path, die)
    assert await reads.read(path, one, 1) == b"1"


async def test_it_ends_when_it_was_idle_and_starts_again(path: str) -> None:
    async with ReadProcess.open(idle_seconds=0.01) as reads:
        first, _ = await reads.read(path, whole)
        while reads.pid is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        assert not is_alive(first)
        assert await reads.read(path, one, 1) == b"1"


async def test_a_database_is_not_closed_while_it_is_read_elsewhere(tmp_path: Path) -> None:
    database = await Database.open(str(tmp_path / "metrics.db"), "metrics")
    async with asyncio.TaskGroup() as group:
        with database.kept_open():
            closing = group.create_task(database.close())
            await asyncio.sleep(0.05)
            assert not closing.done()
    with pytest.raises(DatabaseUnusable, match="is closed"), database.kept_open():
        pass


_MANAGER = """
import asyncio, sys
from proctor.manager.store.read_process import ReadProcess

async def main():
    async with ReadProcess.open() as reads:
        await reads.read(sys.argv[1], repr)
        print(reads.pid, flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


async def test_it_ends_when_the_manager_is_killed(path: str) -> None:
    command = [sys.executable, "-c", _MANAGER, path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as manager:  # noqa: ASYNC220
        assert manager.stdout is not None
        pid = int(manager.stdout.readline())
        assert is_alive(pid)
        manager.kill()
        manager.wait()
    async with asyncio.timeout(30):
        while is_alive(pid):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
