"""HTTP on an open socket: uvicorn without its signal handlers and its clock."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from socket import socket

import uvicorn
from starlette.types import ASGIApp

SHUTDOWN_SECONDS = 3
KEEP_ALIVE_SECONDS = 75


class HttpServer(uvicorn.Server):
    """Serves one application on one listening socket. Two of these live beside each other in one process, so signals
    are the composition root's; and it waits for its end instead of looking for it ten times a second."""

    def __init__(self, app: ASGIApp) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=False,
                ws="none",
                timeout_keep_alive=KEEP_ALIVE_SECONDS,
                timeout_graceful_shutdown=SHUTDOWN_SECONDS,
            )
        )
        self.serving = asyncio.Event()
        self._leaving = asyncio.Event()

    async def serve_on(self, listener: socket) -> None:
        """Serve until `leave`."""
        await self.serve(sockets=[listener])

    def leave(self) -> None:
        """Take no more requests; those that are being answered get a few seconds."""
        self.should_exit = True
        self._leaving.set()

    async def startup(self, sockets: list[socket] | None = None) -> None:
        """As uvicorn's, and then say so."""
        await super().startup(sockets)
        self.server_state.default_headers = self.config.encoded_headers
        self.serving.set()

    async def main_loop(self) -> None:
        """Wait for the end."""
        await self._leaving.wait()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield
