"""Stretches of a log, and its last lines without reading the rest."""

from collections.abc import Callable
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
    block = _FIRST_BLOCK
    last = read(-block, block)
    begin, text = last.next_offset - len(last.data), last.data
    while (start := _beginning(text, lines)) is None and begin > 0:
        block = min(2 * block, _LONGEST_BLOCK)
        before = _read_between(read, max(begin - block, 0), begin)
        if not before:
            break  # it was cut back meanwhile
        begin, text = max(begin - block, 0), before + text
    return LogPiece(text[start or 0 :], last.next_offset)


def _beginning(text: bytes, lines: int) -> int | None:
    """Where the last lines begin; None: before this text, or at its beginning."""
    position = len(text) - text.endswith(b"\n")
    for _ in range(lines):
        position = text.rfind(b"\n", 0, position)
        if position < 0:
            return None
    return position + 1


def _read_between(read: ReadLog, begin: int, end: int) -> bytes:
    parts = []
    while begin < end and (piece := read(begin, end - begin)).data:
        parts.append(piece.data)
        begin = piece.next_offset
    return b"".join(parts)
