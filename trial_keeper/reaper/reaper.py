"""The reaper: one small process per job, outside the trial's process group, that starts the trial, waits for it, leaves
nothing of it behind and writes exit.json.

It is forked from the spawner, so it imports as little as possible. What must hold when it is killed at any instant:

* A job starts once. The reaper locks `jobs/<id>.process`; one that finds it locked or filled leaves at once. The
  trial's process waits behind a pipe until its identity stands in that file, and ends when the pipe closes unused.
* All descendants of the trial stay findable: the reaper is their subreaper, so "no children left" is a proof.
* The GPU leases are held by the reaper and, lest its death frees a GPU that is in use, by the trial itself.
"""

import json
import os
import signal
import socket
import time
from contextlib import suppress

from proctor.sdk.disk_errors import describe_full, is_full
from proctor.sdk.disk_reserve import RESERVE_BYTES, read_content
from proctor.sdk.failpoints import failpoint
from proctor.sdk.files import open_locked
from proctor.sdk.process_limits import describe_shortage, is_short
from proctor.sdk.protocol import (
    ENV_JOB_STARTED,
    ENV_MEMORY_RESERVE,
    EXIT_FILE,
    STDERR_FILE,
    STDOUT_FILE,
    boot_id,
    boot_time,
    write_moment,
)
from proctor.trial_keeper.linux import processes
from proctor.trial_keeper.linux.files import (
    make_replaceable,
    open_regular_file,
    remove_replacement,
    verdict_seconds,
    write_replacement,
)
from proctor.trial_keeper.linux.identity import start_time
from proctor.trial_keeper.linux.processes import ProcessFacts, end_processes, find_job_processes
from proctor.trial_keeper.reaper.exits import Ending, classify, last_line_of
from proctor.trial_keeper.reaper.leases import GuardBusy, LeaseRefused, UnsafeFolder, acquire, release, remove_unused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

_SIGNALS = (signal.SIGCHLD, signal.SIGTERM)
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)
_EXEC_FAILED = 127
_LEFTOVER_GRACE_SECONDS = 2.0
_FULL_DISK_RETRY_SECONDS = 1.0
_SHORTAGE_RETRY_SECONDS = 0.25
_NO_ROOM = "NO_ROOM"


class _NotStarted(Exception):
    """The trial could not be started; carries the end reason's name and a sentence."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


def run(request: "dict[str, Any]", channel: socket.socket) -> None:
    """Live the reaper's life; returns when the job is over and recorded, or was another reaper's.

    :param request: what the keeper's `launching` module put together.
    :param channel: takes one packet when the trial runs: its process record, with a pidfd of this reaper; and one with
        its end, should that be impossible to write.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    processes.become_subreaper()
    failpoint("reaper.claim.before")
    claim = _claim(request)
    failpoint("reaper.claim.after")
    if claim is not None:
        _Reaper(request, channel, claim).run()


def _claim(request: "dict[str, Any]") -> int | None:
    """The locked, still empty process record, or None when the job is not ours to start."""
    descriptor = open_locked(request["process_file"])
    if descriptor is None:
        return None
    ended = os.path.exists(os.path.join(request["directory"], EXIT_FILE))
    if ended or os.fstat(descriptor).st_size or not os.path.exists(request["record_file"]):
        os.close(descriptor)
        return None
    return descriptor


