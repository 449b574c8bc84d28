"""The dashboard as the manager serves it: one index for every address, and the built files."""

import gzip
import re
from itertools import product
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

import pytest

from proctor.manager.api.routes import dashboard

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[4]
LINKS = re.compile(r'(?:src|href|data-root)="([^"]*)"')


ROUTES = ["/", *re.findall(r'^  "(/[^"]+)": page', (ROOT / "webui/src/app.tsx").read_text(), re.MULTILINE)]


async def test_every_link_of_the_index_leads_to_the_root_from_any_depth(api: Any) -> None:
    """The prefix is a proxy's, which the manager need not know."""
    for prefix, route in product(["", "/tools/proctor"], ROUTES):
        path = route.replace(":id", "Ab3dE5f7")
        answer = await api.client.get(path)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8"), path
        root, *assets = LINKS.findall(answer.text)
        assert urljoin(f"http://host{prefix}{path}", root) == f"http://host{prefix}/"
        assert len(assets) >= 3
        for asset in assets:
            there = urljoin(f"http://host{prefix}{path}", asset)
            assert there.startswith(f"http://host{prefix}/assets/")
            assert (await api.client.get(there.removeprefix(f"http://host{prefix}"))).status_code == 200


def test_the_pages_are_found() -> None:
    assert {"/", "/experiments/:id", "/experiments/:id/trials", "/trials/:id", "/nodes", "/log"} <= {*ROUTES}


async def test_an_unknown_address_shows_the_page_that_says_so(api: Any) -> None:
    for path in ("/index.html", "/favicon.ico", "/experiments", "/a/b/c/d", "/apis", "/app/nodes"):
        answer = await api.client.get(path)
        assert answer.status_code == 404, path
        root, *_ = LINKS.findall(answer.text)
        assert urljoin(f"http://host{path}", root) == "http://host/"


async def test_an_unknown_address_of_the_api_is_a_problem_document(api: Any) -> None:
    paths = ("/api", "/api/", "/api/v1/nowhere", "/api/v2/nodes", "/assets/", "/assets/a/b")
    for method, path in product(("GET", "POST"), paths):
        answer = await api.client.request(method, path)
        assert (answer.status_code, answer.json()["status"]) == (404, 404), path


async def test_a_page_takes_no_changes(api: Any) -> None:
    answer = await api.client.post("/experiments/Ab3dE5f7")
    assert answer.status_code == 405
    assert {*answer.headers["allow"].split(", ")} == {"GET", "HEAD"}


async def test_head_is_answered_as_get_is_and_needs_a_token_too(api: Any) -> None:
    answer = await api.client.head("/nodes")
    assert answer.status_code == 200
    assert answer.headers["cache-control"] == "no-store"
    assert (await api.anonymous.head("/nodes")).status_code == 401


async def test_the_index_keeps_to_the_security_policy(api: Any) -> None:
    answer = await api.client.get("/")
    assert "script-src 'self'" in answer.headers["content-security-policy"]
    assert not re.search(r"<style|<base| style=| on[a-z]+=|<script(?![^>]* src=)", answer.text)
    assert answer.headers["cache-control"] == "no-store"


async def test_the_index_needs_a_token_and_the_assets_do_not(api: Any) -> None:
    index = await api.client.get("/")
    assert (await api.anonymous.get("/")).status_code == 401
    names = re.findall(r'"\./(assets/[^"]+)"', index.text)
    assert names
    for name in names:
        assert (await api.anonymous.get(f"/{name}")).status_code == 200


async def test_an_asset_is_compressed_for_who_takes_it_and_kept_forever(api: Any) -> None:
    (script,) = re.findall(r'src="\./(assets/[^"]+\.js)"', (await api.client.get("/")).text)
    built = (dashboard.STATIC / script).read_bytes()
    plain = await api.client.get(f"/{script}", headers={"Accept-Encoding": "identity"})
    assert plain.content == built
    assert "immutable" in plain.headers["cache-control"]
    async with api.client.stream("GET", f"/{script}", headers={"Accept-Encoding": "gzip"}) as answer:
        assert answer.headers["content-encoding"] == "gzip"
        assert answer.headers["content-type"].startswith("text/javascript")
        sent = b"".join([part async for part in answer.aiter_raw()])
    assert gzip.decompress(sent) == built


async def test_only_built_assets_are_served(api: Any) -> None:
    for name in ("gone-12345678.js", "..%2F..%2Findex.html", "../index.html", "%2e%2e/index.html"):
        assert (await api.anonymous.get(f"/assets/{name}")).status_code in (401, 404), name


async def test_a_page_that_is_not_built_says_how_to_build_it(
    api: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dashboard, "STATIC", tmp_path)
    dashboard.read_index.cache_clear()
    assert "make webui" in (await api.get("/", status=503))["detail"]


def test_the_script_stays_below_its_budget() -> None:
    """All of it, compressed: what a first visit loads at most."""
    scripts = [*(dashboard.STATIC / dashboard.ASSETS).glob("*.js")]
    assert sum(len(gzip.compress(path.read_bytes(), mtime=0)) for path in scripts) < 200_000
