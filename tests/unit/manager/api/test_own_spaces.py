"""A tuner of the user's with a search space and parameters of its own kind, over REST and on the page."""

import asyncio
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from unit.manager.api.test_api_load import hand_over, load, save

from proctor.manager.cli.output import write_csv

pytestmark = pytest.mark.anyio

TUNER = """
from proctor.sdk.errors import NoMoreTrialError
from proctor.sdk.tuner import Tuner

spaces = []
told = []

class Own(Tuner):
    def __init__(self, proposals):
        self.proposals = proposals

    def update_search_space(self, search_space):
        spaces.append(search_space)

    def generate_parameters(self, parameter_id, **kwargs):
        if not self.proposals:
            raise NoMoreTrialError
        return self.proposals.pop(0)

    def receive_trial_result(self, parameter_id, parameters, value, **kwargs):
        told.append(parameters)

    def import_data(self, data):
        told.extend(row["parameter"] for row in data)
"""
PROPOSALS = [[1, [2, "three"]], "a text", 0.25, True, None, {"x": {"y": [1]}}, {}]
FACTORS = {"layers": {"_type": "factor", "_value": 96}, "_note": "not NNI's grammar"}


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """What a dispatcher in this process does to the environment is undone."""
    environment = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(environment)


def own(directory: Path, proposals: list[Any]) -> dict[str, Any]:
    """The configuration of such a tuner."""
    (directory / "own_space_tuner.py").write_text(TUNER)
    return {
        "class_name": "own_space_tuner.Own",
        "code_directory": str(directory),
        "class_args": {"proposals": proposals},
    }


async def create(api: Any, space: Any, proposals: list[Any] = PROPOSALS, **changes: Any) -> dict[str, Any]:
    tuner = own(api.directory, proposals)
    settings = {"tuner": tuner, "search_space": space, "max_trial_number": 20, "trial_concurrency": 1, **changes}
    created: dict[str, Any] = await api.create(**settings)
    return created


async def items(api: Any, path: str) -> list[dict[str, Any]]:
    return list((await api.get(f"/api/v1{path}"))["items"])


@pytest.mark.slow
@pytest.mark.parametrize("space", [FACTORS, {}, [], [1, 2], "a name", 7])
async def test_the_space_reaches_the_tuner_untouched(api: Any, space: Any) -> None:
    created = await create(api, space)
    assert (await api.ended(created["id"]))["status"] == "DONE"
    assert created["search_space"] == space
    assert sys.modules["own_space_tuner"].spaces == [space]


async def test_parameters_of_any_kind_reach_trials_results_and_export(api: Any, tmp_path: Path) -> None:
    created = await create(api, FACTORS)
    body = await api.ended(created["id"])
    assert (body["status"], body["trial_counts"]) == ("DONE", {"SUCCEEDED": len(PROPOSALS)})
    path = f"/experiments/{created['id']}"
    trials = await items(api, f"{path}/trials")
    assert [trial["parameters"] for trial in trials] == PROPOSALS
    assert [(await items(api, f"/trials/{t['id']}/jobs"))[0]["parameters"] for t in trials] == PROPOSALS
    exported = await items(api, f"{path}/export")
    assert [row["parameter"] for row in exported] == PROPOSALS
    assert sys.modules["own_space_tuner"].told == PROPOSALS
    with (tmp_path / "rows.csv").open("w") as file:
        write_csv(exported, file)


async def test_added_trials_imported_rows_and_new_spaces_of_any_kind_are_taken(api: Any) -> None:
    created = await create(api, FACTORS, [])
    await api.ended(created["id"])
    added = await api.client.post(f"{created.path}/trials", json={"parameters": [3, 4]})
    assert (added.status_code, added.json()["parameters"]) == (201, [3, 4])
    rows = [{"parameter": "elsewhere", "value": 1.0}, {"parameter": None, "value": 2.0}]
    assert await api.post(f"{created.path}/import", json=rows) == {"imported": 2, "skipped": 0, "outside": 0}
    changed = await api.patch(created.path, json={"search_space": [{"_type": "factor"}]})
    assert changed["search_space"] == [{"_type": "factor"}]
    await api.patch(created.path, json={"search_space": None}, status=422)
    async with asyncio.timeout(20):
        while len(sys.modules["own_space_tuner"].spaces) < 2:  # noqa: ASYNC110 - the tuner's thread rings no bell
            await asyncio.sleep(0.01)
    assert sys.modules["own_space_tuner"].spaces == [FACTORS, [{"_type": "factor"}]]
    assert sys.modules["own_space_tuner"].told[:2] == ["elsewhere", None]


async def test_a_saved_experiment_with_parameters_of_any_kind_is_loaded(api: Any) -> None:
    created = await create(api, FACTORS)
    await api.ended(created["id"])
    records = await save(api, await api.get(created.path))
    await api.delete_ended(created.path)
    hand_over(api, records)
    assert (await load(api))["search_space"] == FACTORS
    trials = await items(api, f"/experiments/{created['id']}/trials")
    assert [trial["parameters"] for trial in trials] == PROPOSALS


async def test_batch_proposes_its_options_of_whatever_kind(api: Any) -> None:
    options = ["small", 3, [1, 2], {"lr": 0.1}, {"_name": "named", "lr": 0.2}, None]
    space = {"sets": {"_type": "choice", "_value": options}}
    created = await api.create(
        search_space=space, tuner={"name": "BatchTuner"}, max_trial_number=20, trial_concurrency=1
    )
    await api.ended(created["id"])
    trials = await items(api, f"/experiments/{created['id']}/trials")
    assert [trial["parameters"] for trial in trials] == options


async def test_a_new_space_that_a_built_in_tuner_cannot_search_is_refused_where_it_is_wrong(api: Any) -> None:
    ran = await api.ran(tuner={"name": "Batch"}, search_space={"x": {"_type": "choice", "_value": [{"a": 1}]}})
    for space in ({"x": {"_type": "uniform", "_value": [0, 1]}}, {"x": {"_type": "factor", "_value": [0]}}, [1]):
        answer = await api.client.patch(ran.path, json={"search_space": space})
        assert (answer.status_code, len(answer.json()["problems"])) == (422, 1), answer.text
