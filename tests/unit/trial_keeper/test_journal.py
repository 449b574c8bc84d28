"""Journals are passed on by byte offset: whole lines, every byte once."""

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proctor.sdk.protocol import MAX_RECORD_BYTES
from proctor.trial_keeper.journal_tail import JournalTail, find_members, journal_path, whole_lines


@settings(deadline=None)
@given(st.lists(st.binary(max_size=30), max_size=20))
def test_pieces_of_a_growing_journal_are_whole_lines_and_join_to_all_of_it(
    tmp_path_factory: object, pieces: list[bytes]
) -> None:
    folder = tmp_path_factory.mktemp("job")  # type: ignore[attr-defined]
    tail = JournalTail(str(folder), "0")
    written = sent = b""
    with open(tail.path, "ab", buffering=0) as file:
        for piece in pieces:
            file.write(piece)
            written += piece
            data = tail.read(final=False)
            assert data == b"" or data.endswith(b"\n")
            sent += data
            tail.acknowledged += len(data)
            assert written.startswith(sent)
            assert b"\n" not in written[len(sent) :]
    last = tail.read(final=True)
    assert sent + last == written
    tail.acknowledged += len(last)
    assert not tail.needs_report
    tail.close()


def test_a_journal_that_is_not_there_is_empty(tmp_path: Path) -> None:
    tail = JournalTail(str(tmp_path), "3")
    assert (tail.size, tail.read(final=True), tail.needs_report) == (0, b"", False)
    (tmp_path / "journal.3").write_bytes(b"x\n")
    assert tail.read(final=False) == b"x\n"
    tail.close()


def test_a_line_longer_than_any_record_does_not_hold_up_what_follows() -> None:
    assert whole_lines(b"x" * MAX_RECORD_BYTES) == b""
    assert whole_lines(b"x" * (MAX_RECORD_BYTES + 1)) == b"x" * (MAX_RECORD_BYTES + 1)


def test_a_journal_longer_than_a_report_comes_in_pieces_of_whole_lines(tmp_path: Path) -> None:
    content = b"".join(b"%d\n" % number for number in range(400_000))
    (tmp_path / "journal").write_bytes(content)
    tail = JournalTail(str(tmp_path), "0")
    pieces = []
    while data := tail.read(final=True):
        assert data.endswith(b"\n")
        pieces.append(data)
        tail.acknowledged += len(data)
    assert b"".join(pieces) == content
    assert len(pieces) > 2
    tail.close()


def test_members_are_found_by_their_journals(tmp_path: Path) -> None:
    assert find_members(str(tmp_path / "missing")) == ["0"]
    for name in ("journal", "journal.10", "journal.2", "journal.x", "journal.0", "journals.1"):
        (tmp_path / name).touch()
    assert find_members(str(tmp_path)) == ["0", "2", "10"]
    for rank in ("99999999999999999999", "100000", "02", "٣", "+3", "1_0", "", " 4"):
        (tmp_path / f"journal.{rank}").touch()
    assert find_members(str(tmp_path)) == ["0", "2", "10"]
    assert journal_path("/job", "0") == "/job/journal"
    assert journal_path("/job", "2") == "/job/journal.2"


def test_of_very_many_journals_those_of_the_lowest_ranks_are_read(tmp_path: Path) -> None:
    for rank in range(2000):
        (tmp_path / f"journal.{rank}").touch()
    assert find_members(str(tmp_path)) == [str(rank) for rank in range(1024)]


@pytest.mark.parametrize("place", ["a pipe", "a folder", "a link to a device"])
def test_what_is_no_file_is_no_journal(tmp_path: Path, place: str) -> None:
    path = tmp_path / "journal.1"
    {"a pipe": os.mkfifo, "a folder": os.mkdir}.get(place, lambda path: os.symlink("/dev/zero", path))(path)
    tail = JournalTail(str(tmp_path), "1")
    assert (tail.size, tail.read(final=True), tail.needs_report, tail.is_complete(after=0)) == (0, b"", False, True)


@pytest.mark.parametrize(
    "text",
    [
        '{"offset": 5, "position": -1, "mark": "x\\n"}',
        '{"offset": 1e400, "position": 0, "mark": "x\\n"}',
        '{"offset": 99999999999999999999, "position": 0, "mark": "x\\n"}',
        '{"offset": 0, "position": 0, "mark": "\\u00e9\\n"}',
        '{"offset": 0, "position": 0, "mark": 7}',
        "[" * 50_000,
        "[]",
    ],
)
def test_an_anchor_that_no_keeper_has_written_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "journal-anchor.0").write_text(text)
    (tmp_path / "journal").write_text("one\n")
    tail = JournalTail(str(tmp_path), "0")
    assert tail.read(final=True) == b"one\n"
    tail.close()
