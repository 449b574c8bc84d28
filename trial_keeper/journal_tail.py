"""Reading a job's journals by byte offset: whole lines while the trial lives, everything once it is dead.

A trial should only append to its journal. One that truncates, rewrites or replaces it loses what was not read yet; the
new content is read behind a mark that says what has happened. So the offsets that the manager counts by never decrease:
an `Anchor` says which byte of the file follows that mark. A trial that renames its journal may write on to it: the open
file is read on.
"""

import contextlib
import json
import os
import stat
import time
from dataclasses import asdict, dataclass

from proctor.sdk.files import replace_file
from proctor.sdk.process_limits import is_short
from proctor.sdk.protocol import JOURNAL_FILE, KIND_LOST, MAX_RECORD_BYTES
from proctor.trial_keeper.linux.files import open_regular_file, read_regular_file

_MOST_BYTES = 64 * 1024
_MOST_OFFSET = 2**53
FIRST_MEMBER = "0"
MOST_RANK = 99_999
_MOST_JOURNALS = 1024  # of one job on one node: each costs a descriptor
_READ_BYTES = 4 * MAX_RECORD_BYTES
_HEAD_BYTES = 128  # of a journal, to know it again: its first record has a time
_LAST_BYTES = 32  # of what was read, to know that it still stands there


@dataclass(frozen=True)
class Anchor:
    """Byte `position` of the file follows `mark`, one line or more, which is at byte `offset` of what is reported.
    `is_without_file`: the file was gone."""

    offset: int = 0
    position: int = 0
    mark: str = ""
    is_without_file: bool = False

    @property
    def end(self) -> int:
        """The offset behind the mark."""
        return self.offset + len(self.mark)

    @property
    def shift(self) -> int:
        """From a position in the file to its offset."""
        return self.end - self.position


def read_anchor(directory: str, member: str) -> Anchor:
    """The anchor that was written down for a member's journal, else the one of a journal that only grows. It is where
    the trial may write: one that no keeper has written is none. Raises OSError where the machine has no descriptors
    left, as `find_members`."""
    try:
        found = Anchor(**json.loads(read_regular_file(_path(directory, member), _MOST_BYTES)))
        is_ours = all(type(place) is int and 0 <= place < _MOST_OFFSET for place in (found.offset, found.position))
        is_ours = is_ours and found.mark.isascii() and found.mark.endswith("\n")
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        if is_short(error):
            raise
        return Anchor()
    return found if is_ours else Anchor()


def write_anchor(directory: str, member: str, anchor: Anchor) -> None:
    """Store it before anything behind it is reported: the next keeper reports nothing again. Raises OSError."""
    replace_file(_path(directory, member), json.dumps(asdict(anchor)).encode(), durable=True)


def write_mark(why: str) -> str:
    """The line that stands where a journal continues: a record of unknown losses."""
    return json.dumps({"kind": KIND_LOST, "why": why, "time": time.time()}) + "\n"


def _path(directory: str, member: str) -> str:
    return os.path.join(directory, f"{JOURNAL_FILE}-anchor.{member}")


def journal_path(directory: str, member: str) -> str:
    """The journal of a member: `journal`, or `journal.<rank>` for ranks above 0."""
    name = JOURNAL_FILE if member == FIRST_MEMBER else f"{JOURNAL_FILE}.{member}"
    return os.path.join(directory, name)


def find_members(directory: str) -> list[str]:
    """The members that have a journal in the directory, the first one whether it has or not; of very many the lowest
    ranks."""
    prefix = f"{JOURNAL_FILE}."
    try:
        names = os.listdir(directory)
    except OSError as error:
        if is_short(error):
            raise
        return [FIRST_MEMBER]
    ranks = (name[len(prefix) :] for name in names if name.startswith(prefix))
    found = sorted((rank for rank in ranks if is_rank(rank) and rank != FIRST_MEMBER), key=int)
    return [FIRST_MEMBER, *found[: _MOST_JOURNALS - 1]]


def is_journal(name: bytes) -> bool:
    """Whether a file of a job's directory is one of its journals."""
    prefix, dot, rank = name.decode("ascii", "replace").partition(".")
    return prefix == JOURNAL_FILE and (not dot or is_rank(rank))


