"""What the tests of connections share."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fakes.connections import PASSWORDS, connected
from fakes.ssh_server import FakeSshServer, Wanted, ssh_server

from proctor.training_services.ssh.connection import Connection


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's home on the manager's machine, without an agent."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return tmp_path


@pytest.fixture
def wanted() -> Wanted:
    """What the SSH server asks for and allows."""
    return Wanted(passwords=PASSWORDS)


@pytest.fixture
async def server(wanted: Wanted) -> AsyncIterator[FakeSshServer]:
    """An SSH server, whose host key is not known."""
    async with ssh_server(wanted) as running:
        yield running


@pytest.fixture
async def there(server: FakeSshServer) -> AsyncIterator[Connection]:
    """A connection to it."""
    async with connected(server) as connection:
        yield connection
