"""Who is let in."""

from typing import Any

import httpx
import pytest

from proctor.manager.api.guard import Guard
from proctor.manager.security import Access, HostGuard, Tokens

pytestmark = pytest.mark.anyio

READ = {"Authorization": "Bearer the-read-only-token-of-this-test"}
FULL = {"Authorization": "Bearer the-full-token-of-this-test"}
TOKENS = Tokens("the-full-token-of-this-test", "the-read-only-token-of-this-test")


async def test_health_needs_no_token_and_everything_else_does(api: Any) -> None:
    assert (await api.anonymous.get("/api/v1/health")).json() == {"status": "ok", "reason": ""}
    for path in ("/api/v1/experiments", "/metrics", "/", "/api/v1/nonesuch", "/api/v1/openapi.json"):
        answer = await api.anonymous.get(path)
        assert answer.status_code == 401, path
        assert answer.json()["title"] == "Not authorized"


async def test_a_wrong_token_is_told_from_a_missing_one(api: Any) -> None:
    async def refusal(**headers: str) -> httpx.Response:
        answer = await api.anonymous.get("/api/v1/nodes", headers=headers)
        assert answer.status_code == 401
        return answer

    missing = await refusal()
    assert missing.json()["detail"].startswith("A token is needed")
    assert missing.headers["www-authenticate"] == "Bearer"
    wrong_tokens = ("x", "the-full-token-of-this-tesT", TOKENS.full[:-1], "the-token-of-another-manager")
    for headers in (
        *({"Authorization": f"Bearer {token}"} for token in wrong_tokens),
        {"Cookie": f"{TOKENS.cookie_name}=of-another-manager"},
    ):
        wrong = await refusal(**headers)
        assert wrong.json()["detail"].startswith("The token is wrong"), wrong.text
        assert "needed" not in wrong.json()["detail"]
        assert wrong.headers["www-authenticate"] == 'Bearer error="invalid_token"'
    page = await api.anonymous.get("/?token=wrong", headers={"Accept": "text/html"})
    assert page.status_code == 401
    assert "The token in this link is wrong" in page.text
    assert "proctor webui url" in page.text
    assert "This page needs a token" in (await api.anonymous.get("/", headers={"Accept": "text/html"})).text


async def test_a_session_says_what_its_token_or_cookie_allows(api: Any) -> None:
    cookie = {"Cookie": f"{TOKENS.cookie_name}={TOKENS.cookie(Access.READ)}"}
    for headers, access in ((FULL, "full"), (READ, "read-only"), (cookie, "read-only")):
        body = (await api.anonymous.get("/api/v1/session", headers=headers)).json()
        assert body["access"] == access
        assert body["url_prefix"] == ""
        assert body["limits"]["table_rows"] == 100_000
    assert (await api.anonymous.get("/api/v1/session")).status_code == 401
    api.context.public_url = "https://box.example/lab"
    assert (await api.get("/api/v1/session"))["url_prefix"] == "/lab"


async def test_the_read_only_token_may_only_read_and_the_full_token_may_end_the_manager(api: Any) -> None:
    assert (await api.anonymous.get("/api/v1/experiments", headers=READ)).status_code == 200
    for method, path in (("POST", "/api/v1/shutdown"), ("DELETE", "/api/v1/experiments/x"), ("PATCH", "/x")):
        assert (await api.anonymous.request(method, path, headers=READ)).status_code == 403, path
    assert api.shutdowns == []
    await api.post("/api/v1/shutdown", status=202)
    assert api.shutdowns == [None]


async def test_an_unknown_host_name_is_refused_with_the_flag_that_allows_it_and_the_loopback_is_known(api: Any) -> None:
    for host in ("evil.example", "evil.example:8080", "10.0.0.5", "127.0.0.1.evil.example", ""):
        assert "--allowed-host" in (await api.get("/api/v1/health", headers={"Host": host}, status=403))["detail"]
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1:9", "127.8.8.8", "[::1]:80", "a.localhost"):
        assert (await api.client.get("/api/v1/health", headers={"Host": host})).status_code == 200, host


