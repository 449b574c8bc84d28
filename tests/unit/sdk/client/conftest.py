"""A manager with its home, and a client of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.served_manager import ServedManager

from proctor.sdk.client import Client


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedManager]:
    with ServedManager(tmp_path / "home") as manager:
        yield manager


@pytest.fixture
def client(served: ServedManager) -> Iterator[Client]:
    with Client(home=served.home) as found:
        yield found
