"""Who gets how many file descriptors of the manager, and what is said when they run short."""

import errno
import os
import resource
from collections.abc import Iterator

import pytest

from proctor.manager import file_descriptors


@pytest.fixture
def opened() -> Iterator[list[int]]:
    """Descriptors to be closed."""
    found: list[int] = []
    yield found
    for descriptor in found:
        os.close(descriptor)


@pytest.fixture
def limit() -> Iterator[int]:
    """More than twice as many descriptors may be open as are."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = 2 * len(os.listdir("/proc/self/fd")) + 100
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def open_until(share: float, limit: int, opened: list[int]) -> None:
    while len(os.listdir("/proc/self/fd")) - 1 < share * limit:
        opened.append(os.open(os.devnull, os.O_RDONLY))


def test_it_says_when_four_of_five_descriptors_are_open(limit: int, opened: list[int]) -> None:
    assert file_descriptors.shortage() == ""
    open_until(0.81, limit, opened)
    used = len(os.listdir("/proc/self/fd")) - 1
    assert file_descriptors.shortage().startswith(f"the manager has {used} of {limit} file descriptors open: ")
    file_descriptors.require_spare()


def test_the_last_descriptors_are_spared(limit: int, opened: list[int]) -> None:
    open_until(0.91, limit, opened)
    with pytest.raises(OSError, match="Too many open files") as caught:
        file_descriptors.require_spare()
    assert caught.value.errno == errno.EMFILE


def test_it_says_so_too_when_not_one_is_left(limit: int, opened: list[int]) -> None:
    with pytest.raises(OSError, match="Too many open files"):
        while True:
            opened.append(os.open(os.devnull, os.O_RDONLY))
    assert file_descriptors.shortage().startswith(f"the manager has {limit} of {limit} file descriptors open: ")
    with pytest.raises(OSError, match="Too many open files"):
        file_descriptors.require_spare()


@pytest.mark.parametrize(("limit_", "databases", "connections"), [(110, 6, 13), (1024, 64, 128), (1 << 20, 500, 512)])
def test_databases_and_connections_leave_room_for_others(
    monkeypatch: pytest.MonkeyPatch, limit_: int, databases: int, connections: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit_, limit_))
    assert file_descriptors.most_databases() == databases
    assert file_descriptors.most_connections(512) == connections
