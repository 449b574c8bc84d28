"""Connections of the product to a server of the tests."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from fakes.ssh_server import HOST, FakeSshServer

from proctor.training_services.ssh.connection import Connection, HostKeys, open_connection
from proctor.training_services.ssh.settings import Login, MachineSettings

PASSWORDS = {"bob": "correct horse"}
PATIENCE_SECONDS = 60.0


@asynccontextmanager
async def connected(
    server: FakeSshServer, *, port: int | None = None, keep_alive_seconds: float = 60.0
) -> AsyncIterator[Connection]:
    """Bob's connection to a server that wants `PASSWORDS`."""
    machine = MachineSettings(host=HOST, port=port or server.port, user="bob", trust_on_first_use=True)
    async with open_connection(
        machine,
        Login(password=PASSWORDS["bob"]),
        host_keys=HostKeys(Path.home() / "known_hosts"),
        keep_alive_seconds=keep_alive_seconds,
        timeout_seconds=PATIENCE_SECONDS,
    ) as connection:
        yield connection
