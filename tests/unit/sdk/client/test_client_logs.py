"""The last lines of a log are read from its end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.sdk.client import logs
from proctor.sdk.client.logs import LogPiece, read_tail, tail_pieces


class Log:
    """A log, and how much of it was read. A reading gives at most `most` bytes, whatever was asked for."""

    def __init__(self, text: bytes, most: int = 1 << 30) -> None:
        self.text = text
        self.read_bytes = 0
        self._most = most

    def read(self, offset: int, limit: int | None) -> LogPiece:
        begin = max(len(self.text) + offset, 0) if offset < 0 else offset
        data = self.text[begin:][: limit if limit is not None else self._most]
        if offset >= 0:
            data = data[: self._most]
        self.read_bytes += len(data)
        return LogPiece(data, begin + len(data))


def last_lines(text: bytes, count: int) -> bytes:
    """What is meant, by reading everything."""
    *whole, rest = text.split(b"\n")
    return b"".join([*(line + b"\n" for line in whole), *([rest] if rest else [])][-count:])


@given(
    text=st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\xff", b"long " * 5])).map(b"".join), count=st.integers(1, 12)
)
def test_the_last_lines_are_the_ones_of_the_whole_log(text: bytes, count: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "_FIRST_BLOCK", 4)
        patch.setattr(logs, "_LONGEST_BLOCK", 16)
        assert read_tail(Log(text, most=3).read, count) == LogPiece(last_lines(text, count), len(text))


def test_little_more_than_the_last_lines_is_read() -> None:
    log = Log(b"0123456789abcde\n" * 1_000_000)
    assert read_tail(log.read, 3).data == b"0123456789abcde\n" * 3
    assert log.read_bytes == 16 * 1024
    assert read_tail(log.read, 10_000).data == b"0123456789abcde\n" * 10_000
    assert log.read_bytes < 600_000


def test_one_endless_line_is_read_whole() -> None:
    text = b"x" * 1_000_000
    assert read_tail(Log(text).read, 2).data == text


def test_of_an_endless_line_one_piece_is_held_at_a_time() -> None:
    log = Log(b"first\n" + b"x" * 50_000_000)
    sizes = [len(piece.data) for piece in tail_pieces(log.read, 1)]
    assert (sum(sizes), max(sizes)) == (50_000_000, 4 * 1024 * 1024)
    assert log.read_bytes <= 2 * len(log.text) + 16 * 1024, (
        "each byte is read when the beginning is looked for, and once more"
    )


def test_a_log_that_is_cut_back_meanwhile_gives_what_is_there() -> None:
    log = Log(b"line\n" * 100_000)

    def read(offset: int, limit: int | None) -> LogPiece:
        piece = log.read(offset, limit)
        log.text = b""
        return piece

    assert read_tail(read, 50_000).data.endswith(b"line\n")
