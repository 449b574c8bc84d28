"""What all tests of sessions share: the process is afterwards as it was."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def own_environment() -> Iterator[None]:
    """What user code does to the environment of this process is undone."""
    environment = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(environment)
