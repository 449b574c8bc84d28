"""Launching a job: its directory and paths, the environment and command of its trial, the request, and the spawner
process that forks the reapers.

The environment of a trial is the captured one of the user, then the launch's own variables, then ours. In its command,
assignments of PYTHONPATH keep the folder that makes `import proctor` work.
"""

import asyncio
import contextlib
import json
import logging
import os
import re
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from textwrap import shorten

from proctor.sdk.checkpoints.storage import MARK_CONTENT
from proctor.sdk.disk_errors import describe_full, is_full
from proctor.sdk.disk_reserve import RESERVE_BYTES
from proctor.sdk.failpoints import failpoint
from proctor.sdk.files import UNFINISHED_PREFIX, remove_tree, replace_file
from proctor.sdk.process_limits import describe_shortage, is_short, users_open_files, users_umask
from proctor.sdk.protocol import (
    ENV_INHERITED_LAUNCHES,
    EXIT_FILE,
    JOURNAL_FILE,
    NNI_2_BARRIER,
    NNI_2_BARRIER_TARGET,
    NO_MILESTONE,
    OUTPUT_FOLDER,
    PARAMETER_FILE,
    RESERVE_FILE,
    STDOUT_FILE,
    describe_launches,
    is_url,
    trial_environment,
)
from proctor.trial_keeper.jobs.disk_space import DiskWatch
from proctor.trial_keeper.jobs.lost_reports import remove_reserve
from proctor.trial_keeper.jobs.records import JobRecord, RecordFolder, write_milestone
from proctor.trial_keeper.linux.files import allocate_file, allocate_replacement, remove_replacement
from proctor.trial_keeper.linux.identity import describe_stop, open_pidfd, start_time
from proctor.trial_keeper.protocol import EndReason, Exit, JsonObject, Launch, ProbeStorage
from proctor.trial_keeper.settings import PACKAGE_ROOT, SPAWNER_CODE

log = logging.getLogger(__name__)

BUNDLE_VARIABLE = "PROCTOR_PYTHONPATH"
"""The variable of a trial's environment that names the folder first on PYTHONPATH."""

_END = r"(?:[\s;&|)]|$)"
_ASSIGNMENT = re.compile(
    rf"""(?<![^\s;&|(`"'])(?:(?<=(?P<quote>["'])))?PYTHONPATH=(?P<end>(?:''|"")?{_END}|(?P=quote){_END})?"""
)
"""PYTHONPATH=… where a shell or `env` takes it for an assignment; `end` matches where the value is empty: PYTHONPATH=,
PYTHONPATH='' and "PYTHONPATH=". A path that ended with a colon would put the working directory on sys.path."""
_PLAIN_PATH = re.compile(r"[\w@%+=:,./-]+", re.ASCII)

_KEPT_FROM_TRIALS = ("PROCTOR_FAILPOINT", "PROCTOR_FAILPOINT_LOG", "PROCTOR_FAILPOINT_FOLDER")
_INTERPRETER = re.compile(r"python[0-9.]*")
_STORAGE_MODULE = "proctor.sdk.checkpoints.storage"
_PROBE_SECONDS = 60.0
_MOST_SAID = 300
_END_SECONDS = 2.0
_EXIT_BYTES = 4096
_MOST_LOG_BYTES = 1024 * 1024


class CapturedEnvironments:
    """What `create` captured of its caller, in files that are each read once as long as they do not change."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[tuple[int, int], dict[str, str], int]] = {}

    def read(self, path: str | None) -> Mapping[str, str]:
        """The environment in the file; without a file, the keeper's own. Raises OSError and ValueError."""
        return os.environ if path is None else self._document(path)[0]

    def umask(self, path: str | None) -> int:
        """The umask in the file; where there is none, the keeper's own at its start. Raises as `read`."""
        return users_umask() if path is None else self._document(path)[1]

    def _document(self, path: str) -> tuple[dict[str, str], int]:
        facts = os.stat(path)
        identity = (facts.st_ino, facts.st_mtime_ns)
        if path not in self._known or self._known[path][0] != identity:
            with open(path, encoding="utf-8") as file:
                document = json.load(file)
            environment = {str(name): str(value) for name, value in document["environment"].items()}
            self._known = {path: (identity, environment, int(document.get("umask", users_umask())))}
        return self._known[path][1:]


HASH_SEED = "0"
"""The trial's PYTHONHASHSEED unless it has one: an attempt that continues another one has sets in the same order."""


def visible_devices(launch: Launch) -> str | None:
    """CUDA_VISIBLE_DEVICES for this launch; None when its GPUs are not managed."""
    if launch.gpus is None:
        return None
    return ",".join(dict.fromkeys(slot.uuid for slot in launch.gpus))


