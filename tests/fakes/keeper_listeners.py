"""The manager's routes for keepers, served in a test: on a Unix socket, or over TLS."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from proctor.manager.api.keepers import keeper_application
from proctor.manager.process.server import HttpServer, TlsHttpServer
from proctor.manager.process.sockets import KeeperListener
from proctor.training_services.keepers.hub import KeeperHub


@asynccontextmanager
async def listening(hub: KeeperHub, path: Path) -> AsyncIterator[None]:
    """Serve on a Unix socket; on leaving, as a manager that is gone."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(128)
        listener.setblocking(False)
        async with serving(HttpServer(keeper_application(hub)), hub, listener):
            yield


@asynccontextmanager
async def listening_over_tls(hub: KeeperHub, listener: KeeperListener) -> AsyncIterator[None]:
    """Serve on a TCP port, with the home's certificate."""
    with listener.socket:
        async with serving(TlsHttpServer(keeper_application(hub), listener.context), hub, listener.socket):
            yield


@asynccontextmanager
async def serving(server: HttpServer, hub: KeeperHub, listener: socket.socket) -> AsyncIterator[None]:
    """Serve keepers until the block ends; then as a manager that is killed: what is open is cut off, however slowly the
    other side would have closed it."""
    async with asyncio.TaskGroup() as group:
        group.create_task(server.serve_on(listener), name="keepers")
        await server.serving.wait()
        try:
            yield
        finally:
            hub.close()
            cut_off(server)
            server.leave()
    while server.server_state.connections:
        cut_off(server)  # what was just being accepted
        await asyncio.sleep(0)


def cut_off(server: HttpServer) -> None:
    """End all connections at once."""
    for connection in tuple(server.server_state.connections):
        connection.transport.abort()
