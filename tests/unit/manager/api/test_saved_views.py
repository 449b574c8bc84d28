"""Saved views of an experiment's pages."""

from typing import Any
from urllib.parse import quote

import pytest

from proctor.manager.engine.saved_views import LONGEST_QUERY, MOST_VIEWS
from proctor.manager.store.tables import events, saved_views

pytestmark = pytest.mark.anyio

BODY = {"page": "trials", "query": "filter=value+%3E+0.9&sort=-value"}


def path_of(experiment_id: str, name: str = "") -> str:
    return f"/api/v1/experiments/{experiment_id}/views" + (f"/{quote(name, safe='')}" if name else "")


async def listed(api: Any, experiment_id: str) -> dict[str, Any]:
    answer = await api.get(path_of(experiment_id), status=200)
    return {row["name"]: row for row in answer["items"]}


async def test_a_view_is_saved_replaced_listed_by_name_and_deleted(api: Any) -> None:
    created = (await api.create())["id"]
    assert await listed(api, created) == {}
    saved = await api.put(path_of(created, "worst"), json=BODY, status=200)
    assert saved.items() >= {"name": "worst", "saved_by": "owner", **BODY}.items()
    await api.client.put(path_of(created, "best"), json={"page": "relations"})
    assert list(await listed(api, created)) == ["best", "worst"]
    replaced = {"page": "curves", "query": "x=seconds"}
    await api.client.put(path_of(created, "worst"), json={**replaced, "query": "?x=seconds"})
    assert (await listed(api, created))["worst"].items() >= replaced.items()
    assert (await api.client.delete(path_of(created, "worst"))).status_code == 204
    assert list(await listed(api, created)) == ["best"]
    assert "'worst'" in (await api.delete(path_of(created, "worst"), status=404))["detail"]


async def test_a_name_may_hold_what_an_address_cannot(api: Any) -> None:
    created = (await api.create())["id"]
    for name in ("a/b", "lr < 1e-3 & ?#%", "läßt 好", "x" * 80, "a/../b", "100%"):
        assert (await api.put(path_of(created, name), json=BODY))["name"] == name
        assert list(await listed(api, created)) == [name]
        assert (await api.client.delete(path_of(created, name))).status_code == 204


async def test_a_name_that_could_not_be_listed_and_what_is_no_address_of_a_page_are_refused(api: Any) -> None:
    created = (await api.create())["id"]
    for name in ("x" * 81, "a\x1b[31m", "a\u202eb", " a", "a ", " ", "a\tb"):
        answer = await api.client.put(path_of(created, name), json=BODY)
        assert (answer.status_code, "name" in answer.text) == (422, True), answer.text
    bodies = [{"page": "events"}, {"page": "../../nodes"}, {"query": "a=1"}, {**BODY, "other": 1}, None]
    queries = ("a b", "a#b", "ä", "a\n", "x" * (LONGEST_QUERY + 1))
    for body in [*bodies, *({**BODY, "query": query} for query in queries)]:
        assert (await api.client.put(path_of(created, "a"), json=body)).status_code == 422, body
    assert await listed(api, created) == {}


@pytest.mark.slow
async def test_there_are_at_most_a_hundred_of_an_experiment(api: Any) -> None:
    first, second = (await api.create())["id"], (await api.create())["id"]
    for number in range(MOST_VIEWS):
        await api.client.put(path_of(first, f"view {number}"), json=BODY)
    assert "at most 100" in (await api.put(path_of(first, "one more"), json=BODY, status=409))["detail"]
    assert (await api.client.put(path_of(first, "view 7"), json={"page": "curves"})).status_code == 200
    assert (await api.client.put(path_of(second, "one more"), json=BODY)).status_code == 200
    assert len(await listed(api, first)) == MOST_VIEWS


async def test_saving_and_deleting_are_events_of_who_did_it(api: Any) -> None:
    created = (await api.create())["id"]
    alice = await api.bearer("alice")
    saved = await api.anonymous.put(path_of(created, "a"), json=BODY, headers=alice)
    assert saved.json()["saved_by"] == "alice"
    await api.client.delete(path_of(created, "a"))
    rows = await api.manager.control.read(lambda c: events.after(c, 0, experiment_id=created, limit=1000))
    found = [(row.data, row.actor) for row in rows if row.kind == "view"]
    assert found == [({"name": "a", "page": "trials"}, "alice@rest"), ({"name": "a", "page": None}, "owner@rest")]


async def test_views_go_with_their_experiment(api: Any) -> None:
    created = (await api.create())["id"]
    await api.client.put(path_of(created, "a"), json=BODY)
    await api.ended(created)
    await api.delete_ended(f"/api/v1/experiments/{created}")
    assert await api.manager.control.read(lambda c: saved_views.of_experiment(c, created)) == []
    for answer in (
        await api.client.get(path_of(created)),
        await api.client.put(path_of(created, "a"), json=BODY),
        await api.client.delete(path_of(created, "a")),
    ):
        assert answer.status_code == 404
