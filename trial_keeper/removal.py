"""Leaving a node without a trace."""

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from proctor.trial_keeper import leases
from proctor.trial_keeper.command_input import CommandInput
from proctor.trial_keeper.errors import CommandRefused, SettingsError
from proctor.trial_keeper.job_ending import end_jobs
from proctor.trial_keeper.node_directory import RUN_FOLDER, remove_temporary_folders
from proctor.trial_keeper.node_stop import GRACE_SECONDS, no_keeper
from proctor.trial_keeper.settings import CONFIG_FILE, LOCK_FILE, default_lock_folder, read_settings

_OURS = (CONFIG_FILE, LOCK_FILE, RUN_FOLDER)
_ARCHIVES = "keeper-*.pyz*"
_PARENTS = ("nodes", ".proctor")
_MOST_NAMED = 10


def remove(given: CommandInput) -> dict[str, Any]:
    """The command `remove`; see `commands.py`."""
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
    """Nothing but a keeper's directory may be removed, whatever a manager was told."""
    if directory.is_dir() and not directory.is_symlink():
        names = os.listdir(directory)
        if not names or any(name in _OURS for name in names) or any(directory.glob(_ARCHIVES)):
            return
    raise CommandRefused(f"{directory} does not look like the directory of a keeper; it was left as it is")


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
    return sentences or [f"{directory} could not be removed: something is still writing there"]


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
    except SettingsError:
        return default_lock_folder()
