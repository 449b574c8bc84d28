"""What the tests of platform remote share: one manager of a worker, with new machines for each test."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from fakes.machines.requirements import missing_for_namespaces
from fakes.machines.scene import Scene, Site, open_site

Stage = Callable[..., Scene]


class Sites:
    """Keeps a site for as long as tests leave it as they found it."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory
        self._open = ExitStack()
        self._site: Site | None = None

    def take(self) -> Site:
        """A site as new."""
        if self._site is None or not self._site.is_as_new():
            self.close()
            self._site = self._open.enter_context(open_site(self._factory.mktemp("site")))
        return self._site

    def close(self) -> None:
        """End what is open."""
        self._site = None
        self._open.close()


@pytest.fixture(scope="session")
def sites(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sites]:
    if missing := missing_for_namespaces():
        pytest.skip(missing)
    sites = Sites(tmp_path_factory)
    yield sites
    sites.close()


@pytest.fixture
def stage(sites: Sites, tmp_path: Path) -> Iterator[Stage]:
    """`stage(3, …)`: so many machines on a network, made with the options of `cabled_group`, and a manager in the same
    network. Afterwards the machines have no power."""
    site = sites.take()
    with ExitStack() as stack:
        yield lambda number, **options: stack.enter_context(site.scene(tmp_path / "machines", number, **options))