def is_rank(text: str) -> bool:
    """Whether it is the number of a rank as journals are named by it; a trial may name files as it likes."""
    return text.isascii() and text.isdecimal() and len(text) <= len(str(MOST_RANK)) and str(int(text)) == text


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
    """One journal: how much of it the manager has, and what comes next. Offsets are those of the manager.

    :param of_earlier_boot: written before this boot of the machine: a power cut may have taken its end, the manager
        may have more of it than there is now, and that is all there will be.
    """

    def __init__(self, directory: str, member: str, acknowledged: int = 0, *, of_earlier_boot: bool = False) -> None:
        self.member = member
        self.path = journal_path(directory, member)
        self.acknowledged = acknowledged
        self._directory = directory
        self._of_earlier_boot = of_earlier_boot
        self._anchor = read_anchor(directory, member)
        self._descriptor = -1
        self._head = b""
        self._last: tuple[int, bytes] | None = None  # where the last read ended, and its last bytes
        self._renamed: tuple[int, int] | None = None  # a file that lost its name: its descriptor, how far it was read
        self._is_out_of_reach = False  # it may be there, but cannot be opened now
        self._must_exist = False
        self.ending = b""  # what is reported behind its last byte, see `end`

    @property
    def size(self) -> int:
        """The offset of its end; 0 when it is not there."""
        end = self._file_end()
        if self._of_earlier_boot and self.acknowledged > end:
            return self.acknowledged
        return end + len(self.ending)

    @property
    def offset_of_file(self) -> int:
        """The offset at which the file's first byte stands; negative where the file was cut back or replaced."""
        return self._anchor.shift

    @property
    def needs_report(self) -> bool:
        """There is something that is not acknowledged (a line that is being written counts), or it has become shorter
        or another file."""
        size = self.size
        return (self._descriptor >= 0 or self.ending != b"") and (size != self.acknowledged or self._is_replaced())

    def is_complete(self, *, after: int) -> bool:
        """Whether nothing is left to be reported once `after` more bytes are."""
        size = self.size
        return self.acknowledged + after >= size and not self._is_out_of_reach and not self._is_replaced()

    @property
    def backlog(self) -> int:
        """About how many bytes are not acknowledged."""
        return max(self.size - self.acknowledged, 0)

    def read(self, *, final: bool, limit: int = _READ_BYTES) -> bytes:
        """What follows the acknowledged offset: whole lines, about 1 MiB at most.

        :param final: nothing more will be appended: an unfinished last line is passed on as it is, and the ending.
        :param limit: about how many bytes at most; one line always fits.
        """
        if not self.ending:
            return self._read_file(limit, final=final)
        data = self._read_file(limit, final=True) if self.acknowledged < self._file_end() else b""
        behind = self.acknowledged + len(data) - self._file_end()
        if behind < 0 or (behind > 0 and self._of_earlier_boot):
            return data
        return data + self.ending[behind:]

    def _read_file(self, limit: int, *, final: bool) -> bytes:
        descriptor = self._open()
        if descriptor < 0:
            return self._go_on_without_file() if final else b""
        is_replaced = self._is_replaced()
        data = self._read(descriptor, limit, final=final or is_replaced, is_other=False)
        if data or not is_replaced:
            return data
        self._drop_file(descriptor)
        descriptor = self._open()
        return self._read(descriptor, limit, final=final, is_other=True) if descriptor >= 0 else b""

    def open(self) -> None:
        """Open the file if it is there, so that it can be read even if its trial renames it."""
        self._open()

    def end(self, ending: bytes, *, must_exist: bool = False) -> None:
        """Nothing more will be appended; `ending` is reported behind what is there (`lost_reports`).

        :param must_exist: the file was made before the trial began: if it is not there, the trial is the reason.
        """
        self._must_exist = must_exist
        if ending:
            self._read_file(1, final=True)  # notice that it was cut back, before more bytes are counted than it has
        self.ending = ending

    def rest(self) -> None:
        """Close the file if it can be opened again: one that lost its name cannot."""
        if self._renamed is None and self._descriptor >= 0 and self._has_name():
            self.close()

    def close(self) -> None:
        """Close the file; it is opened again when it is needed."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if self._renamed is not None:
            os.close(self._renamed[0])
            self._renamed = None

    def _file_end(self) -> int:
        descriptor = self._open()
        return os.fstat(descriptor).st_size + self._anchor.shift if descriptor >= 0 else self._anchor.end

    def _read(self, descriptor: int, limit: int, *, final: bool, is_other: bool) -> bytes:
        size = os.fstat(descriptor).st_size
        if self._is_rewritten(descriptor, size, is_other=is_other):
            self._go_on_anew(descriptor, size)
        elif self._renamed is not None:
            self._check_renamed(*self._renamed)
        anchor = self._anchor
        mark = self._unacknowledged_mark()
        data = self._read_lines(descriptor, limit, final=final)
        if len(self._head) < _HEAD_BYTES:
            self._head = os.pread(descriptor, _HEAD_BYTES, 0)
        if data:
            self._last = max(self.acknowledged, anchor.end) + len(data), data[-_LAST_BYTES:]
        return mark + data

    def _read_lines(self, descriptor: int, limit: int, *, final: bool) -> bytes:
        """At most `limit` bytes of whole lines, or more where one line is longer."""
        data = b""
        for size in (min(limit, _READ_BYTES), _READ_BYTES):
            data = os.pread(descriptor, size, self._position)
            if final and self._position + len(data) >= os.fstat(descriptor).st_size:
                return data
            if b"\n" in data or len(data) < size:
                break
        return whole_lines(data)

    @property
    def _position(self) -> int:
        """Where in the file the next read begins."""
        return max(self.acknowledged, self._anchor.end) - self._anchor.shift

    def _is_replaced(self) -> bool:
        """Another file has taken its name. One without a name is read on: its trial may still write to it."""
        if self._descriptor < 0:
            return False
        try:
            named = os.stat(self.path)
        except OSError:
            return False
        return stat.S_ISREG(named.st_mode) and not self._is_opened(named)

    def _has_name(self) -> bool:
        try:
            return self._is_opened(os.stat(self.path))
        except OSError:
            return False

    def _is_opened(self, named: os.stat_result) -> bool:
        opened = os.fstat(self._descriptor)
        return (named.st_dev, named.st_ino) == (opened.st_dev, opened.st_ino)

    def _is_rewritten(self, descriptor: int, size: int, *, is_other: bool) -> bool:
        """Whether what was read is no longer there, and the trial is the reason."""
        if self._of_earlier_boot:
            return False
        if self.acknowledged < self._anchor.offset or size < self._position:
            return True
        if self._last is None or self._last[0] != self.acknowledged:
            return is_other and self._position > 0
        last = self._last[1]
        return os.pread(descriptor, len(last), self._position - len(last)) != last

    def _go_on_anew(self, descriptor: int, size: int) -> None:
        """One that was cut back continues at its end, because the rest was read; another one from its beginning."""
        read, begin = self._position, self._head[:size]
        is_cut = size < read and begin != b"" and os.pread(descriptor, len(begin), 0) == begin
        if is_cut:
            why = f"the trial cut its journal back to {size} bytes after {read} had been read"
        else:
            why = f"the trial rewrote its journal after {read} bytes had been read; it is read again from its beginning"
        mark = write_mark(f"{why}: what had not been read before that is lost")
        self._set_anchor(Anchor(self.acknowledged, size if is_cut else 0, mark))
        self._last, self._head = None, b""

    def _go_on_without_file(self) -> bytes:
        """Tell, once, that there is no file where one was."""
        expected = self._must_exist or self.acknowledged > 0
        if expected and not self._is_out_of_reach and not self._of_earlier_boot and not self._anchor.is_without_file:
            mark = write_mark("the trial removed or renamed its journal: what had not been read is lost")
            self._set_anchor(Anchor(self.acknowledged, 0, mark, is_without_file=True))
        return self._unacknowledged_mark()

    def _drop_file(self, descriptor: int) -> None:
        """Another file has taken the name of the one that is read; processes of the trial may write on to that."""
        if os.fstat(descriptor).st_nlink == 0:  # such a one does not: the SDK notices that it was removed
            self.close()
            return
        if self._renamed is not None:
            os.close(self._renamed[0])
        self._renamed, self._descriptor = (descriptor, self._position), -1

    def _check_renamed(self, descriptor: int, read: int) -> None:
        """Tell, once, that more was written to a file that is no longer the journal."""
        if os.fstat(descriptor).st_size <= read:
            return
        os.close(descriptor)
        self._renamed = None
        mark = write_mark(
            f"the trial renamed its journal and kept writing to it after another file had taken its place: what "
            f"follows byte {read} there is lost"
        )
        self._set_anchor(Anchor(self.acknowledged, self._position, self._unacknowledged_mark().decode("ascii") + mark))

    def _set_anchor(self, anchor: Anchor) -> None:
        self._anchor = anchor
        with contextlib.suppress(OSError):  # on a full disk the next keeper would read it from its beginning
            write_anchor(self._directory, self.member, anchor)

    def _unacknowledged_mark(self) -> bytes:
        """What of the mark is not acknowledged."""
        return self._anchor.mark[max(self.acknowledged - self._anchor.offset, 0) :].encode("ascii")

    def _open(self) -> int:
        if self._descriptor < 0:
            try:
                self._descriptor = open_regular_file(self.path, os.O_RDONLY)
            except OSError as error:
                self._is_out_of_reach = is_short(error)
                return -1
            self._is_out_of_reach = False
        return self._descriptor
