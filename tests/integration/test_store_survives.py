"""The store against SIGKILL at a commit."""

import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

WRITER = """
import asyncio, sys
from proctor.manager.store.tables import events
from proctor.manager.store.database import Database

def note(c):
    return events.append(c, time=1.0, kind=events.NOTICE, data={"text": "x" * 200})

async def main():
    async with await Database.open(sys.argv[1], "control") as database:
        for _ in range(10):
            ids = await asyncio.gather(*(database.write(note) for _ in range(3)))
            print(*ids, flush=True)

asyncio.run(main())
"""


@pytest.mark.parametrize(("place", "stored"), [("before", 6), ("after", 9)])
def test_a_commit_happens_whole_or_not_at_all(tmp_path: Path, place: str, stored: int) -> None:
    """What was asked in one turn is committed together, and acknowledged then. Random moments: `tests/chaos`."""
    path = str(tmp_path / "control.db")
    environment = {**os.environ, "PROCTOR_FAILPOINT": f"control.commit.{place}@3"}
    child = subprocess.run([sys.executable, "-c", WRITER, path], capture_output=True, env=environment, check=False)
    assert child.returncode == -signal.SIGKILL
    assert child.stdout.split() == [b"1", b"2", b"3", b"4", b"5", b"6"]
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("SELECT count(*), max(id) FROM events").fetchone() == (stored, stored)
