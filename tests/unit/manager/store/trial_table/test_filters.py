"""The filter language: what is read, and where a mistake is said to be."""

import pytest

from proctor.manager.store.errors import QueryRefused
from proctor.manager.store.trial_table.filters import (
    MAX_DEPTH,
    MAX_LENGTH,
    MAX_TESTS,
    AllOf,
    AnyOf,
    Comparison,
    IsNull,
    Literal,
    Membership,
    Not,
    parse,
)


def test_not_binds_more_than_and_and_that_more_than_or() -> None:
    found = parse("not a = 1 and b = 2 or c = 3")
    assert isinstance(found, AnyOf)
    first, second = found.operands
    assert isinstance(first, AllOf)
    assert isinstance(first.operands[0], Not)
    assert isinstance(second, Comparison)


def test_parentheses_and_keywords_in_any_case() -> None:
    found = parse("NOT (a = 1 Or b Is Not NULL)")
    assert isinstance(found, Not)
    assert isinstance(found.operand, AnyOf)
    null = found.operand.operands[1]
    assert isinstance(null, Not)
    assert isinstance(null.operand, IsNull)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a=1e-3", Literal("1e-3", 2, True, 0.001)),
        ("a = -5", Literal("-5", 4, True, -5)),
        ("a = .5", Literal(".5", 4, True, 0.5)),
        ("a = 7.", Literal("7.", 4, True, 7.0)),
        ("a = 9007199254740993", Literal("9007199254740993", 4, True, 9007199254740992.0)),
        ("a = adam", Literal("adam", 4, True)),
        ("a = 2026-11-24T10:30:00Z", Literal("2026-11-24T10:30:00Z", 4, True)),
        ("a = '1'", Literal("1", 4)),
        (r'a = "say \"no\" \\ yes"', Literal('say "no" \\ yes', 4)),
        ("a = 'it is \"so\"'", Literal('it is "so"', 4)),
        ("a = nan", Literal("nan", 4, True)),
    ],
)
def test_values(text: str, value: Literal) -> None:
    found = parse(text)
    assert isinstance(found, Comparison)
    assert found.value == value


def test_names_with_spaces_and_keywords_are_written_in_backticks() -> None:
    found = parse("`learning rate` < 1 and `in` in (1, x, 'y z')")
    assert isinstance(found, AllOf)
    first, second = found.operands
    assert isinstance(first, Comparison)
    assert (first.column.name, first.column.position) == ("learning rate", 0)
    assert isinstance(second, Membership)
    assert [value.text for value in second.values] == ["1", "x", "y z"]


@pytest.mark.parametrize(
    ("text", "position", "expected", "found"),
    [
        ("", 0, "a column, such as status, value or the name of a parameter", "the end"),
        ("lr", 2, "one of = != < <= > >= ~, in, or is after lr", "the end"),
        ("lr <", 4, 'a value: a number, a word, or a "text"', "the end"),
        ("lr < and", 5, 'a value: a number, a word, or a "text"', "'and'"),
        ("lr < 1 value > 2", 7, "and, or, or the end", "'value'"),
        ("lr == 1", 3, "= after lr", "'=='"),
        ("lr <> 1", 3, "!= after lr", "'<>'"),
        ("lr = 1 and", 10, "a column, such as status, value or the name of a parameter", "the end"),
        ("3 < lr", 0, "a column, such as status, value or the name of a parameter", "'3'"),
        ("(lr = 1", 7, "and, or, or a closing parenthesis", "the end"),
        ("lr = 1)", 6, "and, or, or the end", "')'"),
        ("lr in 1", 6, "an opening parenthesis after in", "'1'"),
        ("lr in ()", 7, 'a value: a number, a word, or a "text"', "')'"),
        ("lr in (1 2)", 9, "a comma or a closing parenthesis", "'2'"),
        ("lr is 3", 6, "null or not null after is", "'3'"),
        ("lr not = 3", 3, "one of = != < <= > >= ~, in, or is after lr", "'not'"),
        ("lr = null", 5, "a value; write `is null` for one that is missing", "'null'"),
        ('lr = "open', 5, 'a closing "', "the end"),
        ("`open = 3", 0, "a closing `", "the end"),
        ("`` = 3", 0, "a column, such as status, value or the name of a parameter", "'``'"),
        ("lr ! 3", 3, "!= or not", "'!'"),
        ("lr = 1e999", 5, "a number that a double can hold", "'1e999'"),
        ("ünï = 1 and ∞", 13, "one of = != < <= > >= ~, in, or is after ∞", "the end"),
    ],
)
def test_a_mistake_is_named_with_its_place(text: str, position: int, expected: str, found: str) -> None:
    with pytest.raises(QueryRefused) as refused:
        parse(text)
    error = refused.value
    assert (error.key, error.position, error.expected, error.found) == ("filter", position, expected, found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(" * 100 + "a = 1" + ")" * 100, f"at most {MAX_DEPTH} levels"),
        ("not " * 500 + "a = 1", f"at most {MAX_DEPTH} levels"),
        (" or ".join(["a=1"] * (MAX_TESTS + 1)), f"at most {MAX_TESTS} tests"),
        ("a = " + "x" * MAX_LENGTH, f"at most {MAX_LENGTH:,} characters"),
    ],
)
def test_a_filter_has_a_largest_size(text: str, expected: str) -> None:
    with pytest.raises(QueryRefused, match=expected):
        parse(text)
