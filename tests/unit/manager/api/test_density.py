"""How many curves pass through each cell of a chart."""

import gc
import json
import struct
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.manager.api import charts
from proctor.manager.api.context import Densities, Density

pytestmark = pytest.mark.anyio
NAN = float("nan")


def unpack(data: bytes) -> tuple[dict[str, Any], list[list[int]]]:
    """The header, and the rows of counts. As docs/rest.md describes it."""
    assert data[:4] == b"PDEN"
    (size,) = struct.unpack_from("<I", data, 4)
    header = json.loads(data[8 : 8 + size])
    assert (8 + size) % 8 == 0
    counts = array({"u8": "B", "u16": "H", "u32": "I"}[header["encoding"]], data[8 + size :])
    width = header["width"]
    return header, [list(counts[begin : begin + width]) for begin in range(0, len(counts), width)]


async def ended(api: Any, curves: list[list[tuple[int, float]]]) -> str:
    """The address of an experiment whose trials have these points only."""
    ran = await api.ran(max_trial_number=len(curves))
    for trial, points in zip(ran.trials, curves, strict=True):
        steps, values = zip(*points, strict=True)
        await api.report(ran.id, trial["id"], values, steps=steps, job=2)
    return ran.path


async def test_each_curve_counts_once_in_each_column(api: Any) -> None:
    path = await ended(api, [[(0, 0), (4, 4)], [(0, 0.5), (4, 0.5)], [(0, 4), (4, 4)]])
    answer = await api.client.get(f"{path}/curves/density?width=4&height=4")
    assert answer.headers["content-type"] == charts.DENSITY_MEDIA_TYPE
    header, rows = unpack(answer.content)
    assert rows == [[1, 1, 1, 2], [0, 0, 1, 0], [0, 1, 0, 0], [2, 1, 1, 1]]
    assert header | {"x": 0, "y": 0} == {
        "version": 1, "width": 4, "height": 4, "encoding": "u8",
        "curves": 3, "most": 2, "is_current": True, "x": 0, "y": 0,
    }  # fmt: skip
    assert header["x"] == {"from": 0, "to": 4, "least": 0, "greatest": 4, "log": False}


async def test_a_value_that_is_missing_interrupts_a_curve_and_a_single_point_counts(api: Any) -> None:
    path = await ended(api, [[(0, 1), (1, 1), (2, NAN), (3, 1), (4, 1)], [(2, 3)]])
    _, rows = unpack((await api.client.get(f"{path}/curves/density?width=4&height=2")).content)
    assert rows == [[0, 0, 1, 0], [1, 0, 0, 1]]


async def test_logarithmic_axes_have_cells_of_equal_ratios(api: Any) -> None:
    path = await ended(api, [[(0, 7), (1, 0.01), (10, 0.1), (100, 1)], [(1, 0.01), (100, -3)]])
    header, rows = unpack((await api.client.get(f"{path}/curves/density?width=2&height=2&log_x=true&log_y=1")).content)
    assert [round(header["y"][name], 6) for name in ("from", "to")] == [0.01, 7]
    assert (header["x"]["from"], round(header["x"]["to"], 3), header["curves"]) == (1, 100, 2)
    assert sum(map(sum, rows)) == 3


async def test_a_few_values_far_away_do_not_flatten_the_others(api: Any) -> None:
    path = await ended(api, [[(step, step / 1000) for step in range(1000)], [(0, 0.5), (1, 1e9)]])
    header, _ = unpack((await api.client.get(f"{path}/curves/density")).content)
    assert header["y"]["to"] < 2
    assert header["y"]["greatest"] == 1e9


async def test_without_points_there_are_no_axes(api: Any) -> None:
    path = await ended(api, [[(0, 1)]])
    header, rows = unpack((await api.client.get(f"{path}/curves/density?width=3&height=2&key=nonesuch")).content)
    assert (header["curves"], header["most"], header["y"]["from"], rows) == (0, 0, None, [[0] * 3] * 2)


async def test_it_is_compressed_where_that_is_understood_and_not_sent_again(api: Any) -> None:
    path = await ended(api, [[(0, 0), (4, 4)]])
    plain = await api.client.get(f"{path}/curves/density", headers={"Accept-Encoding": "identity"})
    packed = await api.client.get(f"{path}/curves/density")
    assert packed.headers["content-encoding"] == "gzip"
    assert int(packed.headers["content-length"]) < len(plain.content) / 10
    assert packed.content == plain.content
    again = await api.client.get(f"{path}/curves/density", headers={"If-None-Match": packed.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert (await api.client.get(f"{path}/curves/density?width=0")).status_code == 422


async def test_one_that_was_costly_is_not_counted_again_with_each_change() -> None:
    kept, counted = Densities(), list[str]()

    def counting(tag: str, seconds: float) -> Any:
        async def count() -> Density:
            counted.append(tag)
            return Density(tag, b"current", b"older", 1e9, seconds)

        return count

    for tag in ("a", "b"):
        assert (await kept.get("subject", tag, counting(tag, 1.0))).tag == "a"
    assert counted == ["a"]
    for tag in ("a", "b"):
        assert (await kept.get("another", tag, counting(tag, -1e9))).tag == tag


async def test_one_that_cannot_be_counted_leaves_the_earlier_one_and_nothing_else() -> None:
    kept = Densities()

    async def count() -> Density:
        return Density("a", b"current", b"older", -1e9, 1.0)

    async def fail() -> Density:
        raise OSError("no process")

    await kept.get("subject", "a", count)
    for subject in ("subject", "unknown"):
        with pytest.raises(OSError, match="no process"):
            await kept.get(subject, "b", fail)
    assert (await kept.get("subject", "a", fail)).tag == "a"
    gc.collect()
    assert not kept._counting


points = st.lists(st.tuples(st.floats(0, 9, width=32), st.floats(-5, 5, width=32) | st.just(NAN)), max_size=8)


@given(st.lists(points, max_size=4), st.integers(1, 12), st.integers(1, 9))
def test_no_curve_counts_twice_in_a_column(lines: list[Any], width: int, height: int) -> None:
    split = [([x for x, _ in line], [y for _, y in line]) for line in lines]
    x, y = charts._x_axis(split), charts._y_axis(split)
    if x is None or y is None:
        return
    curves, counts = charts._count(split, x, y, charts.Grid(width, height, False, False))
    assert curves == sum(any(value == value for value in ys) for _, ys in split)
    assert min(counts) >= 0
    assert all(sum(counts[column::width]) <= curves for column in range(width))
