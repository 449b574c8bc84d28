"""How a route receives its context."""

from typing import Annotated

from fastapi import Depends, Request

from proctor.manager.api.context import ApiContext


def _context(request: Request) -> ApiContext:
    context: ApiContext = request.app.state.context
    return context


Context = Annotated[ApiContext, Depends(_context)]
"""A route's parameter that receives the context."""
