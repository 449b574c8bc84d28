"""What somebody has left behind on test machines: processes, files, locks."""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fakes.machines.machine import Machine

PATIENCE_SECONDS = 90.0
_POLL_SECONDS = 0.05
_MOST_TOLD = 30
_FREE = ".ballast"
_PLACES = ("/tmp", "/var/tmp", "/run/lock")
_LOCKS = "/run/lock/proctor"  # shared by all users of a machine: it must not be removed


class Leavings:
    """What is on machines that was not there when this was made; found by looking at them, not by asking anybody."""

    def __init__(self, machines: Sequence["Machine"]) -> None:
        self._before = {machine.name: set(_on(machine)) for machine in machines}
        self._machines = machines

    def find(self) -> list[str]:
        """One line for each process, file and empty folder."""
        return [
            f"{machine.name}: {line}"
            for machine in self._machines
            if machine.has_power
            for line in _on(machine)
            if line not in self._before[machine.name]
        ]

    def expect_none(self) -> None:
        """Raise AssertionError with the list when there still is something after a while."""
        gives_up = time.monotonic() + PATIENCE_SECONDS
        while found := self.find():
            reported = "\n".join([*found[:_MOST_TOLD], f"{len(found)} in all"])
            assert time.monotonic() < gives_up, f"left behind on the machines:\n{reported}"
            time.sleep(_POLL_SECONDS)


def _on(machine: "Machine") -> Iterator[str]:
    for process in machine.processes():
        if not process.is_listener:
            yield f"process {process.pid}: {process.command}"
    for place in (*(f"/run/home/{user.name}" for user in machine.users), *_PLACES):
        base = machine.path(place)
        for path in _leaves(base):
            line = f"{place}/{path.relative_to(base)}"
            if line != _LOCKS and path.name != _FREE:
                yield line


def _leaves(base: Path) -> Iterator[Path]:
    """Files and empty folders, without crossing into other file systems."""
    device = base.stat().st_dev
    for folder, folders, files in os.walk(base):
        here = Path(folder)
        folders[:] = [name for name in folders if _device(here / name) == device]
        yield from (here / name for name in files)
        if not folders and not files and here != base:
            yield here


def _device(path: Path) -> int:
    try:
        return path.lstat().st_dev
    except OSError:
        return -1  # just gone
