"""A real keeper and real trials on a small ext4 disk that fills up: what was reported is stored or said to be lost."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes.disks import Disk
from fakes.keeper_node import Node, eventually, kill_and_wait, lend, open_node

from proctor.trial_keeper.protocol import EndReason, Launch, Update

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PRELUDE = """\
import json, os, sys, threading, time
import proctor

folder = sys.argv[1]
job = os.environ["PROCTOR_JOB_ID"]


def note(*entry):
    with open(os.path.join(folder, job), "a") as ledger:
        ledger.write(json.dumps(entry) + "\\n")


def wait_for(gate):
    while not os.path.exists(os.path.join(folder, gate)):
        time.sleep(0.02)


def report(value):
    note("intermediate", value)
    proctor.report_intermediate_result(value)


def final(value):
    note("final", value)
    proctor.report_final_result(value)
    note("returned", value)


for value in range(5):
    report(value)
wait_for("full")
"""

LOSES = PRELUDE + "for value in range(5, 40): report({'default': value, 'text': 'x' * 600})\n"
REPORTS = LOSES + "final(0.5)\n"
FORKS = (
    PRELUDE
    + """\
def lose(first):
    for value in range(first, first + 20):
        report({"default": value, "text": "x" * 600})

children = []
for number in range(3):
    child = os.fork()
    if child == 0:
        lose(100 * number)
        os._exit(0)
    children.append(child)
os.environ.update(RANK="1", WORLD_SIZE="2")
other = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "-S", __file__.replace("forks", "loses"), folder])
for child in (*children, other):
    assert os.waitpid(child, 0)[1] == 0
"""
)
LARGE = PRELUDE + "final({'default': 0.5, 'text': 'x' * 100000})\n"


class Scene:
    """The keeper's directory and its jobs are on the disk, the manager and the ledgers are not."""

    def __init__(self, node: Node, disk: Disk, ledgers: Path) -> None:
        self.node = node
        self.disk = disk
        self.ledgers = ledgers

    def launch(self, job_id: str, script: str, *, name: str = "trial", after: str = "") -> Launch:
        path = self.ledgers / f"{name}.py"
        path.write_text(script)
        command = f"{sys.executable} -S {path} {self.ledgers}{after}"
        return self.node.launch(job_id, command, environment={"PROCTOR_REPORT_WAIT_SECONDS": "0.2"})

    async def until_reported(self, job_id: str, count: int = 5) -> None:
        await self.node.manager.until(lambda: len(self.stored(job_id)) >= count)

    def fill(self) -> None:
        self.disk.fill()
        (self.ledgers / "full").touch()

    @asynccontextmanager
    async def full(self) -> AsyncIterator[None]:
        """As `fill`; what jobs that end give back is taken, too."""
        self.fill()
        async with asyncio.TaskGroup() as group:
            filling = group.create_task(self._keep_full())
            yield
            filling.cancel()

    async def _keep_full(self) -> None:
        while True:
            await asyncio.to_thread(self.disk.fill)
            await asyncio.sleep(0.01)

    def entries(self, job_id: str, kind: str) -> list[Any]:
        path = self.ledgers / job_id
        entries = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [value for found, value in entries if found == kind]

    def records(self, job_id: str) -> list[dict[str, Any]]:
        found = []
        for member in ("0", "1"):
            for line in self.node.manager.journals.get((job_id, member), b"").splitlines():
                try:
                    found.append(json.loads(line))
                except ValueError:  # cut off by the full disk
                    continue
        return found

    def stored(self, job_id: str, kind: str = "intermediate") -> list[Any]:
        return [record["value"] for record in self.records(job_id) if record["kind"] == kind]

    def lost(self, job_id: str) -> int:
        return sum(record["count"] for record in self.records(job_id) if record["kind"] == "lost")


@pytest.fixture
async def scene(disk: Disk, tmp_path: Path) -> AsyncIterator[Scene]:
    ledgers, sockets = tmp_path / "ledgers", tmp_path / "sockets"
    ledgers.mkdir()
    sockets.mkdir()
    async with open_node(disk.folder / "node", manager_directory=sockets) as node:
        yield Scene(node, disk, ledgers)
        disk.free()


