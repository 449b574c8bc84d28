"""Whether new jobs find room on this node: what stands in the way, by folder, until an attempt shows that it is gone.

Free space alone does not tell: there are inodes, quotas, reserved blocks and read-only disks. So it is really tried, as
soon as the disk looks full or a job has found it full, and as long as it is. The same holds for processes and
descriptors, once a job could not be started for lack of them.
"""

import errno
import os
import threading
import time
from contextlib import suppress
from pathlib import Path

from proctor.sdk.disk_errors import describe_full, is_full
from proctor.sdk.files import name_unfinished, remove_tree, remove_unfinished
from proctor.sdk.process_limits import describe_shortage
from proctor.trial_keeper.linux.files import allocate_file

OWN = ""
"""Stands for the keeper's own directory."""

_ROOM_BYTES = 256 * 1024  # what a new job must find: it takes about half of it
_ROOM_FILES = 24
_LITTLE_BYTES = 16 * _ROOM_BYTES
_LITTLE_INODES = 64
_PAUSE_SECONDS = 5.0
_ROOM_PROCESSES = 4  # a reaper, bash, the trial, and one that it starts
_ROOM_DESCRIPTORS = 16


class DiskWatch:
    """What is known of the disk of a keeper, and of those on which the directories of its jobs are.

    `full` says by folder, as a clause, why no jobs can be started there; the keeper's own directory is `OWN`.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = str(directory)
        self._tried_at = -_PAUSE_SECONDS
        self.full: dict[str, str] = {}
        self.free_mb: int | None = None

    def check(self) -> bool:
        """Check the free space; whether `try_again` should be called now."""
        try:
            facts = os.statvfs(self._directory)
        except OSError:
            return bool(self.full)
        free = facts.f_bavail * facts.f_frsize
        self.free_mb = free // (1024 * 1024)
        little = free < _LITTLE_BYTES or (facts.f_files > 0 and facts.f_favail < _LITTLE_INODES)
        if facts.f_flag & os.ST_RDONLY:
            little = True
        return bool(self.full) or (little and time.monotonic() >= self._tried_at + _PAUSE_SECONDS)

    def try_again(self) -> None:
        """Find out what is still full. Blocks."""
        self._tried_at = time.monotonic()
        found = {folder: _try(folder) for folder in self.full if folder != OWN}
        found[OWN] = _try(self._directory) or (find_shortage() if OWN in self.full else "")
        self.full = {folder: clause for folder, clause in found.items() if clause}

    def add_obstacle(self, folder: str, clause: str) -> None:
        """A job has found no room for its directory `folder`; `clause` says why. Blocks.

        It is this node's fault if there is none in the keeper's own directory either, or no process can be started.
        """
        own = _try(self._directory) or find_shortage()
        place = OWN if own else _existing(folder)
        self.full = {**self.full, place: own or clause}

    def check_folder(self, folder: str) -> str:
        """Why a job would find no room for its directory `folder` now, or no process, or ''; noted. Blocks."""
        clause = _try(_existing(folder)) or _try(self._directory) or find_shortage()
        if clause:
            self.add_obstacle(folder, clause)
        return clause


def find_shortage() -> str:
    """Why no trial could be started, for lack of processes or descriptors, as a clause, or ''. Threads count as
    processes do, and are sooner tried. Blocks."""
    done = threading.Event()
    threads = [threading.Thread(target=done.wait, name=f"probe {number}") for number in range(_ROOM_PROCESSES)]
    opened: list[int] = []
    try:
        for thread in threads:
            thread.start()
        for _ in range(_ROOM_DESCRIPTORS):
            opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except RuntimeError:  # which is all that Python says of a thread that cannot be started
        return describe_shortage(errno.EAGAIN)
    except OSError as error:
        return describe_shortage(error.errno)
    finally:
        done.set()
        for descriptor in opened:
            os.close(descriptor)
        for thread in threads:
            with suppress(RuntimeError):  # it was not started
                thread.join()
    return ""


def _try(folder: str) -> str:
    """Why there is no room in a folder, as a clause, or ''. One that is gone or may not be written to is not full."""
    place = name_unfinished(folder)
    try:
        remove_unfinished(folder)
        os.mkdir(place, 0o700)
        for number in range(_ROOM_FILES):
            os.close(os.open(f"{place}/{number}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        allocate_file(f"{place}/0", _ROOM_BYTES)
    except OSError as error:
        return describe_full(error.errno or 0, folder) if is_full(error) else ""
    finally:
        remove_tree(place)
    return ""


def _existing(folder: str) -> str:
    """The folder, or the nearest one above it that exists."""
    while not os.path.isdir(folder) and os.path.dirname(folder) != folder:
        folder = os.path.dirname(folder)
    return folder
