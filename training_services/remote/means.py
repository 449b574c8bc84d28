"""What all machines of a manager share."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from proctor.training_services.providers import ProviderContext
from proctor.training_services.remote.bootstrap import NodeConnection
from proctor.training_services.remote.claims import Claim
from proctor.training_services.remote.door import Archive
from proctor.training_services.remote.route_trace import RouteTrace

__all__ = ["Connect", "Means"]


class Connect(Protocol):
    """How a machine is connected: `connection.open_connection` with what the manager knows."""

    def __call__(self, claim: Claim, trace: RouteTrace | None, /) -> AbstractAsyncContextManager[NodeConnection]:
        """A connection as an experiment's claim says; raises RemoteError on entering."""


@dataclass(frozen=True)
class Means:
    """How they are reached, and what keeps them out of each other's way."""

    context: ProviderContext
    connect: Connect
    gate: asyncio.Semaphore  # how many machines may be brought up at once, once they have let us in
    archive: Callable[[], Awaitable[Archive]]
    now: Callable[[], float]
    doors: Mapping[str, asyncio.Lock]  # by node id: whoever brings something there or takes everything away holds it
