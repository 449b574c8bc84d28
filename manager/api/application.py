"""The application behind the TCP port: health and the page at once, a group of the API's routes once it is asked for.

While the control database cannot be written, a request for a change is refused. One that was being answered when it
turned out is answered all the same, in time, and carried out when that is possible.

The web framework and the models of all routes take longer to load than all else of a manager's start, and a manager
that runs a few trials needs few of them. A group is built in a thread, so that the loop stays responsive, and only one
at a time; the requests for it wait.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from importlib import import_module

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from proctor.manager.api.context import ApiContext, health_of
from proctor.manager.api.errors import install_error_handlers, internal_error, problem_response
from proctor.manager.api.groups import GROUPS, HEALTH_PATH, RouteGroup, group_of, without_database
from proctor.manager.api.routes.dashboard import PAGE_ROUTES, is_page
from proctor.manager.security import SAFE_METHODS
from proctor.manager.store.database import Database
from proctor.manager.store.errors import DatabaseUnusable

log = logging.getLogger(__name__)

MOST_USED = ("experiments:routes", "system:routes")
"""What `create` and the page ask for first."""
MOST_USED_MODULE = "proctor.manager.config.loading"
"""What the engine imports with the first experiment."""
MOST_USED_SECONDS = 0.1
"""So long after the start they are loaded: the command that waits for the manager has seen it by then, and
prepares its request."""
REST_SECONDS = 3.0
"""So long after the start all else is loaded that was not asked for; many a manager is gone by then."""
REST_MODULE = "proctor.manager.engine.archive.importing"

BuildGroup = Callable[[RouteGroup, ApiContext], ASGIApp]


def build_group(group: RouteGroup, context: ApiContext) -> ASGIApp:
    """Import the web framework and a group of routes, and build its application. Blocks."""
    from proctor.manager.api import description

    return description.build_group(group, context)


class Application:
    """Answers requests that `Guard` has let through."""

    def __init__(self, context: ApiContext, build: BuildGroup = build_group) -> None:
        """:param build: what builds a group, in a thread."""
        self._context = context
        self._build = build
        self._groups: dict[RouteGroup, ASGIApp] = {}
        self._building = asyncio.Lock()
        self._page_is_open = asyncio.Event()
        self._light = _light_application(context)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        group = None
        if scope["type"] == "http" and (path := scope["path"]) != HEALTH_PATH:
            if is_page(path):
                self._page_is_open.set()
            else:
                group = group_of(path, scope["method"])
        app = self._light if group is None else self._groups.get(group) or await self._built_or_refusal(group, scope)
        if group is None or scope["method"] in SAFE_METHODS or without_database(scope["path"]):
            await app(scope, receive, send)
        else:
            await _Change(self._context.manager.control, app, scope, send).carry_out(receive)

    async def _built_or_refusal(self, group: RouteGroup, scope: Scope) -> ASGIApp:
        try:
            return await self._built(group)
        except Exception as error:  # no descriptors to read its files, or a package that is broken
            return await internal_error(Request(scope), error)

    async def _built(self, group: RouteGroup) -> ASGIApp:
        async with self._building:
            if group not in self._groups:
                self._groups[group] = await asyncio.to_thread(self._build, group, self._context)
            return self._groups[group]

    async def load_rest(self) -> None:
        """Load what was not asked for: what is most used at once, all else after some seconds, or when the page is
        opened. Requests that come later do not wait for it, and a package that is replaced under a manager that runs
        is not mixed with the old one."""
        first = [group for location in MOST_USED for group in GROUPS if group.location == location]
        try:
            await self._load(first, MOST_USED_MODULE, MOST_USED_SECONDS)
            await self._load(GROUPS, REST_MODULE, REST_SECONDS - MOST_USED_SECONDS)
        except Exception:  # a request that needs what is missing tries again, and is answered with the reason
            log.exception("not all parts of the API can be loaded", extra={"action": "api.load"})

    async def _load(self, groups: Iterable[RouteGroup], module: str, seconds: float) -> None:
        """Load groups and a module of the engine after so many seconds, or when the page is opened."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._page_is_open.wait()
        for group in groups:
            await self._built(group)
        await asyncio.to_thread(import_module, module)


class _Change:
    """A request for a change, and its only answer: that of the application, or that the database cannot be written."""

    def __init__(self, control: Database, app: ASGIApp, scope: Scope, send: Send) -> None:
        self._control = control
        self._app = app
        self._scope = scope
        self._send = send
        self._answered_by: object = None

    async def carry_out(self, receive: Receive) -> None:
        """Have the application answer, unless the database cannot be written."""
        try:
            self._control.require_writable()
        except DatabaseUnusable as error:
            await self._refuse(f"{error} Nothing was changed: repeat the request then.", receive)
            return
        failure: Exception | None = None
        handled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._answer_when_unwritable(handled, receive), name="watch the control database")
            try:
                await self._app(self._scope, receive, self._send_answer)
            except Exception as error:  # as it is, not in a group
                failure = error
            finally:
                handled.set_result(None)
        if failure is not None:
            raise failure

    async def _send_answer(self, message: Message) -> None:
        if self._answered_by is None:
            self._answered_by = self._app
        if self._answered_by is self._app:
            await self._send(message)

    async def _answer_when_unwritable(self, handled: "asyncio.Future[None]", receive: Receive) -> None:
        try:
            if not handled.done():
                self._control.require_writable()
                await self._control.until_done_or_unwritable(handled)
        except DatabaseUnusable as error:
            if self._answered_by is None:
                self._answered_by = self
                later = "is not done yet, and is done as soon as that is possible: look before you ask again."
                await self._refuse(f"{error} What was asked for {later}", receive)

    async def _refuse(self, detail: str, receive: Receive) -> None:
        refusal = problem_response(503, "Unavailable", detail, instance=self._scope["path"])
        await refusal(self._scope, receive, self._send)


def _light_application(context: ApiContext) -> Starlette:
    """What needs no web framework: health, the page, and the answer that there is nothing at an address."""

    async def get_health(request: Request) -> JSONResponse:
        return JSONResponse(health_of(context))

    health = Route(HEALTH_PATH, get_health)
    health.methods = {"GET"}  # HEAD is refused, as by the other routes
    app = Starlette(routes=[health, *PAGE_ROUTES])
    install_error_handlers(app)
    return app
