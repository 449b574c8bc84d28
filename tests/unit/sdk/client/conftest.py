"""A manager with its home, and a client of it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.rest import FakeRest

from proctor.sdk.client import Client


@pytest.fixture
def rest(tmp_path: Path) -> Iterator[FakeRest]:
    with FakeRest(tmp_path / "home") as manager:
        yield manager


@pytest.fixture
def client(rest: FakeRest) -> Iterator[Client]:
    with Client(home=rest.home) as found:
        yield found
