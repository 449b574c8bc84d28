"""JSON from outside: read as the json module does; what is let in can be stored, serialized and encoded."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.sdk.json_input import MAX_DEPTH, MAX_INTEGER_BITS, RefusedValue, clean_text, clean_value, parse_json
from proctor.sdk.quick_json import loads, quote

TEXT = st.text(st.characters(codec=None, categories=None))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner),
)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


@pytest.mark.slow
@given(VALUES)
def test_what_passes_the_gate_can_be_encoded(value: Any) -> None:
    cleaned = clean_value(value)
    json.dumps(cleaned, ensure_ascii=False).encode("utf-8")
    assert clean_value(cleaned) == cleaned


@given(st.text())
def test_valid_text_stays_as_it_is(text: str) -> None:
    assert clean_text(text) == text


def test_a_lone_surrogate_becomes_its_escape() -> None:
    assert parse_json(b'{"caf\\udce9": ["\\ud800"]}') == {"caf\\udce9": ["\\ud800"]}


def test_a_value_may_have_so_many_levels_and_no_more() -> None:
    assert clean_value(nested(MAX_DEPTH)) == nested(MAX_DEPTH)
    with pytest.raises(RefusedValue, match="the space is nested deeper than 100 levels"):
        clean_value(nested(MAX_DEPTH + 1), "the space")
    with pytest.raises(RefusedValue, match="nested deeper"):
        parse_json("[" * 100_000 + "]" * 100_000)


def test_an_integer_may_have_so_many_bits_and_no_more() -> None:
    assert clean_value({"seed": 2**64}) == {"seed": 2**64}
    with pytest.raises(RefusedValue, match="an integer of 1025 bits"):
        clean_value([2**MAX_INTEGER_BITS])


documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.slow
@given(documents, st.booleans(), st.sampled_from([None, 2]))
def test_it_reads_what_the_json_module_writes(value: Any, ascii_only: bool, indent: int | None) -> None:
    assert loads(json.dumps(value, ensure_ascii=ascii_only, indent=indent) + "\n") == value


@given(st.text())
def test_quoted_text_comes_back(text: str) -> None:
    assert json.loads(quote(text)) == text


@pytest.mark.parametrize("text", ["", "{", '{"a":}', "[1] 2", "nonsense", '{"a":1'])
def test_what_is_not_json_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError):
        loads(text)
