"""Fixtures that every test may use, and how property tests run: no test asserts a time, and on a loaded machine any
example may take some. With `--hypothesis-profile few`, as in `make test-fast`, each tries a quarter of its examples.
"""

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("all", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("all")
settings.register_profile("few", settings(), max_examples=settings().max_examples // 4)


@pytest.fixture
def anyio_backend() -> str:
    """The only event loop the product runs on."""
    return "asyncio"
