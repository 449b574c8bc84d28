"""A platform for `JobKeeperService` whose pods are processes: each is the command `pod` in a folder of its own,
which is removed with it. Pods share no folder with the manager but the pointer by which they find it, and their secret.

Everything is in files below one folder, so that the platform outlives a manager that is killed. It schedules when it is
listed or watched. Faults are files too: see `ProcessPlatform.hold` and what follows it.
"""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from proctor.sdk.files import is_locked, open_locked
from proctor.training_services.base import EndReason, TrialJobForm
from proctor.training_services.capacity import GpuRules
from proctor.training_services.errors import ServiceUnavailable, SubmissionRefused
from proctor.training_services.job_keeper_service import JobKeeperService, PlatformJob, PlatformStatus
from proctor.training_services.job_keepers.platform import LeftReport
from proctor.training_services.keepers.launches import write_launch
from proctor.training_services.registry import ServiceContext
from proctor.trial_keeper.jobs.cleanup import end_leftovers
from proctor.trial_keeper.pod_output import read_log
from proctor.trial_keeper.protocol import Launch
from proctor.trial_keeper.settings import FACTS_FILE
from proctor.trial_keeper.start import find_keeper, stop_keeper

POLL_SECONDS = 0.05
GRACE_SECONDS = 4.0
REPLACED_SECONDS = 0.5
"""How long a keeper is waited for that has another one beside it: here nothing ends it."""
KEEP_EXIT_CODE = ("sh", "-c", '"$@"; echo $? > "$0"')
FOLDER, POINTER = "PROCTOR_TEST_PODS", "PROCTOR_TEST_POINTER"
"""Environment variables: where the platform is, for a manager that is a process of its own."""


@dataclass(frozen=True)
class Pod:
    """What the platform was asked to run for a job."""

    job_id: str
    token: str
    experiment_id: str
    keeper_id: str
    job_directory: str  # relative to the directory of its keeper
    created_at: float
    instances: tuple[str, ...]


