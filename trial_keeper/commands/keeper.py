"""The commands `start`, `stop` and `remove`: the keeper of a node, for the manager that installs it over SSH."""

import contextlib
import os
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from proctor.sdk.files import lock_file, remove_file
from proctor.trial_keeper.commands.directory import (
    POINTER_FILE,
    RUN_FOLDER,
    make_folders,
    point_to,
    remove_temporary_folders,
)
from proctor.trial_keeper.commands.input import CommandInput
from proctor.trial_keeper.errors import CommandRefused, KeeperSettingsError
from proctor.trial_keeper.jobs.cleanup import count_running, end_jobs
from proctor.trial_keeper.reaper import leases
from proctor.trial_keeper.settings import (
    ARCHIVE,
    CONFIG_FILE,
    ENV_KEEPER,
    EXPERIMENTS_FOLDER,
    LOCK_FILE,
    KeeperSettings,
    default_lock_folder,
    read_settings,
    write_settings,
)
from proctor.trial_keeper.start import find_keeper, launch_keeper, read_facts, stop_keeper

_ISOLATED = ("-I", "-S", "-X", "utf8")
GRACE_SECONDS = 5.0
_LOCK_SECONDS = 30.0
_POLL_INTERVAL_SECONDS = 0.25
_OURS = (CONFIG_FILE, LOCK_FILE, RUN_FOLDER)
_ARCHIVES = "keeper-*.pyz*"
_PARENTS = ("nodes", ".proctor")
_MOST_NAMED = 10


def start(given: CommandInput) -> dict[str, Any]:
    """The command `start`; see `commands/main.py`."""
    directory = given.directory()
    settings = KeeperSettings(
        given.text("node_id"),
        str(directory / POINTER_FILE),
        gpu_lock_directory=given.text("gpu_lock_directory", ""),
        device_refresh_seconds=given.number("device_refresh_seconds", 5.0),
    )
    secret, search_path, socket = given.text("secret"), given.text("search_path", ""), given.text("socket", "")
    make_folders(directory)
    replaced = _stop_outdated(directory, settings)  # before it can find the manager, which would give it jobs
    if socket:
        point_to(directory, socket)
    write_settings(directory, settings, secret)
    pid = find_keeper(directory)
    started = pid is None
    if pid is None:
        options = _ISOLATED if ARCHIVE else ()
        pid = launch_keeper(
            directory, (sys.executable, *options), environment=keeper_environment(directory, search_path)
        )
    _remove_other_archives(directory)
    return {"pid": pid, "started": started, "replaced": replaced}