def test_where_other_machines_may_come_any_address_is_known_but_no_other_name() -> None:
    guard = HostGuard(bound="0.0.0.0", allowed=("gpu-box.example",))
    assert guard.allows("10.0.0.5:8080")
    assert guard.allows("GPU-box.example")
    assert not guard.allows("evil.example")
    assert HostGuard(bound="127.0.0.1", allowed=("*",)).allows("evil.example")


async def test_the_pages_token_becomes_a_cookie_and_leaves_the_address(api: Any) -> None:
    answer = await api.anonymous.get(f"/experiments/x?sort=value&token={TOKENS.full}")
    assert answer.status_code == 303
    assert answer.headers["location"] == "./x?sort=value"
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=strict" in cookie
    assert (await api.anonymous.get("/")).status_code == 200


@pytest.mark.parametrize("token", [TOKENS.full, TOKENS.readonly])
async def test_the_cookie_does_not_hold_the_token_and_is_none(api: Any, token: str) -> None:
    """Who reads it off a browser's disk gets into the page, not into everything that the token opens."""
    assert token not in (await api.anonymous.get(f"/?token={token}")).headers["set-cookie"]
    [value] = [value for name, value in api.anonymous.cookies.items() if name == TOKENS.cookie_name]
    api.anonymous.cookies.clear()
    for header in ({"Authorization": f"Bearer {value}"}, {"Cookie": f"{TOKENS.cookie_name}={token}"}):
        assert (await api.anonymous.get("/api/v1/nodes", headers=header)).status_code == 401
    assert (await api.anonymous.get("/api/v1/nodes", params={"token": value})).status_code == 401
    assert (await api.anonymous.get(f"/?token={value}")).status_code == 401


async def test_the_cookie_of_the_read_only_token_may_only_read(api: Any) -> None:
    await api.anonymous.get(f"/?token={TOKENS.readonly}")
    own = {"Sec-Fetch-Site": "same-origin"}
    assert (await api.anonymous.get("/api/v1/nodes", headers=own)).status_code == 200
    assert (await api.anonymous.post("/api/v1/shutdown", headers=own)).status_code == 403


async def test_a_cookie_changes_something_only_from_our_own_page(api: Any) -> None:
    await api.anonymous.get(f"/?token={TOKENS.full}")
    for headers in (
        {},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "cross-site", "Origin": "http://127.0.0.1:8080"},
        {"Origin": "http://127.0.0.1:9999"},
    ):
        assert (await api.anonymous.post("/api/v1/shutdown", headers=headers)).status_code == 403
    own = {"Sec-Fetch-Site": "same-origin"}
    assert (await api.anonymous.post("/api/v1/shutdown", headers=own)).status_code == 202


async def test_every_answer_carries_the_security_headers(api: Any) -> None:
    for client, path in ((api.client, "/"), (api.anonymous, "/"), (api.client, "/api/v1/nodes")):
        headers = (await client.get(path)).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/lab/api/v1/health", "/api/v1/health"])
async def test_a_prefix_may_be_passed_on_by_a_proxy_or_taken_off(api: Any, path: str) -> None:
    inner = api.client._transport.app._app
    named, hosts = api.context.named_tokens, HostGuard(bound="127.0.0.1")
    guard = Guard(inner, tokens=TOKENS, named_tokens=named, hosts=hosts, url_prefix="/lab")
    async with httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://localhost") as client:
        assert (await client.get(path)).status_code == 200
        assert "Path=/lab/" in (await client.get(f"/lab/?token={TOKENS.full}")).headers["set-cookie"]


async def test_keepers_are_not_served_on_the_port(api: Any) -> None:
    for route in ("hello", "register", "commands", "report"):
        assert (await api.client.post(f"/api/v1/keepers/local/{route}", json={})).status_code == 404