class ProcessPlatform:
    """The platform itself, as one process sees it.

    :param pointer: the file in which keepers find the manager's socket.
    :param python: what runs a keeper; something else than Python never comes up.
    :param linger_seconds: how long a keeper without a job waits for a manager.
    """

    def __init__(
        self, folder: Path, pointer: Path, *, python: str = sys.executable, linger_seconds: float = 60.0
    ) -> None:
        self.folder = folder
        self.pointer = pointer
        self.python = python
        self.linger_seconds = linger_seconds
        self._turn = threading.RLock()
        self._children: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True, exist_ok=True)

    # ---- the four calls, which block

    def start(self, form: TrialJobForm, keeper_id: str, secret: str) -> None:
        """Take a job; the next look starts its keeper."""
        self._require_there()
        if form.command == "refuse":
            raise SubmissionRefused("this platform runs no command that is called refuse")
        folder = self.folder_of(form.job_id)
        if folder.exists():
            return
        directory = f"experiments/{form.experiment_id}/trials/{form.sequence_id}-{form.trial_id}/jobs/{form.number}"
        pod = Pod(form.job_id, form.token, form.experiment_id, keeper_id, directory, time.time(), ("first",))
        draft = folder.with_suffix(f".{uuid.uuid4().hex}")
        draft.mkdir()
        (draft / "secret.given").write_text(secret)
        (draft / "alive-first").touch()
        (draft / "pod.json").write_text(json.dumps(asdict(pod)))
        draft.rename(folder)

    def stop(self, job_id: str) -> None:
        """End a pod with all its processes, and forget it."""
        self._require_there()
        folder = self.folder_of(job_id)
        with self._turn:
            if (pod := _read(folder)) is not None:
                for directory in folder.glob("*/"):
                    stop_keeper(directory, timeout_seconds=1.0)
                self._end_processes(folder, pod)
                while any(is_locked(path) for path in folder.glob("alive-*")):  # its exit code is still being written
                    time.sleep(0.01)
            shutil.rmtree(folder, ignore_errors=True)

    def look(self) -> list[PlatformJob]:
        """Every pod; those that wait are started, unless that is held."""
        self._require_there()
        with self._turn:
            found = [self._see(path) for path in sorted(self.folder.glob("*.pod"))]
        return [seen for seen in found if seen is not None]

    # ---- faults

    def hold(self, reason: str) -> None:
        """Start no pod, with this reason, until `unhold`."""
        (self.folder / "held").write_text(reason)

    def unhold(self) -> None:
        """Start pods again."""
        (self.folder / "held").unlink(missing_ok=True)

    def leave(self, reason: str) -> None:
        """Answer nothing but this, until `come_back`."""
        (self.folder / "away").write_text(reason)

    def come_back(self) -> None:
        """Answer again."""
        (self.folder / "away").unlink(missing_ok=True)

    def end(self, job_id: str, reason: EndReason | None, detail: str) -> None:
        """End a pod from outside, as a kernel, a node or another user does: all its processes are killed."""
        folder = self.folder_of(job_id)
        (folder / "end.json").write_text(json.dumps({"reason": reason and reason.value, "detail": detail}))
        self.kill(job_id)

    def kill(self, job_id: str) -> None:
        """Kill all processes of a pod."""
        folder = self.folder_of(job_id)
        if (pid := find_keeper(folder / "keeper")) is not None:
            os.kill(pid, signal.SIGKILL)
        pod = _read(folder)
        assert pod is not None
        self._end_processes(folder, pod)

    def keeper_pid(self, job_id: str) -> int | None:
        """The process of a pod's keeper."""
        return find_keeper(self.folder_of(job_id) / "keeper")

    def log(self, job_id: str) -> list[bytes]:
        """The lines that the first pod of a job has printed."""
        return (self.folder_of(job_id) / "log-first").read_bytes().splitlines()

    def folder_of(self, job_id: str) -> Path:
        """Where a pod is; names are hashes, as on platforms whose names are not as long as ours."""
        return self.folder / f"{sha256(job_id.encode()).hexdigest()[:20]}.pod"

    def close(self) -> None:
        """End every pod."""
        self.come_back()
        for path in self.folder.glob("*.pod"):
            if (pod := _read(path)) is not None:
                self.stop(pod.job_id)
        for child in self._children:
            child.wait()

    # ---- inside

    def _end_processes(self, folder: Path, pod: Pod) -> None:
        """A pod's processes end together."""
        end_leftovers((pod.job_id, str(folder / "keeper" / pod.job_directory)), None, grace_seconds=0.0)

    def _require_there(self) -> None:
        away = self.folder / "away"
        if away.exists():
            raise ServiceUnavailable(away.read_text())

    def _see(self, folder: Path) -> PlatformJob | None:
        pod = _read(folder)
        if pod is None:
            return None
        seen = PlatformJob(
            pod.job_id, pod.token, pod.experiment_id, PlatformStatus.PENDING, pod.created_at, instances=pod.instances
        )
        held, keeper = self.folder / "held", folder / "keeper"
        was_up = (keeper / FACTS_FILE).exists() or (folder / "output").exists()
        if not was_up and not is_locked(folder / "alive-first"):
            if held.exists():
                return replace(seen, detail=held.read_text(), instances=())
            self._launch(folder, pod)
        self._children = [child for child in self._children if child.poll() is None]
        if is_locked(folder / "alive-first"):
            return replace(seen, status=PlatformStatus.RUNNING, node="worker-1")
        self._end_processes(folder, pod)
        exit_code = int((folder / "exit-first").read_text() or 1)
        how: dict[str, Any] = {"detail": f"exit code {exit_code}"}
        if (folder / "end.json").exists():
            how = json.loads((folder / "end.json").read_text())
        output = folder / "output"
        return replace(
            seen,
            status=PlatformStatus.ENDED,
            detail=how["detail"],
            reason=EndReason(how["reason"]) if how.get("reason") else None,
            exit_code=exit_code,
            output=output.read_text() if output.exists() else "",
        )

    def _launch(self, folder: Path, pod: Pod) -> None:
        """Start a pod; returns when its keeper is up, or has ended. It holds a lock as long as it lives, by which the
        next manager finds it, however early this one is killed."""
        lock = open_locked(folder / "alive-first")
        assert lock is not None
        directory = folder / "keeper"
        directory.mkdir(exist_ok=True)
        termination, output = folder / "termination-first", folder / "log-first"
        termination.touch()
        code = folder / "exit-first"
        code.touch()
        options: dict[str, object] = {"directory": directory, "node-id": pod.keeper_id, "pointer": self.pointer}
        options |= {
            "secret-file": folder / "secret.given",
            "instance": pod.instances[0],
            "termination-file": termination,
        }
        options |= {"grace-seconds": GRACE_SECONDS, "linger-seconds": self.linger_seconds}
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        with output.open("ab") as log:
            child = subprocess.Popen(
                [*KEEP_EXIT_CODE, str(code), self.python, "-m", "proctor.trial_keeper", "pod", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(lock,),
            )
        os.close(lock)
        self._children.append(child)
        while find_keeper(directory) is None and child.poll() is None:
            time.sleep(0.01)
        if child.poll() is not None:
            (folder / "output").write_bytes(output.read_bytes()[-2000:])


def _read(folder: Path) -> Pod | None:
    try:
        body = json.loads((folder / "pod.json").read_text())
    except FileNotFoundError:
        return None
    return Pod(**{**body, "instances": tuple(body["instances"])})


class ProcessService(JobKeeperService):
    """One experiment's jobs on a `ProcessPlatform`. Settings: `pending_timeout_seconds`."""

    def __init__(self, context: ServiceContext, platform: ProcessPlatform | None = None, **options: Any) -> None:
        limit = context.settings.get("pending_timeout_seconds")
        super().__init__(context, pending_timeout_seconds=limit, grace_seconds=REPLACED_SECONDS, **options)
        self._platform = platform or ProcessPlatform(Path(os.environ[FOLDER]), Path(os.environ[POINTER]))
        self._metadata: dict[str, Any] = {"pending_timeout_seconds": limit}
        self._listed: dict[str, PlatformJob] = {}

    @property
    def place_name(self) -> str:
        return "platform processes"

    async def start_keeper(self, form: TrialJobForm, secret: str) -> None:
        await asyncio.to_thread(self._platform.start, form, self.keeper_of(form), secret)

    async def stop_keeper(self, job_id: str) -> None:
        await asyncio.to_thread(self._platform.stop, job_id)

    async def list_keepers(self) -> Sequence[PlatformJob]:
        found = await asyncio.to_thread(self._platform.look)
        self._listed = {seen.job_id: seen for seen in found}
        return found

    async def watch_keepers(self) -> AsyncIterator[PlatformJob]:
        while True:
            before = self._listed
            await self.list_keepers()
            for job_id, seen in self._listed.items():
                if seen != before.get(job_id):
                    yield seen
            for job_id in before.keys() - self._listed.keys():
                yield replace(before[job_id], status=PlatformStatus.GONE, detail="")
            await asyncio.sleep(POLL_SECONDS)

    async def read_left_report(self, job: PlatformJob, *, is_last: bool) -> LeftReport | None:
        left = read_log(self._platform.log(job.job_id), job_id=job.job_id, token=job.token)
        return LeftReport(left.header, left.body) if left.header.chunks or left.header.ends else None

    def check(self, form: TrialJobForm) -> None:
        if not os.path.isdir(form.code_directory):
            raise SubmissionRefused(f"the code directory should be a folder that exists: {form.code_directory}")

    def launch(self, form: TrialJobForm) -> Launch:
        return write_launch(form, platform="processes", owner="tests", rules=GpuRules())

    async def set_cluster_metadata(self, key: str, value: Any) -> None:
        self._metadata[key]  # raises KeyError
        self._metadata[key] = self._pending_timeout_seconds = value

    async def get_cluster_metadata(self, key: str) -> Any:
        return self._metadata[key]
