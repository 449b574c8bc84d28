"""Trial schedulers in a whole manager under virtual time, a restart after many trials, and suggestions after many.

By default ASHA runs 20,000 trials; `PROCTOR_BENCH_TRIALS=100000` takes about half an hour.
"""

import asyncio
import json
import multiprocessing
import os
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import optuna

from benchmarks import harness
from benchmarks.table import Row
from proctor.manager.dispatcher.algorithms.registry import create_algorithm
from proctor.manager.dispatcher.algorithms.tuners.optuna_tuner import OptunaTuner
from proctor.manager.engine.manager import Manager
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.settings import Home
from proctor.manager.simulation.simulation import Simulation
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.sdk.space import parse_search_space
from proctor.training_services.base import TrialJobForm
from proctor.training_services.in_memory.scripts import Final, Raw, ScriptedReport, Step

TRIALS = int(os.environ.get("PROCTOR_BENCH_TRIALS", "20000"))
WORKERS = 1_000
FEW_WORKERS = 20
TENTH = 10
MAX_T = 81
RUNGS = (1, 3, 9, 27)
SPACE = {f"x{number}": {"_type": "uniform", "_value": [0, 1]} for number in range(4)}
TARGET_TIME = 1.2
TARGET_MEMORY = 1.5
TARGET_MILLISECONDS = 1.0
TARGET_RESTART = 1.5
TARGET_SUGGESTION = 1.2


@dataclass(frozen=True)
class Mark:
    """What had been used when so many trials had begun."""

    reports: int
    cpu_seconds: float
    resident_bytes: int


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class CurveScript:
    """Trial jobs that report after every step and save at each rung; it takes a mark after each tenth of the trials."""

    def __init__(self, trials: int, *, at_once: bool = False) -> None:
        """:param at_once: steps take a second each, so that many trials report at one time; else at their own times."""
        self.marks: list[Mark] = []
        self._spread = 0.0 if at_once else 1 / 3
        self._slice = max(trials // TENTH, 1)
        self._begun = 0
        self._reports = 0

    def mark(self) -> None:
        """Take a mark."""
        self.marks.append(Mark(self._reports, time.process_time(), _resident_bytes()))

    def script(self, form: TrialJobForm) -> Iterator[Step]:
        """From its checkpoint to the end."""
        if form.number == 1:
            self._begun += 1
            if self._begun % self._slice == 0:
                self.mark()
        begin = 0 if form.resume_checkpoint is None else int(Path(form.resume_checkpoint).name)
        goodness = json.loads(form.parameter_file)["parameters"]["x0"]
        rng = random.Random(form.job_id)
        for step in range(begin + 1, MAX_T + 1):
            self._reports += 1
            yield ScriptedReport(1.0 + rng.random() * self._spread, goodness + step / 1000, step=step)
            if step in RUNGS:
                record = {"kind": "checkpoint", "path": f"output/checkpoints/{step}", "time": 1.0}
                yield Raw(0.0, json.dumps(record).encode() + b"\n")
        yield Final(0.1, goodness)


def _config(trials: int, kind: str, workers: int) -> dict[str, Any]:
    arguments = {"type": kind, "max_t": MAX_T, "reduction_factor": 3}
    return {
        "searchSpace": SPACE,
        "trialCommand": "true",
        "trialConcurrency": workers,
        "maxTrialNumber": trials,
        "tuner": {"name": "Random"},
        "objective": {"direction": "maximize"},
        "trialScheduler": {"name": "ASHA", "classArgs": arguments},
        "trainingService": {"platform": "local"},
        "copyCheckpoints": False,
    }


def run_asha(trials: int, at_once: bool = False) -> list[Mark]:
    """ASHA with promotion to its end: a mark at the beginning, and after each tenth of the trials."""

    async def main(loop: VirtualTimeLoop) -> list[Mark]:
        with harness.temporary_folder() as folder:
            curves = CurveScript(trials, at_once=at_once)
            simulation = Simulation(Home(folder / "home"), loop, script=curves.script)
            async with simulation.manager() as manager:
                curves.mark()
                made = await manager.create_experiment(
                    config=_config(trials, "promotion", WORKERS), directory=str(folder)
                )
                ended = await simulation.ended(manager, made.id)
            if ended.status is not ExperimentStatus.DONE:
                raise harness.BenchmarkError(f"expected DONE, found {ended.status}: {ended.reason}")
            return curves.marks

    return run_virtual(main)


def time_restart(trials: int) -> float:
    """Processor seconds until a manager on a home with so many trials has a dispatcher that has answered again."""

    async def main(loop: VirtualTimeLoop) -> float:
        with harness.temporary_folder() as folder:
            curves = CurveScript(trials)
            simulation = Simulation(Home(folder / "home"), loop, script=curves.script)
            async with simulation.manager() as manager:
                config = _config(10 * trials, "stopping", FEW_WORKERS)
                made = await manager.create_experiment(config=config, directory=str(folder))
                await _until_created(manager, made.id, trials)
                created = (await manager.experiment(made.id)).next_sequence_id
            begin = time.process_time()
            async with simulation.manager() as manager:
                await _until_created(manager, made.id, created + 1)
                return time.process_time() - begin

    return run_virtual(main)


async def _until_created(manager: Manager, experiment_id: str, trials: int) -> None:
    while (await manager.experiment(experiment_id)).next_sequence_id < trials:  # noqa: ASYNC110 - nothing is posted
        await asyncio.sleep(0.5)


def time_suggestions(known: int, count: int) -> tuple[float, float]:
    """Milliseconds of a suggestion after so many results: TPE's and, alternating with it, Optuna's alone."""
    space = parse_search_space(SPACE)
    ours = create_algorithm("tuner", "TPE", {}, 0, direction="minimize")
    assert isinstance(ours, OptunaTuner)
    ours.update_search_space(space)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=0, multivariate=True, constant_liar=True))
    rng = random.Random(0)
    for _ in range(known):
        parameters, value = space.sample(rng), rng.random()
        ours.import_data(parameters, value)
        distributions = {name: optuna.distributions.FloatDistribution(0, 1) for name in SPACE}
        study.add_trial(optuna.create_trial(params=parameters, distributions=distributions, value=value))
    times: dict[str, list[float]] = {"ours": [], "optuna": []}
    for number in range(count):
        begin = time.process_time()
        ours.suggest(known + number)
        middle = time.process_time()
        trial = study.ask()
        for name in SPACE:
            trial.suggest_float(name, 0, 1)
        times["ours"].append(middle - begin)
        times["optuna"].append(time.process_time() - middle)
    return median(times["ours"]) * 1000, median(times["optuna"]) * 1000