def build_environment(launch: Launch, captured: Mapping[str, str], bundle: str) -> dict[str, str]:
    """Everything the trial will find in its environment.

    :param bundle: the folder that makes `import proctor` work; it goes first on PYTHONPATH.
    """
    environment = {**captured, **launch.environment}
    for name in _KEPT_FROM_TRIALS:
        environment.pop(name, None)
    python_path = environment.get("PYTHONPATH")
    environment["PYTHONPATH"] = f"{bundle}{os.pathsep}{python_path}" if python_path else bundle
    environment[BUNDLE_VARIABLE] = bundle
    environment.setdefault("PYTHONHASHSEED", HASH_SEED)
    if launch.search_path:
        environment["PATH"] = f"{launch.search_path}{os.pathsep}{environment.get('PATH') or os.defpath}"
    devices = visible_devices(launch)
    if devices is not None:
        environment["CUDA_VISIBLE_DEVICES"] = devices
    environment.pop(ENV_INHERITED_LAUNCHES, None)
    if launches := describe_launches(environment):
        environment[ENV_INHERITED_LAUNCHES] = launches
    environment.update(
        trial_environment(
            experiment_id=launch.experiment_id,
            trial_id=launch.trial_id,
            job_id=launch.job_id,
            sequence_id=launch.sequence_id,
            job_directory=launch.directory,
            code_directory=launch.code_directory,
            platform=launch.platform,
            resume_checkpoint=launch.resume_checkpoint,
        )
    )
    return environment


def keep_bundle(command: str, bundle: str) -> str:
    """The trial's command, with the bundle first in every value that it assigns to PYTHONPATH. What a script sets that
    the command calls is not seen here (docs/decisions/0025).

    A path with characters that are special to a shell is named by a variable, because how the assignment is quoted is
    not known.
    """
    prefix = bundle if _PLAIN_PATH.fullmatch(bundle) else f"${{{BUNDLE_VARIABLE}}}"

    def assign(found: "re.Match[str]") -> str:
        end: str | None = found["end"]
        return f"PYTHONPATH={prefix}{os.pathsep if end is None else end}"

    return _ASSIGNMENT.sub(assign, command)


def absolute_launch(launch: Launch, directory: str) -> Launch:
    """The launch with every path absolute; relative ones are below the keeper's `directory`. An empty search path
    stays empty."""

    def below(path: str) -> str:
        return path if os.path.isabs(path) else os.path.normpath(os.path.join(directory, path))

    def below_or_none(path: str | None) -> str | None:
        return None if path is None else below(path)

    checkpoint = launch.resume_checkpoint
    return replace(
        launch,
        directory=below(launch.directory),
        code_directory=below(launch.code_directory),
        environment_file=below_or_none(launch.environment_file),
        resume_checkpoint=checkpoint if checkpoint and is_url(checkpoint) else below_or_none(checkpoint),
        search_path=below(launch.search_path) if launch.search_path else "",
    )


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
    if launch.milestone not in {None, NO_MILESTONE}:
        write_milestone(launch.directory, launch.milestone)
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
    remove_reserve(directory)


def discard_directory(directory: str) -> None:
    """Give back all that was made for a job which no reaper has begun to start; what cannot be removed stays."""
    begun = any(os.path.exists(os.path.join(directory, name)) for name in (STDOUT_FILE, EXIT_FILE))
    if not begun:
        remove_tree(directory)


def write_down(records: list[JobRecord], folder: RecordFolder, disk: DiskWatch) -> list[Exit | None]:
    """Make the directories of jobs that are to be launched, and write their records; the end of each that could not
    even be written down. Blocks."""
    failures: list[Exit | None] = []
    for launch in (record.launch for record in records):
        try:
            prepare_directory(launch)
            failures.append(None)
        except OSError as error:
            failures.append(_not_prepared(launch.directory, launch.directory, error, disk))
        except ValueError as error:
            failures.append(failed_exit(EndReason.LAUNCH_FAILED, f"{launch.directory!r} cannot be used: {error}"))
    try:
        folder.write([record for record, failure in zip(records, failures, strict=True) if failure is None])
    except OSError as error:
        pairs = zip(records, failures, strict=True)
        return [end or _not_prepared(each.launch.directory, str(folder.path), error, disk) for each, end in pairs]
    return failures


def _not_prepared(directory: str, path: str, error: OSError, disk: DiskWatch) -> Exit:
    """The end of a job for which `path` could not be written: given back where there is no room. Blocks."""
    end = failed_exit(EndReason.INFRASTRUCTURE, f"{path} cannot be written: {error.strerror}; fix it")
    if is_full(error) or is_short(error):
        clause = describe_shortage(error.errno) or describe_full(error.errno or 0, path)
        end = failed_exit(EndReason.NO_ROOM, clause)
        disk.add_obstacle(directory, clause)
    discard_directory(directory)
    return end


def failed_exit(reason: EndReason, detail: str) -> Exit:
    """The end of a job that never began."""
    now = time.time()
    return Exit(reason, None, None, now, now, detail)


