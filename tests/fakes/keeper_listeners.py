"""The manager's routes for keepers, served in a test: on a Unix socket, or over TLS."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import uvicorn

from proctor.manager.api.keepers import keeper_application
from proctor.manager.process.server import TlsHttpServer
from proctor.manager.process.sockets import KeeperListener
from proctor.training_services.keepers.hub import KeeperHub


@asynccontextmanager
async def listening(hub: KeeperHub, socket: Path) -> AsyncIterator[None]:
    """Serve on a Unix socket; on leaving, as a manager that is gone."""
    config = uvicorn.Config(keeper_application(hub), uds=str(socket), lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    async with asyncio.TaskGroup() as group:
        task = group.create_task(server.serve(), name="keeper routes")
        async with asyncio.timeout(20):
            while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
                await asyncio.sleep(0.001)
        try:
            yield
        finally:
            hub.close()
            server.should_exit = server.force_exit = True
            await task


@asynccontextmanager
async def listening_over_tls(hub: KeeperHub, listener: KeeperListener) -> AsyncIterator[None]:
    """Serve on a TCP port, with the home's certificate."""
    server = TlsHttpServer(keeper_application(hub), listener.context)
    with listener.socket:
        async with asyncio.TaskGroup() as group:
            group.create_task(server.serve_on(listener.socket), name="keepers over TLS")
            await server.serving.wait()
            try:
                yield
            finally:
                hub.close()
                server.leave()
