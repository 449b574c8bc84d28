"""The curves of several trials in one binary answer."""

import math
import struct
from array import array
from typing import Any

import pytest

from proctor.manager.api.charts import CURVES_MEDIA_TYPE
from proctor.manager.api.routes import curves
from proctor.manager.store.tables import curves as curve_rows
from proctor.manager.store.tables import events, trials

pytestmark = pytest.mark.anyio


def unpack(data: bytes) -> dict[int, list[tuple[float, float]]]:
    """x and values by the numbers of trials. As docs/rest.md describes it."""
    assert data[:4] == b"PCRV"
    version, trials, points, base = struct.unpack_from("<IIId", data, 4)
    assert version == 2
    assert len(data) == 24 + 12 * trials + 8 * points
    whole = array("I", data[24 : 24 + 12 * trials])
    xs = array("f", data[24 + 12 * trials :][: 4 * points])
    values = array("f", data[24 + 12 * trials + 4 * points :])
    numbers, counts, begins = (whole[place * trials : (place + 1) * trials] for place in range(3))
    return {
        number: [(base + x, value) for x, value in zip(xs[begin:][:count], values[begin:][:count], strict=True)]
        for number, count, begin in zip(numbers, counts, begins, strict=True)
    }


async def ended(api: Any, reports: list[list[Any]], **options: Any) -> tuple[str, list[str]]:
    """An experiment whose trials have reported these values: its address, and their ids."""
    ran = await api.ran(**options)
    ids = [trial["id"] for trial in ran.trials]
    for trial_id, values in zip(ids, reports, strict=False):
        await report(api, ran.id, trial_id, values)
    return ran.path, ids


async def report(
    api: Any,
    experiment_id: str,
    trial_id: str,
    values: list[Any],
    *,
    job: int = 1,
    step: int = 10,
    begin: float = 1.0,
) -> None:
    steps = [step * place for place in range(len(values))]
    await api.report(experiment_id, trial_id, values, steps=steps, job=job, begin=begin, pause=2.5)


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
    assert unpack((await api.client.get(f"{path}/curves?ids=0&key=top.5")).content)[0][0] == (0, 2.0)
    assert [value for _, value in unpack((await api.client.get(f"{path}/curves?ids=0")).content)[0]] == [1, 2, 3]


async def test_the_keys_of_all_trials_are_listed_packed_or_not(api: Any) -> None:
    many = [{"default": 1, "loss": n, "note": "x", "top": {"5": n}} for n in range(curve_rows.FEWEST_POINTS)]
    path, ids = await ended(api, [many, [1.0, {"default": 1, "only here": 2}], [3.0]])
    expected = ["loss", "only here", "top.5"]
    assert await api.get(f"{path}/curves/keys") == {"items": expected}
    database = await api.manager.metrics(path.rpartition("/")[2])
    packed = await database.read(lambda c: curve_rows.pack_some(c, ids[:1], member=0))
    await database.write(lambda c: [curve_rows.store(c, each, member=0) for each in packed])
    assert await api.get(f"{path}/curves/keys") == {"items": expected}


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


WRONG_IDS = [
    ("", 0, "''"),
    ("0,", 2, "''"),
    ("0,99", 2, "'99'"),
    ("0,nonesuch", 2, "'nonesuch'"),
    ("-1", 0, "'-1'"),
    ("1e3", 0, "'1e3'"),
    ("0, 1", 2, "' 1'"),
    ("99999999999999999999999999", 0, "'99999999999999999999999999'"),
    (",".join(map(str, range(curves.MAX_TRIALS + 1))), 0, "201"),
]


async def test_ids_that_name_no_trial_are_answered_with_the_place(api: Any) -> None:
    path, _ = await ended(api, [])
    for ids, *expected in WRONG_IDS:
        [problem] = (await api.get(f"{path}/curves", params={"ids": ids}, status=422))["problems"]
        assert [problem["key"], problem["position"], problem["found"]] == ["ids", *expected]


async def test_trials_of_another_experiment_are_not_found(api: Any) -> None:
    path, _ = await ended(api, [])
    _, others = await ended(api, [])
    assert (await api.client.get(f"{path}/curves?ids={others[0]}")).status_code == 422


async def test_all_trials_that_have_points_are_there_if_none_is_named(api: Any) -> None:
    path, ids = await ended(api, [[], [1, 2]])
    await report(api, path.rpartition("/")[2], ids[0], [5.0], step=4)
    found = unpack((await api.client.get(f"{path}/curves")).content)
    assert {number: curve[-1:] for number, curve in found.items() if number < 2} == {0: [(0, 5)], 1: [(10, 2)]}
    named = (await api.client.get(f"{path}/curves?ids={','.join(map(str, found))}")).content
    assert named == (await api.client.get(f"{path}/curves")).content


