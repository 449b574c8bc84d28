"""How long one waits for a start, and the processor time that it takes, of all processes together.

`proctor manager start` until the manager answers, `create` until the first line of the first trial, with a manager and
without one, `trial ls`, `experiment list`, and a dispatcher until its first suggestion. PROCTOR_BENCH_AGAINST names
another interpreter that has Proctor (that of another version): each of them is then done with it, too, in turns.
"""

import ctypes
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks import harness
from benchmarks.table import Row, spread
from proctor.manager.dispatcher import protocol

ENV_AGAINST = "PROCTOR_BENCH_AGAINST"
_PR_SET_CHILD_SUBREAPER = 36
_TICKS = os.sysconf("SC_CLK_TCK")
_CONFIG = """\
searchSpace: {{x: {{_type: uniform, _value: [0, 1]}}}}
trialCommand: bash sleeper.sh {stamps} 0.1
trialCodeDirectory: {trials}
trialConcurrency: 1
maxTrialNumber: 1
tuner: {{name: {tuner}}}
trainingService: {{platform: local}}
"""
CREATE_COLD = "`create` without a manager → first line of the first trial"
FIRST_OF_THE_PAGE = ("/", "/api/v1/session", "/api/v1/experiments", "/api/v1/nodes", "/api/v1/version")
QUIET_SECONDS = 6.0
"""After so long a manager has loaded everything."""
_LAG = """
import asyncio, time
from proctor.manager import app
from proctor.manager.api.application import build_group
from proctor.manager.api.groups import GROUPS

async def measure_while(work):
    most, working = 0.0, asyncio.ensure_future(work)
    while not working.done():
        began = time.perf_counter()
        await asyncio.sleep(0.001)
        most = max(most, time.perf_counter() - began - 0.001)
    return most * 1000

async def build():
    for group in GROUPS:
        await asyncio.to_thread(build_group, group, None)

async def main():
    print(await measure_while(asyncio.sleep(1.0)), await measure_while(build()))

asyncio.run(main())
"""


@dataclass(frozen=True)
class Cost:
    """What something has taken."""

    wall: float
    """Seconds."""
    processor: float
    """Seconds, of all processes."""


class Costs:
    """The time since it was made, and the processor time of everything that this process has started since, whether it
    still runs or has ended. Daemons count: with `adopt_orphans` they are descendants of this process."""

    def __init__(self) -> None:
        self._processor = _processor_seconds()
        self._wall = time.time()

    def until(self, moment: float | None = None) -> Cost:
        """Until now.

        :param moment: when it was over by the wall clock, where that is known better.
        """
        processor = _processor_seconds() - self._processor
        return Cost((moment or time.time()) - self._wall, processor)


def adopt_orphans() -> None:
    """Let daemons become children of this process when their parents end."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _processor_seconds() -> float:
    """Of all descendants of this process, ended ones included."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = ended.ru_utime + ended.ru_stime
    for pid in _descendants(os.getpid()):
        with suppress(OSError, ValueError):
            fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            total += time.clock_gettime((~pid << 3) | 2)  # the processor time of that process, in nanoseconds
            total += (int(fields[13]) + int(fields[14])) / _TICKS  # of the children that it has waited for
    return total


def _descendants(pid: int) -> Iterator[int]:
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, file.read_text().split()):
                yield child
                yield from _descendants(child)


