"""A store whose disk is full loses nothing, and continues when there is room."""

import asyncio
import re
import sqlite3
from contextlib import closing

import pytest
from fakes.disks import Disk

from proctor.manager.store.database import HEALTHY, Database
from proctor.manager.store.tables import events


@pytest.mark.anyio
async def test_a_full_disk_loses_nothing_and_is_recovered_from(disk: Disk) -> None:
    def note(connection: sqlite3.Connection) -> int:
        return events.append(connection, time=1.0, kind=events.NOTICE, data={"text": "x" * 60_000})

    path = str(disk.folder / "control.db")
    reported: asyncio.Queue[str] = asyncio.Queue()
    async with await Database.open(path, "control") as database:
        database.on_health_change(reported.put_nowait)
        assert await database.write(note) == 1
        disk.fill()
        writing = asyncio.gather(*(database.write(note) for _ in range(4)))
        async with asyncio.timeout(60):
            sentence = await reported.get()
        assert re.match(rf"The database {path} cannot be written: .*\(SQLITE_(FULL|IOERR\w*)\)", sentence)
        assert await database.read(events.last_id) == 1
        assert not writing.done()
        disk.free()
        async with asyncio.timeout(60):
            assert await writing == [2, 3, 4, 5]
            assert await reported.get() == HEALTHY
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert [number for (number,) in connection.execute("SELECT id FROM events ORDER BY id")] == [1, 2, 3, 4, 5]
