"""What the tests of the dashboard in a browser share. Each module has a `manager` of its own, with its experiments."""

from collections.abc import Iterator
from typing import Any

import pytest
from fakes.dashboard import Screen, Visitor, browsing, visiting
from fakes.real_manager import RealManager

SCREENS = [Screen("light", 1440), Screen("dark", 400)]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A browser of the module: as long as it is there, no other test of this process can run an event loop."""
    with browsing() as opened:
        yield opened


@pytest.fixture
def visitor(browser: Any, manager: RealManager) -> Iterator[Visitor]:
    """A person who has opened the link of the module's manager."""
    with visiting(browser, manager) as made:
        yield made


@pytest.fixture(params=SCREENS, ids=str)
def screen(request: pytest.FixtureRequest) -> Screen:
    """A screen on which every page must be accessible, and fit: one of each theme, one wide and one as narrow as a
    phone's. A theme changes colors only, and a width changes none."""
    found: Screen = request.param
    return found
