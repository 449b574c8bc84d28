"""A log in pieces: its first lines, its last ones, and all of them, wherever the pieces are cut."""

from hypothesis import given
from hypothesis import strategies as st

from proctor.manager.cli.logs import GrowingLog
from proctor.sdk.client.logs import LogPiece

TEXTS = st.lists(st.sampled_from([b"a", b"\n", b"long " * 5])).map(b"".join)


def log_of(text: bytes, most: int) -> GrowingLog:
    """A log that is read in pieces of at most so many bytes."""

    def read(offset: int, limit: int | None) -> LogPiece:
        begin = max(len(text) + offset, 0) if offset < 0 else offset
        data = text[begin:][: min(limit or most, most) if offset >= 0 else limit]
        return LogPiece(data, begin + len(data))

    return GrowingLog(read)


@given(text=TEXTS, most=st.integers(1, 9), count=st.integers(1, 9))
def test_lines_are_the_same_however_the_log_is_cut(text: bytes, most: int, count: int) -> None:
    lines = text.splitlines(keepends=True)
    assert list(log_of(text, most).lines()) == lines
    assert b"".join(log_of(text, most).head(count)) == b"".join(lines[:count])
    assert b"".join(log_of(text, most).tail(count)) == b"".join(lines[-count:])


def test_what_is_added_after_the_last_lines_comes_next() -> None:
    parts = [b"one\ntwo\n"]

    def read(offset: int, limit: int | None) -> LogPiece:
        text = b"".join(parts)
        begin = max(len(text) + offset, 0) if offset < 0 else offset
        return LogPiece(text[begin:], len(text))

    log = GrowingLog(read)
    assert b"".join(log.tail(1)) == b"two\n"
    parts.append(b"three\n")
    assert b"".join(log.pieces()) == b"three\n"


def test_of_an_endless_line_one_piece_is_held_at_a_time() -> None:
    text = b"x" * 3_000_000
    assert max(map(len, log_of(text, 1000).head(1))) == 1000
