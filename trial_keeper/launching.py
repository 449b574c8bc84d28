"""Getting reapers started: the job's directory, the request, and the spawner process that forks them."""

import asyncio
import contextlib
import json
import logging
import os
import socket
import subprocess
import sys
from pathlib import Path

import proctor
from proctor.sdk.disk_errors import is_full
from proctor.sdk.failpoints import failpoint
from proctor.sdk.open_files import users_open_files
from proctor.sdk.protocol import (
    EXIT_FILE,
    JOURNAL_FILE,
    NNI_2_BARRIER,
    NNI_2_BARRIER_TARGET,
    OUTPUT_FOLDER,
    PARAMETER_FILE,
    RESERVE_FILE,
    STDOUT_FILE,
)
from proctor.sdk.reserve import RESERVE_BYTES
from proctor.sdk.unfinished import remove_tree
from proctor.trial_keeper.environment import CapturedEnvironments, build_environment, keep_bundle
from proctor.trial_keeper.files import (
    allocate_file,
    allocate_replacement,
    remove_file,
    remove_replacement,
    replace_file,
)
from proctor.trial_keeper.identity import describe_stop, start_time
from proctor.trial_keeper.origin import SPAWNER_CODE
from proctor.trial_keeper.protocol import JsonObject, Launch
from proctor.trial_keeper.records import RecordFolder

_PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(proctor.__file__)))
_END_SECONDS = 2.0
_EXIT_BYTES = 4096
_MOST_LOG_BYTES = 1024 * 1024

log = logging.getLogger(__name__)


def prepare_directory(launch: Launch) -> None:
    """Make what a job's directory holds before its trial starts, with the room that its end will need. Raises
    OSError."""
    os.makedirs(os.path.join(launch.directory, OUTPUT_FOLDER), exist_ok=True)
    parameters = os.path.join(launch.directory, PARAMETER_FILE)
    replace_file(parameters, launch.parameter_file.encode(), durable=False, mode=0o644)
    journal = os.path.join(launch.directory, JOURNAL_FILE)
    os.close(os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644))
    with contextlib.suppress(FileExistsError):
        os.symlink(NNI_2_BARRIER_TARGET, os.path.join(launch.directory, NNI_2_BARRIER))
    if not os.path.exists(os.path.join(launch.directory, EXIT_FILE)):  # it has ended before: it will not run
        _allocate_room(launch.directory)


def _allocate_room(directory: str) -> None:
    """What the end of a job needs, and what its trial reports while the disk is full. A file system that cannot
    allocate (some network file systems) has no room of that kind."""
    try:
        allocate_replacement(os.path.join(directory, EXIT_FILE), _EXIT_BYTES)
        allocate_file(os.path.join(directory, RESERVE_FILE), RESERVE_BYTES, mode=0o644)
    except OSError as error:
        release_room(directory)
        if is_full(error):
            raise
        log.warning("no room can be allocated in %s: %s", directory, error)


def release_room(directory: str) -> None:
    """Give back what was allocated for a job that never ran. Raises OSError."""
    remove_replacement(os.path.join(directory, EXIT_FILE))
    remove_file(os.path.join(directory, RESERVE_FILE))


def discard_directory(directory: str) -> None:
    """Give back all that was made for a job which no reaper has begun to start; what cannot be removed stays."""
    begun = any(os.path.exists(os.path.join(directory, name)) for name in (STDOUT_FILE, EXIT_FILE))
    if not begun:
        remove_tree(directory)


class RequestBuilder:
    """Puts together what a reaper needs to know."""

    def __init__(self, folder: RecordFolder, *, bundle: str, gpu_lock_directory: str) -> None:
        self._folder = folder
        self._bundle = bundle
        self._gpu_lock_directory = gpu_lock_directory
        self._captured = CapturedEnvironments()

    def build(self, launch: Launch) -> JsonObject:
        """The request for a launch. Raises OSError and ValueError when its environment cannot be read."""
        return {
            "job_id": launch.job_id,
            "directory": launch.directory,
            "command": keep_bundle(launch.command, self._bundle),
            "code_directory": launch.code_directory,
            "environment": build_environment(launch, self._captured.read(launch.environment_file), self._bundle),
            "umask": self._captured.umask(launch.environment_file),
            "gpus": [[slot.uuid, slot.slot] for slot in launch.gpus or ()],
            "max_trials_per_gpu": launch.max_trials_per_gpu,
            "gpu_lock_directory": self._gpu_lock_directory,
            "holder": launch.holder,
            "record_file": self._folder.record_file(launch.job_id),
            "process_file": self._folder.process_file(launch.job_id),
        }


class Spawner:
    """The keeper's end of the spawner process, which is started at need and again when it dies."""

    def __init__(self, log_file: Path) -> None:
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._started = 0

    def describe_stop(self) -> str:
        """That the spawner is suspended, and what to do, as a clause; "" while it is not."""
        clause = describe_stop(self._process.pid, self._started) if self._process is not None else ""
        return f"the keeper's spawner {clause}" if clause else ""

    def launch(self, request: JsonObject) -> socket.socket:
        """Have a reaper forked; returns the socket on which it tells that the trial runs.

        :raises OSError: the spawner cannot be started or has just died; the launch may have happened.
        """
        if self._socket is None:
            self._start()
        assert self._socket is not None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        failpoint("keeper.launch.before")
        with theirs, open(os.memfd_create("launch"), "wb", buffering=0) as memory:
            memory.write(json.dumps(request).encode())
            try:
                socket.send_fds(self._socket, [b"!"], [memory.fileno(), theirs.fileno()])
            except OSError:
                ours.close()
                raise
        failpoint("keeper.launch.after")
        return ours

    def close(self, *, has_reapers: bool) -> None:
        """Let the spawner end; reapers live on, and as long as there are some, so does it."""
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None
        if self._process is not None and not has_reapers:
            with contextlib.suppress(subprocess.TimeoutExpired):  # it ends by itself once its socket is closed
                self._process.wait(_END_SECONDS)
        self._process = None

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-S", "-E", "-c", SPAWNER_CODE, str(users_open_files()), _PACKAGE_ROOT]
        mode = "wb" if self._log_file.exists() and self._log_file.stat().st_size > _MOST_LOG_BYTES else "ab"
        with theirs, open(self._log_file, mode) as file:
            self._process = subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=file, stderr=file, start_new_session=True
            )
        self._socket = ours
        self._started = start_time(self._process.pid) or 0
        asyncio.get_running_loop().add_reader(ours, self._died)
        log.info("the spawner was started with pid %d", self._process.pid)

    def _died(self) -> None:
        """The spawner never writes, so a readable socket is a closed one."""
        log.warning("the spawner has ended; it will be started again at the next launch")
        self.close(has_reapers=False)