def keeper_environment(directory: Path, search_path: str) -> dict[str, str]:
    """What a keeper, and a trial without an environment of its own, finds: the login's, less the SSH session's."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SSH_")}
    path = environment.get("PATH", os.defpath)
    environment["PATH"] = f"{search_path}{os.pathsep}{path}" if search_path else path
    environment[ENV_KEEPER] = str(directory)
    return environment


def _stop_outdated(directory: Path, settings: KeeperSettings) -> bool:
    """Have a keeper of another archive, or with other settings, leave; returns whether there was one."""
    facts = read_facts(directory)
    if facts is None:
        return False
    try:
        known = read_settings(directory)
    except KeeperSettingsError:
        known = None
    if known == settings and facts.is_current:
        return False
    stop_keeper(directory)
    return True


def _remove_other_archives(directory: Path) -> None:
    """Earlier versions, from which nothing runs now."""
    if ARCHIVE:
        for path in directory.glob(_ARCHIVES):
            if path.name != ARCHIVE:
                remove_file(str(path))


def stop(given: CommandInput) -> dict[str, Any]:
    """The command `stop`; see `commands/main.py`."""
    directory = given.directory()
    if not given.flag("kill_jobs"):
        stop_keeper(directory)
        return {"jobs": count_running(directory), "left": []}
    with no_keeper(directory):
        jobs, left = end_jobs(directory, grace_seconds=given.number("grace_seconds", GRACE_SECONDS))
    files = directory / EXPERIMENTS_FOLDER
    return {"jobs": jobs, "left": left, "experiments": sorted(os.listdir(files)) if files.is_dir() else []}


@contextlib.contextmanager
def no_keeper(directory: Path) -> Iterator[None]:
    """Have the keeper leave, and let none start for as long as the body lasts. Raises CommandRefused when it stays."""
    path = directory / LOCK_FILE
    if not path.exists():
        yield  # no keeper ever was here
        return
    lock = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        gives_up = time.monotonic() + _LOCK_SECONDS
        while not lock_file(lock):
            if time.monotonic() > gives_up:
                raise CommandRefused(f"the keeper of {directory} does not exit; a process holds {path}")
            if not stop_keeper(directory):
                time.sleep(_POLL_INTERVAL_SECONDS)  # one that is just starting cannot be found yet
        yield
    finally:
        os.close(lock)


def remove(given: CommandInput) -> dict[str, Any]:
    """The command `remove`; see `commands/main.py`."""
    directory = given.directory()
    locks = given.text("gpu_lock_directory", "") or _lock_folder(directory)
    jobs, left = _remove_directory(directory, given.number("grace_seconds", GRACE_SECONDS))
    left += remove_temporary_folders(directory)
    _remove_empty_parents(directory)
    leases.remove_unused(locks)
    return {"removed": not left, "jobs": jobs, "left": left}


def _remove_directory(directory: Path, grace_seconds: float) -> tuple[int, list[str]]:
    """How many jobs were ended, and what is left. Records stay as long as a process does, to be tried again by."""
    if not os.path.lexists(directory):
        return 0, []
    _check_that_it_is_ours(directory)
    with no_keeper(directory):
        jobs, left = end_jobs(directory, grace_seconds=grace_seconds)
        if left:
            return jobs, left
        left = _remove_tree(directory)
    return jobs, left and _remove_tree(directory)  # again: a file system like NFS keeps files that we had open


def _check_that_it_is_ours(directory: Path) -> None:
    """Nothing but a keeper's directory may be removed, whatever a manager asks for."""
    if directory.is_dir() and not directory.is_symlink():
        names = os.listdir(directory)
        if not names or any(name in _OURS for name in names) or any(directory.glob(_ARCHIVES)):
            return
    raise CommandRefused(f"{directory} does not look like a keeper's directory; it was not changed")


def _remove_tree(directory: Path) -> list[str]:
    """Remove it, folders that a trial has made read-only included; returns what is left and why."""
    left: dict[str, str] = {}

    def try_again(remove: Callable[..., Any], path: str, problem: Any) -> None:
        error = problem[1]
        if isinstance(error, FileNotFoundError):
            return
        try:
            for folder in (os.path.dirname(path), path):
                if not os.path.islink(folder) and os.path.isdir(folder):
                    os.chmod(folder, os.stat(folder).st_mode | stat.S_IRWXU)
            if remove in (os.unlink, os.rmdir):
                remove(path)
            else:
                shutil.rmtree(path)
        except FileNotFoundError:
            pass
        except OSError as second:
            left[second.filename or path] = second.strerror or str(second)

    shutil.rmtree(directory, onerror=try_again)
    if not directory.exists():
        return []
    sentences = [f"{path} could not be removed: {why}" for path, why in list(left.items())[:_MOST_NAMED]]
    return sentences or [f"{directory} could not be removed: something is still writing to it"]


def _remove_empty_parents(directory: Path) -> None:
    folder = directory.parent
    for name in _PARENTS:
        if folder.name != name:
            return
        try:
            folder.rmdir()
        except OSError:
            return  # of another node, or the user's
        folder = folder.parent


def _lock_folder(directory: Path) -> str:
    try:
        return read_settings(directory).gpu_lock_directory or default_lock_folder()
    except KeeperSettingsError:
        return default_lock_folder()
