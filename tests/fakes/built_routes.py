"""Groups of the API's routes that are built once in a process: that takes longer than most tests."""

from copy import copy

from fastapi import FastAPI
from starlette.datastructures import State

from proctor.manager.api import description
from proctor.manager.api.context import ApiContext
from proctor.manager.api.groups import RouteGroup

_built: dict[RouteGroup, FastAPI] = {}


def build_once(group: RouteGroup, context: ApiContext) -> FastAPI:
    """Return the application of a group: the routes are those of all managers, the state is this one's."""
    if group not in _built:
        _built[group] = description.build_group(group, context)
    made = copy(_built[group])
    made.state = State({"context": context})
    return made
