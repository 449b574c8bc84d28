"""Fixtures that every test may use, and how property tests run: no test asserts a time, and on a loaded machine any
example may take some. With `--hypothesis-profile few`, as in `make test-fast`, each tries a quarter of its examples.
"""

import gc

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("all", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("all")
settings.register_profile("few", settings(), max_examples=settings().max_examples // 4)


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end: the garbage collector need not go through it again and
    again, which would cost a tenth of the suite's computing time."""
    gc.freeze()


@pytest.fixture
def anyio_backend() -> str:
    """The only event loop the product runs on."""
    return "asyncio"
