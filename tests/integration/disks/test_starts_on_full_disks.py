"""A manager that is started while its disk is full says so in one sentence, wherever the room ends."""

import os
import re
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from fakes.disks import Disk
from fakes.real_manager import real_manager

from proctor.manager.process.daemon import ManagerNotStarted, ensure_manager
from proctor.manager.settings import Home
from proctor.manager.store.connections import open_reader, open_writer
from proctor.manager.store.errors import DatabaseUnusable

pytestmark = pytest.mark.slow


@pytest.fixture
def home(disk: Disk, tmp_path: Path) -> Home:
    """A home that was in use."""
    with real_manager(tmp_path / "work", home=disk.folder / "home") as manager:
        manager.signal(signal.SIGTERM)
        manager.poll_for(lambda: not Home(manager.home).manager_file.exists(), "the manager to end")
    return Home(disk.folder / "home")


def leave(disk: Disk, size: int) -> None:
    """Fill the disk but for so many bytes."""
    disk.fill()
    ballast = disk.folder / "ballast"
    os.truncate(ballast, ballast.stat().st_size - size)


@pytest.mark.parametrize("size", [0, 4096, 40_000])
def test_a_manager_that_finds_its_disk_full_says_so_in_a_sentence(home: Home, disk: Disk, size: int) -> None:
    leave(disk, size)
    sentence = rf"cannot write the home {home.path}: its disk is full \({home.path}\); free some space"
    with pytest.raises(ManagerNotStarted, match=f"^{sentence}"):
        ensure_manager(home)
    command = [sys.executable, "-P", "-m", "proctor.manager", "--home", str(home.path), "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert re.fullmatch(f"proctor manager: {sentence}.*\n", done.stderr)


def test_a_manager_whose_disk_fills_up_while_it_starts_says_so_although_it_cannot_print(
    home: Home, disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own check is over by then."""
    looked = iter([lambda: None])
    real = Home.require_room

    def require_room(self: Home) -> None:
        next(looked, lambda: real(self))()

    monkeypatch.setattr(Home, "require_room", require_room)
    disk.fill()
    with pytest.raises(ManagerNotStarted, match=r"its disk is full .*; free some space"):
        ensure_manager(home)


def test_the_index_of_a_log_has_its_room_on_small_blocks_from_the_start(disk: Disk) -> None:
    """SQLite maps it. Where the kernel finds no room for a page that is written, it kills the process (SIGBUS)."""
    assert os.statvfs(disk.folder).f_frsize == 1024
    path = str(disk.folder / "control.db")
    open_writer(path, "control").close()  # its first transactions have touched the whole index
    with closing(open_writer(path, "control")):
        found = os.stat(f"{path}-shm")
        assert found.st_blocks * 512 >= found.st_size >= 32 * 1024
    leave(disk, 40_000)
    with pytest.raises(DatabaseUnusable, match="its disk is full"):
        open_writer(path, "control")
    with pytest.raises(DatabaseUnusable, match="its disk is full"):
        open_reader(path)
