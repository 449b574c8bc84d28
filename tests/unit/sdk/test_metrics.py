"""The JSON form of metrics."""

import enum
import json
import math
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.sdk.errors import MetricError
from proctor.sdk.metrics import encode_metric, encode_value, from_json_word, to_json_word

finite = st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | st.integers(-(2**63) + 1, 2**63 - 1) | finite | st.text()
documents = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4), max_leaves=20
)


@pytest.mark.slow
@given(documents)
def test_any_json_value_comes_back_as_it_was(value: Any) -> None:
    assert json.loads(encode_value(value)) == value


@given(documents)
def test_the_text_is_one_line_of_ascii(value: Any) -> None:
    text = encode_value(value)
    assert text.isascii()
    assert "\n" not in text


@given(st.floats())
def test_every_float_survives_the_journey(value: float) -> None:
    back = from_json_word(json.loads(encode_metric(value)))
    assert isinstance(back, float)
    assert back == value or (math.isnan(back) and math.isnan(value))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (float("nan"), '"NaN"'),
        (float("inf"), '"Infinity"'),
        (float("-inf"), '"-Infinity"'),
        (True, "1"),
        (10**30, "1e+30"),
        (10**400, '"Infinity"'),
        (-(10**400), '"-Infinity"'),
        (Decimal("0.25"), "0.25"),
        (Fraction(1, 4), "0.25"),
        (np.float64(0.1), "0.1"),
        (np.float32(0.5), "0.5"),
        (np.float32("nan"), '"NaN"'),
        (np.longdouble(0.5), "0.5"),
        (np.int64(3), "3"),
        (np.bool_(True), "1"),
        (np.array(0.5), "0.5"),
        (np.array([[0.5]]), "0.5"),
        (enum.IntEnum("Level", "LOW HIGH").HIGH, "2"),  # type: ignore[attr-defined]
        (
            {"default": np.float32(1), "losses": np.array([0.5, float("nan")]), 3: (1, None)},
            '{"default":1.0,"losses":[0.5,"NaN"],"3":[1,null]}',
        ),
    ],
)
def test_every_kind_of_number_is_a_metric_and_a_dictionary_may_hold_more_of_them(value: Any, text: str) -> None:
    assert encode_metric(value) == text


def test_torch_scalars_are_metrics() -> None:
    torch = pytest.importorskip("torch")
    assert encode_metric(torch.tensor(0.5)) == "0.5"
    assert encode_metric(torch.tensor([2.0], requires_grad=True)) == "2.0"
    assert encode_metric({"default": torch.tensor(1), "each": torch.tensor([1, 2])}) == '{"default":1,"each":[1,2]}'


ENDLESS: "dict[str, Any]" = {"default": 1}
ENDLESS["again"] = ENDLESS


@pytest.mark.parametrize(
    ("value", "told"),
    [
        *(
            (value, f"the metric must be a number or a dictionary.*{type(value).__name__}")
            for value in ["0.5", None, [0.5], b"1", 1j, object(), np.zeros(3), np.datetime64("2020-01-01")]
        ),
        ({"default": "high"}, r"key 'default' must be a number; found str"),
        (
            {"default": 1, "model": {"layers": [1, object()]}},
            r"the metric\['model'\]\['layers'\]\[1\] .* found object",
        ),
        ({"default": 1, (1, 2): 3}, r"\(1, 2\) of type tuple"),
        (ENDLESS, "does it contain itself"),
    ],
)
def test_what_is_no_metric_is_a_type_error_that_says_where_and_why(value: Any, told: str) -> None:
    with pytest.raises(MetricError, match=told) as refused:
        encode_metric(value)
    assert isinstance(refused.value, TypeError)


def test_names_of_numbers_are_decoded_and_nothing_else() -> None:
    assert from_json_word("-Infinity") == float("-inf")
    assert from_json_word("nan") == "nan"
    assert from_json_word(3) == 3


@pytest.mark.parametrize(
    ("number", "word"), [(float("nan"), "NaN"), (float("inf"), "Infinity"), (float("-inf"), "-Infinity"), (0.5, 0.5)]
)
def test_numbers_that_are_not_finite_become_words(number: float, word: object) -> None:
    assert to_json_word(number) == word
    assert to_json_word(word) == word
    assert repr(from_json_word(word)) == repr(number)
