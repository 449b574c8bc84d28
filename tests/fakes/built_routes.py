"""Groups of the API's routes that are built once in a process: that takes longer than most tests."""

from fastapi import FastAPI

from proctor.manager.api import description
from proctor.manager.api.context import ApiContext
from proctor.manager.api.groups import RouteGroup

_built: dict[RouteGroup, FastAPI] = {}


def build_once(group: RouteGroup, context: ApiContext) -> FastAPI:
    """Return the application of a group. It belongs to the manager that asked for it last."""
    if group not in _built:
        _built[group] = description.build_group(group, context)
    _built[group].state.context = context
    return _built[group]
