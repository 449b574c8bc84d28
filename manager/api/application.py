"""The FastAPI application behind the TCP port."""

from typing import Any

from fastapi import APIRouter, FastAPI

from proctor.manager.api.context import ApiContext
from proctor.manager.api.errors import MEDIA_TYPE, Problem, install_error_handlers
from proctor.manager.api.guard import OPEN_PATHS
from proctor.manager.api.routes import (
    changes,
    curves,
    dashboard,
    events,
    experiments,
    failures,
    importance,
    log_search,
    nodes,
    occupancy,
    results,
    saved_views,
    schedulers,
    system,
    tokens,
    trials,
)

API_PREFIX = "/api/v1"

_DESCRIPTION = """\
Experiments, trials and nodes of one Proctor manager.

* Authorization: `Authorization: Bearer <token>`; a read-only token allows `GET` only.
* Every failure is a problem document (RFC 9457).
* Lists are `{items, next_cursor}`; ask again with `cursor` until `next_cursor` is null.
* Times are RFC 3339 in UTC. NaN and infinities are the words "NaN", "Infinity" and "-Infinity".
"""


class _Application(FastAPI):
    """Describes how requests are authorized; `Guard` checks it before any route is reached."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document."""
        if self.openapi_schema is None:
            document = super().openapi()
            document["components"]["securitySchemes"] = {
                "token": {"type": "http", "scheme": "bearer", "description": "A token of the home, or a named one."}
            }
            document["security"] = [{"token": []}]
            for path in OPEN_PATHS & document["paths"].keys():
                for operation in document["paths"][path].values():
                    operation["security"] = []
        return super().openapi()


def create_application(context: ApiContext | None) -> FastAPI:
    """The application; without a context it can only describe itself."""
    app = _Application(
        title="Proctor",
        version="1",
        description=_DESCRIPTION,
        openapi_url=f"{API_PREFIX}/openapi.json",
        docs_url=None,  # both pages load scripts from elsewhere
        redoc_url=None,
        responses={"default": {"description": "A problem", "content": {MEDIA_TYPE: {}}, "model": Problem}},
        generate_unique_id_function=lambda route: route.name,
    )
    app.state.context = context
    install_error_handlers(app)
    api = APIRouter(prefix=API_PREFIX)
    for router in (
        system.router,
        tokens.router,
        dashboard.api_router,
        nodes.router,
        occupancy.router,
        events.router,
        results.router,
        changes.router,
        curves.router,
        failures.router,
        importance.router,
        log_search.router,
        saved_views.router,
        schedulers.router,
        trials.router,
        experiments.router,
    ):
        api.include_router(router)
    app.include_router(api)
    app.include_router(system.root_router)
    app.include_router(dashboard.router)  # last: it answers all that is left
    return app
