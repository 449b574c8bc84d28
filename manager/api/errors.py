"""How the REST API fails: from exceptions to RFC 9457 problem documents, always `application/problem+json`.

Nothing else in the API knows how a failure looks to the client.
"""

import logging
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import compile_path

from proctor.manager.errors import ManagerError
from proctor.manager.field_docs import DescribedFields
from proctor.manager.store.errors import (
    BadCursor,
    DatabaseUnusable,
    QueryRefused,
    ReadTimeout,
    RowNotFound,
    ValueRefused,
)
from proctor.training_services.errors import NodeInUse, ServiceUnavailable, UnknownNode, UnknownTrialJob

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
FOREIGN_ERRORS: dict[type[Exception], tuple[int, str]] = {
    BadCursor: (422, "Bad request"),
    QueryRefused: (422, "Bad request"),
    RowNotFound: (404, "Not found"),
    ValueRefused: (422, "Bad request"),
    ReadTimeout: (503, "Unavailable"),
    DatabaseUnusable: (503, "Unavailable"),
    UnknownTrialJob: (404, "Not found"),
    UnknownNode: (404, "Not found"),
    NodeInUse: (409, "Conflict"),
    ServiceUnavailable: (503, "Unavailable"),
    FileNotFoundError: (404, "Not found"),
    PermissionError: (403, "Refused"),
    IsADirectoryError: (404, "Not found"),
}
"""Errors of the layers below that reach the API as they are: class → status and title."""


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


def problem_response(
    status: int,
    title: str,
    detail: str,
    *,
    instance: str | None = None,
    problems: list[ProblemItem] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A problem document."""
    document = Problem(title=title, status=status, detail=detail, instance=instance, problems=problems)
    body = document.model_dump(mode="json", exclude_none=True)
    return JSONResponse(body, status_code=status, media_type=MEDIA_TYPE, headers=dict(headers or {}))


def install_error_handlers(app: FastAPI) -> None:
    """Every error of this app becomes a problem document."""
    app.add_exception_handler(ManagerError, _manager_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    app.add_exception_handler(HTTPException, _http_error)
    for kind in FOREIGN_ERRORS:
        app.add_exception_handler(kind, _foreign_error)
    app.add_exception_handler(Exception, _internal_error)


def describe_items(problems: Iterable[Any]) -> list[ProblemItem]:
    """The problems of a configuration or search space, or plain sentences, as they travel."""
    return [_describe_item(problem) for problem in problems]


def _describe_item(problem: Any) -> ProblemItem:
    if isinstance(problem, str):
        return ProblemItem(key="", message=problem)
    key = getattr(problem, "key", None)
    if key is None:
        key = ".".join(str(step) for step in getattr(problem, "path", ()))
    return ProblemItem(
        key=key,
        message=_sentence(problem),
        file=getattr(problem, "file", None),
        line=getattr(problem, "line", None),
        column=getattr(problem, "column", None),
        position=getattr(problem, "position", None),
        expected=getattr(problem, "expected", None) or None,
        found=getattr(problem, "found", None) or None,
        nearest=getattr(problem, "nearest", None),
    )


def _sentence(problem: Any) -> str:
    expected, found = getattr(problem, "expected", ""), getattr(problem, "found", "")
    clauses = [f"expected {expected}" + (f", found {found}" if found else "")] if expected else []
    clauses += [getattr(problem, "message", "")] if getattr(problem, "message", "") else []
    if getattr(problem, "nearest", None):
        clauses.append(f"did you mean {problem.nearest}?")
    return "; ".join(clauses) or str(problem)


async def _manager_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ManagerError)
    problems = getattr(error, "problems", ())
    return problem_response(
        error.status_code,
        error.title,
        str(error) or (error.__doc__ or "").splitlines()[0],
        instance=request.url.path,
        problems=describe_items(problems) if problems else None,
    )


async def _foreign_error(request: Request, error: Exception) -> Response:
    status, title = next(FOREIGN_ERRORS[kind] for kind in type(error).__mro__ if kind in FOREIGN_ERRORS)
    problems = describe_items([error]) if isinstance(error, QueryRefused) else None
    return problem_response(status, title, str(error) or title, instance=request.url.path, problems=problems)


async def _validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    problems = [_validation_item(item) for item in error.errors()]
    detail = "; ".join(f"{item.key}: {item.message}" if item.key else item.message for item in problems)
    return problem_response(422, "Bad request", detail, instance=request.url.path, problems=problems)


def _validation_item(item: Mapping[str, Any]) -> ProblemItem:
    place, *path = item["loc"]
    if item["type"] == "json_invalid":
        reason = item.get("ctx", {}).get("error", "")
        return ProblemItem(key="", message=f"the body is not valid JSON: {reason} at character {path[0]}")
    key = ".".join(str(step) for step in path)
    if place in ("query", "path", "header"):
        key = f"{place} {key}"
    given = item.get("input")
    found = repr(given) if isinstance(given, (str, int, float, bool)) else None
    return ProblemItem(key=key, message=item["msg"] + (f", found {found}" if found else ""), found=found)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    title = HTTPStatus(error.status_code).phrase
    detail = error.detail
    if error.status_code == 404 and detail == title:
        detail = f"There is nothing at {request.url.path}; the API is at /api/v1, documented in /api/v1/openapi.json"
    if error.status_code == 405:
        allowed = _allowed_methods(request, (error.headers or {}).get("Allow", ""))
        detail = f"{request.url.path} does not answer {request.method}; it answers {allowed}"
        return problem_response(405, title, detail, instance=request.url.path, headers={"Allow": allowed})
    return problem_response(error.status_code, title, detail, instance=request.url.path, headers=error.headers)


def _allowed_methods(request: Request, first: str) -> str:
    """What the path answers. Several operations may share it; Starlette names those of the first route only."""
    paths = request.app.openapi()["paths"]
    found = {
        method.upper() for path in paths if compile_path(path)[0].match(request.url.path) for method in paths[path]
    }
    return ", ".join(sorted(found)) or first


async def _internal_error(request: Request, error: Exception) -> Response:
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error, extra={"action": "request.fail"})
    detail = f"{type(error).__name__}: {error}; the traceback is in the manager's log (`proctor log manager`)"
    return problem_response(500, "Internal error", detail, instance=request.url.path)