async def test_what_a_trial_reports_on_a_full_disk_is_stored_or_said_to_be_lost(scene: Scene) -> None:
    jobs = {"T.1": "reports", "U.1": "loses", "V.1": "forks"}
    scripts = {"reports": REPORTS, "loses": LOSES, "forks": FORKS}
    await scene.node.manager.command(*(scene.launch(job, scripts[name], name=name) for job, name in jobs.items()))
    for job_id in jobs:
        await scene.until_reported(job_id)
    async with scene.full():
        ends = {job_id: await scene.node.manager.end_of(job_id) for job_id in jobs}
    for job_id, end in ends.items():
        assert (end.reason, end.lost_finals) == (EndReason.EXITED_OK, [])
        tried = scene.entries(job_id, "intermediate")
        assert len(scene.stored(job_id)) + scene.lost(job_id) == len(tried)
        assert end.lost == scene.lost(job_id) > 0
        assert f"{end.lost} reports were lost: its disk was full" in end.detail
    assert ("V.1", "1") in scene.node.manager.journals
    assert scene.stored("T.1", "final") == scene.entries("T.1", "final") == [0.5]
    assert scene.records("T.1")[-2]["kind"] == "final"
    assert not scene.node.manager.overlaps
    scene.disk.free()
    await eventually(lambda: not list(scene.node.records.path.iterdir()))
    assert not list(scene.node.directory.rglob("reserve"))


async def test_a_final_too_long_to_be_kept_waits_until_there_is_room(scene: Scene) -> None:
    await scene.node.manager.command(scene.launch("T.1", LARGE))
    await scene.until_reported("T.1")
    scene.fill()
    await eventually(lambda: scene.entries("T.1", "final"))
    reserve = scene.node.job_directory("T.1") / "reserve"
    await eventually(lambda: b'"waiting"' in reserve.read_bytes())
    assert scene.entries("T.1", "returned") == []
    scene.disk.free()
    end = await scene.node.manager.end_of("T.1")
    assert (end.reason, end.lost, end.lost_finals) == (EndReason.EXITED_OK, 0, [])
    assert scene.stored("T.1", "final") == scene.entries("T.1", "returned")


async def test_a_trial_that_is_killed_while_its_final_waits_has_lost_it(scene: Scene) -> None:
    await scene.node.manager.command(scene.launch("T.1", LARGE, after=" || true"))
    await scene.until_reported("T.1")
    scene.fill()
    reserve = scene.node.job_directory("T.1") / "reserve"
    await eventually(lambda: b'"waiting"' in reserve.read_bytes())
    (python,) = [pid for pid in scene.node.members("T.1") if pid != scene.node.process("T.1").trial.pid]
    os.kill(python, signal.SIGKILL)
    end = await scene.node.manager.end_of("T.1")
    assert (end.reason, end.code, end.lost, end.lost_finals) == (EndReason.EXITED_OK, 0, 1, [0])
    assert "1 report was lost, its final metric among them: its disk was full" in end.detail
    assert (scene.stored("T.1", "final"), scene.lost("T.1")) == ([], 1)


async def test_a_kept_final_survives_its_trial_its_reaper_and_its_keeper(scene: Scene) -> None:
    await scene.node.manager.command(scene.launch("T.1", REPORTS + "time.sleep(600)"))
    await scene.until_reported("T.1")
    scene.fill()
    await eventually(lambda: scene.entries("T.1", "returned"))
    process = scene.node.process("T.1")
    scene.node.manager.takes_ends = False  # so that two keepers tell of it
    await scene.node.kill()
    await kill_and_wait(process.reaper.pid)
    await kill_and_wait(process.trial.pid)
    scene.disk.free()
    await scene.node.start()
    await scene.node.manager.end_of("T.1")
    await scene.node.kill()
    scene.node.manager.takes_ends = True
    await scene.node.start()
    await eventually(lambda: not list(scene.node.records.path.iterdir()))
    first, *_, last = scene.node.manager.ends["T.1"]
    assert first.exit.reason == EndReason.EXIT_UNKNOWN
    assert (first.exit.lost, last.exit.lost) == (scene.lost("T.1"), scene.lost("T.1"))
    assert scene.stored("T.1", "final") == [0.5]
    assert len(scene.stored("T.1")) + scene.lost("T.1") == len(scene.entries("T.1", "intermediate"))
    assert not scene.node.manager.overlaps


