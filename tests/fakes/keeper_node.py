"""One node for tests: a real keeper process in a temporary directory, a fake manager, and launches to give it."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fakes.keeper_manager import NODE_ID, SECRET, FakeManager
from fakes.launches import make_launch

from proctor.trial_keeper.jobs.cleanup import end_leftovers
from proctor.trial_keeper.jobs.records import ProcessRecord, RecordFolder
from proctor.trial_keeper.linux.processes import find_job_processes, survey
from proctor.trial_keeper.protocol import Cancel, Exit, Launch, Start
from proctor.trial_keeper.start import find_keeper, start_keeper, stop_keeper


@dataclass
class Node:
    """A keeper's directory and the manager it talks to. Everything blocking runs in a thread."""

    directory: Path
    manager: FakeManager
    keeper_directory: Path
    executable: str = sys.executable
    gpu_lock_directory: str = ""
    device_refresh_seconds: float = 5.0
    linger_seconds: float | None = None

    @property
    def records(self) -> RecordFolder:
        """What the keeper has written down."""
        return RecordFolder(self.keeper_directory / "jobs")

    async def start(self) -> int:
        """Start the keeper if none runs; returns its pid."""
        return await asyncio.to_thread(
            start_keeper,
            self.keeper_directory,
            node_id=NODE_ID,
            manager_pointer=self.manager.pointer,
            secret=SECRET,
            executable=self.executable,
            device_refresh_seconds=self.device_refresh_seconds,
            linger_seconds=self.linger_seconds,
            gpu_lock_directory=self.gpu_lock_directory or str(self.directory / "gpu-locks"),
        )

    async def stop(self) -> bool:
        """Have the keeper leave. Commands that are given from now on are for the next one."""
        has_left = await asyncio.to_thread(stop_keeper, self.keeper_directory)
        await self.manager.forget_session()
        return has_left

    async def kill(self) -> None:
        """Kill the keeper, and wait until it is dead. Commands that are given from now on are for the next one."""
        pid = find_keeper(self.keeper_directory)
        assert pid is not None, (self.keeper_directory / "log").read_text()
        await kill_and_wait(pid)
        await self.manager.forget_session()

    async def replace_keeper(self) -> None:
        """Kill the keeper, and start the next one."""
        await self.kill()
        await self.start()

    async def begin(self, job: Launch | str, *others: Launch, **changes: Any) -> Start:
        """Have jobs, and wait until they run; how the first one began. A command is one of job T.1."""
        jobs = [self._launch_of(job, changes), *others]
        await self.manager.command(*jobs)
        starts = [await self.manager.start_of(each.job_id) for each in jobs]
        return starts[0]

    async def run(self, job: Launch | str, *others: Launch, **changes: Any) -> Exit:
        """Have jobs, and wait until they have ended; how the first one did. A command is one of job T.1."""
        jobs = [self._launch_of(job, changes), *others]
        await self.manager.command(*jobs)
        ends = [await self.manager.end_of(each.job_id) for each in jobs]
        return ends[0]

    def _launch_of(self, job: Launch | str, changes: dict[str, Any]) -> Launch:
        return self.launch("T.1", job, **changes) if isinstance(job, str) else job

    async def cancel(self, job_id: str = "T.1", *, grace_seconds: float = 0.5) -> Exit:
        """Stop a job, and wait for its end."""
        await self.manager.command(Cancel(job_id, f"token of {job_id}", grace_seconds))
        return await self.manager.end_of(job_id)

    def launch(self, job_id: str, command: str, **changes: Any) -> Launch:
        """The order to run `command` as a job of its own directory."""
        return make_launch(job_id, command, folder=self.job_directory(job_id), code=self.directory, **changes)

    def job_directory(self, job_id: str) -> Path:
        """Where a job's files are."""
        trial_id, _, number = job_id.partition(".")
        return self.directory / "trials" / trial_id / "jobs" / number

    def process(self, job_id: str) -> ProcessRecord:
        """Who runs a job."""
        record = self.records.read_process(job_id)
        assert record is not None
        return record

    def spawner(self, job_id: str) -> int:
        """The pid of the process that has started the reaper of a job."""
        return survey()[self.process(job_id).reaper.pid].parent

    def members(self, job_id: str) -> list[int]:
        """The pids of all living processes of a job."""
        return sorted(process.pid for process in find_job_processes((job_id, str(self.job_directory(job_id)))))

    def output(self, job_id: str, name: str = "stdout") -> str:
        """What the trial has printed."""
        return (self.job_directory(job_id) / name).read_text()


@asynccontextmanager
async def open_node(
    directory: Path, *, manager_directory: Path | None = None, uses_tls: bool = False, **changes: Any
) -> AsyncIterator[Node]:
    """A running manager and keeper; at the end, the keeper and everything of its jobs is stopped."""
    directory.mkdir(exist_ok=True)
    manager = FakeManager(manager_directory or directory, uses_tls=uses_tls)
    node = Node(directory, manager, directory / "keeper", **changes)
    async with manager.running():
        await node.start()
        try:
            yield node
        finally:
            jobs = {job.job_id for registration in manager.registrations for job in registration.jobs}
            await node.stop()
            for job_id in jobs | set(manager.starts):
                await asyncio.to_thread(
                    end_leftovers, (job_id, str(node.job_directory(job_id))), None, grace_seconds=0.0
                )


@asynccontextmanager
async def lend(node: Node, directory: Path) -> AsyncIterator[Node]:
    """The node with its running keeper, for one test of several: jobs in a directory of their own, a manager that knows
    nothing of those before. At the end all jobs are stopped."""
    directory.mkdir(exist_ok=True)
    node.manager.forget_jobs()
    if find_keeper(node.keeper_directory) is None:
        await node.manager.forget_session()
        await node.start()
    await node.manager.until(lambda: node.manager.registrations)
    lent = replace(node, directory=directory)
    try:
        yield lent
    finally:
        for path in node.records.path.glob("*.unreadable"):
            path.unlink()
        jobs = [name.removesuffix(".json") for name in os.listdir(node.records.path) if name.endswith(".json")]
        if jobs:
            await node.manager.command(*(Cancel(job_id, f"token of {job_id}", grace_seconds=0.0) for job_id in jobs))
        await eventually(lambda: not list(node.records.path.iterdir()))


async def kill_and_wait(pid: int) -> None:
    """SIGKILL, and wait for the process to be gone."""
    descriptor = os.pidfd_open(pid)
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        await readable(descriptor)
    finally:
        os.close(descriptor)


async def readable(descriptor: int, *, seconds: float = 30.0) -> None:
    """Wait until a descriptor (a pidfd, a pipe) is readable."""
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, ready.set)
    try:
        async with asyncio.timeout(seconds):  # `wait_for` would lose a cancellation that comes with the event
            await ready.wait()
    finally:
        loop.remove_reader(descriptor)


async def eventually(condition: Callable[[], Any], *, seconds: float = 30.0) -> Any:
    """Look every 20 ms until `condition` is true; for facts that no event tells (files, other processes)."""
    async with asyncio.timeout(seconds):
        while not (found := condition()):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
    return found
