"""100,000 one-event trials through a whole manager under virtual time: what a trial costs, first and last."""

import multiprocessing
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks import harness
from benchmarks.table import Row
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.training_services.base import TrialJobForm
from proctor.training_services.in_memory.scripts import Final, Step, sum_of_numbers

TRIALS = 100_000
SLICE = 1_000
TARGET_CPU_MILLISECONDS = 5.0
TARGET_TIME = 1.2
TARGET_MEMORY = 1.3


@dataclass(frozen=True)
class Mark:
    """What had been used when so many trials had begun."""

    wall_seconds: float
    cpu_seconds: float
    resident_bytes: int


def _now() -> Mark:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Mark(time.perf_counter(), time.process_time(), pages * os.sysconf("SC_PAGE_SIZE"))


class Marker:
    """A script for trial jobs that takes a mark after every `SLICE` of them."""

    def __init__(self) -> None:
        self.marks = [_now()]
        self._begun = 0

    def script(self, form: TrialJobForm) -> Iterator[Step]:
        """One final metric after a second."""
        self._begun += 1
        if self._begun % SLICE == 0:
            self.marks.append(_now())
        yield Final(1.0, sum_of_numbers(form))


def simulate(trials: int, at_a_time: int) -> list[Mark]:
    """Run the experiment; a mark at the beginning and after every `SLICE` trials."""

    async def main(loop: VirtualTimeLoop) -> list[Mark]:
        with harness.temporary_folder() as folder:
            marker = Marker()
            simulation = Simulation(Home(folder / "home"), loop, script=marker.script)
            config = {
                "searchSpace": harness.SPACE,
                "trialCommand": "true",
                "trialConcurrency": at_a_time,
                "maxTrialNumber": trials,
                "tuner": {"name": "Random"},
                "trainingService": {"platform": "local"},
            }
            async with simulation.manager() as manager:
                marker.marks = [_now()]
                created = await manager.create_experiment(config=config, directory=str(folder))
                ended = await simulation.ended(manager, created.id)
            if ended.status is not ExperimentStatus.DONE:
                raise harness.BenchmarkError(f"expected DONE, found {ended.status}: {ended.reason}")
            return marker.marks

    return run_virtual(main)


def measure(quick: bool) -> list[Row]:
    """Three rows, from a process of its own, so that its memory is its alone."""
    trials = 3 * SLICE if quick else TRIALS
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        marks = pool.apply(simulate, (trials, 10))
    cpu = (marks[-1].cpu_seconds - marks[0].cpu_seconds) / trials * 1000
    ends = (marks[0], marks[1]), (marks[-2], marks[-1])
    first, last = (end.wall_seconds - begin.wall_seconds for begin, end in ends)
    first_cpu, last_cpu = (end.cpu_seconds - begin.cpu_seconds for begin, end in ends)
    memory = [mark.resident_bytes / 2**20 for mark in marks]
    return [
        Row(
            f"{trials:,} one-event trials in memory, Random, 10 at a time: CPU",
            "–",
            f"{cpu:.2f} ms a trial",
            "–",
            f"≤ {TARGET_CPU_MILLISECONDS:g} ms a trial",
            cpu <= TARGET_CPU_MILLISECONDS,
        ),
        Row(
            f"… time of the last {SLICE:,}",
            f"first {SLICE:,}: {first:.2f} s (CPU: {first_cpu:.2f} s)",
            f"{last:.2f} s (CPU: {last_cpu:.2f} s)",
            f"{last / first:.2f}",
            f"≤ {TARGET_TIME} ×",
            last <= TARGET_TIME * first,
        ),
        Row(
            "… resident memory at the end",
            f"after the first {SLICE:,}: {memory[1]:.0f} MiB",
            f"{memory[-1]:.0f} MiB",
            f"{memory[-1] / memory[1]:.2f}",
            f"≤ {TARGET_MEMORY} ×",
            memory[-1] <= TARGET_MEMORY * memory[1],
        ),
    ]
