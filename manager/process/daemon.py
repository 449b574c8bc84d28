"""A manager in the background: started when it is needed, found by its home, stopped."""

import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from proctor.manager.process.instance import (
    EXIT_CONFLICT,
    LockHolder,
    ManagerAddress,
    StartError,
    describe_unwritable,
    read_address,
    read_holder,
)
from proctor.manager.settings import Home, HomeClaim
from proctor.sdk.files import last_lines

POLL_INTERVAL_SECONDS = 0.01
QUIET_SECONDS = 3.0
"""A start or a stop that takes longer is commented on."""
REPEAT_SECONDS = 30.0
"""How often that is repeated while nothing changes."""


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


def manager_status(home: Home) -> ManagerAddress | None:
    """The running manager of the home, or None."""
    return read_address(home)


def print_to_stderr(text: str) -> None:
    """Show a person a sentence."""
    print(text, file=sys.stderr, flush=True)


def ensure_manager(
    home: Home,
    *,
    port: int | None = None,
    url_prefix: str | None = None,
    keeper_listen: str | None = None,
    accept_database: bool = False,
    claim: HomeClaim | None = None,
    report: Callable[[str], None] = print_to_stderr,
) -> RunningManager:
    """The home's manager; started in the background if none runs. Returns when it serves, however long that takes, as
    long as its process lives.

    :param port: for a manager that must be started; None: 8080 or the next free one.
    :param url_prefix: for a manager that must be started; None: what the environment says.
    :param keeper_listen: for a manager that must be started: HOST:PORT; None: what the environment says.
    :param accept_database: for a manager that must be started: see `ManagerSettings.accept_database`.
    :param claim: for a manager that must be started: what a person says of a home that was moved or copied.
    :param report: receives sentences about a start that takes long.
    :raises ManagerNotStarted: with what the manager printed.
    """
    options = [] if port is None else ["--port", str(port)]
    options += [] if url_prefix is None else ["--url-prefix", url_prefix]
    options += [] if keeper_listen is None else ["--keeper-listen", keeper_listen]
    options += ["--accept-database"] if accept_database else []
    options += [] if claim is None else [f"--{claim}"]
    address = read_address(home) or _start(home, options, report)
    return RunningManager(address, home.token_file.read_text(encoding="utf-8").strip())


def _start(home: Home, options: list[str], report: Callable[[str], None]) -> ManagerAddress:
    # -P: the folder of the caller must not shadow what the manager imports.
    command = [sys.executable, "-P", "-m", "proctor.manager", "--home", str(home.path), *options]
    waiting = _Waiting(home, report)
    refused_by: LockHolder | None = None
    while True:
        starting = _StartingProcess.spawn(home, command)
        if address := waiting.until_up(starting.is_alive, starting.pid):
            return address
        holder = read_holder(home)
        if starting.exit_code != EXIT_CONFLICT or holder is None or (refused_by and holder.is_same(refused_by)):
            raise ManagerNotStarted(starting.failure())
        if address := waiting.until_up(holder.is_alive, holder.pid):  # it was started at the same time, and was faster
            return address
        refused_by = holder  # it has ended: once more


