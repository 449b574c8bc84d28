"""Fixtures that every test may use."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The only event loop the product runs on."""
    return "asyncio"
