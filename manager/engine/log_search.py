"""Searching the output of trials for a text: the files that are on the manager's machine, the newest trial first.

One call is bounded in time, bytes, jobs and matches; it says where to continue. It blocks on the disk: call `search` in
a thread. Trials may have put anything in place of their files, so these are opened as the manager opens every file of
a job (`trial_keeper/files/access.py`).
"""

import re
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic

from proctor.manager.errors import BadRequest
from proctor.manager.store.statements import query
from proctor.trial_keeper.files.access import read_file

STREAMS = ("stderr", "stdout")
"""The order in which those of a job are searched."""
MOST_JOBS = 2000
MOST_BYTES = 64 * 1024 * 1024
MOST_SECONDS = 2.0
MOST_NAMED = 50
"""Of the jobs whose output is not here."""
_PIECE_BYTES = 256 * 1024
_BEFORE_BYTES = 200
_AFTER_BYTES = 300
_CURSOR = re.compile(r"(\d{1,18})\.(\d{1,18})\.(stdout|stderr)\.(\d{1,18})\.(\d{1,18})\.(\d{1,18})\.([01])")


@dataclass(frozen=True)
class FilePlace:
    """Where a search continues in a file: the next byte, the number and the first byte of its line, and whether the
    rest of this line is left out because it has a match already."""

    offset: int = 0
    line: int = 1
    line_begin: int = 0
    skips_line: bool = False


@dataclass(frozen=True)
class SearchCursor:
    """Where a search continues."""

    sequence_id: int
    job: int
    stream: str
    place: FilePlace

    def __str__(self) -> str:
        place = self.place
        numbers = f"{place.offset}.{place.line}.{place.line_begin}.{int(place.skips_line)}"
        return f"{self.sequence_id}.{self.job}.{self.stream}.{numbers}"

    @classmethod
    def parse(cls, text: str) -> "SearchCursor":
        """The inverse of `str`. Raises BadRequest."""
        found = _CURSOR.fullmatch(text) if text.isascii() else None
        if found is None:
            raise BadRequest(f"cursor: expected one that a search has returned, found {text[:80]!r}; start without it")
        sequence_id, job, stream, offset, line, begin, skips = found.groups()
        return cls(int(sequence_id), int(job), stream, FilePlace(int(offset), int(line), int(begin), skips == "1"))


@dataclass(frozen=True)
class JobFolder:
    """A job whose output is searched."""

    trial_id: str
    sequence_id: int
    job: int
    node_id: str | None
    folder: str


@dataclass(frozen=True)
class LogMatch:
    """A line that has the text; `offset` is the byte at which it is, `line_begin` that at which its line begins. A long
    line is cut around the match in `text`."""

    job: JobFolder
    stream: str
    offset: int
    line: int
    line_begin: int
    text: str


@dataclass
class SearchResult:
    """What was found, and how far the search has come."""

    matches: list[LogMatch] = field(default_factory=list)
    jobs: int = 0
    bytes: int = 0
    not_here: list[JobFolder] = field(default_factory=list)
    not_here_count: int = 0
    cursor: SearchCursor | None = None


def find_jobs(
    connection: sqlite3.Connection,
    experiment_id: str,
    directory: str,
    *,
    trial_id: str | None,
    cursor: SearchCursor | None,
) -> list[JobFolder]:
    """The jobs of an experiment, or of one trial, from the cursor on: the newest trial first, its newest job first. One
    more than a search takes."""
    values = {
        "experiment_id": experiment_id,
        "trial_id": trial_id,
        "sequence_id": 2**62 if cursor is None else cursor.sequence_id,
        "number": 2**62 if cursor is None else cursor.job,
        "limit": MOST_JOBS + 1,
    }
    rows = connection.execute(query("jobs.for_search"), values)
    trials = Path(directory, "trials")
    return [
        JobFolder(found, sequence_id, number, node_id, str(trials / f"{sequence_id}-{found}" / "jobs" / str(number)))
        for found, sequence_id, number, node_id in rows
    ]


