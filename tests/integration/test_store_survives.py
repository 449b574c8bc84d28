"""The store against SIGKILL at any moment."""

import os
import signal
import sqlite3
import subprocess
import sys
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
        for _ in range(int(sys.argv[2])):
            ids = await asyncio.gather(*(database.write(note) for _ in range(3)))
            print(*ids, flush=True)

asyncio.run(main())
"""


def _start_writer(path: str, rounds: int, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, path, str(rounds)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def _acknowledged(lines: list[str]) -> list[int]:
    """Ids in whole lines: a line that SIGKILL has cut may end in half a number."""
    return [int(number) for line in lines if line.endswith("\n") for number in line.split()]


def _stored(path: str) -> list[int]:
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    ids = [row[0] for row in connection.execute("SELECT id FROM events ORDER BY id")]
    connection.close()
    return ids


def test_what_was_acknowledged_survives_sigkill_again_and_again(tmp_path: Path) -> None:
    path = str(tmp_path / "control.db")
    acknowledged: list[int] = []
    for lines_before_the_kill in (1, 7, 23, 60):
        with _start_writer(path, 1_000_000) as child:
            assert child.stdout is not None
            lines = [child.stdout.readline() for _ in range(lines_before_the_kill)]
            os.kill(child.pid, signal.SIGKILL)
            lines += child.stdout.readlines()
        acknowledged += _acknowledged(lines)
        stored = _stored(path)
        assert set(acknowledged) <= set(stored)
        assert stored == list(range(1, len(stored) + 1))
        assert len(stored) % 3 == 0  # what was asked in one turn was committed together, or not at all


@pytest.mark.parametrize(("place", "stored"), [("before", 6), ("after", 9)])
def test_a_commit_happens_whole_or_not_at_all(tmp_path: Path, place: str, stored: int) -> None:
    path = str(tmp_path / "control.db")
    with _start_writer(path, 10, PROCTOR_FAILPOINT=f"control.commit.{place}@3") as child:
        assert child.stdout is not None
        lines = child.stdout.readlines()
    assert child.returncode == -signal.SIGKILL
    assert _acknowledged(lines) == [1, 2, 3, 4, 5, 6]
    assert len(_stored(path)) == stored
