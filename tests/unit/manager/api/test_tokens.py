"""Named tokens over REST: what they open, and that nothing is open once they are revoked."""

import asyncio
from typing import Any

import httpx
import pytest
from fastapi import Request
from starlette.types import Message

from proctor.manager.api.guard import Guard
from proctor.manager.api.routes import nodes
from proctor.manager.security import Access, HostGuard, Tokens, cookie_of
from proctor.training_services.providers import UncollectedFiles

pytestmark = pytest.mark.anyio

TOKENS = Tokens("the-full-token-of-this-test", "the-read-only-token-of-this-test")
READ = {"Authorization": f"Bearer {TOKENS.readonly}"}


async def test_a_named_token_does_what_it_is_for_and_the_session_names_it(api: Any) -> None:
    alice, grafana = await api.bearer("alice"), await api.bearer("grafana", "read-only")
    for headers, access, name in ((alice, "full", "alice"), (grafana, "read-only", "grafana")):
        session = (await api.anonymous.get("/api/v1/session", headers=headers)).json()
        assert (session["access"], session["token"]) == (access, name)
    assert (await api.get("/api/v1/session"))["token"] == "owner"
    assert (await api.anonymous.get("/api/v1/session", headers=READ)).json()["token"] == "read-only"
    assert (await api.anonymous.post("/api/v1/stop-all", headers=alice)).status_code == 202
    assert (await api.anonymous.post("/api/v1/stop-all", headers=grafana)).status_code == 403


async def test_the_list_shows_no_token_and_is_shown_to_full_access_only(api: Any) -> None:
    alice, grafana = await api.bearer("alice"), await api.bearer("grafana", "read-only")
    made = await api.anonymous.post("/api/v1/tokens", json={"name": "bob"}, headers=alice)
    assert made.json()["created_by"] == "alice"
    items = (await api.get("/api/v1/tokens"))["items"]
    assert [(item["name"], item["access"], item["created_by"]) for item in items] == [
        ("alice", "full", "owner"),
        ("bob", "full", "alice"),
        ("grafana", "read-only", "owner"),
    ]
    assert all("token" not in item for item in items)
    for headers in (READ, grafana):
        for method, path in (("GET", ""), ("POST", ""), ("DELETE", "/alice"), ("GET", "/"), ("HEAD", "")):
            answer = await api.anonymous.request(method, f"/api/v1/tokens{path}", headers=headers)
            assert answer.status_code == 403, (method, path)


async def test_names_that_cannot_be_used_are_refused(api: Any) -> None:
    await api.bearer("alice")
    for name, status in (("alice", 409), ("ALICE", 409), ("owner", 422), ("a b", 422), ("", 422), ("x" * 41, 422)):
        assert (await api.client.post("/api/v1/tokens", json={"name": name})).status_code == status, name
    assert (await api.client.post("/api/v1/tokens", json={"name": "x", "access": "none"})).status_code == 422


async def test_a_link_with_a_named_token_opens_the_page_until_the_token_is_revoked(api: Any) -> None:
    token = (await api.bearer("alice"))["Authorization"].removeprefix("Bearer ")
    answer = await api.anonymous.get(f"/?token={token}")
    assert answer.status_code == 303
    assert token not in answer.headers["set-cookie"]
    assert (await api.anonymous.get("/api/v1/session")).json()["token"] == "alice"
    page = {"Sec-Fetch-Site": "same-origin"}
    assert (await api.anonymous.post("/api/v1/stop-all", headers=page)).status_code == 202
    assert (await api.anonymous.post("/api/v1/stop-all")).status_code == 403  # not from our page
    assert (await api.client.delete("/api/v1/tokens/alice")).status_code == 204
    assert (await api.anonymous.get("/api/v1/session")).status_code == 401
    assert (await api.anonymous.post("/api/v1/stop-all", headers=page)).status_code == 401
    assert (await api.anonymous.get(f"/?token={token}")).status_code == 401
    bearer = {"Authorization": f"Bearer {token}"}
    assert (await api.anonymous.get("/api/v1/session", headers=bearer)).status_code == 401


async def ends_when_revoked(api: Any, method: str, path: str, headers: dict[str, str]) -> None:
    """Open a stream, revoke the token "alice", and wait for the end of the stream."""
    opened, ended = asyncio.Event(), asyncio.Event()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.body":
            opened.set()
            if not message.get("more_body", False):
                ended.set()

    async def receive() -> Message:
        await asyncio.Event().wait()
        raise AssertionError

    app = api.client._transport.app
    scope = Request(
        {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(k.lower().encode(), v.encode()) for k, v in {**headers, "Host": "127.0.0.1"}.items()],
            "http_version": "1.1",
            "scheme": "http",
            "server": ("127.0.0.1", 80),
            "client": ("127.0.0.1", 1),
            "root_path": "",
            "asgi": {"version": "3.0"},
        }
    ).scope
    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        group.create_task(app(scope, receive, send), name="stream")
        await opened.wait()
        assert not ended.is_set()
        await api.client.delete("/api/v1/tokens/alice")
        await ended.wait()


@pytest.mark.parametrize("by_cookie", [True, False])
async def test_an_open_stream_ends_when_its_token_is_revoked(api: Any, by_cookie: bool) -> None:
    alice = await api.bearer("alice")
    token = alice["Authorization"].removeprefix("Bearer ")
    headers = {"Cookie": f"{TOKENS.cookie_name}={cookie_of(token)}"} if by_cookie else alice
    await ends_when_revoked(api, "GET", "/api/v1/events", headers)


async def test_a_response_that_reports_a_collection_ends_when_its_token_is_revoked(
    api: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "PROGRESS_SECONDS", 0.05)
    alice = await api.bearer("alice")
    ran = await api.ran()
    api.provider.add("gpu-3", "gpu-3")
    api.provider.left.append(UncollectedFiles(ran.id, "gpu-3", "on gpu-3", "the machine is unreachable"))
    collection = api.provider.collect("gpu-3", ran.id)
    await ends_when_revoked(api, "POST", "/api/v1/nodes/gpu-3/collect", alice)
    assert not collection.ended.is_set()


async def test_the_way_of_a_request_is_what_its_sender_says(api: Any) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["proctor.sender"].actor.to_text())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    guard = Guard(app, tokens=TOKENS, named_tokens=api.context.named_tokens, hosts=HostGuard(bound="127.0.0.1"))
    alice = await api.bearer("alice")
    cookie = {"Cookie": f"{TOKENS.cookie_name}={TOKENS.cookie(Access.FULL)}"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://127.0.0.1") as client:
        for headers in (alice, {**alice, "User-Agent": "proctor-cli"}, {**alice, "User-Agent": "proctor-sdk"}, cookie):
            await client.get("/x", headers=headers)
        await client.get("/x", headers={**cookie, "User-Agent": "proctor-cli"})
    assert seen == ["alice@rest", "alice@cli", "alice@sdk", "owner@page", "owner@page"]
