"""Stretches of a log, and its last lines without reading the rest."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

_FIRST_BLOCK = 16 * 1024
_LONGEST_BLOCK = 4 * 1024 * 1024


@dataclass(frozen=True)
class LogPiece:
    """A stretch of a log: its bytes, and the offset at which the next one begins."""

    data: bytes
    next_offset: int


ReadLog = Callable[[int, int | None], LogPiece]
"""At most so many bytes (None: as the manager likes) of a log from an offset; a negative offset counts from the end."""


def read_tail(read: ReadLog, lines: int) -> LogPiece:
    """The last lines of a log, by reading backwards from its end; the last one may have no end."""
    pieces = [LogPiece(b"", 0), *tail_pieces(read, lines)]
    return LogPiece(b"".join(piece.data for piece in pieces), pieces[-1].next_offset)


def tail_pieces(read: ReadLog, lines: int) -> Iterator[LogPiece]:
    """The same in pieces, of which one is held at a time: a line may be as long as the log."""
    last = read(-_FIRST_BLOCK, _FIRST_BLOCK)
    begin = last.next_offset - len(last.data)
    wanted = lines + last.data.endswith(b"\n")  # so many line ends are before them, or in them at their end
    position, wanted = _step_back(last.data, wanted)
    if wanted == 0 or begin == 0:
        yield LogPiece(last.data[position:], last.next_offset)
        return
    start = _begin_of_tail(read, begin, wanted)
    while start < begin and (piece := read(start, min(begin - start, _LONGEST_BLOCK))).data:
        yield piece
        start = piece.next_offset
    yield last


def _begin_of_tail(read: ReadLog, begin: int, wanted: int) -> int:
    """The offset after so many line ends before an offset; where there are fewer, that of what can be read."""
    block = _FIRST_BLOCK
    while begin > 0:
        block = min(2 * block, _LONGEST_BLOCK)
        start = max(begin - block, 0)
        before = _read_between(read, start, begin)
        if not before:
            break  # it was cut back meanwhile
        position, wanted = _step_back(before, wanted)
        if wanted == 0:
            return start + position
        begin = start
    return begin


def _step_back(text: bytes, wanted: int) -> tuple[int, int]:
    """Where the text begins after so many line ends from its end, and how many it lacks; 0 where it lacks any."""
    position = len(text)
    while wanted and (position := text.rfind(b"\n", 0, position)) >= 0:
        wanted -= 1
    return (0, wanted) if wanted else (position + 1, 0)


def _read_between(read: ReadLog, begin: int, end: int) -> bytes:
    parts = []
    while begin < end and (piece := read(begin, end - begin)).data:
        parts.append(piece.data)
        begin = piece.next_offset
    return b"".join(parts)
