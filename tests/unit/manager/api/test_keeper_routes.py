"""The keepers' routes: what arrives at the hub, and how a keeper is refused."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from proctor.manager.api.export_openapi import KEEPER_MESSAGES
from proctor.manager.api.keepers import keeper_application
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool
from proctor.trial_keeper.protocol import (
    Command,
    CommandPoll,
    FileAnswer,
    Registration,
    ReportHeader,
    Shutdown,
    from_json,
    manager_proof,
    to_json,
)

SECRET = "the secret of node one"
PATH = "/api/v1/keepers/one/"
st.register_type_strategy(
    Command, st.builds(Command, number=st.integers(), type=st.text(), order=st.dictionaries(st.text(), st.integers()))
)
REGISTRATION = Registration("k", 1, "boot", "host", "0.1.0", "3.11", [], [])


@pytest.fixture
async def hub() -> AsyncIterator[KeeperHub]:
    pool = NodePool()
    pool.add("one", "local")
    made = KeeperHub(pool)
    made.add_node("one", SECRET)
    await made.mark_reattached()
    yield made
    made.close()


@pytest.fixture
async def client(hub: KeeperHub) -> AsyncIterator[httpx.AsyncClient]:
    """The keeper of node `one`."""
    transport = httpx.ASGITransport(keeper_application(hub))
    bearer = {"Authorization": f"Bearer {SECRET}"}
    async with httpx.AsyncClient(transport=transport, base_url=f"http://keeper{PATH}", headers=bearer) as made:
        yield made


async def register(client: httpx.AsyncClient) -> str:
    answer = await client.post("register", json=to_json(REGISTRATION))
    assert answer.status_code == 200, answer.text
    return str(answer.json()["session"])


@pytest.mark.anyio
async def test_the_manager_proves_that_it_knows_the_secret(client: Any) -> None:
    answer = await client.post("hello", json={"nonce": "ab12"}, headers={"Authorization": ""})
    assert answer.json() == {"proof": manager_proof(SECRET, "ab12")}


@pytest.mark.anyio
async def test_a_command_reaches_the_keeper_that_waits(client: Any, hub: Any) -> None:
    session = await register(client)
    hub.send("one", Shutdown())
    answer = await client.post("commands", json=to_json(CommandPoll(session, 0)))
    assert [command["type"] for command in answer.json()["commands"]] == ["Shutdown"]


@pytest.mark.anyio
async def test_an_empty_report_is_a_heartbeat(client: Any) -> None:
    session = await register(client)
    for ending in (b"", b"\n"):
        answer = await client.post("report", content=json.dumps(to_json(ReportHeader(session))).encode() + ending)
        assert answer.json() == {"acknowledged": [], "ended": [], "fenced": [], "pause_seconds": 0.0}


@pytest.mark.anyio
@pytest.mark.parametrize("bearer", ["", "Bearer", "Bearer wrong", f"Basic {SECRET}"])
async def test_a_keeper_without_the_secret_is_refused(client: Any, bearer: str) -> None:
    for route in ("register", "commands", "report", "answer"):
        assert (await client.post(route, content=b"{}", headers={"Authorization": bearer})).status_code == 401


@pytest.mark.anyio
async def test_an_answer_about_files_reaches_who_asked(client: Any, hub: Any) -> None:
    session = await register(client)
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(hub.read_file("one", "folder", "file", 0, 10), name="read a file")
        (command,) = (await client.post("commands", json=to_json(CommandPoll(session, 0)))).json()["commands"]
        assert command["type"] == "ReadFile"
        body = json.dumps(to_json(FileAnswer(session, command["order"]["request"]))).encode()
        answer = await client.post("answer", content=body + b"\n\x00two\nlines")
        assert (answer.status_code, answer.json()) == (200, {})
    assert reading.result() == b"\x00two\nlines"


@pytest.mark.anyio
async def test_a_keeper_of_an_unknown_session_must_register_again(client: Any) -> None:
    answer = await client.post("commands", json=to_json(CommandPoll("gone", 0)))
    assert answer.status_code == 409
    assert answer.json()["title"] == "UnknownSession"


@pytest.mark.anyio
@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"{}", b'{"session": 1, "chunks": 7, "files": "all"}', b"\xff\n"])
async def test_what_is_no_message_is_refused(client: Any, body: bytes) -> None:
    for route in ("report", "answer"):
        answer = await client.post(route, content=body)
        assert answer.status_code in (400, 409)
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.anyio
async def test_a_fault_of_ours_is_not_blamed_on_the_keeper(
    client: Any, hub: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = await register(client)

    async def fail(*_: object) -> None:
        raise ValueError("ours")

    monkeypatch.setattr(hub, "report", fail)
    with pytest.raises(ValueError, match="ours"):
        await client.post("report", content=json.dumps(to_json(ReportHeader(session))).encode())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KEEPER_MESSAGES, ids=lambda kind: kind.__name__)
@settings(max_examples=settings().max_examples // 2)
@given(data=st.data())
def test_the_keepers_reader_and_pydantic_agree_on_every_message(kind: type[Any], data: st.DataObject) -> None:
    body = _storable(json.loads(json.dumps(to_json(data.draw(st.from_type(kind))))))
    assert TypeAdapter(kind).validate_python(body) == from_json(kind, body)
    assert to_json(from_json(kind, body)) == body


def _storable(body: Any) -> Any:
    """The message with numbers that can be stored; others are refused."""
    if isinstance(body, dict):
        return {key: _storable(value) for key, value in body.items()}
    if isinstance(body, list):
        return [_storable(value) for value in body]
    is_number = isinstance(body, (int, float)) and not isinstance(body, bool)
    return body if not is_number or -(2**63) <= body < 2**63 else type(body)(7)
