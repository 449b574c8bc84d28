"""Results from elsewhere and trials added by hand, over REST: what the tuner receives, and what is refused."""

from typing import Any

import pytest

from proctor.manager.store.tables import dispatcher_inputs

pytestmark = pytest.mark.anyio

SPACE = {
    "lr": {"_type": "uniform", "_value": [0, 1]},
    "layer": {
        "_type": "choice",
        "_value": [{"_name": "none"}, {"_name": "conv", "n": {"_type": "randint", "_value": [1, 9]}}],
    },
}
NNI = [
    {
        "parameter": {"lr": 0.25, "layer": {"_name": "none"}},
        "value": '{"default": 0.9, "loss": 0.1}',
        "trialJobId": "a",
    },
    {"parameter": {"lr": 1, "layer": {"_name": "conv", "n": 3}}, "value": "0.75", "trialJobId": "b"},
    {"parameter": {"lr": 0.5, "layer": {"_name": "conv", "n": 3.0}}, "value": '"NaN"', "trialJobId": "c"},
    {"parameter": {"lr": 0.75, "layer": {"_name": "none"}}, "value": "NaN", "trialJobId": "d"},
]


async def experiment(api: Any, **changes: Any) -> str:
    return str((await api.ran(search_space=SPACE, **changes)).id)


async def reported(api: Any, experiment_id: str) -> list[Any]:
    """The results that the tuner has received as imported."""
    log = await api.manager.control.read(lambda c: dispatcher_inputs.after(c, experiment_id, 0, 1000))
    return [row for entry in log if entry.kind == "ImportData" for row in entry.payload["rows"]]


async def import_(api: Any, experiment_id: str, rows: Any, query: str = "", *, status: int | None = None) -> Any:
    return await api.post(f"/api/v1/experiments/{experiment_id}/import{query}", json=rows, status=status)


async def test_nnis_export_is_read_as_it_was_meant(api: Any) -> None:
    found = await experiment(api)
    assert await import_(api, found, NNI) == {"imported": 4, "skipped": 0, "outside": 0}
    rows = await reported(api, found)
    assert [row["value"] for row in rows] == [{"default": 0.9, "loss": 0.1}, 0.75, "NaN", "NaN"]
    assert repr(rows[2]["parameter"]) == "{'lr': 0.5, 'layer': {'_name': 'conv', 'n': 3}}"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("abc", '"abc"'),
        ([1], "[1]"),
        ({"loss": 1}, '{"loss": 1}'),
        ('{"loss": 1}', '{"loss": 1}'),
        ({"default": "x"}, "x"),
        (True, "true"),
    ],
)
async def test_a_value_without_a_number_is_refused_with_its_row(api: Any, value: Any, shown: str) -> None:
    found = await experiment(api)
    (problem,) = (await import_(api, found, [NNI[0], {**NNI[1], "value": value}], status=422))["problems"]
    assert problem["message"].startswith('row 2: value: expected a number, or a mapping with a number under "default"')
    assert shown in problem["message"]
    assert await reported(api, found) == []


async def test_rows_outside_of_the_space_are_listed_and_nothing_is_imported(api: Any) -> None:
    found = await experiment(api)
    outside = [
        {"parameter": {"lr": 7, "layer": {"_name": "none"}}, "value": 1.0},
        {"parameter": {"lr": 0.5, "layer": {"_name": "conv", "n": 9}, "seed": 3}, "value": None},
        {"parameter": {"lr": 0.5, "layer": {"_name": "conv", "n": 9}, "seed": 3}, "value": 1.0},
        {"parameter": [1], "value": 1.0},
    ]
    answer = await import_(api, found, [*NNI, *outside], status=422)
    assert "3 of 8 rows cannot be imported, so none was: row 5: parameter lr: " in answer["detail"]
    assert [problem["message"] for problem in answer["problems"]] == [
        "row 5: parameter lr: expected a number from 0 to 1, found 7",
        "row 7: parameter layer.n: expected a whole number from 1 to 8, found 9; "
        "parameter seed: unknown parameter, found 3; the search space has lr, layer",
        "row 8: parameter: expected a mapping of parameter names, found [1]",
    ]
    assert await reported(api, found) == []
    skipping = await import_(api, found, [*NNI, *outside], "?skip_outside=true")
    assert skipping == {"imported": 4, "skipped": 1, "outside": 3}
    assert len(await reported(api, found)) == 4