class Installation:
    """An interpreter that has Proctor, and a home for it."""

    def __init__(self, python: str, folder: Path) -> None:
        self.python = python
        self.home = folder / "home"
        self._environment = {**os.environ, "PROCTOR_HOME": str(self.home), "PROCTOR_PORT": "0"}
        for name in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE"):
            self._environment.pop(name, None)
        self._folder = folder
        self._created = 0

    def proctor(self, *arguments: str) -> str:
        """Run a command; what it prints."""
        command = [self.python, "-m", "proctor.manager.cli.main", *arguments]
        done = subprocess.run(command, env=self._environment, cwd=self._folder, capture_output=True, check=False)
        if done.returncode:
            raise harness.BenchmarkError(f"{command} failed: {done.stderr.decode()}")
        return done.stdout.decode()

    def start_manager(self) -> Cost:
        """Start the manager and wait until it answers."""
        costs = Costs()
        self.proctor("manager", "start")
        harness.wait_for(lambda: self.get("/api/v1/health") is not None or None, "the manager to answer")
        return costs.until()

    def get(self, path: str) -> float | None:
        """Read something by a bare socket, which costs little; how many seconds that took, None where it is refused."""
        address = json.loads((self.home / "manager.json").read_text())
        token = (self.home / "token").read_text().strip()
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\nConnection: close\r\n\r\n"
        began = time.perf_counter()
        with socket.create_connection((address["host"], address["port"])) as connection:
            connection.sendall(head.encode())
            answer = connection.makefile("rb").read()
        return time.perf_counter() - began if b" 200 " in answer[:20] else None

    def open_page(self) -> float:
        """The page, and what it asks for first, one after another, in seconds."""
        return sum(self.get(path) or 0.0 for path in FIRST_OF_THE_PAGE)

    def create(self, tuner: str = "Random") -> Cost:
        """`proctor create`, until the first line of the first trial."""
        self._created += 1
        stamps, config = self._folder / f"stamps-{self._created}", self._folder / "config.yml"
        config.write_text(_CONFIG.format(stamps=stamps, trials=harness.TRIALS, tuner=tuner))
        costs = Costs()
        self.proctor("create", str(config))
        started = harness.wait_for(lambda: _first_stamp(stamps), "the first trial to start")
        return costs.until(started)

    def run(self, *arguments: str) -> Cost:
        """A command of a manager that runs."""
        costs = Costs()
        self.proctor(*arguments)
        return costs.until()

    def suggest(self) -> Cost:
        """A dispatcher with TPE, until its first suggestion."""
        ours, theirs = socket.socketpair()
        costs = Costs()
        with theirs, (self._folder / "dispatcher.log").open("wb") as log:
            process = subprocess.Popen(
                [self.python, "-m", "proctor.manager.dispatcher", "--fd", str(theirs.fileno())],
                env=self._environment,
                pass_fds=[theirs.fileno()],
                cwd=self._folder,
                stdout=log,
                stderr=log,
            )
        tuner = protocol.AlgorithmSpec("TPE")
        first = protocol.Initialize("benchmark", harness.SPACE, tuner, None, 1, str(self._folder), "maximize")
        with ours, ours.makefile("rwb") as lines:
            lines.write(protocol.encode(first) + protocol.encode(protocol.RequestTrialJobs(1, [0])))
            lines.flush()
            while b'"NewTrial"' not in (line := lines.readline()):
                if not line:
                    raise harness.BenchmarkError(f"no suggestion: {(self._folder / 'dispatcher.log').read_text()}")
            cost = costs.until()
        process.kill()
        process.wait()
        return cost

    def end(self) -> None:
        """Leave nothing behind."""
        for command in (("stop", "--all"), ("manager", "stop")):
            with suppress(harness.BenchmarkError):
                self.proctor(*command)
        harness.end_keepers(self.home)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


@contextmanager
def installation(python: str) -> Iterator[Installation]:
    """In a new home; on leaving everything of it is ended."""
    with harness.temporary_folder() as folder:
        made = Installation(python, folder)
        try:
            yield made
        finally:
            made.end()


def _first_stamp(stamps: Path) -> float | None:
    """When the first trial wrote its first line, if it has."""
    words = stamps.read_text().split() if stamps.exists() else []
    return float(words[1]) if len(words) > 1 else None


def measure_round(python: str) -> dict[str, Cost]:
    """Each of them once, by name; what has no processor time of its own has 0."""
    found: dict[str, Cost] = {}
    with installation(python) as cold:
        found[CREATE_COLD] = cold.create()
    with installation(python) as page:
        page.start_manager()
        found["the page and its first requests, right after a start"] = Cost(page.open_page(), 0.0)
        time.sleep(QUIET_SECONDS)
        found["… a few seconds later"] = Cost(page.open_page(), 0.0)
    with installation(python) as warm:
        found["`manager start` until it answers"] = warm.start_manager()
        warm.create()
        time.sleep(QUIET_SECONDS)
        found["`create` with a manager → first line of the first trial"] = warm.create()
        found["`experiment list`"] = warm.run("experiment", "list")
        found["`trial ls`"] = warm.run("trial", "ls")
        found["dispatcher with TPE → first suggestion"] = warm.suggest()
    return found


def measure(quick: bool) -> list[Row]:
    """Two rows for each: what one waits, and the processor time of all processes."""
    adopt_orphans()
    pythons = [sys.executable, *filter(None, [os.environ.get(ENV_AGAINST)])]
    rounds: dict[str, list[dict[str, Cost]]] = {python: [] for python in pythons}
    for number in range(1 if quick else 5):
        for python in pythons if number % 2 == 0 else reversed(pythons):
            rounds[python].append(measure_round(python))
    rows: list[Row] = []
    for name in rounds[sys.executable][0]:
        rows.append(_row(name, [[each[name].wall for each in rounds[python]] for python in pythons]))
        if rounds[sys.executable][0][name].processor > 0:
            rows.append(_row("… CPU", [[each[name].processor for each in rounds[python]] for python in pythons]))
    return [*rows, _measure_lag()]


def _row(work: str, seconds: Sequence[Sequence[float]]) -> Row:
    ours, *others = seconds
    if not others:
        is_first = work == CREATE_COLD
        to_reach, is_reached = ("≤ 2 s", median(ours) <= 2.0) if is_first else ("–", None)
        return Row(work, "–", spread(ours, " s", 2), "–", to_reach, is_reached)
    ratio = median(mine / theirs for mine, theirs in zip(ours, others[0], strict=True))
    return Row(work, spread(others[0], " s", 2), spread(ours, " s", 2), f"{ratio:.2f}", "–", None)


def _measure_lag() -> Row:
    """How late the event loop wakes up while all routes are built."""
    command = [sys.executable, "-P", "-c", _LAG]
    idle, loading = map(float, subprocess.run(command, check=True, capture_output=True).stdout.split())
    work = "how late the loop wakes up at most while all groups of routes are built"
    return Row(work, f"while nothing is done: {idle:.0f} ms", f"{loading:.0f} ms", "–", "≤ 50 ms", loading <= 50)
