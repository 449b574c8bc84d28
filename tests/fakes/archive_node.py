"""A node on which nothing is installed: a keeper run from its archive by a bare Python, looked after by commands."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fakes.keeper_manager import NODE_ID, SECRET, FakeManager
from fakes.keeper_node import kill_and_wait
from fakes.launches import make_launch

from proctor.training_services.keepers.archive import KeeperArchive, build
from proctor.trial_keeper.jobs.cleanup import find_processes
from proctor.trial_keeper.linux.processes import end_processes
from proctor.trial_keeper.protocol import Launch
from proctor.trial_keeper.start import find_keeper

SECONDS = 120.0


def bare_python() -> str:
    """A Python of the system that has no packages of ours, or else this one: the flags keep its packages away."""
    for path in ("/usr/bin/python3", "/usr/local/bin/python3"):
        check = "import sys; sys.exit(sys.version_info < (3, 10))"
        if os.access(path, os.X_OK) and subprocess.run([path, "-c", check]).returncode == 0:
            return path
    return sys.executable


@dataclass
class ArchiveNode:
    """A home with a keeper's directory in it, and the manager it talks to."""

    home: Path
    manager: FakeManager
    archive: KeeperArchive
    python: str

    @property
    def directory(self) -> Path:
        """The keeper's directory."""
        return self.home / ".proctor" / "nodes" / "m-n"

    @property
    def locks(self) -> Path:
        """The GPU leases of this machine."""
        return self.home.parent / "locks"

    async def command(self, name: str, **body: Any) -> dict[str, Any]:
        """Run a command as a manager does over SSH, with an empty environment; its answer."""
        return await asyncio.to_thread(self._run, name, {"directory": str(self.directory), **body})

    async def bring(self, archive: KeeperArchive | None = None) -> None:
        """Upload the keeper's archive and make the directory."""
        self.archive = archive or self.archive
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        shutil.copy(self.archive.path, self.directory / self.archive.name)
        assert (await self.command("prepare"))["directory"] == str(self.directory)

    async def start(self, **changes: Any) -> dict[str, Any]:
        """Have the keeper run and find the fake manager."""
        body = {"node_id": NODE_ID, "secret": SECRET, "socket": self.manager.pointer.read_text()}
        return await self.command("start", **{**body, "gpu_lock_directory": str(self.locks), **changes})

    async def remove(self) -> dict[str, Any]:
        """Leave without a trace."""
        return await self.command("remove", grace_seconds=1.0, gpu_lock_directory=str(self.locks))

    async def kill(self) -> None:
        """Kill the keeper, and wait until it is dead."""
        pid = find_keeper(self.directory)
        assert pid is not None
        await kill_and_wait(pid)

    def launch(self, job_id: str, command: str, **changes: Any) -> Launch:
        """The order to run `command` as a job below the keeper's directory."""
        return make_launch(job_id, command, folder=self.job_directory(job_id), code=self.home, **changes)

    def job_directory(self, job_id: str) -> Path:
        """Where a job's files are."""
        trial_id, _, number = job_id.partition(".")
        return self.directory / "experiments" / "Ab3dE5f7" / "trials" / f"0-{trial_id}" / "jobs" / number

    def processes(self) -> list[int]:
        """The pids of everything that runs for this node."""
        return sorted(process.pid for process in find_processes(self.directory))

    def _run(self, name: str, body: dict[str, Any]) -> dict[str, Any]:
        archive = self.directory / self.archive.name
        path = archive if archive.exists() else self.archive.path
        done = subprocess.run(
            [self.python, "-I", "-S", "-X", "utf8", str(path), name],
            input=json.dumps(body).encode() + b"\n",
            env={"HOME": str(self.home), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            timeout=SECONDS,
        )
        answer = json.loads(done.stdout)
        assert isinstance(answer, dict)
        assert done.returncode == (1 if "error" in answer else 0), done.stderr
        assert done.stderr == b""
        return answer


@asynccontextmanager
async def open_archive_node(folder: Path, *, python: str = "") -> AsyncIterator[ArchiveNode]:
    """A running manager and a home with nothing in it; at the end, everything of the node is killed."""
    (folder / "home").mkdir(parents=True)
    archive = await asyncio.to_thread(build, folder / "archive")
    node = ArchiveNode(folder / "home", FakeManager(folder), archive, python or bare_python())
    async with node.manager.running():
        try:
            yield node
        finally:
            await asyncio.to_thread(_end_all, node)


def _end_all(node: ArchiveNode) -> None:
    end_processes(lambda: find_processes(node.directory), grace_seconds=0.0, wait=time.sleep)
