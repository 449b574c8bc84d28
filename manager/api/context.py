"""What the routes work with, put into the application's state by the composition root. Free of the web framework."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from proctor.manager.api.densities import Densities
from proctor.manager.engine.manager import Manager
from proctor.manager.metrics import Measurements
from proctor.manager.named_tokens import NamedTokens
from proctor.manager.settings import Home


@dataclass
class ApiContext:
    """The manager, and what the API knows about the process around it."""

    manager: Manager
    home: Home
    named_tokens: NamedTokens
    public_url: str
    """Scheme, host, port and prefix under which people reach the page; no slash at the end."""
    started_at: float
    """Unix time."""
    request_shutdown: Callable[[], None]
    """Ask the process to end in good order."""
    measurements: Measurements = field(default_factory=Measurements)
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process is about to end: requests that are held open end."""
    stream_readers: int = 0
    """How many clients read the stream of changes."""
    densities: Densities = field(default_factory=Densities)
    """What charts of all curves show."""
    searches: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(2))
    """Held by those that search logs: each occupies a thread, and the disk."""
