"""100 machines with a trial each, played over real HTTP: what heartbeats, commands and 2,000 reports a second cost the
manager."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarks import harness
from benchmarks.machines.simulated_keepers import node_name
from benchmarks.table import Row, spread

MACHINES = 100
REPORTS_PER_SECOND = 2_000
SECONDS = 10.0
TARGET_CORES = 0.5
_TICKS = os.sysconf("SC_CLK_TCK")


@contextmanager
def simulated_keepers(home: Path, machines: int, reports: int) -> Iterator[None]:
    """The keepers of all machines, in a process of their own."""
    rate = REPORTS_PER_SECOND / machines
    arguments = [str(home), str(machines), str(rate), str(reports)]
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.machines.simulated_keepers", *arguments])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def processor_seconds(pid: int) -> float:
    """What a process has used of all processors so far, its threads included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def cores_used(running: harness.RunningManager, machines: int, seconds: float) -> tuple[float, float]:
    """(cores the manager used, reports stored a second) while all machines' trials report."""
    reports = int(REPORTS_PER_SECOND / machines * (seconds + 20))
    with simulated_keepers(running.home, machines, reports):
        experiment = running.create(
            command="played",
            trialConcurrency=machines,
            maxTrialNumber=machines,
            trainingService={
                "platform": "remote",
                "machineList": [{"host": node_name(number), "user": "nobody"} for number in range(machines)],
            },
        )

        def all_report() -> bool | None:
            rows = list(running.client.trials(experiment))
            return True if sum(row["intermediate_count"] > 0 for row in rows) == machines else None

        harness.wait_for(all_report, "all machines to report", 120.0, pause_seconds=0.2)
        stored, used, began = _stored(running, experiment), processor_seconds(running.process.pid), time.monotonic()
        time.sleep(seconds)
        used, elapsed = processor_seconds(running.process.pid) - used, time.monotonic() - began
        rate = (_stored(running, experiment) - stored) / elapsed
        running.stop(experiment)
    return used / elapsed, rate


def _stored(running: harness.RunningManager, experiment: str) -> int:
    return sum(row["intermediate_count"] for row in running.client.trials(experiment))


def measure(quick: bool) -> list[Row]:
    """One row."""
    machines, seconds, repeats = (20, 2.0, 1) if quick else (MACHINES, SECONDS, 3)
    cores, rates = [], []
    for _ in range(repeats):
        with harness.temporary_folder() as folder:
            with harness.bare_manager(folder / "home", module="benchmarks.machines.simulated_machines") as running:
                used, rate = cores_used(running, machines, seconds)
                cores.append(used)
                rates.append(rate)
    return [
        Row(
            f"{machines} machines, simulated keepers over HTTP: heartbeats, commands and reports",
            f"reports stored: {spread(rates, '/s', 0)}",
            spread(cores, " cores", 2),
            "–",
            f"≥ 2,000/s under {TARGET_CORES:g} cores",
            median(cores) < TARGET_CORES and median(rates) >= REPORTS_PER_SECOND * 0.99,
        )
    ]