async def test_rows_are_judged_by_the_space_of_now(api: Any) -> None:
    found = await experiment(api)
    changed = {"lr": {"_type": "uniform", "_value": [2, 3]}}
    await api.client.patch(f"/api/v1/experiments/{found}", json={"search_space": changed})
    await import_(api, found, NNI, status=422)
    assert (await import_(api, found, [{"parameter": {"lr": 2.5}, "value": 1}]))["imported"] == 1


async def test_many_bad_rows_are_counted_and_some_listed(api: Any) -> None:
    answer = await import_(api, await experiment(api), [{"parameter": {}, "value": 1}] * 100)
    assert len(answer["problems"]) == 20
    assert answer["detail"].startswith("100 of 100 rows cannot be imported")
    assert answer["detail"].endswith("; and 80 more")


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"lr": 2, "layer": {"_name": "none"}}, "lr: expected a number from 0 to 1, found 2"),
        ({"lr": 0.5}, "layer: expected a mapping with _name"),
        ({"lr": 0.5, "layer": {"_name": "none"}, "rate": 1}, "rate: unknown parameter"),
        ([1], "expected a mapping of parameter names, found [1]"),
        (None, "expected a mapping of parameter names, found null"),
    ],
)
async def test_a_trial_outside_of_the_space_is_not_added(api: Any, parameters: Any, words: str) -> None:
    found = await experiment(api)
    answer = await api.post(f"/api/v1/experiments/{found}/trials", json={"parameters": parameters}, status=422)
    assert f"the parameters are outside of the search space of experiment {found}" in answer["detail"]
    assert words in answer["detail"]
    trials = (await api.get(f"/api/v1/experiments/{found}/trials"))["items"]
    assert {trial["source"] for trial in trials} == {"algorithm"}


async def test_an_added_trial_has_parameters_as_the_space_writes_them(api: Any) -> None:
    found = await experiment(api)
    parameters = {"layer": {"n": 3.0, "_name": "conv"}, "lr": 1}
    answer = await api.post(f"/api/v1/experiments/{found}/trials", json={"parameters": parameters})
    assert repr(answer["parameters"]) == "{'lr': 1, 'layer': {'_name': 'conv', 'n': 3}}"


async def test_a_trial_of_an_earlier_space_is_retried(api: Any) -> None:
    found = await experiment(api)
    changed = {"lr": {"_type": "uniform", "_value": [2, 3]}}
    await api.client.patch(f"/api/v1/experiments/{found}", json={"search_space": changed})
    trial = (await api.get(f"/api/v1/experiments/{found}/trials"))["items"][0]
    again = await api.post(f"/api/v1/trials/{trial['id']}/retry", status=201)
    assert (again["source"], again["parameters"]) == ("retry", trial["parameters"])


async def test_batch_takes_its_options_only(api: Any) -> None:
    options = {"sets": {"_type": "choice", "_value": [[1, 2], {"lr": 1.0}, "small"]}}
    ran = await api.ran(tuner={"name": "Batch"}, search_space=options, max_trial_number=1)
    path = f"{ran.path}/trials"
    assert (await api.post(path, json={"parameters": {"lr": 1}}))["parameters"] == {"lr": 1.0}
    refused = (await api.post(path, json={"parameters": {"lr": 2}}))["detail"]
    assert 'expected an option of sets, one of [1, 2], {"lr": 1.0}, "small", found {"lr": 2}' in refused
    answer = await import_(api, ran.id, [{"parameter": "small", "value": 1}, {"parameter": 3, "value": 1}])
    assert "row 2: parameter: expected an option of sets" in answer["detail"]
