"""Fixtures that every test may use, and how property tests run: no test asserts a time, and on a loaded machine any
example may take some. With `--hypothesis-profile few`, as in `make test-fast`, each tries a quarter of its examples.
"""

import gc
import os
import resource
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from proctor.sdk.process_limits import read_umask

if TYPE_CHECKING:
    from fakes.kubernetes.cluster import Cluster
    from fakes.kubernetes.control_plane import Access

pytest_plugins = ["costs"]

settings.register_profile("all", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("all")
settings.register_profile("few", settings(), max_examples=settings().max_examples // 4)


def pytest_collection_finish() -> None:
    """What was imported and collected stays until the end: the garbage collector need not go through it again and
    again, which would cost a tenth of the suite's computing time."""
    gc.freeze()


class NamedAtOnce:
    """Names what has failed, or is run again, at once: where the run is ended from outside, there is no summary."""

    def __init__(self, terminal: pytest.TerminalReporter) -> None:
        self._terminal = terminal

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Each phase of each test, of all workers."""
        if report.outcome not in ("passed", "skipped"):
            self._terminal.write_line(f"\n{report.outcome}: {report.nodeid} ({report.when}, {report.duration:.0f} s)")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Where there is a terminal to write to: not in xdist's workers."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") and terminal is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(NamedAtOnce(terminal), "named-at-once")


@pytest.fixture(autouse=True)
def process_is_left_as_it_was() -> Iterator[None]:
    """The umask, the limit on open files and what can be imported are the process's: a test that changed them would
    change all that follow in its worker, far away from here. Folders that a dispatcher in this process has made
    importable are forgotten, with their modules."""
    umask, open_files = read_umask(), resource.getrlimit(resource.RLIMIT_NOFILE)
    places = list(sys.path)
    yield
    if added := tuple(f"{place}/" for place in set(sys.path) - set(places)):
        sys.path[:] = places
        for name, module in list(sys.modules.items()):
            if (getattr(module, "__file__", None) or "").startswith(added):
                del sys.modules[name]
    left = read_umask(), resource.getrlimit(resource.RLIMIT_NOFILE)
    if left != (umask, open_files):
        os.umask(umask)
        resource.setrlimit(resource.RLIMIT_NOFILE, open_files)
        pytest.fail(f"the test left umask and limit on open files at {left} instead of {(umask, open_files)}")


@pytest.fixture
def anyio_backend() -> str:
    """The only event loop the product runs on."""
    return "asyncio"


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Access"]:
    """A real control plane of Kubernetes, one for all workers of this run."""
    from fakes.kubernetes.requirements import missing_for_kubernetes, skip_or_fail
    from fakes.kubernetes.shared import shared_control_plane

    if missing := missing_for_kubernetes():
        skip_or_fail(missing)
    folder = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        folder = folder.parent
    with shared_control_plane(folder / "control-plane") as access:
        yield access


@pytest.fixture
def cluster(control_plane: "Access") -> Iterator["Cluster"]:
    """A cluster of Kubernetes for one test: a namespace, and the nodes that it adds."""
    from fakes.kubernetes.cluster import open_cluster

    with open_cluster(control_plane) as cluster:
        yield cluster
