"""Many processes, of several users, race for the same GPU leases; some are killed in the middle of it."""

import json
import os
import random
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fakes import lease_worker

from proctor.trial_keeper import gpus
from proctor.trial_keeper.reaper.leases import acquire, release, remove_unused

GPUS = ["GPU-a", "GPU-b", "GPU-c"]
NOBODY, GAMES = 65534, 60
PATIENCE_SECONDS = 120.0


@dataclass
class Held:
    """One job's shares, and a time in which it held them for certain. `end` is infinite while it is not known."""

    slots: list[tuple[str, int]]
    limit: int
    begin: float
    end: float


@dataclass
class Worker:
    """One run of `lease_worker`."""

    process: subprocess.Popen[bytes]
    log: Path
    killed_at: float = float("inf")

    def read(self) -> list[dict[str, Any]]:
        """What it has said so far; a killed one may have been cut off within its last word."""
        lines = self.log.read_bytes().splitlines(keepends=True) if self.log.exists() else []
        return [json.loads(line) for line in lines if line.endswith(b"\n")]

    def held(self) -> list[Held]:
        """All it has held."""
        found: dict[str, Held] = {}
        for event in self.read():
            if "took" in event:
                slots = [(uuid, slot) for uuid, slot in event["slots"]]
                found[event["took"]] = Held(slots, event["limit"], event["time"], self.killed_at)
            elif "gave" in event:
                found[event["gave"]].end = min(event["time"], self.killed_at)
        return [held for held in found.values() if held.begin < held.end]

    def refusals(self) -> int:
        """How often it was refused."""
        return sum("refused" in event for event in self.read())

    def kill(self) -> None:
        """At this instant it still holds what it holds."""
        self.killed_at = time.monotonic()
        self.process.kill()


class Arena:
    """A folder that all users may write, and the workers in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.chmod(0o1777)
        self.locks = folder / "locks"
        self.workers: list[Worker] = []

    @contextmanager
    def worker(self, *, user: int | None = None) -> Iterator[Worker]:
        """A running worker; it is killed at the end if it has not left."""
        number = len(self.workers)
        log = self.folder / f"log-{number}"
        reported = {"log": str(log), "user": user, "seed": number, "gpus": GPUS}
        command = [sys.executable, lease_worker.__file__, json.dumps(reported)]
        with subprocess.Popen(command, cwd=self.folder) as process:
            worker = Worker(process, log)
            self.workers.append(worker)
            try:
                yield worker
            finally:
                process.kill()

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for it; no process may fail meanwhile."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert not any(worker.process.poll() for worker in self.workers if worker.killed_at == float("inf"))
            assert time.monotonic() < deadline, f"never happened: {what}"
            time.sleep(0.02)

    def stop(self) -> None:
        """Let all that live finish, without an error."""
        (self.folder / "stop").touch()
        for worker in self.workers:
            if worker.killed_at == float("inf"):
                assert worker.process.wait(PATIENCE_SECONDS) == 0
                assert worker.read()[-1] == {"stopped": True}

    def check(self) -> None:
        """No process held a share it must not hold, none holds one now, and every share can be acquired."""
        everything = [held for worker in self.workers for held in worker.held()]
        for gpu in GPUS:
            on_it = [held for held in everything if any(uuid == gpu for uuid, _ in held.slots)]
            for newest in on_it:
                together = [held for held in on_it if held.begin <= newest.begin < held.end]
                assert len(together) <= min(held.limit for held in together), (gpu, together)
                slots = [slot for held in together for uuid, slot in held.slots if uuid == gpu]
                assert len(slots) == len(set(slots)), (gpu, together)
        assert gpus.read(str(self.locks)) == {}
        release(acquire(str(self.locks), [(gpu, 0) for gpu in GPUS], {}))
        remove_unused(str(self.locks))
        assert not self.locks.exists()


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    return Arena(tmp_path)


OTHERS = (NOBODY, GAMES) if os.getuid() == 0 else (None, None)
"""Only root can be several users; without it all workers are of one."""


def test_no_gpu_is_held_by_more_than_its_holders_allow(arena: Arena) -> None:
    with ExitStack() as stack:
        workers = [stack.enter_context(arena.worker(user=owner)) for owner in (None, *OTHERS)]
        arena.until(
            lambda: all(len(worker.held()) >= 40 and worker.refusals() >= 10 for worker in workers),
            "every worker gets GPUs, and is refused some",
        )
        arena.stop()
    arena.check()


def test_a_kill_in_the_middle_of_it_leaves_neither_a_lease_nor_a_jam(arena: Arena) -> None:
    chance, user = random.Random(1), OTHERS[0]
    with arena.worker(user=user) as survivor:
        for number in range(12):
            with arena.worker(user=user if number % 2 else None) as victim:
                arena.until(lambda victim=victim: bool(victim.held()), "the victim gets a GPU")
                time.sleep(chance.random() * 0.02)  # not to wait for anything: to be somewhere in the middle
                victim.kill()
        before = len(survivor.held())
        arena.until(lambda: len(survivor.held()) >= before + 20, "the survivor gets GPUs")
        arena.stop()
    arena.check()


CRASHES = """
import os, signal, sys
import fcntl
from proctor.trial_keeper.linux import locks
from proctor.trial_keeper.reaper import leases

folder = sys.argv[1]
ends = calls = 0

def dying(call):
    def wrapped(*args, **kwargs):
        global calls
        calls += 1
        if calls == ends:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **kwargs)
    return wrapped

for module, names in (
    (os, ("open", "close", "mkdir", "unlink", "rmdir", "ftruncate", "pwrite", "listdir", "umask")),
    (fcntl, ("flock",)),
):
    for name in names:
        setattr(module, name, dying(getattr(module, name)))

os.umask(0o077)
for line in sys.stdin:
    if (child := os.fork()) == 0:
        ends, calls = int(line), 0
        held = leases.acquire(folder, [("GPU-a", 0), ("GPU-b", 1)], {"job_id": "T.1"}, max_trials=2)
        leases.release(held)
        leases.remove_unused(folder)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""For each number n that it reads, a process that takes and gives back leases dies before its n-th call to the kernel;
it says how that one has ended."""


@pytest.mark.slow
def test_dying_at_any_call_to_the_kernel_leaves_everything_usable_by_everybody(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    parent.mkdir()
    parent.chmod(0o1777)
    folder = parent / "locks"
    number = 1
    command = [sys.executable, "-c", CRASHES, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as crashes:
        while (code := crash(crashes, number)) != 0:
            assert code == -signal.SIGKILL
            assert gpus.read(str(folder)) == {}
            for path in (folder, *folder.iterdir()) if folder.exists() else ():
                assert stat.S_IMODE(path.stat().st_mode) == (0o1777 if path == folder else 0o666), (number, path)
            release(acquire(str(folder), [("GPU-a", 0), ("GPU-b", 1)], {}))
            remove_unused(str(folder))
            assert list(parent.iterdir()) == [], number
            number += 1
        assert crashes.stdin is not None
        crashes.stdin.close()
    assert number > 30


def crash(crashes: "subprocess.Popen[str]", number: int) -> int:
    """How a process has ended that was to die before its n-th call to the kernel."""
    assert crashes.stdin is not None
    assert crashes.stdout is not None
    print(number, file=crashes.stdin, flush=True)
    return int(crashes.stdout.readline())
