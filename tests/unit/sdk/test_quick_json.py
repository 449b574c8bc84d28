"""Reading JSON by the interpreter's accelerator agrees with the json module."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.sdk.quick_json import loads, quote

documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


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
