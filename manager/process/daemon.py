"""A manager in the background: started when it is needed, found by its home, stopped."""

import os
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass

from proctor.manager.process.instance import EXIT_CONFLICT, ManagerAddress, StartError, read_address
from proctor.manager.settings import Home
from proctor.sdk.disk_errors import explain
from proctor.sdk.files import last_lines

START_SECONDS = 30.0
STOP_SECONDS = 20.0
POLL_INTERVAL_SECONDS = 0.02


@dataclass(frozen=True)
class RunningManager:
    """A manager that serves, and the token that opens it."""

    address: ManagerAddress
    token: str

    @property
    def url(self) -> str:
        """Where it is reached; no slash at the end."""
        return self.address.url


class ManagerNotStarted(StartError):
    """The manager did not come up; the text is what it printed."""


class ManagerNotStopped(StartError):
    """The manager is still there."""


def manager_status(home: Home) -> ManagerAddress | None:
    """The running manager of the home, or None."""
    return read_address(home)


def ensure_manager(
    home: Home,
    *,
    port: int | None = None,
    url_prefix: str | None = None,
    keeper_listen: str | None = None,
    accept_database: bool = False,
    timeout_seconds: float = START_SECONDS,
) -> RunningManager:
    """The home's manager; started in the background if none runs. Returns when it serves.

    :param port: for a manager that must be started; None: 8080 or the next free one.
    :param url_prefix: for a manager that must be started; None: what the environment says.
    :param keeper_listen: for a manager that must be started: HOST:PORT; None: what the environment says.
    :param accept_database: for a manager that must be started: see `Settings.accept_database`.
    :raises ManagerNotStarted: with what the manager printed.
    """
    options = [] if port is None else ["--port", str(port)]
    options += [] if url_prefix is None else ["--url-prefix", url_prefix]
    options += [] if keeper_listen is None else ["--keeper-listen", keeper_listen]
    options += ["--accept-database"] if accept_database else []
    address = read_address(home) or _start(home, options, timeout_seconds)
    return RunningManager(address, home.token_file.read_text(encoding="utf-8").strip())


def _start(home: Home, options: list[str], timeout_seconds: float) -> ManagerAddress:
    try:
        home.prepare()
        log_file = os.open(home.manager_output, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        why = explain(error, error.filename or str(home.path))
        raise ManagerNotStarted(
            f"cannot write the home {home.path}: {why}; make it writable, or name another one with PROCTOR_HOME"
        ) from error
    offset = os.fstat(log_file).st_size
    # -P: the folder of the caller must not shadow what the manager imports.
    command = [sys.executable, "-P", "-m", "proctor.manager", "--home", str(home.path), *options]
    try:
        pid = _spawn(command, log_file)
    finally:
        os.close(log_file)
    return _wait_until_up(home, pid, offset, timeout_seconds)


def _spawn(command: list[str], log_file: int) -> int:
    """Start a process in a session of its own; it is not waited for once it is up, so no `Popen` is used."""
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, log_file, 1),
        (os.POSIX_SPAWN_DUP2, log_file, 2),
    ]
    return os.posix_spawn(command[0], command, os.environ, file_actions=actions, setsid=True)


def _wait_until_up(home: Home, pid: int, offset: int, timeout_seconds: float) -> ManagerAddress:
    """Until a manager of the home serves: ours, or one that was started at the same time and was faster."""
    gives_up = time.monotonic() + timeout_seconds
    code: int | None = None
    while time.monotonic() < gives_up:
        address = read_address(home)
        if address is not None:
            return address
        if code is None:
            ended, status = os.waitpid(pid, os.WNOHANG)
            code = None if ended == 0 else os.waitstatus_to_exitcode(status)
        if code not in (None, EXIT_CONFLICT):
            break
        time.sleep(POLL_INTERVAL_SECONDS)
    if code is None:
        os.kill(pid, signal.SIGTERM)
        raise ManagerNotStarted(f"it did not respond within {timeout_seconds:g} s; its log is {home.manager_log}")
    with open(home.manager_output, "rb") as file:
        output = "\n".join(last_lines(file.fileno(), 10, begin=offset)).removeprefix("proctor manager: ")
    raise ManagerNotStarted(output or f"it ended with exit code {code}; its log is {home.manager_log}")


def stop_manager(home: Home, *, timeout_seconds: float = STOP_SECONDS) -> bool:
    """End the home's manager in good order; trials keep running under their keepers. False when none was running.

    :raises ManagerNotStopped: it is still there after the time; it is not killed.
    """
    address = read_address(home)
    descriptor = None if address is None else address.open_pidfd()
    if address is None or descriptor is None:
        return False
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        if select.select([descriptor], [], [], timeout_seconds)[0]:
            with suppress(ChildProcessError):  # it may be a child of this very process
                os.waitpid(address.pid, os.WNOHANG)
            return True
    except ProcessLookupError:
        return True
    finally:
        os.close(descriptor)
    raise ManagerNotStopped(
        f"the manager (pid {address.pid}) has not ended within {timeout_seconds:g} s; its log is {home.manager_log}"
    )