class _Reaper:
    """One job's start, wait and end."""

    def __init__(self, request: "dict[str, Any]", channel: socket.socket, claim: int) -> None:
        self._request = request
        self._channel = channel
        self._claim = claim
        self._trial = -1
        self._trial_started = 0
        self._wait_status: int | None = None
        self._stop: dict[str, Any] | None = None
        self._started_at = time.time()
        self._started_boot = boot_time()
        self._killed_for_memory = processes.oom_kills(request["oom_counter"])
        self._leases: list[int] = []
        self._memory = _make_memory_reserve()

    def run(self) -> None:
        try:
            self._take_leases()
            self._start()
        except _NotStarted as failure:
            self._give_back_leases()
            self._record(Ending(failure.reason, None, None, failure.detail))
            return
        self._wait()
        left = self._end_descendants()
        self._give_back_leases()
        self._record(self._ending(left))

    def _take_leases(self) -> None:
        slots = self._request["gpus"]
        if not slots:
            return
        note = {
            "holder": self._request["holder"],
            "job_id": self._request["job_id"],
            "pid": os.getpid(),
            "since": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        folder = self._request["gpu_lock_directory"]
        try:
            wanted = [(uuid, slot) for uuid, slot in slots]
            self._leases = acquire(folder, wanted, note, max_trials=self._request["max_trials_per_gpu"])
        except LeaseRefused as refusal:  # another user was faster: a fault neither of the trial nor of the node
            raise _NotStarted("PREEMPTED", str(refusal)) from None
        except GuardBusy as error:
            raise _NotStarted("PREEMPTED", f"the GPU locks in {folder} are busy: {error.strerror}") from None
        except UnsafeFolder as error:
            raise _NotStarted("INFRASTRUCTURE", f"GPUs cannot be leased: {error.strerror}") from None
        except OSError as error:
            if is_short(error):
                raise _NotStarted(_NO_ROOM, describe_shortage(error.errno)) from None
            detail = f"the GPU locks in {folder} cannot be used: {error.strerror}; check the folder's permissions"
            raise _NotStarted("INFRASTRUCTURE", detail) from None

    def _give_back_leases(self) -> None:
        """Before the end is recorded: its readers may rely on the GPUs being free. Processes that do not react to
        SIGKILL keep them, and their files."""
        if self._leases:
            release(self._leases)
            remove_unused(self._request["gpu_lock_directory"], {uuid for uuid, _ in self._request["gpus"]})
            self._leases = []

    def _start(self) -> None:
        directory = self._request["directory"]
        try:
            stdout = _open_output(os.path.join(directory, STDOUT_FILE))
            stderr = _open_output(os.path.join(directory, STDERR_FILE))
            gate_out, gate_in = os.pipe()
            result_out, result_in = os.pipe()
            self._started_boot = boot_time()
            self._request["environment"][ENV_JOB_STARTED] = write_moment(self._started_boot)
            self._trial = os.fork()
        except OSError as error:
            detail = f"the trial could not be started: {error.strerror} ({error.filename or directory})"
            raise self._not_started(error, detail) from None
        if self._trial == 0:
            os.close(gate_in)
            _become_trial(self._request, stdout, stderr, gate_out, result_in, self._leases, self._memory)
        for descriptor in (stdout, stderr, gate_out, result_in):
            os.close(descriptor)
        record = self._write_process_record()
        failpoint("reaper.start.before")
        os.write(gate_in, b"!")
        os.close(gate_in)
        failpoint("reaper.start.after")
        with open(result_out, "rb") as result:
            failure = result.read()
        if failure:
            os.waitpid(self._trial, 0)
            number, _, detail = failure.decode(errors="replace").partition(" ")
            if clause := describe_shortage(int(number)):
                raise _NotStarted(_NO_ROOM, clause)
            raise _NotStarted("LAUNCH_FAILED", detail)
        self._notify_keeper(record)

    def _write_process_record(self) -> bytes:
        self._started_at = time.time()
        try:
            self._trial_started = start_time(self._trial) or 0
            record = json.dumps(
                {
                    "reaper": {"pid": os.getpid(), "started": start_time(os.getpid())},
                    "trial": {"pid": self._trial, "started": self._trial_started},
                    "spawner": {"pid": os.getppid(), "started": start_time(os.getppid())},
                    "boot_id": boot_id(),
                    "started_at": self._started_at,
                    "started_monotonic": time.monotonic(),
                    "started_boot": self._started_boot,
                }
            ).encode()
            os.pwrite(self._claim, record, 0)
        except OSError as error:
            os.ftruncate(self._claim, 0)
            detail = f"the trial's identity could not be recorded: {error.strerror}"
            raise self._not_started(error, detail) from None
        return record

    def _not_started(self, error: OSError, detail: str) -> _NotStarted:
        """The machine is to blame; a full disk and a shortage are states of it that pass."""
        if is_full(error):
            return _NotStarted(_NO_ROOM, describe_full(error.errno or 0, self._request["directory"]))
        if is_short(error):
            return _NotStarted(_NO_ROOM, describe_shortage(error.errno))
        return _NotStarted("INFRASTRUCTURE", detail)

    def _notify_keeper(self, record: bytes) -> None:
        """The keeper may be gone; the next one reads the process record."""
        pidfd = os.pidfd_open(os.getpid())
        with suppress(OSError):
            socket.send_fds(self._channel, [record], [pidfd])
        os.close(pidfd)

    def _wait(self) -> None:
        """Until the trial has ended and, after a stop request, all its processes."""
        while True:
            self._reap()
            if self._wait_status is not None:
                return
            if signal.sigwaitinfo(_SIGNALS).si_signo == signal.SIGTERM:
                self._read_stop()
                self._end_all(float((self._stop or {}).get("grace_seconds", _LEFTOVER_GRACE_SECONDS)))

    def _read_stop(self) -> None:
        try:
            with open(self._request["record_file"], encoding="utf-8") as file:
                self._stop = json.load(file).get("stop")
        except (OSError, ValueError):
            self._stop = None
        if self._stop is None:  # signaled by another process than the keeper, which writes before it signals
            self._stop = {"reason": "SIGNALED", "detail": "the trial's reaper was sent SIGTERM from outside"}

    def _reap(self) -> bool:
        """Collect what has ended; whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._trial:
                self._wait_status = status

    def _end_descendants(self) -> list[int]:
        """End what the trial has left behind. A job with GPUs or one that was stopped is also searched for processes
        that carry its tag without descending from it (started through another daemon); of the others the keeper's
        sweep takes care, because a search costs more than a short trial."""
        if not self._reap() and not self._request["gpus"] and self._stop is None:
            return []
        return self._end_all(_LEFTOVER_GRACE_SECONDS)

    def _end_all(self, grace_seconds: float) -> list[int]:
        failpoint("reaper.stop.before")
        left = end_processes(self._members, grace_seconds=grace_seconds, wait=self._wait_for_child)
        self._reap()
        failpoint("reaper.stop.after")
        return left

    def _members(self) -> list[ProcessFacts]:
        tag = (self._request["job_id"], self._request["directory"])
        while True:
            self._reap()
            try:
                return find_job_processes(tag, ancestors=(os.getpid(),), session=(self._trial, self._trial_started))
            except OSError as error:
                if not is_short(error):
                    raise
                self._wait_for_child(_SHORTAGE_RETRY_SECONDS)

    def _wait_for_child(self, seconds: float) -> None:
        signal.sigtimedwait((signal.SIGCHLD,), seconds)

    def _ending(self, left: list[int]) -> Ending:
        stop = self._stop or {}
        stderr = os.path.join(self._request["directory"], STDERR_FILE)
        ending = classify(
            self._wait_status if self._wait_status is not None else 0,
            stop_reason=stop.get("reason"),
            stop_detail=stop.get("detail", ""),
            out_of_memory=processes.oom_kills(self._request["oom_counter"]) > self._killed_for_memory,
            last_line="" if self._wait_status == 0 else last_line_of(stderr),
        )
        if left:
            ending.detail += f" (processes that do not react to SIGKILL: {', '.join(map(str, left))})"
        return ending

    def _waited(self, now: float) -> float:
        """Return how long the job has waited for verdicts; waits until the machine has a descriptor to look."""
        while True:
            try:
                return verdict_seconds(self._request["directory"], now)
            except OSError:
                time.sleep(_SHORTAGE_RETRY_SECONDS)

    def _record(self, ending: Ending) -> None:
        """Write the end down, within the room that was allocated for it. What the trial has made of its folder is put
        right for that. A disk that refuses is tried again until it works or the end is no longer needed; meanwhile
        the keeper knows the end from us."""
        now = boot_time()
        end = json.dumps(
            {
                "reason": ending.reason,
                "code": ending.code,
                "signal": ending.signal,
                "started_at": self._started_at,
                "ended_at": time.time(),
                "detail": ending.detail,
                "memory": read_content(self._memory).decode("ascii", "replace") if self._memory >= 0 else "",
                "cpu_seconds": processes.cpu_seconds_of_children(),
                "run_seconds": now - self._started_boot,
                "verdict_seconds": self._waited(now),
            }
        ).encode()
        path = os.path.join(self._request["directory"], EXIT_FILE)
        is_notified = is_mended = False
        failpoint("reaper.exit.before")
        while True:
            try:
                write_replacement(path, end)  # the keeper syncs it
                break
            except OSError as error:
                if not os.path.exists(self._request["record_file"]):  # the end is stored
                    with suppress(OSError):
                        remove_replacement(path)
                    return
                if not is_mended and not is_full(error):
                    make_replaceable(path)
                    is_mended = True
                    continue
                is_notified = is_notified or self._send_end(end)
                time.sleep(_FULL_DISK_RETRY_SECONDS)
        failpoint("reaper.exit.after")

    def _send_end(self, end: bytes) -> bool:
        try:
            return self._channel.send(end, socket.MSG_DONTWAIT) == len(end)
        except OSError:  # that keeper is gone
            return False


def _open_output(path: str) -> int:
    descriptor = open_regular_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.set_blocking(descriptor, True)
    return descriptor


def _make_memory_reserve() -> int:
    """A descriptor of a reserve in memory (see `sdk.disk_reserve`), or -1 where there is none."""
    try:
        descriptor = os.memfd_create("reserve")
        os.ftruncate(descriptor, RESERVE_BYTES)
    except OSError:
        return -1
    return descriptor


def _become_trial(
    request: "dict[str, Any]", stdout: int, stderr: int, gate: int, result: int, leases: list[int], memory: int
) -> "NoReturn":
    """In the forked child: wait for the gate, then become the trial."""
    reaper = os.getppid()
    try:
        os.setsid()
        if os.read(gate, 1) != b"!":
            os._exit(_EXEC_FAILED)  # the reaper died before it had written down who we are
        for number in (*_IGNORED, *_SIGNALS):
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        os.umask(request["umask"])
        os.chdir(request["code_directory"])
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        for descriptor in leases:
            os.set_inheritable(descriptor, True)
        environment = dict(request["environment"])
        if memory >= 0:
            environment[ENV_MEMORY_RESERVE] = f"/proc/{reaper}/fd/{memory}"
        os.execvpe("bash", ["bash", "-c", request["command"]], environment)
    except OSError as error:
        where = error.filename or "bash"
        os.write(result, f"{error.errno or 0} the trial could not be started: {error.strerror}: {where}".encode())
    except BaseException as error:
        os.write(result, f"0 the trial could not be started: {error}".encode())
    os._exit(_EXEC_FAILED)
