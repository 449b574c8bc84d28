"""Tags of experiments, and archived experiments."""

from typing import Any

import pytest

from proctor.manager.store.tables import events

pytestmark = pytest.mark.anyio


async def listed(api: Any, query: str = "") -> list[str]:
    answer = await api.get(f"/api/v1/experiments{query}", status=200)
    return [row["id"] for row in answer["items"]]


async def test_experiments_are_found_by_all_of_the_tags_asked_for(api: Any) -> None:
    first, second = (await api.create())["id"], (await api.create())["id"]
    answer = await api.patch(f"/api/v1/experiments/{first}", json={"tags": ["paper", "base line", "paper"]})
    assert answer["tags"] == ["paper", "base line"]
    await api.client.patch(f"/api/v1/experiments/{second}", json={"tags": ["paper"]})
    assert await listed(api, "?tag=paper") == [second, first]
    assert await listed(api, "?tag=paper&tag=base%20line") == [first]
    assert await listed(api, "?tag=none") == []
    await api.client.patch(f"/api/v1/experiments/{first}", json={"tags": []})
    assert await listed(api, "?tag=paper") == [second]


async def test_an_archived_experiment_is_left_out_once_it_has_ended(api: Any) -> None:
    over = (await api.ran()).id
    runs = (await api.create(max_trial_number=100_000))["id"]
    for identifier in (over, runs):
        assert (await api.patch(f"/api/v1/experiments/{identifier}", json={"archived": True}))["archived"]
    assert await listed(api) == [runs]
    assert await listed(api, "?archived=true") == [over]
    assert await listed(api, "?archived=all") == [runs, over]
    assert await listed(api, f"?id_prefix={over}") == [over]
    await api.client.patch(f"/api/v1/experiments/{over}", json={"archived": False})
    assert await listed(api) == [runs, over]


async def test_labels_and_limits_are_changed_together_each_with_its_event(api: Any) -> None:
    ran = await api.ran()
    seen = await api.manager.control.read(events.last_id)
    body = await api.patch(ran.path, json={"priority": 3, "tags": ["a"], "archived": True})
    assert (body["priority"], body["tags"], body["archived"]) == (3, ["a"], True)
    found = await api.manager.control.read(lambda c: events.after(c, seen, experiment_id=ran.id, limit=10))
    said = {event.kind: event.data for event in found}
    assert said["limits"]["priority"] == 3
    assert said["labels"] == {"tags": ["a"], "archived": True}
    await api.patch(ran.path, json={"trial_concurrency": 0, "tags": ["b"]}, status=422)
    assert (await api.get(ran.path))["tags"] == ["a"]


@pytest.mark.parametrize(
    "tags", [[""], [" a"], ["a,b"], ["x" * 51], ["a\nb"], [1], "a", None, [str(n) for n in range(51)]]
)
async def test_tags_that_could_not_be_listed_are_refused(api: Any, tags: Any) -> None:
    answer = await api.client.patch((await api.create()).path, json={"tags": tags})
    assert answer.status_code == 422, answer.text
    assert "tags" in answer.text
    assert (await api.client.patch("/api/v1/experiments/none", json={"tags": ["a"]})).status_code == 404
