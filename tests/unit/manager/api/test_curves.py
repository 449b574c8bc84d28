"""The curves of several trials in one binary answer."""

import json
import math
import struct
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proctor.manager.api.columnar import CURVES_MEDIA_TYPE, pack_curves
from proctor.manager.api.routes import curves
from proctor.manager.store.tables import events, metrics

pytestmark = pytest.mark.anyio


def unpack(data: bytes) -> dict[int, list[tuple[float, float]]]:
    """Steps and values by the numbers of trials. As docs/rest.md describes it."""
    assert data[:4] == b"PCRV"
    version, trials, points = struct.unpack_from("<III", data, 4)
    assert version == 1
    assert len(data) == 16 + 12 * trials + 8 * points
    whole = array("I", data[16 : 16 + 12 * trials])
    steps = array("f", data[16 + 12 * trials :][: 4 * points])
    values = array("f", data[16 + 12 * trials + 4 * points :])
    numbers, counts, begins = (whole[place * trials : (place + 1) * trials] for place in range(3))
    return {
        number: list(zip(steps[begin : begin + count], values[begin : begin + count], strict=True))
        for number, count, begin in zip(numbers, counts, begins, strict=True)
    }


FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(
    st.dictionaries(st.integers(0, 2**31), st.lists(st.tuples(st.integers(0, 2**24).map(float), FINITE), max_size=5))
)
def test_every_curve_survives_the_format(given_curves: dict[int, list[tuple[float, float]]]) -> None:
    assert unpack(pack_curves(given_curves)) == given_curves


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e39, -1e308])
def test_a_number_that_does_not_fit_is_nan(value: float) -> None:
    [(step, found)] = unpack(pack_curves({3: [(0.0, value)]}))[3]
    assert (step, math.isnan(found)) == (0.0, True)


async def ended(api: Any, reports: list[list[Any]]) -> tuple[str, list[str]]:
    """An experiment whose trials have reported these values: its address, and their ids."""
    created = await api.create()
    await api.ended(created["id"])
    path = f"/api/v1/experiments/{created['id']}"
    ids = [trial["id"] for trial in (await api.client.get(f"{path}/trials")).json()["items"]]
    for trial_id, values in zip(ids, reports, strict=False):
        await report(api, created["id"], trial_id, values)
    return path, ids


async def report(
    api: Any, experiment_id: str, trial_id: str, values: list[Any], *, job: int = 1, step: int = 10
) -> None:
    lines = "".join(
        json.dumps({"kind": "intermediate", "value": value, "step": step * place, "time": 1.0}) + "\n"
        for place, value in enumerate(values)
    )
    database = await api.manager.metrics(experiment_id)
    place = {"trial_id": trial_id, "job": job, "member": 0}
    offset = await database.read(lambda c: metrics.offset_of(c, trial_id, job))
    await database.write(lambda c: metrics.store_chunk(c, data=lines.encode(), offset=offset, **place))


async def test_the_visible_curves_of_the_trials_that_are_named(api: Any) -> None:
    path, ids = await ended(api, [[0.5, 0.25], [1, 2, 3], []])
    answer = await api.client.get(f"{path}/curves?ids=1,{ids[0]},2")
    assert answer.headers["content-type"] == CURVES_MEDIA_TYPE
    found = unpack(answer.content)
    assert list(found) == [1, 0, 2]
    assert found == {1: [(0, 1), (10, 2), (20, 3)], 0: [(0, 0.5), (10, 0.25)], 2: []}
    await report(api, path.rpartition("/")[2], ids[1], [7.0], job=2, step=0)
    assert unpack((await api.client.get(f"{path}/curves?ids=1")).content) == {1: [(0, 7.0)]}


async def test_a_key_of_what_was_reported_is_a_curve(api: Any) -> None:
    path, _ = await ended(api, [[{"default": 1, "loss": 0.5, "top": {"5": 2}}, {"default": 2, "loss": "NaN"}, 3.0]])
    loss = unpack((await api.client.get(f"{path}/curves?ids=0&key=loss")).content)[0]
    assert loss[0] == (0, 0.5)
    assert all(math.isnan(value) for _, value in loss[1:])
    nested = unpack((await api.client.get(f"{path}/curves?ids=0&key=top.5")).content)[0]
    assert nested[0] == (0, 2.0)
    assert [value for _, value in unpack((await api.client.get(f"{path}/curves?ids=0")).content)[0]] == [1, 2, 3]


async def test_an_answer_that_is_known_is_not_sent_again_until_something_changes(api: Any) -> None:
    path, ids = await ended(api, [[0.5]])
    address = f"{path}/curves?ids=0"
    tag = (await api.client.get(address)).headers["etag"]
    again = await api.client.get(address, headers={"If-None-Match": tag})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    notice = {"kind": events.NOTICE, "data": {"text": "x"}, "experiment_id": path.rpartition("/")[2]}
    await api.manager.control.write(lambda c: events.append(c, time=1.0, **notice))
    changed = await api.client.get(address, headers={"If-None-Match": tag})
    assert changed.status_code == 200
    tag = changed.headers["etag"]
    await report(api, path.rpartition("/")[2], ids[1], [1.0])
    assert (await api.client.get(address, headers={"If-None-Match": tag})).status_code == 200


@pytest.mark.parametrize(
    ("ids", "position", "found"),
    [
        ("", 0, "''"),
        ("0,", 2, "''"),
        ("0,99", 2, "'99'"),
        ("0,nonesuch", 2, "'nonesuch'"),
        ("-1", 0, "'-1'"),
        ("1e3", 0, "'1e3'"),
        ("0, 1", 2, "' 1'"),
        ("99999999999999999999999999", 0, "'99999999999999999999999999'"),
        (",".join(map(str, range(curves.MAX_TRIALS + 1))), 0, "201"),
    ],
)
async def test_ids_that_name_no_trial_are_answered_with_the_place(
    api: Any, ids: str, position: int, found: str
) -> None:
    path, _ = await ended(api, [])
    answer = await api.client.get(f"{path}/curves", params={"ids": ids})
    assert answer.status_code == 422
    [problem] = answer.json()["problems"]
    assert (problem["key"], problem["position"], problem["found"]) == ("ids", position, found)


async def test_trials_of_another_experiment_are_not_found(api: Any) -> None:
    path, _ = await ended(api, [])
    _, others = await ended(api, [])
    assert (await api.client.get(f"{path}/curves?ids={others[0]}")).status_code == 422
    assert (await api.client.get("/api/v1/experiments/nonesuch/curves?ids=0")).status_code == 404
    assert (await api.client.get(f"{path}/curves")).status_code == 422
