"""The user's code: which version a job ran, and a frozen copy of it where one is asked for.

Local trials run in place, so editing the code changes the trials that start later. That is shown: a fingerprint of the
directory is kept with every job, and a notice says when it is another than the job's before.
"""

import asyncio
import hashlib
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from proctor.manager.clock import Clock
from proctor.sdk.client.code_files import IGNORED_FOLDERS
from proctor.sdk.client.home import holds_state, is_experiment, is_home

log = logging.getLogger(__name__)

POLL_INTERVAL_SECONDS = 2.0
"""A fingerprint is taken at most this often; jobs that start in between share it."""
MAX_FILES = 2000
"""Beyond this many files the rest is not looked at, in the order of their paths."""
SOURCES = frozenset(
    (".py", ".pyx", ".ipynb", ".sh", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp", ".jl", ".r", ".R", ".lua", ".rs")
)
"""Only these count: a trial that writes results beside itself has not changed the code."""
SNAPSHOT_FOLDER = "code"


class CodeWatch:
    """Fingerprints of one code directory."""

    def __init__(self, directory: Path, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._taken_at: float | None = None
        self._fingerprint: str | None = None

    async def fingerprint(self) -> str | None:
        """What identifies the directory's present content: paths, sizes and times of its source files. While these
        cannot be read, the one from before; None: there is none."""
        now = self._clock.monotonic()
        if self._taken_at is None or now - self._taken_at > POLL_INTERVAL_SECONDS:
            self._taken_at = now
            try:
                self._fingerprint = await asyncio.to_thread(take_fingerprint, self._directory)
            except OSError as error:
                log.warning("whether the code in %s has changed is not known now: %s", self._directory, error)
        return self._fingerprint


def take_fingerprint(directory: Path) -> str:
    """Sixteen hexadecimal digits that change with the source files. Links are not followed. Raises OSError where they
    cannot be read now."""
    digest = hashlib.sha256()
    for number, (path, entry) in enumerate(_files(str(directory), "")):
        if number >= MAX_FILES:
            break
        try:
            facts = entry.stat(follow_symlinks=False)
        except FileNotFoundError:  # it has vanished since the folder was listed
            continue
        digest.update(f"{path}\0{facts.st_size}\0{facts.st_mtime_ns}\n".encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def _files(folder: str, prefix: str) -> Iterator[tuple[str, os.DirEntry[str]]]:
    """Source files below a folder by path; folders that are gone, may not be read or hold no code are passed over."""
    try:
        with os.scandir(folder) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    names = {entry.name for entry in entries}
    if prefix and (is_home(names) or is_experiment(names)):
        return
    for entry in entries:
        if entry.name in IGNORED_FOLDERS:
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _files(entry.path, f"{prefix}{entry.name}/")
        elif os.path.splitext(entry.name)[1] in SOURCES:
            yield prefix + entry.name, entry


def freeze(code_directory: Path, experiment_directory: Path) -> None:
    """Copy the code into the experiment's folder. Links stay links, dangling ones too. Raises OSError.

    Neither a manager's home nor an experiment's folder is code: each copy would hold copies of all earlier ones.
    """
    if is_home(os.listdir(code_directory)):
        raise OSError(
            f"codeSnapshot copies the code directory, and {code_directory} is the home of a Proctor manager; move the "
            "code into a folder of its own, or the home (PROCTOR_HOME) to another place"
        )

    def unwanted(folder: str, names: list[str]) -> set[str]:
        return {*IGNORED_FOLDERS.intersection(names)} | {name for name in names if is_state(os.path.join(folder, name))}

    def is_state(path: str) -> bool:
        return path == str(experiment_directory) or (not os.path.islink(path) and holds_state(path))

    shutil.copytree(code_directory, experiment_directory / SNAPSHOT_FOLDER, symlinks=True, ignore=unwanted)
