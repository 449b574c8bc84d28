"""How the REST API fails: from exceptions to RFC 9457 problem documents, always `application/problem+json`.

Nothing else in the API knows how a failure looks to the client. The models of the documents are in `description`, as
are refusals of what does not fit the API's models: the guard, the page and the keepers' routes need neither.
"""

import logging
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from proctor.manager.api.groups import allowed_methods
from proctor.manager.errors import ManagerError
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
ProblemFields = Mapping[str, str | int]
"""One of several problems with a request: what `description.ProblemItem` describes, without fields that are null."""
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


def problem_response(
    status: int,
    title: str,
    detail: str,
    *,
    instance: str | None = None,
    problems: Sequence[ProblemFields] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    """A problem document; `description.Problem` describes it."""
    fields = {"instance": instance, "problems": problems}
    given = {name: value for name, value in fields.items() if value is not None}
    body = {"type": "about:blank", "title": title, "status": status, "detail": detail, **given}
    return JSONResponse(body, status_code=status, media_type=MEDIA_TYPE, headers=dict(headers or {}))


def install_error_handlers(app: Starlette) -> None:
    """Every error of this app becomes a problem document."""
    app.add_exception_handler(ManagerError, _manager_error)
    app.add_exception_handler(HTTPException, _http_error)
    for kind in FOREIGN_ERRORS:
        app.add_exception_handler(kind, _foreign_error)
    app.add_exception_handler(Exception, internal_error)


def describe_items(problems: Iterable[Any]) -> list[ProblemFields]:
    """The problems of a configuration or search space, or plain sentences, as they travel."""
    return [_describe_item(problem) for problem in problems]


def _describe_item(problem: Any) -> ProblemFields:
    if isinstance(problem, str):
        return {"key": "", "message": problem}
    key = getattr(problem, "key", None)
    if key is None:
        key = ".".join(str(step) for step in getattr(problem, "path", ()))
    fields = {
        "file": getattr(problem, "file", None),
        "line": getattr(problem, "line", None),
        "column": getattr(problem, "column", None),
        "position": getattr(problem, "position", None),
        "expected": getattr(problem, "expected", None) or None,
        "found": getattr(problem, "found", None) or None,
        "nearest": getattr(problem, "nearest", None),
    }
    known = {name: value for name, value in fields.items() if value is not None}
    return {"key": key, "message": _sentence(problem), **known}


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


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    title = HTTPStatus(error.status_code).phrase
    detail = error.detail
    if error.status_code == 404 and detail == title:
        detail = f"There is nothing at {request.url.path}; the API is at /api/v1, documented in /api/v1/openapi.json"
    if error.status_code == 405:
        # Several operations may share the path; Starlette names those of the first route only.
        allowed = ", ".join(allowed_methods(request.url.path)) or (error.headers or {}).get("Allow", "")
        detail = f"{request.url.path} does not answer {request.method}; it answers {allowed}"
        return problem_response(405, title, detail, instance=request.url.path, headers={"Allow": allowed})
    return problem_response(error.status_code, title, detail, instance=request.url.path, headers=error.headers)


async def internal_error(request: Request, error: Exception) -> Response:
    """A fault of ours, as a problem document; the log has its traceback."""
    logger.error("%s %s failed", request.method, request.url.path, exc_info=error, extra={"action": "request.fail"})
    detail = f"{type(error).__name__}: {error}; the traceback is in the manager's log (`proctor log manager`)"
    return problem_response(500, "Internal error", detail, instance=request.url.path)
