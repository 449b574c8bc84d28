"""Charts as text."""

import math
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from proctor.manager.web.charts import HEIGHT, WIDTH, Series, chart, share_bar, thin, ticks

numbers = st.floats(allow_nan=True, allow_infinity=True, width=32)


@given(st.lists(numbers, max_size=50), st.sampled_from(["line", "step", "dots"]))
def test_any_values_give_a_well_formed_chart_with_every_mark_inside(values: list[float], kind: str) -> None:
    text = chart([Series(kind, [(float(x), y) for x, y in enumerate(values)])], title="a <b>", x_label="&")
    if not any(map(math.isfinite, values)):
        assert text == ""
        return
    root = ElementTree.fromstring(text)
    for circle in root.iter("circle"):
        assert 0 <= float(circle.attrib["cx"]) <= WIDTH
        assert 0 <= float(circle.attrib["cy"]) <= HEIGHT


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200), st.integers(8, 60))
def test_a_long_curve_is_thinned_and_keeps_its_extremes(values: list[float], most: int) -> None:
    points = [(float(x), y) for x, y in enumerate(values)]
    kept = thin(points, most)
    assert len(kept) <= most
    assert kept == sorted(kept)
    assert {kept[0], kept[-1]} == {points[0], points[-1]}
    assert max(y for _, y in kept) == max(values)
    assert min(y for _, y in kept) == min(values)


@given(st.floats(-1e9, 1e9), st.floats(0.05, 1e9))
def test_ticks_are_few_and_within_the_range(low: float, share: float) -> None:
    width = share * max(abs(low), 1e-6)  # a chart's range is never narrower beside its values
    found = ticks(low, low + width)
    assert 0 <= len(found) <= 11
    assert all(low - width * 1e-6 <= value <= low + width * (1 + 1e-6) for value in found)


def test_a_bar_shows_each_share() -> None:
    root = ElementTree.fromstring(share_bar([("SUCCEEDED", 3), ("FAILED", 1)], 8))
    assert [rect.attrib["width"] for rect in root] == ["37.500", "12.500"]
    assert share_bar([], 0) == ""
