"""A manager with its home, and a client of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.served_manager import ServedManager

from proctor.sdk.client import Client


@pytest.fixture(autouse=True)
def close_clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Close what experiments have opened; it stays open as long as they are there."""
    made: list[Client] = []
    begin = Client.__init__

    def note(client: Client, *arguments: Any, **options: Any) -> None:
        begin(client, *arguments, **options)
        made.append(client)

    monkeypatch.setattr(Client, "__init__", note)
    yield
    for client in made:
        client.close()


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedManager]:
    with ServedManager(tmp_path / "home") as manager:
        yield manager


@pytest.fixture
def client(served: ServedManager) -> Iterator[Client]:
    with Client(home=served.home) as found:
        yield found
