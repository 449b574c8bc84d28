"""Processes that train and are killed at any moment, from the first one on: what of them is left, and for how long.

This module is also the script that trains. Every process of it is found by a mark in its environment.
"""

import os
import random
import signal
import subprocess
import sys
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "PROCTOR_KILLED_LAUNCHER"
STALL = (
    "PROCTOR_STALLED_IMPORT"  # a folder: other processes than the first one write a file there and wait for GO in it
)
GO = "go"
METHODS = ("fork", "spawn", "forkserver")
RANKS = (1, 2, 3)
CELLS = [(method, ranks) for method in METHODS for ranks in RANKS]
PATIENCE_SECONDS = 300.0
_LOOK_SECONDS = 0.01

if __name__ == "__mp_main__" and STALL in os.environ:  # as if the import of torch took very long
    Path(os.environ[STALL], str(os.getpid())).touch()
    while not Path(os.environ[STALL], GO).exists():
        time.sleep(0.05)


@dataclass(frozen=True)
class Kill:
    """What was seen of one kill."""

    method: str
    ranks: int
    after_seconds: float  # from the start of the launcher
    processes: int  # that were there, the launcher included
    left_seconds: float  # until the last one of them was gone


class Launcher:
    """A process that trains, to be killed.

    :param method: how its loaders' workers are started.
    :param stall: a folder: the processes that it starts name themselves there, and end their imports when it is killed.
    """

    def __init__(self, method: str, ranks: int, *, stall: "Path | None" = None) -> None:
        tests = Path(__file__).resolve().parent.parent
        self._mark = uuid.uuid4().hex
        environment = {
            **os.environ,
            MARK: self._mark,
            "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent / "src")]),
            "OMP_NUM_THREADS": "1",
            **({} if stall is None else {STALL: str(stall)}),
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "fakes.killed_launchers", method, str(ranks)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # what dies in its first imports complains
        )
        self._method, self._ranks, self._stall, self._begin = method, ranks, stall, time.monotonic()

    def kill(self) -> Kill:
        """Kill the launcher alone, and wait until every other process is gone, too; what stays is killed then."""
        processes = self.list_processes()
        assert self._process.poll() is None, "the launcher was to be killed and has ended by itself"
        self._process.kill()
        begin = time.monotonic()
        self._process.wait()
        if self._stall is not None:
            (self._stall / GO).touch()
        left = self.list_processes()
        while left and time.monotonic() < begin + PATIENCE_SECONDS:
            time.sleep(_LOOK_SECONDS)
            left = self.list_processes()
        for process in left:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        seconds = float("inf") if left else time.monotonic() - begin
        return Kill(self._method, self._ranks, begin - self._begin, len(processes), seconds)

    def wait_for_others(self) -> None:
        """Return when the launcher has started another process."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(self.list_processes()) < 2:
            assert time.monotonic() < deadline, f"no process was started in {PATIENCE_SECONDS:g} s"
            time.sleep(_LOOK_SECONDS)

    def list_processes(self) -> "list[int]":
        """The ids of all processes that the launcher or one of its descendants has started and that are there."""
        wanted = f"{MARK}={self._mark}".encode()
        found = []
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                with suppress(OSError):
                    if wanted in Path("/proc", entry, "environ").read_bytes().split(b"\0"):
                        found.append(int(entry))
        return found


def kill_at_random(kills: int, *, seed: str, cells: "list[tuple[str, int]]" = CELLS) -> "list[Kill]":
    """Kill so many launchers, in turn of each kind, at moments from their start on."""
    chance = random.Random(seed)
    found = []
    for number in range(kills):
        method, ranks = cells[number % len(cells)]
        launcher = Launcher(method, ranks)
        if chance.random() < 0.8:  # what is left behind is what it has started
            launcher.wait_for_others()
        time.sleep(chance.uniform(0.0, 2.0 + 2.0 * ranks))
        found.append(launcher.kill())
    return found


def describe(kills: "list[Kill]") -> str:
    """A line for each kind: kills, processes that were there, seconds until the last one was gone."""
    lines = []
    for method, ranks in CELLS:
        cell = [kill for kill in kills if (kill.method, kill.ranks) == (method, ranks)]
        if cell:
            seconds = sorted(kill.left_seconds for kill in cell)
            most = max(kill.processes for kill in cell)
            lines.append(
                f"{method:10} ranks {ranks}: {len(cell)} kills, up to {most} processes, gone after "
                f"{seconds[len(cell) // 2]:.2f} s (median), {seconds[-1]:.2f} s at most"
            )
    return "\n".join(lines)


def main(method: str, ranks: int) -> None:
    """Train until the end of the process."""
    import multiprocessing

    from fakes.endless_training import EndlessData, EndlessModel

    from proctor.sdk.pytorch import Trainer

    multiprocessing.set_start_method(method)
    options = {"total_steps": 10**6, "use_cpu": True, "processes": ranks}
    Trainer("run", **options).fit(EndlessModel(), EndlessData())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