class RequestBuilder:
    """Puts together what a reaper needs to know."""

    def __init__(self, folder: RecordFolder, *, bundle: str, gpu_lock_directory: str, oom_counter: str) -> None:
        self._folder = folder
        self._bundle = bundle
        self._gpu_lock_directory = gpu_lock_directory
        self._oom_counter = oom_counter
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
            "oom_counter": self._oom_counter,
            "holder": launch.holder,
            "record_file": self._folder.record_file(launch.job_id),
            "process_file": self._folder.process_file(launch.job_id),
        }

    def probe_storage(self, asked: ProbeStorage) -> tuple[str, bool | None]:
        """Return what keeps the trials of an experiment from storing checkpoints, as a clause, and whether the mark is
        there; "" if nothing does, or if that is not known, and None where the mark was not looked for: where it is a
        URL, the interpreter is asked with which the trial's command begins. Blocks."""
        storage, launch = asked.folder, asked.launch
        try:
            if not is_url(storage):
                if not os.path.isdir(os.path.dirname(storage)):  # never made: it would hide that nothing is mounted
                    parent = os.path.dirname(storage)
                    return f"there is no folder {parent}; mount what the nodes share, or create it", None
                os.makedirs(storage, exist_ok=True)
                with tempfile.TemporaryFile(dir=storage, prefix=UNFINISHED_PREFIX):
                    return "", _has_mark(f"{storage}/{asked.mark}", makes=asked.makes_mark) if asked.mark else None
            environment = build_environment(launch, self._captured.read(launch.environment_file), self._bundle)
            word = launch.command.split(maxsplit=1)[0]
            interpreter = shutil.which(word, path=environment.get("PATH"))
            if interpreter is None or not _INTERPRETER.fullmatch(os.path.basename(word)):
                return "", None
            done = subprocess.run(
                [interpreter, "-m", _STORAGE_MODULE],
                input=json.dumps({"do": "probe", "url": storage, "mark": asked.mark}).encode(),
                cwd=launch.code_directory,
                env=environment,
                capture_output=True,
                timeout=_PROBE_SECONDS,
            )
        except (OSError, ValueError) as error:
            return f"{storage} cannot be used: {error}", None
        except subprocess.TimeoutExpired:
            return f"{storage} has not answered for {_PROBE_SECONDS:.0f} s", None
        try:
            answer = json.loads(done.stdout)
            return (str(answer["error"]), None) if "error" in answer else ("", bool(answer["answer"]))
        except (ValueError, TypeError, KeyError):
            said = shorten(done.stderr.decode(errors="replace"), _MOST_SAID)
            return f"{word} cannot use {storage}: {said or f'exit code {done.returncode}'}", None


def _has_mark(path: str, *, makes: bool) -> bool:
    if makes:
        replace_file(path, MARK_CONTENT, mode=0o644, durable=True)
    try:
        os.utime(path)  # else what deletes files by their age would take it for forgotten
    except FileNotFoundError:
        return False
    except OSError:  # another user's
        return os.path.exists(path)
    return True


class Spawner:
    """The keeper's end of the spawner process, which is started at need and again when it dies."""

    def __init__(self, log_file: Path) -> None:
        self._log_file = log_file
        self._pid = 0
        self._socket: socket.socket | None = None
        self._started = 0

    def adopt(self, pid: int, channel: socket.socket) -> None:
        """Use the spawner that was forked from this process when it began."""
        self._use(pid, channel)

    def describe_stop(self) -> str:
        """That the spawner is suspended, and what to do, as a clause; "" while it is not."""
        clause = describe_stop(self._pid, self._started) if self._socket is not None else ""
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
            if not has_reapers and (pidfd := open_pidfd(self._pid, self._started)) is not None:
                waited = select.poll()
                waited.register(pidfd)
                waited.poll(_END_SECONDS * 1000)  # it ends by itself, because its socket is closed
                os.close(pidfd)

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [sys.executable, "-S", "-E", "-c", SPAWNER_CODE, str(users_open_files()), PACKAGE_ROOT]
        mode = "wb" if self._log_file.exists() and self._log_file.stat().st_size > _MOST_LOG_BYTES else "ab"
        with theirs, open(self._log_file, mode) as file:
            streams = (theirs.fileno(), file.fileno(), file.fileno())
            files = [(os.POSIX_SPAWN_DUP2, descriptor, number) for number, descriptor in enumerate(streams)]
            pid = os.posix_spawn(sys.executable, command, os.environ, file_actions=files, setsid=True)
        self._use(pid, ours)

    def _use(self, pid: int, channel: socket.socket) -> None:
        self._pid, self._socket = pid, channel
        self._started = start_time(pid) or 0
        asyncio.get_running_loop().add_reader(channel, self._died)
        log.info("the spawner was started with pid %d", pid)

    def _died(self) -> None:
        """The spawner never writes, so a readable socket is a closed one."""
        log.warning("the spawner has ended; it will be started again at the next launch")
        self.close(has_reapers=False)
