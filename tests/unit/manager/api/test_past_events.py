"""The events of an experiment as a list."""

from typing import Any

import pytest

pytestmark = pytest.mark.anyio


async def read(api: Any, experiment_id: str, query: str = "") -> dict[str, Any]:
    return dict(await api.get(f"/api/v1/experiments/{experiment_id}/events{query}", status=200))


async def test_events_come_the_newest_first_page_after_page(api: Any) -> None:
    ran = await api.ran(max_trial_number=3)
    whole = (await read(api, ran.id, "?limit=1000"))["items"]
    ids = [event["id"] for event in whole]
    assert ids == sorted(ids, reverse=True)
    assert len(ids) > 6
    assert {event["experiment_id"] for event in whole} == {ran.id}
    first = await read(api, ran.id, "?limit=4")
    second = await read(api, ran.id, f"?limit=1000&cursor={first['next_cursor']}")
    assert first["items"] + second["items"] == whole
    assert second["next_cursor"] is None
    assert (await read(api, ran.id, f"?limit=1000&before={ids[3]}"))["items"] == second["items"]


async def test_events_are_filtered_by_kind_and_text_and_name_the_trial(api: Any) -> None:
    ran = await api.ran(max_trial_number=2)
    found = (await read(api, ran.id, "?kind=trial.status&kind=limits&text=succeeded"))["items"]
    assert sorted(event["sequence_id"] for event in found) == [0, 1]
    assert {(event["kind"], event["data"]["status"]) for event in found} == {("trial.status", "SUCCEEDED")}
    assert (await read(api, ran.id, "?text=%25"))["items"] == []  # literal: no pattern of SQL
    assert (await read(api, ran.id, "?text=%22"))["items"] == []


async def test_events_say_who_caused_them(api: Any) -> None:
    ran = await api.ran(max_trial_number=2)
    changed = await api.client.patch(ran.path, json={"tags": ["a"]}, headers={"User-Agent": "proctor-cli"})
    assert changed.status_code == 200, changed.text
    found = (await read(api, ran.id, "?limit=1000"))["items"]
    assert "tuner" in {each["actor"]["name"] for each in found if each["kind"] == "trial.status"}
    [labels] = [each for each in found if each["kind"] == "labels"]
    assert labels["actor"] == {"name": "owner", "via": "cli"}


async def test_a_cursor_that_is_none_is_refused(api: Any) -> None:
    created = await api.create()
    answer = await api.client.get(f"{created.path}/events?cursor=x")
    assert answer.status_code in (400, 422)
    assert "cursor" in answer.text
