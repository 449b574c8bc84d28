"""The routes of the API in groups, each of which is imported and built when the first of its requests arrives.

The table says which group answers a path without importing any of them, so this module is free of the web framework.
Within a group the paths stand in the order in which they are declared; a test compares both.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from re import Pattern
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from fastapi import FastAPI

API_PREFIX = "/api/v1"
HEALTH_PATH = f"{API_PREFIX}/health"
DOCUMENT_PATH = f"{API_PREFIX}/openapi.json"
F = TypeVar("F", bound=Callable[..., Any])
_WITHOUT_DATABASE = tuple(f"{API_PREFIX}{path}" for path in ("/shutdown", "/tokens", "/platforms"))
_READ = ("GET",)
_CHANGE = ("POST",)


class Routes:
    """The routes of one noun, in order. A router of FastAPI would build each of them twice: for itself, and for the
    application that includes it."""

    def __init__(self, prefix: str = "", *, tags: list[str]) -> None:
        self._prefix = prefix
        self._tags = tags
        self._declared: list[tuple[str, str, Callable[..., Any], dict[str, Any]]] = []

    def get(self, path: str, **options: Any) -> Callable[[F], F]:
        """Declare a function that reads; `options` are those of `FastAPI.get`."""
        return self._declare("GET", path, options)

    def post(self, path: str, **options: Any) -> Callable[[F], F]:
        """Declare a function that makes or does something."""
        return self._declare("POST", path, options)

    def put(self, path: str, **options: Any) -> Callable[[F], F]:
        """Declare a function that replaces something."""
        return self._declare("PUT", path, options)

    def patch(self, path: str, **options: Any) -> Callable[[F], F]:
        """Declare a function that changes something."""
        return self._declare("PATCH", path, options)

    def delete(self, path: str, **options: Any) -> Callable[[F], F]:
        """Declare a function that deletes something."""
        return self._declare("DELETE", path, options)

    def _declare(self, method: str, path: str, options: dict[str, Any]) -> Callable[[F], F]:
        def declare(function: F) -> F:
            self._declared.append((method, path, function, options))
            return function

        return declare

    def add_to(self, app: "FastAPI", prefix: str) -> None:
        """Have an application answer them below a prefix."""
        for method, path, function, options in self._declared:
            place = prefix + self._prefix + path
            app.add_api_route(place, function, methods=[method], tags=list(self._tags), **options)


@dataclass(frozen=True)
class RouteGroup:
    """Routes that are built together."""

    location: str
    """`module:attribute` in `manager/api/routes`; empty for the document, which describes all groups."""
    paths: Mapping[str, tuple[str, ...]]
    """What is below the prefix, and the methods that it answers."""
    prefix: str = API_PREFIX

    def __hash__(self) -> int:
        return hash(self.location)


_EXPERIMENT = "/experiments/{experiment_id}"
_TRIAL = "/trials/{trial_id}"
_NODE = "/nodes/{node_id}"

GROUPS = (
    RouteGroup(
        "system:routes",
        {
            "/health": _READ,
            "/version": _READ,
            "/session": _READ,
            "/events": _READ,
            "/logs/manager": _READ,
            "/stop-all": _CHANGE,
            "/shutdown": _CHANGE,
        },
    ),
    RouteGroup("tokens:routes", {"/tokens": ("GET", "POST"), "/tokens/{name}": ("DELETE",)}),
    RouteGroup("dashboard:routes", {"/saved-page": _READ}),
    RouteGroup(
        "nodes:routes",
        {
            "/nodes": _READ,
            _NODE: _READ,
            f"{_NODE}/check": _CHANGE,
            f"{_NODE}/drain": _CHANGE,
            f"{_NODE}/resume": _CHANGE,
            f"{_NODE}/collect": _CHANGE,
            f"{_NODE}/forget": _CHANGE,
        },
    ),
    RouteGroup(
        "nodes:platforms",
        {"/platforms/check": _CHANGE, "/platforms/render": _CHANGE, "/platforms/clean": _CHANGE},
    ),
    RouteGroup("occupancy:routes", {f"{_NODE}/occupancy": _READ}),
    RouteGroup("events:routes", {f"{_EXPERIMENT}/events": _READ}),
    RouteGroup(
        "results:routes",
        {
            f"{_EXPERIMENT}/best": _READ,
            f"{_EXPERIMENT}/curve": _READ,
            f"{_EXPERIMENT}/table": _READ,
            f"{_EXPERIMENT}/export": _READ,
            f"{_EXPERIMENT}/imported": _READ,
            f"{_EXPERIMENT}/import": _CHANGE,
            f"{_EXPERIMENT}/logs": _READ,
        },
    ),
    RouteGroup("changes:routes", {f"{_EXPERIMENT}/changes": _READ}),
    RouteGroup(
        "curves:routes",
        {
            f"{_EXPERIMENT}/curves": _READ,
            f"{_EXPERIMENT}/curves/keys": _READ,
            f"{_EXPERIMENT}/curves/density": _READ,
        },
    ),
    RouteGroup("failures:routes", {f"{_EXPERIMENT}/failures": _READ}),
    RouteGroup("importance:routes", {f"{_EXPERIMENT}/importance": _READ}),
    RouteGroup("log_search:routes", {f"{_EXPERIMENT}/logs/search": _READ, f"{_TRIAL}/logs/search": _READ}),
    RouteGroup(
        "saved_views:routes",
        {f"{_EXPERIMENT}/views": _READ, f"{_EXPERIMENT}/views/{{name:path}}": ("PUT", "DELETE")},
    ),
    RouteGroup("schedulers:routes", {f"{_EXPERIMENT}/scheduler": _READ}),
    RouteGroup(
        "trials:routes",
        {
            f"{_EXPERIMENT}/trials": ("GET", "POST"),
            "/trials": _READ,
            _TRIAL: _READ,
            f"{_TRIAL}/kill": _CHANGE,
            f"{_TRIAL}/pause": _CHANGE,
            f"{_TRIAL}/resume": _CHANGE,
            f"{_TRIAL}/retry": _CHANGE,
            f"{_TRIAL}/clone": _CHANGE,
            f"{_TRIAL}/jobs": _READ,
            f"{_TRIAL}/metrics": _READ,
            f"{_TRIAL}/ranks": _READ,
            f"{_TRIAL}/curve": _READ,
            f"{_TRIAL}/checkpoints": _READ,
            f"{_TRIAL}/checkpoints/{{checkpoint_id}}/tar": _READ,
            f"{_TRIAL}/logs": _READ,
            f"{_TRIAL}/files": _READ,
            f"{_TRIAL}/files/{{path:path}}": _READ,
        },
    ),
    RouteGroup(
        "experiments:routes",
        {
            "/experiments": ("GET", "POST"),
            "/experiments/load": _CHANGE,
            _EXPERIMENT: ("GET", "PATCH", "DELETE"),
            f"{_EXPERIMENT}/stop": _CHANGE,
            f"{_EXPERIMENT}/resume": _CHANGE,
            f"{_EXPERIMENT}/pause": _CHANGE,
            f"{_EXPERIMENT}/view": _CHANGE,
        },
    ),
    RouteGroup("system:root_routes", {"/metrics": _READ}, prefix=""),
)
"""In the order of the document."""

DOCUMENT = RouteGroup("", {"/openapi.json": _READ})


def group_of(path: str, method: str) -> RouteGroup | None:
    """The group that answers a request, be it that it refuses the method or names the path with or without a slash at
    its end; None: no group does."""
    return _find(path, method) or _find(path.removesuffix("/") if path.endswith("/") else f"{path}/", method)


def _find(path: str, method: str) -> RouteGroup | None:
    found = [(group, methods) for pattern, methods, group in _patterns() if pattern.match(path)]
    answering = [group for group, methods in found if method in methods]
    return next(iter(answering or [group for group, _ in found]), None)


def without_database(path: str) -> bool:
    """Whether a change can be made while the control database cannot be written."""
    return any(path == whole or path.startswith(f"{whole}/") for whole in _WITHOUT_DATABASE)


def allowed_methods(path: str) -> list[str]:
    """What a path answers, sorted; nothing for one that is in no group, and for the document."""
    found = (methods for pattern, methods, group in _patterns() if group is not DOCUMENT and pattern.match(path))
    return sorted({method for methods in found for method in methods})


@cache
def _patterns() -> list[tuple[Pattern[str], tuple[str, ...], RouteGroup]]:
    from starlette.routing import compile_path

    return [
        (compile_path(group.prefix + path)[0], methods, group)
        for group in (*GROUPS, DOCUMENT)
        for path, methods in group.paths.items()
    ]
