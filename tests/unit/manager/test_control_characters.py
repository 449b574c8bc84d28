"""What a terminal may be given."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.manager.control_characters import LogFilter, clean, clean_json, is_clean

EVIL = [
    "\x1b[2J",  # clears the screen
    "\x1b]0;title\x07",
    "\x1b]52;c;cm0gLXJmIH4=\x1b\\",  # into the clipboard
    "\x1b[6n",  # the terminal answers as if it were typed
    "\x1bP+q544e\x1b\\",
    "\x1bc",  # a reset
    "\x1b(0",  # another set of characters
    "\x9b31m",
    "\x9d0;title\x9c",
    "\x1b[1A",
    "\x07",
    "\x7f",
    "\u202e",
]


@pytest.mark.parametrize("evil", [*EVIL, "\x1b[31m", "\r", "\b", "\u202e", "\u2066", "\u2028", "\udcff", "\x00"])
def test_text_of_others_has_nothing_that_a_terminal_obeys(evil: str) -> None:
    assert not is_clean(evil)
    shown = clean(f"a{evil}b")
    assert is_clean(shown)
    assert shown.startswith("a\\")
    shown.encode()


def test_ordinary_text_stays_as_it_is() -> None:
    text = "a\tb\nGröße 学习率 naïve 🎉"
    assert clean(text) == text
    assert is_clean(text)


@given(st.text(st.characters(codec=None), max_size=50))
def test_clean_json_says_the_same(text: str) -> None:
    written = clean_json(json.dumps({"name": text}, ensure_ascii=False))
    assert is_clean(written)
    assert json.loads(written) == {"name": text}


@pytest.mark.parametrize("evil", [text for text in EVIL if text[0] not in "\x9b\x9d"])
def test_a_log_loses_what_is_not_for_reading_and_nothing_else(evil: str) -> None:
    for text in (f"before {evil}after\n", f"{evil}{evil}before after\n"):
        assert LogFilter().pass_through(text.encode()) == "before after\n"


def test_a_log_keeps_colors_and_progress_bars() -> None:
    text = "\x1b[1;31mloss\x1b[0m\t0.5\r 50%|##  |\x1b[K\b\b学\n"
    assert LogFilter().pass_through(text.encode()) == text


@pytest.mark.parametrize("text", ["a\x1b]0;title\x07b\x1b[31mc\x1b[6nd学e", "x\x1bP1\x1b\\y\x1b[38;2;1;2;3mz"])
def test_it_does_not_matter_where_a_log_is_cut(text: str) -> None:
    whole = LogFilter().pass_through(text.encode())
    data = text.encode()
    for cut in range(len(data)):
        pieces = LogFilter()
        assert pieces.pass_through(data[:cut]) + pieces.pass_through(data[cut:]) == whole
    single = LogFilter()
    assert "".join(single.pass_through(bytes([byte])) for byte in data) == whole


def test_a_sequence_without_an_end_does_not_hold_a_log_back() -> None:
    log = LogFilter()
    shown = "".join(log.pass_through(piece) for piece in [b"\x1b]0;", *[b"never ends " * 100] * 10])
    assert shown.endswith("never ends ")
    assert "\x1b" not in shown


@given(st.lists(st.binary(max_size=20) | st.sampled_from([text.encode() for text in EVIL]), max_size=20))
def test_whatever_bytes_a_log_has_only_colors_are_obeyed(pieces: list[bytes]) -> None:
    without_colors = re.sub(r"\x1b\[(?:[0-9;:]*m|[0-2]?K)", "", "".join(map(LogFilter().pass_through, pieces)))
    assert not re.search("[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]", without_colors)
