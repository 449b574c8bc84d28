"""The door of the TCP side: Host allow-list, token, read-only rule, security headers. Plain ASGI, before any route."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl, urlencode

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proctor.manager.actors import OWNER, READ_ONLY, Actor, Way
from proctor.manager.api.errors import problem_response
from proctor.manager.named_tokens import NamedToken, NamedTokens
from proctor.manager.security import SAFE_METHODS, Access, HostGuard, Tokens, comes_from_our_page, cookie_of

MAX_BODY_BYTES = 32 * 1024 * 1024
"""Files travel through the home's incoming folder; what is sent as a body is configurations and results."""
OPEN_PATHS = frozenset({"/api/v1/health"})
FULL_ACCESS_PATH = "/api/v1/tokens"
"""What is here and below it is not even shown to a read-only token."""
SENDER = "proctor.sender"
"""The key of a request's scope under which routes find who has sent it (`Sender`)."""
OPEN_FOLDER = "/assets/"  # style and script of the page; they hold nothing of the user's

SECURITY_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class Sender:
    """Who has sent a request: what it may do, the name of its token, and how it came."""

    access: Access
    actor: Actor
    revoked: asyncio.Event | None = None
    """Set when the token was revoked; None: it cannot be."""


class Guard:
    """Lets a request through to `app`, or answers it."""

    def __init__(
        self, app: ASGIApp, *, tokens: Tokens, named_tokens: NamedTokens, hosts: HostGuard, url_prefix: str = ""
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._named_tokens = named_tokens
        self._hosts = hosts
        self._prefix = url_prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope = dict(self._without_prefix(scope))
        answer = self._refusal(scope) or _too_large(Headers(scope=scope))
        await (answer or self._app)(scope, _bounded(receive), _with_security_headers(send))

    def _without_prefix(self, scope: Scope) -> Scope:
        """A reverse proxy may pass the prefix on or take it off; both arrive at the same routes."""
        path = scope["path"]
        if self._prefix and (path == self._prefix or path.startswith(self._prefix + "/")):
            return {**scope, "path": path[len(self._prefix) :] or "/", "raw_path": None}
        return scope

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if not self._hosts.allows(host):
            return _unknown_host(host)
        path = scope["path"]
        if path in OPEN_PATHS or path.startswith(OPEN_FOLDER):
            return None
        token = _page_token(scope)
        if token is not None and self._sender_of_token(token, Way.PAGE) is not None:
            return self._remember(scope, token)
        bearer, cookie = _bearer(headers), self._cookie(headers)
        if bearer is not None:
            sender = self._sender_of_token(bearer, _way(headers))
        else:
            sender = None if cookie is None else self._sender_of_cookie(cookie)
        if sender is None:
            return _unauthorized(scope, headers, was_given=bool(bearer or cookie or token))
        scope[SENDER] = sender
        return _may_not(scope, sender, by_cookie=bearer is None, headers=headers)

    def _sender_of_token(self, token: str, way: Way) -> Sender | None:
        return self._sender(self._tokens.access(token), self._named_tokens.find(token), way)

    def _sender_of_cookie(self, value: str) -> Sender | None:
        return self._sender(self._tokens.cookie_access(value), self._named_tokens.find_cookie(value), Way.PAGE)

    @staticmethod
    def _sender(access: Access, named: NamedToken | None, way: Way) -> Sender | None:
        if access is not Access.NONE:
            return Sender(access, Actor(OWNER if access is Access.FULL else READ_ONLY, way))
        return None if named is None else Sender(named.access, Actor(named.name, way), named.revoked)

    def _cookie(self, headers: Headers) -> str | None:
        try:
            morsel = SimpleCookie(headers.get("cookie", "")).get(self._tokens.cookie_name)
        except CookieError:
            return None
        return morsel.value if morsel else None

    def _remember(self, scope: Scope, token: str) -> Response:
        """The token of the page's first URL is exchanged for a cookie, and leaves the address bar."""
        request = Request(scope)
        left = urlencode([(key, value) for key, value in parse_qsl(request.url.query) if key != "token"])
        response = RedirectResponse(_relative(scope["path"], left), status_code=303)
        response.set_cookie(
            self._tokens.cookie_name,
            cookie_of(token),
            path=f"{self._prefix}/",
            httponly=True,
            samesite="strict",
            secure=request.headers.get("x-forwarded-proto") == "https",
            max_age=365 * 24 * 3600,
        )
        response.headers["Cache-Control"] = "no-store"
        return response


def _relative(path: str, query: str) -> str:
    """The same place as seen from itself, whatever a proxy has put in front of it."""
    last = path.rsplit("/", 1)[-1]
    return f"./{last}" + (f"?{query}" if query else "")


def _page_token(scope: Scope) -> str | None:
    if scope["method"] != "GET" or scope["path"].startswith("/api/") or b"token=" not in scope["query_string"]:
        return None
    return dict(parse_qsl(scope["query_string"].decode("latin-1"))).get("token")


def _bearer(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _unknown_host(host: str) -> Response:
    name = host.rsplit(":", 1)[0] or "(none)"
    return problem_response(
        403,
        "Unknown host",
        f"This manager does not answer under the host name {name}. If that name is yours, start the manager with "
        f"--allowed-host {name} (or PROCTOR_ALLOWED_HOSTS={name}).",
    )


def _unauthorized(scope: Scope, headers: Headers, *, was_given: bool) -> Response:
    """Ask for a token, or say that the one that `was_given` is not this manager's."""
    if scope["method"] == "GET" and "text/html" in headers.get("accept", "") and not scope["path"].startswith("/api/"):
        return _sign_in_page(headers, was_given=was_given)
    what = (
        "The token is wrong: it does not belong to this manager, whose home may be a different one than you expect"
        if was_given
        else "A token is needed: send 'Authorization: Bearer <token>'"
    )
    return problem_response(
        401,
        "Not authorized",
        f"{what}; the token is in the file `token` of the manager's home (for the command line: PROCTOR_TOKEN), and "
        "`proctor webui url` prints a link with it",
        instance=scope["path"],
        headers={"WWW-Authenticate": _challenge(was_given)},
    )


def _challenge(was_given: bool) -> str:
    return 'Bearer error="invalid_token"' if was_given else "Bearer"


def _sign_in_page(headers: Mapping[str, str], *, was_given: bool) -> Response:
    # A link from another site arrives without the Strict cookie; asked for again by our own page it comes with it.
    again = '<meta http-equiv="refresh" content="0">' if headers.get("sec-fetch-site") == "cross-site" else ""
    what = (
        "The token in this link is wrong, or the browser's sign-in is no longer valid."
        if was_given
        else "This page needs a token."
    )
    return HTMLResponse(
        f'<!doctype html><html lang="en"><meta charset="utf-8">{again}<title>Proctor</title>'
        '<meta name="viewport" content="width=device-width"><main><h1>Proctor</h1>'
        f"<p>{what} Run <code>proctor webui url</code> where the manager runs, "
        "and open the link that it prints.</p></main></html>",
        status_code=401,
        headers={"Cache-Control": "no-store", "WWW-Authenticate": _challenge(was_given)},
    )


def _way(headers: Mapping[str, str]) -> Way:
    """How a program that is not the page sends its requests: ours say so."""
    agent = headers.get("user-agent", "")
    return {"proctor-cli": Way.CLI, "proctor-sdk": Way.SDK}.get(agent, Way.REST)


def _may_not(scope: Scope, sender: Sender, *, by_cookie: bool, headers: Headers) -> Response | None:
    path, is_full = scope["path"], sender.access is Access.FULL
    if (path == FULL_ACCESS_PATH or path.startswith(FULL_ACCESS_PATH + "/")) and not is_full:
        return problem_response(403, "Refused", "This token is read-only; tokens are shown to a token with full access")
    if scope["method"] in SAFE_METHODS:
        return None
    if not is_full:
        return problem_response(403, "Refused", "This token is read-only; changing something needs the full token")
    if by_cookie and not comes_from_our_page(headers):
        return problem_response(403, "Refused", "A change that is authorized by a cookie must come from our own page")
    return None


def _too_large(headers: Headers) -> Response | None:
    length = headers.get("content-length", "0")
    if length.isdigit() and len(length) < 20 and int(length) <= MAX_BODY_BYTES:
        return None
    return problem_response(
        413,
        "Too large",
        f"A request may have at most {MAX_BODY_BYTES} bytes; found {length[:40]}. Split what you send.",
    )


def _bounded(receive: Receive) -> Receive:
    """`receive`, until a body that did not say its length is too long."""
    received = 0

    async def receive_bounded() -> Message:
        nonlocal received
        message = await receive()
        received += len(message.get("body", b""))
        if received > MAX_BODY_BYTES:
            raise HTTPException(413, f"A request may have at most {MAX_BODY_BYTES} bytes. Split what you send.")
        return message

    return receive_bounded


def _with_security_headers(send: Send) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return send_with_headers