class LogSearch:
    """One call of a search.

    :param text: literal; on one line.
    :param ignore_case: upper and lower case are alike, of ASCII.
    """

    def __init__(self, text: str, *, ignore_case: bool, limit: int) -> None:
        needle = text.encode(errors="surrogatepass")
        self._ignore_case = ignore_case
        self._needle = needle.lower() if ignore_case else needle
        self._limit = limit
        self._deadline = monotonic() + MOST_SECONDS
        self._result = SearchResult()

    def run(self, jobs: Iterable[JobFolder], cursor: SearchCursor | None) -> SearchResult:
        """Search the files of these jobs, in this order, beginning at the cursor in the first of them."""
        result = self._result
        for number, job in enumerate(jobs):
            at = cursor if cursor and (job.sequence_id, job.job) == (cursor.sequence_id, cursor.job) else None
            streams = STREAMS[STREAMS.index(at.stream) :] if at else STREAMS
            missing = sum(not _is_here(job, stream) for stream in STREAMS if stream not in streams)
            for stream in streams:
                begin = at.place if at and stream == at.stream else FilePlace()
                if number >= MOST_JOBS or self._is_over():
                    result.cursor = SearchCursor(job.sequence_id, job.job, stream, begin)
                    return result
                try:
                    rest = self._search_file(job, stream, begin)
                except FileNotFoundError:
                    missing += 1
                    continue
                if rest is not None:
                    result.cursor = SearchCursor(job.sequence_id, job.job, stream, rest)
                    return result
            if missing < len(STREAMS):
                result.jobs += 1
                continue
            result.not_here_count += 1
            if len(result.not_here) < MOST_NAMED:
                result.not_here.append(job)
        return result

    def _is_over(self) -> bool:
        result = self._result
        return len(result.matches) >= self._limit or result.bytes >= MOST_BYTES or monotonic() > self._deadline

    def _search_file(self, job: JobFolder, stream: str, place: FilePlace) -> FilePlace | None:
        """Search a file from a place on; returns where to continue, None at its end. At least one piece is read, so
        that a slow disk does not keep a search in its place."""
        while True:
            data = read_file(job.folder, stream, place.offset, _PIECE_BYTES)
            if not data:
                return None
            self._result.bytes += len(data)
            is_last = len(data) < _PIECE_BYTES
            place, is_full = self._search_piece(job, stream, place, data, is_last)
            if is_full or (not is_last and self._is_over()):
                return place
            if is_last:
                return None

    def _search_piece(
        self, job: JobFolder, stream: str, place: FilePlace, data: bytes, is_last: bool
    ) -> tuple[FilePlace, bool]:
        """Search the bytes from a place on; returns where to continue, and whether there are enough matches."""
        folded = data.lower() if self._ignore_case else data
        at, line, begin, skips = 0, place.line, place.line_begin, place.skips_line
        while True:
            if skips:
                end = data.find(b"\n", at)
                if end < 0:
                    return FilePlace(place.offset + len(data), line, begin, True), False
                at, line, begin, skips = end + 1, line + 1, place.offset + end + 1, False
                if len(self._result.matches) >= self._limit:
                    return FilePlace(place.offset + at, line, begin), True
            found = folded.find(self._needle, at)
            # what may be the beginning of a match is read again with the next piece
            stop = found if found >= 0 else len(data) if is_last else max(at, len(data) - len(self._needle) + 1)
            if lines := data.count(b"\n", at, stop):
                line, begin = line + lines, place.offset + data.rfind(b"\n", at, stop) + 1
            if found < 0:
                return FilePlace(place.offset + stop, line, begin), False
            offset = place.offset + found
            text = self._text(job, stream, offset, begin)
            self._result.matches.append(LogMatch(job, stream, offset, line, begin, text))
            at, skips = found, True

    def _text(self, job: JobFolder, stream: str, offset: int, line_begin: int) -> str:
        """The line of a match, or what is around the match of a long one."""
        first = max(line_begin, offset - _BEFORE_BYTES)
        size = offset - first + len(self._needle) + _AFTER_BYTES
        data = read_file(job.folder, stream, first, size)
        line, newline, _ = data.partition(b"\n")
        cut = "…" if not newline and len(data) == size else ""
        return ("…" if first > line_begin else "") + line.rstrip(b"\r").decode(errors="replace") + cut


def _is_here(job: JobFolder, stream: str) -> bool:
    try:
        read_file(job.folder, stream, 0, 0)
    except FileNotFoundError:
        return False
    return True
