"""Room that a job has from its beginning, for what its journal cannot take: a final result, and how much was lost.

The keeper allocates the file `reserve` of a job's directory before the trial starts, so writing into it needs neither
blocks nor inodes. It holds lines, up to its first zero byte:

    {"member":"0","lost":           3}      reports that were lost so far, counted in place by all processes
    {"member":"0","record":"{...}\\n"}       a final result, as it would stand in the journal of that member
    {"member":"0","waiting":"...}\\n"}      the end of one that is too long to be kept; its process waits for room

A line that begins with "#" was written to the journal meanwhile. A process that appends or counts locks the file. When
the trial has ended, the keeper reads what is left (`trial_keeper/jobs/lost_reports.py`); nothing here is ever taken
back, so a process may be killed anywhere. The reaper offers a second reserve, in memory, for a disk that refuses even
this (read-only, not answering): what it holds comes with the end of the job.
"""

import os
from time import sleep

from proctor.sdk.quick_json import loads, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

RESERVE_BYTES = 64 * 1024

_LOCK_TRIES = 100
_LOCK_PAUSE_SECONDS = 0.01
_TAIL_CHARACTERS = 64
_DIGITS = 12
_MOVED = b"#"


class Reserve:
    """One member's use of a reserve. No method raises because of the file system.

    :param path: the file; one that is not there is not made.
    """

    def __init__(self, path: str, member: str) -> None:
        self._path = path
        self._member = member

    def count(self, lost: int) -> bool:
        """Add to the number of lost reports; returns whether it was written."""
        beginning = f'{{"member":{quote(self._member)},"lost":'.encode("ascii")

        def add(descriptor: int, content: bytes) -> bool:
            found = content.rfind(beginning)
            place = found + len(beginning)
            if found < 0 or content[place + _DIGITS : place + _DIGITS + 2] != b"}\n":  # none yet, or torn by a kill
                return _append(descriptor, content, beginning + b"%*d}\n" % (_DIGITS, lost))
            total = int(content[place : place + _DIGITS]) + lost
            return os.pwrite(descriptor, b"%*d" % (_DIGITS, total), place) == _DIGITS

        return self._change(add)

    def keep(self, record: bytes) -> "bool | None":
        """Keep a record for the end of the journal, or note the end of one that is too long.

        Returns whether the record is kept; None when nothing was written.
        """
        text = record.decode("ascii")
        whole = self._line("record", text)
        note = self._line("waiting", text[-_TAIL_CHARACTERS:])
        if self._change(lambda descriptor, content: _append(descriptor, content, whole)):
            return True
        return False if self._change(lambda descriptor, content: _append(descriptor, content, note)) else None

    def move(self, write: "Callable[[bytes], bool]") -> bool:
        """Hand the records of this member that are kept to `write`, in their order, and mark those that it takes.

        Returns whether none is left.
        """

        def move_all(descriptor: int, content: bytes) -> bool:
            for place, entry in _find_entries(content):
                if entry["member"] == self._member and isinstance(entry.get("record"), str):
                    if not write(entry["record"].encode("ascii")):
                        return False
                    os.pwrite(descriptor, _MOVED, place)
            return True

        return self._change(move_all)

    def _line(self, name: str, text: str) -> bytes:
        return f'{{"member":{quote(self._member)},"{name}":{quote(text)}}}\n'.encode("ascii")

    def _change(self, work: "Callable[[int, bytes], bool]") -> bool:
        """Do `work` (given a descriptor and the content) under the lock; whether it was done.

        The lock is not waited for without end: a process that was stopped may hold it, or a signal handler may report
        while this very thread does.
        """
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            _lock(descriptor)
            return work(descriptor, read_content(descriptor))
        except (OSError, ValueError):
            return False
        finally:
            os.close(descriptor)


def read_content(descriptor: int) -> bytes:
    """What was written to a reserve."""
    data = os.pread(descriptor, RESERVE_BYTES, 0)
    end = data.find(b"\0")
    return data if end < 0 else data[:end]


def read_entries(content: bytes) -> "list[dict[str, Any]]":
    """The entries in the content of a reserve, in their order; lines that a kill has torn, and records that were
    moved, are left out."""
    return [entry for _, entry in _find_entries(content)]


def _find_entries(content: bytes) -> "list[tuple[int, dict[str, Any]]]":
    found, place = [], 0
    for line in content.split(b"\n")[:-1]:
        try:
            entry = loads(line.decode("ascii"))
            if isinstance(entry["member"], str):
                found.append((place, entry))
        except (ValueError, KeyError, TypeError, RecursionError):  # a trial may write anything into it
            pass
        place += len(line) + 1
    return found


def _append(descriptor: int, content: bytes, line: bytes) -> bool:
    """Write a line behind what is there, if it fits into what was allocated."""
    if content and not content.endswith(b"\n"):
        line = b"\n" + line
    if len(content) + len(line) > os.fstat(descriptor).st_size:
        return False
    return os.pwrite(descriptor, line, len(content)) == len(line)


def _lock(descriptor: int) -> None:
    from proctor.sdk.files import lock_file  # hardly ever needed in a trial

    for _ in range(_LOCK_TRIES):
        if lock_file(descriptor):
            return
        sleep(_LOCK_PAUSE_SECONDS)
    raise BlockingIOError
