"""A browser on the dashboard of a real manager: Debian's Chromium, driven by Playwright; and what Node checks.

A test that lacks Node or the browser is skipped with the reason, or fails with it where `PROCTOR_TEST_REQUIRE` names
`webui`, as continuous integration does.
"""

import json
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import parse_qs, urlsplit

import pytest
from fakes.machines.requirements import find_program
from fakes.real_manager import RealManager

from proctor.sdk.files import lock_file

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

ROOT = Path(__file__).parents[2]
WEBUI = ROOT / "webui"
BROWSER = "chromium-headless-shell"
PATIENCE_MILLISECONDS = 30_000


def skip_or_fail(reason: str) -> NoReturn:
    """Skip this test, unless it must run here."""
    if "webui" in os.environ.get("PROCTOR_TEST_REQUIRE", "").split():
        pytest.fail(f"PROCTOR_TEST_REQUIRE names webui, but {reason}", pytrace=False)
    pytest.skip(reason)


@cache
def node_tools() -> dict[str, str]:
    """The environment in which npm's programs run in `webui/`, whose packages are installed if they were not."""
    if find_program("npm") is None:
        skip_or_fail("the dashboard is built with Node: make test-servers")
    with (WEBUI / "package.json").open() as locked:  # several workers may want them at once
        lock_file(locked.fileno(), waits=True)
        done = subprocess.run(
            ["make", "webui/node_modules/ready"], cwd=ROOT, capture_output=True, text=True, check=False
        )
    if done.returncode:
        skip_or_fail(f"the packages of webui/ cannot be installed: {done.stderr[-2000:]}")
    return {**os.environ, "CI": "1", "NO_COLOR": "1"}


@contextmanager
def browsing() -> Iterator["Browser"]:
    """A browser."""
    program = find_program(BROWSER)
    if program is None:
        skip_or_fail(f"the dashboard is tested with {BROWSER}: make test-servers")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass(frozen=True)
class Screen:
    """What a person looks at."""

    theme: str
    width: int
    """Pixels."""

    def __str__(self) -> str:
        return f"{self.theme}-{self.width}"

    @property
    def options(self) -> dict[str, Any]:
        """Of Playwright's browser context."""
        return {"color_scheme": self.theme, "viewport": {"width": self.width, "height": 900}}


class Visitor:
    """A person with a browser of their own who has opened the link with a token.

    What the page logs as an error is a failure of the test: a violated security policy, too, is logged.
    """

    def __init__(self, context: "BrowserContext", url: str, token: str) -> None:
        self.url = url.rstrip("/")
        self.context = context
        self.errors: list[str] = []
        self.expected_errors: tuple[str, ...] = ()
        """Parts of messages that this test causes."""
        self.page: Page = self.open(f"/?token={token}")

    def open(self, path: str) -> "Page":
        """A new tab."""
        page = self.context.new_page()
        page.set_default_timeout(PATIENCE_MILLISECONDS)
        page.on("console", lambda message: self._note(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.goto(f"{self.url}{path}")
        return page

    def goto(self, path: str) -> "Page":
        """The first tab at another address."""
        self.page.goto(f"{self.url}{path}")
        return self.page

    def _note(self, text: str) -> None:
        if not any(part in text for part in self.expected_errors):
            self.errors.append(text)


@contextmanager
def visiting(
    browser: "Browser", manager: RealManager, *, token: str = "token", url: str = "", **options: Any
) -> Iterator[Visitor]:
    """Visit a manager's dashboard. `token`: the file in its home; `options`: of Playwright's browser context."""
    context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}, **options})
    visitor = Visitor(context, url or manager.client.url, (manager.home / token).read_text().strip())
    try:
        yield visitor
        assert visitor.errors == [], visitor.errors
    finally:
        context.close()


def accessibility_problems(page: "Page") -> list[str]:
    """What axe-core finds on a page."""
    node_tools()
    page.evaluate((WEBUI / "node_modules/axe-core/axe.min.js").read_text())  # not bound by the page's policy
    found = page.evaluate("async () => (await axe.run(document, {resultTypes: ['violations']})).violations")
    return [f"{one['id']}: {json.dumps([node['html'][:200] for node in one['nodes']])}" for one in found]


def problems_on(page: "Page", screen: Screen) -> list[str]:
    """What is not accessible on a page, and whether it is wider than its screen."""
    width = page.evaluate("document.documentElement.scrollWidth")
    return [*accessibility_problems(page), *([f"{width} pixels wide"] if width > screen.width else [])]


def parameters_of(page: "Page") -> dict[str, list[str]]:
    """What is in the query of a page's address."""
    return parse_qs(urlsplit(page.url).query)


class _Forwarder(BaseHTTPRequestHandler):
    """Takes a prefix off, passes the request on, and sends the answer when it is complete."""

    target: str
    prefix: str

    def _forward(self) -> None:
        if not self.path.startswith(self.prefix + "/"):
            self.send_error(404)
            return
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = [(name, value) for name, value in self.headers.items() if name not in ("Connection", "Host")]
        connection = HTTPConnection(self.target, timeout=PATIENCE_MILLISECONDS / 1000)
        try:
            passed = dict([*headers, ("Host", self.headers["Host"])])
            connection.request(self.command, self.path.removeprefix(self.prefix), body, passed)
            answer = connection.getresponse()
            data = answer.read()  # never ends for the stream of changes
        except OSError:
            self.send_error(504)
            return
        finally:
            connection.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_POST = do_PATCH = do_DELETE = _forward

    def log_message(self, format: str, *args: object) -> None:
        """Quietly."""


@contextmanager
def buffering_proxy(url: str, prefix: str) -> Iterator[str]:
    """The same manager at another address: below a prefix that it does not know, and without streams."""
    target = url.removeprefix("http://").rstrip("/")
    handler = type("Forwarder", (_Forwarder,), {"target": target, "prefix": prefix})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.block_on_close = False
    thread = threading.Thread(target=server.serve_forever, name="proxy", daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}{prefix}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
