"""The processes that die, and what they and all trials share, for all tests of this folder."""

from collections.abc import Iterator

import pytest
from fakes.incarnations import Incarnations
from fakes.loaded_python import loaded_python


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    """One thread for torch in every process: these models are so small that a second one only costs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield


@pytest.fixture(scope="package")
def incarnations() -> Iterator[Incarnations]:
    """One server, which has imported torch."""
    server = Incarnations()
    yield server
    server.close()


@pytest.fixture(scope="package")
def loaded() -> Iterator[str]:
    """The command of a Python that has imported torch."""
    with loaded_python() as interpreter:
        yield interpreter