async def test_what_does_not_fit_into_a_float32_is_nan(api: Any) -> None:
    path, _ = await ended(api, [[1e39, -1e308, 0.5, "NaN"]])
    values = [value for _, value in unpack((await api.client.get(f"{path}/curves?ids=0")).content)[0]]
    assert [math.isnan(value) for value in values] == [True, True, False, True]


async def test_time_is_an_axis(api: Any) -> None:
    path, ids = await ended(api, [[1, 2], [3]])
    experiment_id = path.rpartition("/")[2]
    start = 1_764_000_000.25
    await report(api, experiment_id, ids[0], [4, 5], job=2, begin=start + 10)
    await report(api, experiment_id, ids[1], [6], job=2, begin=start + 86400)
    await api.manager.control.write(lambda c: trials.update(c, ids[0], started_at=start))
    await api.manager.control.write(lambda c: trials.update(c, ids[1], started_at=None))
    moments = unpack((await api.client.get(f"{path}/curves?ids=0,1&x=time")).content)
    assert moments[0] == [(start + 10, 4), (start + 12.5, 5)]
    assert abs(moments[1][0][0] - (start + 86400)) < 0.01
    seconds = unpack((await api.client.get(f"{path}/curves?ids=0,1&x=seconds")).content)
    assert seconds[0] == [(10, 4), (12.5, 5)]
    assert math.isnan(seconds[1][0][0])
    assert (await api.client.get(f"{path}/curves?x=hours")).status_code == 422


async def test_packed_curves_give_the_same_answers(api: Any) -> None:
    reported = [{"default": number / 7, "loss": 1.0 / (1 + number)} for number in range(20)]
    path, ids = await ended(api, [reported, reported[:9]])
    experiment_id = path.rpartition("/")[2]
    questions = [f"{path}/curves?x={x}{key}" for x in ("step", "seconds", "time") for key in ("", "&key=loss")]
    before = [(await api.client.get(question)).content for question in questions]
    database = await api.manager.metrics(experiment_id)
    packed = await database.read(lambda c: curve_rows.pack_some(c, ids, member=0))
    assert [each.curve.trial_id for each in packed] == ids[:2]
    for each in packed:
        await database.write(lambda c, each=each: curve_rows.store(c, each, member=0))
    assert await database.read(lambda c: curve_rows.unpacked(c, member=0)) == []
    assert [(await api.client.get(question)).content for question in questions] == before


async def test_the_table_has_the_best_value_of_a_curve_and_its_value_at_a_step(api: Any) -> None:
    reports = [[0.25, 0.75, 0.5], [0.5, "NaN", 0.125, 0.375], [0.625]]
    path, ids = await ended(api, reports, tuner={"name": "Random"}, objective={"direction": "maximize"})
    # steps are 0, 10, 20, …; the newest trial has no point at 10, the NaN of the second is no value
    columns = "no,curve.best,curve.at.15,curve.at.30"
    found = await api.get(f"{path}/table?columns={columns}&sort=no")
    assert [head["name"] for head in found["columns"]] == columns.split(",")
    assert {head["type"] for head in found["columns"]} == {"number"}
    assert found["rows"][:3] == [[0, 0.75, 0.75, None], [1, 0.5, None, 0.375], [2, 0.625, None, None]]
    assert "curve.best" not in {head["name"] for head in (await api.get(f"{path}/table"))["columns"]}

    best_first = await api.get(f"{path}/table?columns=no&sort=-curve.best&limit=3")
    assert [row[0] for row in best_first["rows"]] == [0, 2, 1]
    listed = await api.get(f"{path}/trials?filter=curve.best%20%3E%200.55&sort=curve.best")
    assert [trial["id"] for trial in listed["items"]] == [ids[2], ids[0]]
    changed = await api.get(f"{path}/changes?after=0&columns=no,curve.best&filter=curve.best > 0.7")
    assert changed["reset"] or changed["rows"]["rows"] == [[0, 0.75]]


async def test_the_best_value_is_the_smallest_where_the_experiment_minimizes(api: Any) -> None:
    ran = await api.ran(objective={"direction": "minimize"})
    [trial] = (await api.get(f"{ran.path}/trials?limit=1"))["items"]
    await report(api, ran.id, trial["id"], [0.5, 0.25, 0.75])
    assert (await api.get(f"{ran.path}/table?columns=curve.best&sort=no&limit=1"))["rows"] == [[0.25]]


@pytest.mark.parametrize("name", ["curve.bets", "curve.at", "curve.at.-1", "curve.at.x", "curve"])
async def test_a_column_of_curves_that_there_is_not_is_refused(api: Any, name: str) -> None:
    path, _ = await ended(api, [[0.25]])
    for query in (f"table?columns={name}", f"table?sort={name}", f"trials?filter={name} > 1"):
        answer = await api.client.get(f"{path}/{query}")
        assert answer.status_code == 422, query
        assert repr(name) in answer.text.replace('\\"', '"')
    many = ",".join(f"curve.at.{step}" for step in range(21))
    assert "at most 20 columns of curves" in (await api.client.get(f"{path}/table?columns={many}")).text
