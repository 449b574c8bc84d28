"""Starting and stopping the keeper of a directory from another process of the same machine."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from proctor.sdk.files import is_locked
from proctor.sdk.process_limits import users_open_files, users_umask
from proctor.trial_keeper.errors import KeeperNotStarted, KeeperSettingsError
from proctor.trial_keeper.linux.identity import boot_id, open_pidfd
from proctor.trial_keeper.reaper.exits import last_line_of
from proctor.trial_keeper.settings import (
    FACTS_FILE,
    LOCK_FILE,
    LOG_FILE,
    PACKAGE_ROOT,
    SPAWNER_LOG_FILE,
    KeeperSettings,
    code_id,
    read_settings,
    write_settings,
)

_START_SECONDS = 60.0
_OTHER_SECONDS = 2.0
_POLL_INTERVAL_SECONDS = 0.25
_KEEPER_CODE = (
    "import sys; sys.path.insert(0, sys.argv.pop()); from proctor.trial_keeper.__main__ import main; sys.exit(main())"
)


@dataclass(frozen=True)
class KeeperFacts:
    """A living keeper: its pid, its version, the archive it runs from (empty: a folder), and its `code_id` (empty: it
    is of an earlier version)."""

    pid: int
    version: str
    archive: str
    code: str

    @property
    def is_current(self) -> bool:
        """Whether it runs the code of this process."""
        return self.code == code_id()


def start_keeper(
    directory: Path,
    *,
    node_id: str,
    manager_pointer: Path | str,
    secret: str,
    executable: str = sys.executable,
    gpu_lock_directory: str = "",
    device_refresh_seconds: float = 5.0,
    linger_seconds: float | None = None,
) -> int:
    """Make sure that a keeper serves `directory`, and return its pid. Blocks until it does; may be called again.

    The keeper runs detached, in a session of its own. One that runs this code already is left alone; it reads the new
    secret at its next connect and the other settings at its next start. One that runs other code (before an upgrade)
    would not understand all commands, and one that looks for the manager elsewhere (the directory was moved) would not
    find it: it is replaced, and the new one adopts its jobs.

    :param manager_pointer: the file that says where the manager listens (`uplink/pointer.py`).
    :param gpu_lock_directory: where this machine's GPU leases are; empty for the default.
    :param device_refresh_seconds: how often NVML is asked, when there are devices.
    :param linger_seconds: how long it waits for a manager once none of its jobs runs; None: until it is stopped.
    :raises KeeperNotStarted: it did not come up, or the one of other code did not exit; says what to do.
    """
    settings = KeeperSettings(
        node_id,
        str(manager_pointer),
        gpu_lock_directory=gpu_lock_directory,
        device_refresh_seconds=device_refresh_seconds,
        linger_seconds=linger_seconds,
    )
    if _manager_pointer(directory) not in (None, settings.manager_pointer):
        stop_keeper(directory)
    write_settings(directory, settings, secret)
    facts = read_facts(directory)
    if facts is not None and facts.is_current:
        return facts.pid
    if facts is not None and not stop_keeper(directory) and find_keeper(directory) == facts.pid:
        raise KeeperNotStarted(
            f"the keeper of another version ({facts.version}, pid {facts.pid}) that serves {directory} does not exit, "
            "not even on SIGKILL; it waits for a disk or a device: restart the machine if it never does"
        )
    return launch_keeper(directory, (executable,))


def _manager_pointer(directory: Path) -> str | None:
    """Where the keeper of `directory` looks for the manager; None where none was set up."""
    try:
        return read_settings(directory).manager_pointer
    except KeeperSettingsError:
        return None


def launch_keeper(directory: Path, python: tuple[str, ...], *, environment: Mapping[str, str] | None = None) -> int:
    """Start a keeper where the settings are in `directory` already, and return its pid or that of one that was faster.

    :param python: the interpreter with its options.
    :param environment: the keeper's; None: ours.
    :raises KeeperNotStarted: it did not come up; says where its log is.
    """
    _start_detached(directory, python, environment)
    return _wait_until_up(directory)


def find_keeper(directory: Path) -> int | None:
    """The pid of the keeper that serves `directory`, or None."""
    facts = read_facts(directory)
    return None if facts is None else facts.pid


def read_facts(directory: Path) -> KeeperFacts | None:
    """What the keeper that serves `directory` says of itself, or None when none lives."""
    found = _open_keeper(directory)
    if found is None:
        return None
    os.close(found[1])
    return found[0]


def stop_keeper(directory: Path, *, timeout_seconds: float = 10.0) -> bool:
    """Stop the keeper; its jobs keep running under their reapers. Kills it if need be; returns whether it exited."""
    found = _open_keeper(directory)
    if found is None:
        return False
    descriptor = found[1]
    try:
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(descriptor, number)
            if _is_readable(descriptor, timeout_seconds):
                return True
    finally:
        os.close(descriptor)
    return False


def _start_detached(directory: Path, python: tuple[str, ...], environment: Mapping[str, str] | None) -> None:
    """Start the daemon, as no child of ours; returns when it is up or has failed, for then it closes our pipe."""
    ours, theirs = os.pipe()
    limits = ("--open-files", str(users_open_files()))
    arguments = ("serve", "--directory", str(directory), "--detach", str(theirs), *limits)
    command = [*python, "-c", _KEEPER_CODE, *arguments, PACKAGE_ROOT]
    try:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        with open(os.open(directory / SPAWNER_LOG_FILE, flags, 0o600), "ab") as output:
            subprocess.run(
                command,
                umask=users_umask(),  # the keeper makes its own files private, and gives this one to trials
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                cwd=directory,
                env=environment,
                pass_fds=(theirs,),
                start_new_session=True,
                check=True,
                timeout=_START_SECONDS,
            )
        os.close(theirs)
        theirs = -1
        _is_readable(ours, _START_SECONDS)
    except (OSError, subprocess.SubprocessError) as error:
        raise KeeperNotStarted(f"{python[0]} could not start a keeper: {error}") from error
    finally:
        os.close(ours)
        if theirs >= 0:
            os.close(theirs)


def _is_readable(descriptor: int, seconds: float) -> bool:
    """Whether there is something to read within so many seconds; `select` fails with high descriptors."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _wait_until_up(directory: Path) -> int:
    """The keeper we have started, or one that was faster and holds the directory's lock."""
    gives_up = time.monotonic() + _OTHER_SECONDS
    while (pid := find_keeper(directory)) is None and time.monotonic() < gives_up:
        time.sleep(_POLL_INTERVAL_SECONDS)
    if pid is None:
        logs = [directory / LOG_FILE, directory / SPAWNER_LOG_FILE]
        output = "; ".join(f"{log} ends with: {line}" for log in logs if (line := last_line_of(str(log))))
        raise KeeperNotStarted(f"no keeper started in {directory}; {output or 'it left no log'}")
    return pid


def _open_keeper(directory: Path) -> tuple[KeeperFacts, int] | None:
    """The keeper of `directory` and a pidfd of it. It writes keeper.json once it holds the directory's lock; in a copy
    of the directory, keeper.json names a process that does not."""
    try:
        if not is_locked(directory / LOCK_FILE):
            return None
        facts = json.loads((directory / FACTS_FILE).read_text(encoding="utf-8"))
        pid, started, boot = int(facts["pid"]), int(facts["start_time"]), str(facts["boot_id"])
        code = str(facts.get("code", ""))
        keeper = KeeperFacts(pid, str(facts["version"]), str(facts.get("archive", "")), code)
    except (OSError, ValueError, TypeError, KeyError):
        return None
    descriptor = open_pidfd(pid, started) if boot == boot_id() else None
    return None if descriptor is None else (keeper, descriptor)
