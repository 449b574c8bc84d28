"""What a job that has ended could not write down: read from its reserve, and reported after the end of its journals.

Everything here follows from files that no longer change, so every later check, also by another keeper, finds
the same bytes: what is reported behind a journal has its offset there, and is stored once. The trial could write to all
of these files, so what no SDK writes is left out.
"""

import errno
import json
import os
from dataclasses import dataclass, field

from proctor.sdk.disk_reserve import read_content, read_entries
from proctor.sdk.files import remove_file
from proctor.sdk.process_limits import is_short
from proctor.sdk.protocol import KIND_FINAL, KIND_LOST, MAX_RECORD_BYTES, RESERVE_FILE
from proctor.trial_keeper.journal_tail import is_rank, journal_path
from proctor.trial_keeper.linux.files import open_regular_file
from proctor.trial_keeper.protocol import JsonObject

_LONGEST_LINE = 2 * MAX_RECORD_BYTES  # what is longer is no record of ours
_MOST_LOST = 10**12  # at one go; the sum of all that fit into a reserve and a journal fits into a column


@dataclass(frozen=True)
class Losses:
    """What a job has lost.

    lost: how many reports, those included of which its journals tell.
    finals: the ranks that have reported a final metric of which nothing is stored.
    endings: by member, the lines that follow its journal.
    """

    lost: int = 0
    finals: list[int] = field(default_factory=list)
    endings: dict[str, bytes] = field(default_factory=dict)

    def describe(self) -> str:
        """A clause for people, or ''."""
        if not self.lost:
            return ""
        ranks = " and ".join(str(rank) for rank in self.finals if rank > 0)
        whose = f"the final metric of rank {ranks}" if ranks else "its final metric"
        final = f", {whose} among them" if self.finals else ""
        return f"{self.lost} {'report was' if self.lost == 1 else 'reports were'} lost{final}: its disk was full"


def is_reserve_used(directory: str) -> bool:
    """Whether anything was written to the reserve of a job; also while that is not known. Blocks."""
    try:
        descriptor = open_regular_file(os.path.join(directory, RESERVE_FILE), os.O_RDONLY)
    except OSError as error:
        return is_short(error)
    try:
        return os.pread(descriptor, 1, 0) not in (b"", b"\0")
    except OSError:
        return False
    finally:
        os.close(descriptor)


def remove_reserve(directory: str) -> None:
    """Give its room back. Raises OSError."""
    remove_file(os.path.join(directory, RESERVE_FILE))


def find_losses(directory: str, *, memory: str = "", ended_at: float = 0.0) -> Losses:
    """What a job that has ended has lost. Blocks; reads its journals if it has lost anything. Raises OSError where the
    machine has no descriptors left.

    :param memory: what stood in the reserve of its reaper.
    :param ended_at: when it ended, should nothing tell when it lost something.
    """
    content, time = _read_reserve(directory)
    entries = read_entries(content) + read_entries(memory.encode("ascii", "replace"))
    members = [name for name in dict.fromkeys(entry["member"] for entry in entries) if is_rank(name)]
    found = {member: _read_end(directory, member, [e for e in entries if e["member"] == member]) for member in members}
    return Losses(
        lost=sum(look.lost for look in found.values()),
        finals=sorted(int(member) for member, look in found.items() if look.final_lost),
        endings={member: ending for member, look in found.items() if (ending := look.ending(time or ended_at))},
    )


def write_endings(directory: str) -> None:
    """Write behind the journals of a job that has ended what follows them, for a reader that knows nothing of reserves.
    May be repeated. Blocks; raises OSError, and some of it is written then."""
    for member, ending in find_losses(directory).endings.items():
        path = journal_path(directory, member)
        descriptor = open_regular_file(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        try:
            if os.write(descriptor, ending) != len(ending):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        finally:
            os.close(descriptor)


@dataclass
class _JournalEnd:
    """One member: what its reserve says, compared with what its journal says."""

    lost: int
    untold: int
    final_lost: bool
    records: list[str]
    is_torn: bool

    def ending(self, time: float) -> bytes:
        """What follows its journal."""
        lines = list(self.records)
        if self.untold:
            lines.append(json.dumps({"kind": KIND_LOST, "count": self.untold, "time": time}) + "\n")
        return ("\n" * (self.is_torn and bool(lines)) + "".join(lines)).encode("ascii")


def _read_end(directory: str, member: str, entries: list[JsonObject]) -> _JournalEnd:
    journal = _Journal(journal_path(directory, member))
    counted = sum(_count(entry.get("lost")) for entry in entries)
    kept = dict.fromkeys(entry["record"] for entry in entries if _is_line(entry.get("record")))
    records = [record for record in kept if record not in journal.finals]
    waiting = {entry["waiting"] for entry in entries if isinstance(entry.get("waiting"), str)}
    never = [end for end in waiting if not any(line.endswith(end) for line in (*journal.finals, *kept))]
    return _JournalEnd(
        lost=max(counted, journal.lost) + len(never),
        untold=max(counted - journal.lost, 0) + len(never),
        final_lost=bool(never) and not journal.finals and not records,
        records=records,
        is_torn=journal.is_torn,
    )


class _Journal:
    """What the file of a journal tells of losses and finals."""

    def __init__(self, path: str) -> None:
        self.lost = 0
        self.finals: list[str] = []
        self.is_torn = False
        try:
            with open(open_regular_file(path, os.O_RDONLY), "rb") as file:
                for line in iter(lambda: file.readline(_LONGEST_LINE), b""):
                    self._read(line)
        except OSError as error:
            if is_short(error):
                raise

    def _read(self, line: bytes) -> None:
        self.is_torn = not line.endswith(b"\n")
        if b'"' + KIND_LOST.encode() + b'"' not in line and b'"' + KIND_FINAL.encode() + b'"' not in line:
            return
        try:
            record = json.loads(line)
            if record["kind"] == KIND_LOST:
                self.lost += _count(record.get("count"))
            elif record["kind"] == KIND_FINAL:
                self.finals.append(line.decode("ascii").rstrip("\n") + "\n")
        except (ValueError, TypeError, KeyError, RecursionError):
            return


def _count(value: object) -> int:
    """A number of lost reports; 0 for what no SDK writes."""
    return value if isinstance(value, int) and 0 < value <= _MOST_LOST else 0


def _is_line(value: object) -> bool:
    return isinstance(value, str) and value.isascii() and value.endswith("\n") and value.count("\n") == 1


def _read_reserve(directory: str) -> tuple[bytes, float]:
    """The content of a job's reserve, and when it was written to last."""
    try:
        descriptor = open_regular_file(os.path.join(directory, RESERVE_FILE), os.O_RDONLY)
    except OSError as error:
        if is_short(error):
            raise
        return b"", 0.0
    try:
        return read_content(descriptor), os.fstat(descriptor).st_mtime
    except OSError:
        return b"", 0.0
    finally:
        os.close(descriptor)
