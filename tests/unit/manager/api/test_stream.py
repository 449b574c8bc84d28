"""The stream of changes, and the events of an experiment as a list."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from proctor.manager.api.stream import PAGE, read_stretch, server_sent_events
from proctor.manager.events import ChangeFeed
from proctor.manager.store.database import Database
from proctor.manager.store.tables import events

pytestmark = pytest.mark.anyio


@pytest.fixture
async def control(tmp_path: Path) -> AsyncIterator[Database]:
    async with await Database.open(str(tmp_path / "control.db"), "control") as database:
        yield database


async def append(control: Database, number: int, *, kind: str = "notice", experiment_id: str = "one") -> None:
    def write(connection: Any) -> None:
        for index in range(number):
            events.append(connection, time=1.0, kind=kind, data={"n": index}, experiment_id=experiment_id)

    await control.write(write)


async def take(stream: AsyncIterator[bytes], number: int) -> list[dict[str, Any]]:
    """The next events of a stream; comments are left out."""
    found: list[dict[str, Any]] = []
    async for part in stream:
        for block in part.decode().split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
            if "data" in lines:
                found.append({**json.loads(lines["data"]), "sse_id": int(lines["id"]), "sse_event": lines["event"]})
        if len(found) >= number:
            return found
    return found


async def test_a_client_that_comes_back_misses_nothing_and_hears_nothing_twice(control: Database) -> None:
    await append(control, PAGE + 30)
    feed, closing = ChangeFeed(), asyncio.Event()
    first = await take(server_sent_events(control, feed, closing, after=0, experiment_id=None), 1)
    last = first[-1]["sse_id"]
    rest = await take(server_sent_events(control, feed, closing, after=last, experiment_id=None), 1)
    assert [event["id"] for event in first + rest] == list(range(1, PAGE + 31))


async def test_a_change_wakes_the_reader_and_the_stream_ends_when_the_manager_closes(control: Database) -> None:
    feed, closing = ChangeFeed(), asyncio.Event()
    stream = server_sent_events(control, feed, closing, after=None, experiment_id=None)
    await anext(stream)  # it is there, and hears what comes from now on
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(take(stream, 1))
        await append(control, 1)
        feed.notify()
        assert [event["sse_event"] for event in await reading] == ["notice"]
        reading = group.create_task(take(stream, 1))
        await asyncio.sleep(0)
        closing.set()
    assert reading.result() == []


async def test_a_stream_of_one_experiment_passes_over_the_others(control: Database) -> None:
    await append(control, 5, experiment_id="other")
    await append(control, 1)
    stretch = await read_stretch(control, 0, "one")
    assert [row.id for row in stretch.rows] == [6]
    await append(control, 5, experiment_id="other")
    stretch = await read_stretch(control, stretch.cursor, "one")
    assert (stretch.rows, stretch.cursor) == ([], 11)


async def test_who_asks_for_events_that_are_gone_is_told_to_read_everything_again(control: Database) -> None:
    await append(control, 20, kind="trial.status")
    await control.write(lambda c: events.prune(c, 5, limit=100))
    found = await take(server_sent_events(control, ChangeFeed(), asyncio.Event(), after=3, experiment_id=None), 6)
    assert found[0]["sse_event"] == "reset"
    assert [event["id"] for event in found[1:]] == [16, 17, 18, 19, 20]


async def test_who_has_seen_all_that_is_gone_misses_nothing(control: Database) -> None:
    await append(control, 2)
    await append(control, 18, kind="trial.status")
    await control.write(lambda c: events.prune(c, 5, limit=100))
    stretch = await read_stretch(control, 15, None)
    assert ([row.id for row in stretch.rows], stretch.missed) == ([16, 17, 18, 19, 20], False)
    assert (await read_stretch(control, 14, "another experiment")).missed
    assert not (await read_stretch(control, 20, None)).missed


async def test_a_reader_that_falls_behind_while_it_is_connected_is_told_too(control: Database) -> None:
    feed = ChangeFeed()
    stream = server_sent_events(control, feed, asyncio.Event(), after=None, experiment_id=None)
    await anext(stream)
    await append(control, 20, kind="trial.status")
    await control.write(lambda c: events.prune(c, 5, limit=100))
    feed.notify()
    found = await take(stream, 6)
    assert [event["sse_event"] for event in found] == ["reset", *["trial.status"] * 5]


async def test_who_comes_from_a_store_that_was_further_reads_everything_again_and_hears_what_comes(
    control: Database,
) -> None:
    await append(control, 3)
    feed = ChangeFeed()
    stream = server_sent_events(control, feed, asyncio.Event(), after=5000, experiment_id=None)
    (reset,) = await take(stream, 1)
    assert (reset["sse_event"], reset["sse_id"]) == ("reset", 3)
    await append(control, 1)
    feed.notify()
    (event,) = await take(stream, 1)
    assert event["id"] == 4


async def test_a_slow_reader_holds_one_page_at_most(control: Database) -> None:
    await append(control, 3 * PAGE)
    stream = server_sent_events(control, ChangeFeed(), asyncio.Event(), after=0, experiment_id=None)
    await anext(stream)
    assert (await anext(stream)).count(b"\nid: ") + 1 == PAGE


async def test_words_stand_for_numbers_that_are_not_finite(control: Database) -> None:
    def write(connection: Any) -> None:
        events.append(connection, time=1.0, kind="metrics", data={"value": float("inf")})

    await control.write(write)
    stream = server_sent_events(control, ChangeFeed(), asyncio.Event(), after=0, experiment_id=None)
    (event,) = await take(stream, 1)
    assert event["data"] == {"value": "Infinity"}
    with contextlib.suppress(StopAsyncIteration):
        await stream.aclose()


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
    await api.patch(ran.path, json={"tags": ["a"]}, headers={"User-Agent": "proctor-cli"}, status=200)
    found = (await read(api, ran.id, "?limit=1000"))["items"]
    assert "tuner" in {each["actor"]["name"] for each in found if each["kind"] == "trial.status"}
    [labels] = [each for each in found if each["kind"] == "labels"]
    assert labels["actor"] == {"name": "owner", "via": "cli"}


async def test_a_cursor_that_is_none_is_refused(api: Any) -> None:
    created = await api.create()
    answer = await api.client.get(f"{created.path}/events?cursor=x")
    assert answer.status_code in (400, 422)
    assert "cursor" in answer.text