def _milliseconds_a_report(begin: Mark, end: Mark) -> float:
    return (end.cpu_seconds - begin.cpu_seconds) / (end.reports - begin.reports) * 1000


def _in_its_own_process(function: Any, *arguments: Any) -> Any:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(function, arguments)


def measure(quick: bool) -> list[Row]:
    """Four rows of ASHA, one of a restart, one of suggestions."""
    return [*_asha_rows(300 if quick else TRIALS), _restart_row(quick), _suggestion_row(quick)]


def _asha_rows(trials: int) -> list[Row]:
    """Processor time of reports late against early, in all and where many come at one time; memory."""
    marks: Sequence[Mark] = _in_its_own_process(run_asha, trials)
    together: Sequence[Mark] = _in_its_own_process(run_asha, trials // 5, True)
    spans = (marks[:2], marks[-2:], (marks[0], marks[-1]), (together[0], together[-1]))
    first, last, whole, at_once = (_milliseconds_a_report(begin, end) for begin, end in spans)
    early, late = (mark.resident_bytes / 2**20 for mark in (marks[1], marks[-1]))
    limit = f"≤ {TARGET_MILLISECONDS:g} ms"
    return [
        Row(
            f"ASHA, promotion, η 3, {trials:,} trials, {WORKERS:,} workers: CPU of a report, last tenth",
            f"first tenth: {first:.2f} ms",
            f"{last:.2f} ms",
            f"{last / first:.2f}",
            f"≤ {TARGET_TIME} ×",
            last <= TARGET_TIME * first,
        ),
        Row(
            "… CPU of a report, its share of pauses and promotions included",
            "–",
            f"{whole:.2f} ms",
            "–",
            limit,
            whole <= TARGET_MILLISECONDS,
        ),
        Row(
            f"… {trials // 5:,} trials, many of which report at one time",
            "–",
            f"{at_once:.2f} ms",
            "–",
            limit,
            at_once <= TARGET_MILLISECONDS,
        ),
        Row(
            "… resident memory at the end",
            f"after the first tenth: {early:.0f} MiB",
            f"{late:.0f} MiB",
            f"{late / early:.2f}",
            f"≤ {TARGET_MEMORY} ×",
            late <= TARGET_MEMORY * early,
        ),
    ]


def _restart_row(quick: bool) -> Row:
    few, many = (100, 300) if quick else (1_000, TRIALS)
    short, long = (_in_its_own_process(time_restart, number) for number in (few, many))
    return Row(
        f"restart of manager and dispatcher after {many:,} trials (ASHA, Random), until a new trial: CPU",
        f"after {few:,}: {short:.2f} s",
        f"{long:.2f} s",
        f"{long / short:.2f}",
        f"≤ {TARGET_RESTART} ×",
        long <= TARGET_RESTART * short,
    )


def _suggestion_row(quick: bool) -> Row:
    known, count = (200, 5) if quick else (10_000, 15)
    ours, alone = _in_its_own_process(time_suggestions, known, count)
    return Row(
        f"a suggestion of TPE after {known:,} trials",
        f"Optuna alone: {alone:.1f} ms",
        f"{ours:.1f} ms",
        f"{ours / alone:.2f}",
        f"≤ {TARGET_SUGGESTION} ×",
        ours <= TARGET_SUGGESTION * alone,
    )
