"""A manager of our own in a temporary home, and experiments on it, for benchmarks."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from proctor.sdk.client import Client
from proctor.sdk.client.credentials import write_caller_environment
from proctor.sdk.client.errors import ClientError
from proctor.trial_keeper.start import stop_keeper

T = TypeVar("T")

CLI = (sys.executable, "-m", "proctor.manager.cli.main")
TRIALS = Path(__file__).parent / "trials"
ENDED = {"SUCCEEDED", "FAILED", "EARLY_STOPPED", "USER_CANCELED", "SYS_CANCELED"}
SPACE = {
    "x": {"_type": "uniform", "_value": [0, 1]},
    "y": {"_type": "loguniform", "_value": [1e-4, 1]},
    "z": {"_type": "choice", "_value": ["a", "b", "c"]},
}


class BenchmarkError(Exception):
    """What was to be measured did not happen."""


class RunningManager:
    """A manager process of ours, its home and a client."""

    def __init__(self, home: Path, process: subprocess.Popen[bytes], client: Client) -> None:
        self.home = home
        self.process = process
        self.client = client

    def create(self, *, command: str, tuner: Mapping[str, Any] | None = None, **settings: Any) -> str:
        """Begin an experiment in the folder of the benchmark's trials; returns its id. `settings` are keys of the
        configuration, such as `maxTrialNumber`."""
        config = {
            "searchSpace": SPACE,
            "trialCommand": command,
            "tuner": dict(tuner or {"name": "Random"}),
            "trainingService": {"platform": "local"},
            **settings,
        }
        handover = write_caller_environment(self.home)
        return str(self.client.create_experiment(config, directory=TRIALS, handover=handover)["id"])

    def finish(
        self, experiment_id: str, *, limit_seconds: float = 600.0, pause_seconds: float = 0.02
    ) -> dict[str, Any]:
        """Wait until the experiment is DONE; returns it. Each look costs the manager a few milliseconds."""

        def done() -> dict[str, Any] | None:
            found = self.client.experiment(experiment_id)
            if found["status"] == "ERROR":
                raise BenchmarkError(f"experiment {experiment_id} is in ERROR: {found['reason']}\n{found['error']}")
            return found if found["status"] == "DONE" else None

        return wait_for(done, f"experiment {experiment_id} to be DONE", limit_seconds, pause_seconds=pause_seconds)

    def stop(self, experiment_id: str) -> None:
        """Stop the experiment and wait until it is."""
        self.client.stop_experiment(experiment_id)
        self.wait_for_status(experiment_id, "STOPPED")

    def wait_for_status(self, experiment_id: str, status: str, *, pause_seconds: float = 0.02) -> dict[str, Any]:
        """Wait until the experiment has the status; returns it."""

        def reached() -> dict[str, Any] | None:
            found = self.client.experiment(experiment_id)
            return found if found["status"] == status else None

        return wait_for(reached, f"experiment {experiment_id} to be {status}", 60.0, pause_seconds=pause_seconds)


def wait_for(
    look: Callable[[], T | None], what: str, limit_seconds: float = 60.0, *, pause_seconds: float = 0.005
) -> T:
    """Look again and again until there is something; returns it. Raises BenchmarkError after the limit."""
    deadline = time.monotonic() + limit_seconds
    while (found := look()) is None:
        if time.monotonic() > deadline:
            raise BenchmarkError(f"waited {limit_seconds:g} s in vain for {what}")
        time.sleep(pause_seconds)
    return found


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder beside the repository's, so that it lies on a real disk and not in memory."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir=results_folder()) as name:
        yield Path(name)


def results_folder() -> Path:
    """Where results and temporary homes lie; ignored by git."""
    folder = Path(__file__).parent / "results"
    folder.mkdir(exist_ok=True)
    return folder


@contextmanager
def manager(**environment: str) -> Iterator[RunningManager]:
    """A manager in a new home, warm: a first small experiment has run. On leaving everything of it is ended."""
    with temporary_folder() as folder, bare_manager(folder / "home", **environment) as running:
        warm_up(running)
        yield running


@contextmanager
def bare_manager(home: Path, *, module: str = "proctor.manager", **environment: str) -> Iterator[RunningManager]:
    """A manager that has just come up. `environment` is added to its own and so to its keeper's.

    :param module: what runs it.
    """
    home.mkdir(parents=True, exist_ok=True)
    with (home.parent / "manager.out").open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", module],
            env={**os.environ, "PROCTOR_PORT": "0", **environment, "PROCTOR_HOME": str(home)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
    try:
        client = wait_for(lambda: _connect(home, process), "the manager to come up", pause_seconds=0.02)
        with client:
            yield RunningManager(home, process, client)
            with suppress(ClientError):
                client.stop_all()
                wait_for(lambda: _all_stopped(client), "all experiments to be stopped")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)
        end_keepers(home)


def _connect(home: Path, process: subprocess.Popen[bytes]) -> Client | None:
    if process.poll() is not None:
        raise BenchmarkError(f"the manager ended: {(home.parent / 'manager.out').read_text()}")
    try:
        client = Client(home=home)
        client.health()
    except ClientError:
        return None
    return client


def _all_stopped(client: Client) -> bool | None:
    live = [row for row in client.experiments() if row["status"] not in ("STOPPED", "VIEWED", "DONE")]
    return None if live else True


def warm_up(running: RunningManager) -> None:
    """The keeper is started, files are in the page cache, code is compiled."""
    experiment = running.create(command=f"{sys.executable} short.py", trialConcurrency=4, maxTrialNumber=8)
    running.finish(experiment)
    running.stop(experiment)


def end_keepers(home: Path) -> None:
    """Keepers outlive their manager; those of this home have nothing left to do."""
    for directory in (home / "nodes").glob("*"):
        stop_keeper(directory)


def dispatcher_of(running: RunningManager) -> int:
    """The pid of the only dispatcher of the manager."""
    children = Path(f"/proc/{running.process.pid}/task").glob("*/children")
    pids = [int(pid) for file in children for pid in file.read_text().split()]
    names = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids}
    found = [pid for pid, name in names.items() if b"proctor.manager.dispatcher" in name]
    if len(found) != 1:
        raise BenchmarkError(f"expected one dispatcher below manager {running.process.pid}, found {found}")
    return found[0]
