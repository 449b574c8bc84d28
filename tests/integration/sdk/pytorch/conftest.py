"""The processes that die, for all tests of this folder."""

from collections.abc import Iterator

import pytest
from fakes.incarnations import Incarnations


@pytest.fixture(scope="package")
def incarnations() -> Iterator[Incarnations]:
    """One server, which has imported torch."""
    server = Incarnations()
    yield server
    server.close()
