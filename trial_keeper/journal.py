"""Reading a job's journals by byte offset: whole lines while the trial lives, everything once it is dead."""

import os

from proctor.sdk.protocol import JOURNAL_FILE, MAX_RECORD_BYTES

FIRST_MEMBER = "0"
_READ_BYTES = 4 * MAX_RECORD_BYTES


def journal_path(directory: str, member: str) -> str:
    """The journal of a member: `journal`, or `journal.<rank>` for ranks above 0."""
    name = JOURNAL_FILE if member == FIRST_MEMBER else f"{JOURNAL_FILE}.{member}"
    return os.path.join(directory, name)


def find_members(directory: str) -> list[str]:
    """The members that have a journal in the directory, the first one whether it has or not."""
    prefix = f"{JOURNAL_FILE}."
    try:
        ranks = {name[len(prefix) :] for name in os.listdir(directory) if name.startswith(prefix)}
    except OSError:
        return [FIRST_MEMBER]
    return [FIRST_MEMBER, *sorted((rank for rank in ranks if rank.isdecimal() and int(rank) > 0), key=int)]


def whole_lines(data: bytes) -> bytes:
    """`data` up to and with its last newline.

    One line that fills `data` without an end is no record of ours (they are shorter): it is passed on as it is, so that
    what stands behind it is not held up.
    """
    end = data.rfind(b"\n") + 1
    if end == 0 and len(data) > MAX_RECORD_BYTES:
        return data
    return data[:end]


class JournalTail:
    """One journal: how much of it the manager has, and what comes next."""

    def __init__(self, directory: str, member: str, acknowledged: int = 0) -> None:
        self.member = member
        self.path = journal_path(directory, member)
        self.acknowledged = acknowledged
        self._descriptor = -1

    @property
    def size(self) -> int:
        """Its size in bytes now; 0 when it is not there."""
        descriptor = self._open()
        return os.fstat(descriptor).st_size if descriptor >= 0 else 0

    @property
    def is_behind(self) -> bool:
        """There is something that is not acknowledged (a line that is being written counts)."""
        return self.size > self.acknowledged

    def read(self, *, final: bool) -> bytes:
        """What follows the acknowledged offset: whole lines, at most 1 MiB.

        :param final: nothing will be appended any more: an unfinished last line is passed on as it is.
        """
        descriptor = self._open()
        if descriptor < 0:
            return b""
        data = os.pread(descriptor, _READ_BYTES, self.acknowledged)
        if final and self.acknowledged + len(data) >= os.fstat(descriptor).st_size:
            return data
        return whole_lines(data)

    def close(self) -> None:
        """Close the file; it is opened again when it is needed."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _open(self) -> int:
        if self._descriptor < 0:
            try:
                self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                return -1
        return self._descriptor
