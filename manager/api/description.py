"""The API in FastAPI: one group of its routes as an application, or all of them with the document that describes them.

Importing this, and the routes, takes longer than all else of a start, so nothing does before the first request to the
API; `application` has that done in a thread.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from proctor.manager.api.context import ApiContext
from proctor.manager.api.errors import MEDIA_TYPE, ProblemFields, install_error_handlers, problem_response
from proctor.manager.api.groups import DOCUMENT, DOCUMENT_PATH, GROUPS, RouteGroup, Routes
from proctor.manager.api.guard import OPEN_PATHS
from proctor.manager.field_docs import DescribedFields

_DESCRIPTION = """\
Experiments, trials and nodes of one Proctor manager.

* Authorization: `Authorization: Bearer <token>`; a read-only token allows `GET` only.
* Every failure is a problem document (RFC 9457).
* Lists are `{items, next_cursor}`; ask again with `cursor` until `next_cursor` is null.
* Times are RFC 3339 in UTC. NaN and infinities are the words "NaN", "Infinity" and "-Infinity".
"""


class ProblemItem(DescribedFields, BaseModel):
    """One of several problems with the request."""

    key: str = Field(examples=["tuner.classArgs.optimize_mode"])
    """The key path as it was written; empty for the whole document."""
    message: str = Field(examples=["expected maximize or minimize, found 'max'"])
    """A sentence: what was expected, what was found, what to do."""
    file: str | None = None
    line: int | None = None
    """Counted from 1."""
    column: int | None = None
    """Counted from 1."""
    position: int | None = None
    """The character of a query parameter (`filter`, `sort`, `columns`) at which the problem is, counted from 0."""
    expected: str | None = None
    found: str | None = None
    nearest: str | None = None
    """The known key or name that is most similar to the one found."""


class Problem(DescribedFields, BaseModel):
    """An RFC 9457 problem document."""

    type: str = Field(default="about:blank", examples=["about:blank"])
    title: str = Field(examples=["Not found"])
    """The kind of problem; the same for every problem of this kind."""
    status: int = Field(examples=[404])
    detail: str = Field(examples=["There is no experiment Ab3dE5f7; `proctor experiment list` shows all"])
    """What happened this time, and what to do."""
    instance: str | None = Field(default=None, examples=["/api/v1/experiments/Ab3dE5f7"])
    problems: list[ProblemItem] | None = None
    """Every problem with the request."""


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


def openapi_document() -> dict[str, Any]:
    """The OpenAPI document of the whole API."""
    return _build(None, GROUPS).openapi()


def build_group(group: RouteGroup, context: ApiContext) -> FastAPI:
    """The application that answers the requests of one group. Blocks."""
    if group is not DOCUMENT:
        return _build(context, (group,))
    app = _build(context, GROUPS)
    app.openapi()  # kept; it takes as long as all else
    return app


def _build(context: ApiContext | None, groups: tuple[RouteGroup, ...]) -> FastAPI:
    app = _Application(
        title="Proctor",
        version="1",
        description=_DESCRIPTION,
        openapi_url=DOCUMENT_PATH if groups is GROUPS else None,
        docs_url=None,  # both pages load scripts from elsewhere
        redoc_url=None,
        responses={"default": {"description": "A problem", "content": {MEDIA_TYPE: {}}, "model": Problem}},
        generate_unique_id_function=lambda route: route.name,
        dependencies=[Depends(_refuse_unknown_parameters)],
    )
    app.state.context = context
    _install_problems(app)
    for group in groups:
        module, _, name = group.location.partition(":")
        routes = getattr(import_module(f"proctor.manager.api.routes.{module}"), name)
        assert isinstance(routes, Routes)
        routes.add_to(app, group.prefix)
    return app


async def _refuse_unknown_parameters(request: Request) -> None:
    """As for the keys of a body: a misspelled filter must not answer with everything."""
    if not request.query_params:
        return
    known = _query_parameters(request.scope["route"].dependant)
    expected = f"expected {', '.join(sorted(known))}" if known else "this address takes none"
    message = f"there is no query parameter of this name; {expected}"
    problems = [
        {"type": "extra_forbidden", "loc": ("query", name), "msg": message, "input": None}
        for name in dict.fromkeys(request.query_params)
        if name not in known
    ]
    if problems:
        raise RequestValidationError(problems)


def _query_parameters(dependant: Dependant) -> set[str]:
    own = {field.alias for field in dependant.query_params}
    return own.union(*map(_query_parameters, dependant.dependencies))


def _install_problems(app: FastAPI) -> None:
    """Every error of this app becomes a problem document, invalid requests included."""
    install_error_handlers(app)
    app.add_exception_handler(RequestValidationError, _validation_error)


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = [_validation_item(item) for item in error.errors()]
    detail = "; ".join(
        f"{item['key']}: {item['message']}" if item["key"] else str(item["message"]) for item in problems
    )
    return problem_response(422, "Bad request", detail, instance=request.url.path, problems=problems)


def _validation_item(item: Mapping[str, Any]) -> ProblemFields:
    place, *path = item["loc"]
    if item["type"] == "json_invalid":
        reason = item.get("ctx", {}).get("error", "")
        return {"key": "", "message": f"the body is not valid JSON: {reason} at character {path[0]}"}
    key = ".".join(str(step) for step in path)
    if place in ("query", "path", "header"):
        key = f"{place} {key}"
    given = item.get("input")
    if not isinstance(given, (str, int, float, bool)):
        return {"key": key, "message": item["msg"]}
    return {"key": key, "message": f"{item['msg']}, found {given!r}", "found": repr(given)}