class _StartingProcess:
    """A manager of ours that comes up in a session of its own. It is not waited for once it is up, so no `Popen`."""

    def __init__(self, home: Home, pid: int, offset: int) -> None:
        """:param offset: where what it prints begins in the file."""
        self.pid = pid
        self.exit_code: int | None = None
        self._home = home
        self._offset = offset

    @classmethod
    def spawn(cls, home: Home, command: list[str]) -> "_StartingProcess":
        """Start it. Raises ManagerNotStarted where the home cannot be written."""
        try:
            home.prepare()
            log_file = os.open(home.manager_output, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise ManagerNotStarted(describe_unwritable(home, error)) from error
        offset = os.fstat(log_file).st_size
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, log_file, 1),
            (os.POSIX_SPAWN_DUP2, log_file, 2),
        ]
        try:
            pid = os.posix_spawn(command[0], command, os.environ, file_actions=actions, setsid=True)
        finally:
            os.close(log_file)
        return cls(home, pid, offset)

    def is_alive(self) -> bool:
        """Whether it runs; once it does not, there is an exit code."""
        if self.exit_code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.exit_code = None if ended == 0 else os.waitstatus_to_exitcode(status)
        return self.exit_code is None

    def failure(self) -> str:
        """Why it has ended: what it printed, for which its disk may have had no room."""
        code = self.exit_code or 0
        how = f"ended with exit code {code}" if code >= 0 else f"was killed by {signal.Signals(-code).name}"
        said = self._output()
        try:
            self._home.require_room()
        except OSError as error:
            full = describe_unwritable(self._home, error)
            return full if full in said else "; ".join(filter(None, [said, full]))
        return said or f"it {how}"

    def _output(self) -> str:
        """The end of what it printed."""
        with open(self._home.manager_output, "rb") as file:
            printed = last_lines(file.fileno(), 10, begin=self._offset)
        return "\n".join(printed).removeprefix("proctor manager: ")


class _Waiting:
    """The wait for a manager that comes up: it lasts as long as that lives, and reports the stages of the start."""

    def __init__(self, home: Home, report: Callable[[str], None]) -> None:
        self._home = home
        self._report = report
        self._began = time.monotonic()
        self._next_report = self._began + QUIET_SECONDS
        self._reported = ""

    def until_up(self, is_alive: Callable[[], bool], pid: int) -> ManagerAddress | None:
        """The address of the home's manager once it serves; None when the process has ended before."""
        try:
            while True:
                could_come_up = is_alive()
                if (address := read_address(self._home)) is not None or not could_come_up:
                    return address
                self._report_progress(pid)
                time.sleep(POLL_INTERVAL_SECONDS)
        except KeyboardInterrupt:
            self._report(
                f"The manager (pid {pid}) is not stopped by this: it continues to start in the background. "
                f"`proctor manager status` shows when it is up; `kill {pid}` ends it."
            )
            raise

    def _report_progress(self, pid: int) -> None:
        now = time.monotonic()
        if now < self._began + QUIET_SECONDS:
            return
        holder = read_holder(self._home)
        stage = holder.stage if holder is not None and holder.pid == pid else "loading its program"
        if stage != self._reported or now >= self._next_report:
            self._reported = stage
            self._next_report = now + REPEAT_SECONDS
            seconds = f"{now - self._began:.0f} s"
            self._report(f"Waiting for the manager (pid {pid}, {seconds}): {stage}. Its log: {self._home.manager_log}")


def stop_manager(home: Home, *, report: Callable[[str], None] = print_to_stderr) -> bool:
    """End the home's manager in good order, however long that takes; trials keep running under their keepers. False
    when none was running.

    :param report: receives sentences about a stop that takes long.
    """
    address = read_address(home)
    descriptor = None if address is None else address.open_pidfd()
    if address is None or descriptor is None:
        return False
    pid, began, patience = address.pid, time.monotonic(), QUIET_SECONDS
    try:
        signal.pidfd_send_signal(descriptor, signal.SIGTERM)
        while not select.select([descriptor], [], [], patience)[0]:
            seconds = f"{time.monotonic() - began:.0f} s"
            report(f"Waiting for the manager (pid {pid}, {seconds}) to end. Its log: {home.manager_log}")
            patience = REPEAT_SECONDS
        with suppress(ChildProcessError):  # it may be a child of this very process
            os.waitpid(pid, os.WNOHANG)
    except ProcessLookupError:
        pass
    except KeyboardInterrupt:
        report(f"The manager (pid {pid}) is ending all the same. `kill -9 {pid}` ends it at once, and loses nothing.")
        raise
    finally:
        os.close(descriptor)
    return True
