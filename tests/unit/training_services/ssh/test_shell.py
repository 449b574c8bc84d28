"""Command lines for any login shell. Real shells are asked in the integration tests."""

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.training_services.ssh.shell import READ_SOURCE, marked, quoted, with_source

WORDS = st.lists(st.text(st.characters(exclude_characters="\n\0", exclude_categories=("Cs",))), min_size=1)


@given(WORDS)
def test_the_words_arrive_as_they_were(words: list[str]) -> None:
    assert shlex.split(quoted(words)) == words


@pytest.mark.parametrize(
    ("word", "line"), [("it's", r"'it'\''s'"), ("a!", r"'a'\!"), ("\\n", r"\\'n'"), ("", "''"), ("$x", "'$x'")]
)
def test_what_shells_disagree_on_inside_quotes_stands_outside(word: str, line: str) -> None:
    assert quoted([word]) == line


def test_plain_words_stay_readable() -> None:
    assert quoted(["/usr/bin/python3", "-c", "a b"]) == "/usr/bin/python3 -c 'a b'"


@pytest.mark.parametrize("word", ["a\nb", "a\0b"])
def test_words_no_shell_can_pass_are_refused(word: str) -> None:
    with pytest.raises(ValueError, match="no line break and no null"):
        quoted(["echo", word])


def test_every_mark_is_new() -> None:
    (_, first), (_, second) = marked(["true"]), marked(["true"])
    assert first != second


def test_the_program_that_reads_a_source_is_one_quoted_word() -> None:
    assert quoted([READ_SOURCE]) == f"'{READ_SOURCE}'"


def test_a_source_goes_before_its_input() -> None:
    assert with_source("é=1") == b"4\n\xc3\xa9=1"
