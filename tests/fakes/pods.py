"""Pods of one container for tests: the command `pod` as a real process, with pid 1 of a namespace of its own."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fakes.keeper_manager import NODE_ID, SECRET, FakeManager
from fakes.keeper_node import eventually, readable
from fakes.launches import make_launch

from proctor.trial_keeper.pod_output import PodLog, TerminationMessage, read_log, read_termination
from proctor.trial_keeper.protocol import Launch

JOB = "T.1"
INSTANCE = "0b7d7a60-uid"
PATIENCE_SECONDS = 60.0
_NAMESPACES = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")


@dataclass
class Pod:
    """One run of the command, and the manager that it dials."""

    directory: Path
    manager: FakeManager
    options: Sequence[str] = ()
    is_init: bool = True
    """Whether it has pid 1, whom no fail point can kill: that is a signal from inside its namespace."""
    python: Sequence[str] = (sys.executable, "-m", "proctor.trial_keeper")
    cgroup_processes: Path | None = None
    """The `cgroup.procs` of the group to run it in."""
    process: subprocess.Popen[bytes] = field(init=False)

    @property
    def termination_file(self) -> Path:
        """What the platform mounts for the termination message."""
        return self.directory / "termination"

    @property
    def job_directory(self) -> Path:
        """The directory of its job."""
        return self.directory / "pod" / "job"

    def start(self) -> None:
        """Start it."""
        (self.directory / "secret").write_text(SECRET)
        self.termination_file.touch()
        options = ["--directory", self.directory / "pod", "--node-id", NODE_ID, "--pointer", self.manager.pointer]
        options += ["--secret-file", self.directory / "secret", "--instance", INSTANCE]
        options += ["--termination-file", self.termination_file, *self.options]
        namespaces = _NAMESPACES if self.is_init else ()
        command = [*namespaces, *self.python, "pod", *map(str, options)]
        if self.cgroup_processes is not None:
            command = ["sh", "-c", f'echo $$ > {self.cgroup_processes} && exec "$@"', "sh", *command]
        with open(self.directory / "stdout", "wb") as stdout, open(self.directory / "stderr", "wb") as stderr:
            self.process = subprocess.Popen(command, stdout=stdout, stderr=stderr, cwd=self.directory)

    async def keeper_pid(self) -> int:
        """The keeper's pid, as this side of its namespace sees it."""
        unshare = self.process.pid
        children = Path(f"/proc/{unshare}/task/{unshare}/children")
        return int((await eventually(children.read_text)).split()[0])

    async def terminate(self) -> None:
        """What the platform does when the pod goes away."""
        os.kill(await self.keeper_pid(), signal.SIGTERM)

    async def ended(self) -> int:
        """Wait until it has left; its exit code."""
        descriptor = os.pidfd_open(self.process.pid)
        try:
            await readable(descriptor, seconds=PATIENCE_SECONDS)
        finally:
            os.close(descriptor)
        return self.process.wait()

    def launch(self, command: str, **changes: Any) -> Launch:
        """The order to run `command`; the paths are relative, as a manager sends them that does not know the pod's."""
        launch = make_launch(JOB, command, folder=Path("job"), code=Path("."), **changes)
        return launch

    def said(self) -> str:
        """What it has logged."""
        return (self.directory / "stderr").read_text()

    def read_log(self) -> PodLog:
        """What a manager reads of the pod's log, in which both streams are."""
        lines = (self.directory / "stderr").read_bytes() + (self.directory / "stdout").read_bytes()
        return read_log(lines.splitlines(keepends=True), job_id=JOB, token=f"token of {JOB}")

    def read_termination(self) -> TerminationMessage | None:
        """What a manager reads of the pod's termination message."""
        return read_termination(self.termination_file.read_text(), job_id=JOB)


@asynccontextmanager
async def open_pod(directory: Path, *options: str, uses_tls: bool = True, **changes: Any) -> AsyncIterator[Pod]:
    """A running manager and a pod that dials it; nothing of it is left afterwards."""
    pod = Pod(directory, FakeManager(directory, uses_tls=uses_tls), options, **changes)
    async with pod.manager.running():
        pod.start()
        try:
            yield pod
        finally:
            with suppress(ProcessLookupError):
                pod.process.kill()
            await asyncio.to_thread(pod.process.wait)