async def test_a_read_only_disk_is_waited_for_and_what_it_costs_is_told_from_memory(scene: Scene) -> None:
    await scene.node.manager.command(scene.launch("T.1", LOSES), scene.launch("U.1", LARGE, name="large"))
    await scene.until_reported("T.1")
    await scene.until_reported("U.1")
    scene.disk.make_read_only()
    (scene.ledgers / "full").touch()
    end = await scene.node.manager.end_of("T.1")
    assert (end.reason, end.lost) == (EndReason.EXITED_OK, 35)
    assert scene.lost("T.1") == 35
    await eventually(lambda: scene.entries("U.1", "final"))
    os.kill(scene.node.process("U.1").trial.pid, signal.SIGTERM)
    end = await scene.node.manager.end_of("U.1")
    assert (end.reason, end.lost, end.lost_finals) == (EndReason.SIGNALED, 1, [0])
    await scene.node.manager.until(lambda: "read-only" in scene.node.manager.headers[-1].full.get("", ""))


async def test_a_deadline_on_a_full_disk_is_told_as_a_deadline(scene: Scene) -> None:
    """The keeper cannot write down why it stops the job, so the reaper calls it a signal from outside."""
    manager = scene.node.manager
    await manager.command(scene.launch("T.1", PRELUDE + "time.sleep(600)"))
    await scene.until_reported("T.1")
    scene.fill()
    await manager.command(Update("T.1", "token of T.1", 0.0))
    end = await manager.end_of("T.1")
    assert end.reason == EndReason.DEADLINE
    assert "it ran longer than its limit" in end.detail


@pytest.mark.parametrize("state", ["full", "without inodes", "read-only"])
async def test_a_node_says_that_it_takes_no_new_jobs_and_when_it_does_again(scene: Scene, state: str) -> None:
    manager = scene.node.manager
    await manager.command(scene.launch("T.1", REPORTS))
    await scene.until_reported("T.1")
    fills = {"full": scene.disk.fill, "without inodes": scene.disk.fill_inodes, "read-only": scene.disk.make_read_only}
    fills[state]()
    await manager.command(scene.launch("U.1", "true", name="other"))
    end = await manager.end_of("U.1")
    assert end.reason == EndReason.NO_ROOM
    shown = {"full": "its disk is full", "without inodes": "its disk has no inodes left", "read-only": "is read-only"}
    assert shown[state] in end.detail
    assert shown[state] in next(header for header in manager.headers if header.ends).full[""]
    assert "T.1" not in manager.ends
    if state == "read-only":  # nothing mounts it writable again while files of it are open
        return
    scene.disk.free()
    await manager.until(lambda: manager.headers[-1].full == {})
    await manager.command(scene.launch("U.2", "true", name="other"))
    assert (await manager.end_of("U.2")).reason in (EndReason.EXITED_ERROR, EndReason.EXITED_OK)


@pytest.fixture
async def beside(disk: Disk, tmp_path: Path) -> AsyncIterator[Node]:
    """A node whose jobs have their directories on the disk (an `experimentWorkingDirectory`); its keeper has not."""
    async with open_node(tmp_path / "node") as node, lend(node, disk.folder) as lent:
        yield lent
        disk.free()


async def test_jobs_that_find_their_own_disk_full_are_given_back_until_it_has_room(beside: Node, disk: Disk) -> None:
    disk.fill()
    await beside.manager.command(beside.launch("T.1", "true"))
    end = await beside.manager.end_of("T.1")
    assert end.reason == EndReason.NO_ROOM
    assert "its disk is full" in end.detail
    (place,) = beside.manager.headers[-1].full
    assert str(beside.job_directory("T.1")).startswith(place)
    disk.free()
    await beside.manager.until(lambda: beside.manager.headers[-1].full == {})
    await beside.manager.command(beside.launch("T.2", "true"))
    assert (await beside.manager.end_of("T.2")).reason == EndReason.EXITED_OK


async def test_an_end_on_a_full_disk_has_its_room(beside: Node, disk: Disk) -> None:
    fifo = beside.directory / "go"
    os.mkfifo(fifo)
    await beside.manager.command(beside.launch("T.1", f"read line < {fifo}; exit 4"))
    await beside.manager.start_of("T.1")
    disk.fill()
    fifo.write_text("go\n")
    end = await beside.manager.end_of("T.1")
    assert (end.reason, end.code) == (EndReason.EXITED_ERROR, 4)
