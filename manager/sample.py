"""`python -m proctor.manager.sample --home DIR`: fill a home with a finished experiment of many trials, to look at.

    python -m proctor.manager.sample --home /tmp/sample --trials 10000 --points 100 --parameters 10
    python -m proctor.manager.sample --home /tmp/sample --trials 10000 --events 200

Everything is made up and follows from `--seed`: parameters of every kind, learning curves, failures, several nodes,
retried trials. With `--events` a manager then serves the home in the foreground and continues the experiment: its
trials report so many metrics a second. They run in this process (`training_services.in_memory`), not on the machine.
"""

import argparse
import asyncio
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from proctor.manager.app import prepare, run
from proctor.manager.clock import SystemClock
from proctor.manager.config.experiment import ExperimentConfig
from proctor.manager.engine import creation
from proctor.manager.engine.archive.importing import ImportedExperiment
from proctor.manager.engine.loop.starts import new_id
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.process.control_database import open_control
from proctor.manager.process.instance import EXIT_USAGE, InstanceLock, StartError
from proctor.manager.settings import METRICS_FILE, Home, ManagerSettings, SettingsError, read_environment
from proctor.manager.store.database import Database
from proctor.manager.store.rows import ExperimentRow, MetricRow, TrialJobRow, TrialRow
from proctor.manager.store.tables import metrics
from proctor.sdk.process_limits import keep_files_private, raise_open_files
from proctor.sdk.protocol import KIND_FINAL, KIND_INTERMEDIATE
from proctor.training_services.base import EndReason, GpuSlot, NodePlacement, TrialJobForm, TrialJobStatus
from proctor.training_services.in_memory.scripts import Final, ScriptedExit, ScriptedReport, Step
from proctor.training_services.in_memory.service import InMemoryTrainingService
from proctor.training_services.registry import ServiceContext

CONCURRENCY = 8
NODES = tuple(f"gpu-{number:02}" for number in range(1, 7))
SECONDS_PER_POINT = 6.0
_NAMED: dict[str, dict[str, Any]] = {
    "lr": {"_type": "loguniform", "_value": [1e-5, 0.1]},
    "momentum": {"_type": "uniform", "_value": [0.5, 0.99]},
    "batch_size": {"_type": "choice", "_value": [16, 32, 64, 128, 256]},
    "optimizer": {"_type": "choice", "_value": ["adam", "sgd", "rmsprop"]},
    "layers": {"_type": "randint", "_value": [1, 9]},
    "model": {
        "_type": "choice",
        "_value": [
            {"_name": "mlp", "width": {"_type": "choice", "_value": [128, 256, 512]}},
            {"_name": "cnn", "kernel": {"_type": "choice", "_value": [3, 5, 7]}},
        ],
    },
    "dropout": {"_type": "uniform", "_value": [0, 0.6]},
    "weight_decay": {"_type": "loguniform", "_value": [1e-6, 1e-2]},
}
_FAILURES = (
    "exit code 1: CUDA out of memory. Tried to allocate 2.00 GiB",
    "exit code 1: ValueError: loss is NaN",
    "killed by signal 9 (SIGKILL)",
)


@dataclass(frozen=True)
class SampleSize:
    """How much is made up."""

    trials: int
    points: int
    """Of each trial that was not stopped before its end."""
    parameters: int
    seed: int = 0


def search_space(parameters: int) -> dict[str, Any]:
    """So many parameters, the first ones of every kind."""
    further = {f"x{number}": {"_type": "uniform", "_value": [0, 1]} for number in range(1, parameters + 1)}
    return dict(islice((_NAMED | further).items(), parameters))


def suggest(space: dict[str, Any], draw: random.Random) -> dict[str, Any]:
    """One set of parameters of the kinds that `search_space` uses."""
    found: dict[str, Any] = {}
    for name, entry in space.items():
        if not isinstance(entry, dict):
            found[name] = entry  # `_name`
            continue
        kind, values = entry["_type"], entry["_value"]
        if kind == "choice":
            choice = draw.choice(values)
            found[name] = suggest(choice, draw) if isinstance(choice, dict) else choice
        elif kind == "randint":
            found[name] = draw.randrange(*values)
        elif kind == "loguniform":
            found[name] = math.exp(draw.uniform(math.log(values[0]), math.log(values[1])))
        else:
            found[name] = draw.uniform(*values)
    return found


def learning_curve(parameters: dict[str, Any], points: int, draw: random.Random) -> list[float]:
    """An accuracy over time: it rises to a height that depends on the parameters, with noise."""
    distance = abs(math.log10(parameters.get("lr", 1e-3)) + 2.5) / 2.5
    height = 0.97 - 0.5 * min(distance, 1.0) ** 2 - 0.05 * draw.random()
    pace = points * draw.uniform(0.08, 0.35)
    return [
        round(height * (1 - 0.9 * math.exp(-(step + 1) / pace)) + draw.gauss(0, 0.006), 6) for step in range(points)
    ]


# ---- a finished experiment ------------------------------------------------------------------------------------------


class SampleExperiment:
    """The rows of an experiment that was never run."""

    def __init__(self, size: SampleSize, row: ExperimentRow) -> None:
        self.row = row
        self.trials: list[TrialRow] = []
        self.jobs: list[TrialJobRow] = []
        self._curves: list[list[float]] = []
        self._size = size
        self._draw = random.Random(size.seed)
        clocks = [row.created_at] * CONCURRENCY
        for number in range(size.trials):
            place = min(range(CONCURRENCY), key=clocks.__getitem__)
            clocks[place] = self._add_trial(number, clocks[place])
        self.end = max(clocks)

    def metrics(self) -> Iterator[MetricRow]:
        """What its trials have reported, in the order of the trials."""
        identifier = 0
        for trial, curve in zip(self.trials, self._curves, strict=True):
            assert trial.started_at is not None
            for step, value in enumerate(curve):
                identifier += 1
                moment = trial.started_at + (step + 1) * SECONDS_PER_POINT
                yield MetricRow(
                    identifier, trial.id, trial.jobs, 0, 0, KIND_INTERMEDIATE, step, step, None, value, moment
                )
            if trial.final_data is not None:
                identifier += 1
                moment = trial.ended_at or 0.0
                yield MetricRow(
                    identifier, trial.id, trial.jobs, 0, 0, KIND_FINAL, 0, None, None, trial.final_data, moment
                )

    def _add_trial(self, number: int, begin: float) -> float:
        """A trial with its jobs; returns when its place was free again."""
        draw, points = self._draw, self._size.points
        parameters = suggest(self.row.search_space, draw)
        chance = draw.random()
        status, reason = TrialStatus.SUCCEEDED, ""
        if chance < 0.07:
            status, reason = TrialStatus.FAILED, draw.choice(_FAILURES)
        elif chance < 0.17:
            status, reason = TrialStatus.EARLY_STOPPED, "stopped by the assessor Medianstop"
        elif chance < 0.18:
            status, reason = TrialStatus.USER_CANCELED, "stopped by the user"
        reached = points if status is TrialStatus.SUCCEEDED else draw.randrange(points + 1)
        curve = learning_curve(parameters, points, draw)[:reached]
        started = begin + draw.uniform(0.5, 4.0)
        ended = started + (reached + 1) * SECONDS_PER_POINT
        final = round(max(curve[-10:]), 6) if status.has_result and curve else None
        trial = TrialRow(
            id=f"{self.row.id[:4]}{number:04x}",
            experiment_id=self.row.id,
            sequence_id=number,
            status=status,
            reason=reason,
            parameter_id=number,
            parameters=parameters,
            created_at=begin,
            jobs=2 if draw.random() < 0.02 else 1,
            intermediate_count=reached,
            latest_value=curve[-1] if curve else None,
            final_value=final,
            final_data=None if final is None else {"default": final, "loss": round(1.3 * (1 - final), 6)},
            started_at=started,
            ended_at=ended,
        )
        self.trials.append(trial)
        self._curves.append(curve)
        self.jobs += [self._job(trial, attempt) for attempt in range(1, trial.jobs + 1)]
        return ended

    def _job(self, trial: TrialRow, number: int) -> TrialJobRow:
        is_last, node = number == trial.jobs, self._draw.choice(NODES)
        failed = trial.status is TrialStatus.FAILED
        reason = EndReason.EXITED_ERROR if failed else EndReason.EXITED_OK
        if trial.status is TrialStatus.EARLY_STOPPED:
            reason = EndReason.EARLY_STOPPED
        return TrialJobRow(
            id=f"{trial.id}.{number}",
            trial_id=trial.id,
            experiment_id=trial.experiment_id,
            number=number,
            token="sample",
            status=TrialJobStatus.ENDED,
            parameter_id=trial.parameter_id,
            parameters=trial.parameters,
            end_reason=reason if is_last else EndReason.NODE_LOST,
            detail=trial.reason if is_last else f"node {node} was lost",
            node_id=node,
            placement=NodePlacement(node, (GpuSlot(f"GPU-{node}-{self._draw.randrange(4)}", 0),)).to_json(),
            exit_code=1 if failed and is_last else 0,
            submitted_at=trial.created_at,
            started_at=trial.started_at if is_last else trial.created_at,
            ended_at=trial.ended_at if is_last else trial.started_at,
            counted_gpus=1.0,
            cpu_seconds=4.0 * trial.intermediate_count,
        )


async def fill(home: Home, size: SampleSize, *, is_live: bool = False) -> str:
    """Write an experiment into a home that no manager serves; returns its id.

    :param is_live: the next manager continues it.
    Raises StartError where the home's database cannot be opened.
    """
    opened = await open_control(home, SystemClock(), accept=False)
    async with opened.database as control:
        row = _experiment_row(home, size, is_live=is_live)
        sample, folder = SampleExperiment(size, row), Path(row.directory)
        creation.make_folder(folder, ExperimentConfig.from_canonical(row.config))
        async with await Database.open(str(folder / METRICS_FILE), "metrics") as database:
            last = await database.write(lambda connection: metrics.insert(connection, sample.metrics(), starts={}))
        row = replace(row, metrics_told=last, started_at=row.created_at, ended_at=None if is_live else sample.end)
        found = ImportedExperiment(row, sample.trials, sample.jobs, ())
        await control.write(lambda connection: found.insert(connection, time=time.time()))
        creation.finish_folder(folder)
    return row.id


def _experiment_row(home: Home, size: SampleSize, *, is_live: bool) -> ExperimentRow:
    folder = str(home.experiments_directory)
    config = {
        "experimentName": f"sample of {size.trials:,} trials",
        "searchSpace": search_space(size.parameters),
        "trialCommand": "true",
        "trialCodeDirectory": folder,
        "trialConcurrency": CONCURRENCY,
        "tuner": {"name": "Random"},
        "objective": {"direction": "maximize"},
        "trainingService": {"platform": "local"},
    }
    identifier = new_id()
    hours = size.trials * (size.points + 1) * SECONDS_PER_POINT / CONCURRENCY / 3600
    created = time.time() - hours * 3600
    loaded = creation.check(config, folder, home.path)
    return replace(
        creation.new_row(loaded, identifier, home.experiment_directory(identifier), created),
        status=ExperimentStatus.RUNNING if is_live else ExperimentStatus.STOPPED,
        reason="" if is_live else "made up by proctor.manager.sample",
        next_sequence_id=size.trials,
        next_parameter_id=size.trials,
        active_seconds=hours * 3600,
    )


# ---- a live one -----------------------------------------------------------------------------------------------------


class LiveScript:
    """What each of its trials does: it reports so often that all of them together report `events` times a second."""

    def __init__(self, points: int, events: float) -> None:
        self._points = points
        self._pause = CONCURRENCY / events

    def __call__(self, form: TrialJobForm) -> Iterator[Step]:
        """The steps of one job."""
        draw = random.Random(form.job_id)
        curve = learning_curve(json.loads(form.parameter_file)["parameters"], self._points, draw)
        for step, value in enumerate(curve):
            yield ScriptedReport(self._pause * draw.uniform(0.8, 1.2), value, step=step)
        best = max(curve[-10:])
        yield Final(0.0, {"default": best, "loss": round(1.3 * (1 - best), 6)})
        yield ScriptedExit(cpu_seconds=1.0)


def serve_live(home: Home, script: LiveScript) -> None:
    """Serve the home in this process until it is stopped, with trials that follow the script. Raises StartError."""

    def create_service(platform: str, context: ServiceContext) -> InMemoryTrainingService:
        return InMemoryTrainingService(script)

    web, log = read_environment()
    run(ManagerSettings(home, web, log), create_service)


def main(arguments: Sequence[str] | None = None) -> int:
    """Fill the home, and serve it if that was asked for; the exit code. The id of the experiment goes to stdout."""
    options = _parser().parse_args(arguments)
    home = Home.find(options.home)
    size = SampleSize(options.trials, options.points, options.parameters, options.seed)
    try:
        prepare(home)
        with InstanceLock(home):
            identifier = asyncio.run(fill(home, size, is_live=options.events is not None))
        print(identifier, flush=True)
        if options.events is not None:
            serve_live(home, LiveScript(size.points, options.events))
    except (StartError, SettingsError) as error:
        print(f"proctor sample: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, SettingsError) else error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m proctor.manager.sample",
        description="Fill a home with a made-up experiment of many trials.",
    )
    parser.add_argument(
        "--home", required=True, help="the folder of a manager that does not run; made if it is not there"
    )
    parser.add_argument("--trials", type=_count(0), default=1000, metavar="N", help="how many (default: 1000)")
    parser.add_argument("--points", type=_count(1), default=100, metavar="N", help="of each curve (default: 100)")
    parser.add_argument("--parameters", type=_count(1), default=10, metavar="N", help="of each trial (default: 10)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="what everything follows from (default: 0)")
    parser.add_argument(
        "--events",
        type=_count(1),
        metavar="N",
        help="serve the home afterwards, with trials that report N metrics a second; PROCTOR_PORT names the port",
    )
    return parser


def _count(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected a number from {least}, found {text!r}")
        return int(text)

    return read


if __name__ == "__main__":
    keep_files_private()
    raise_open_files()
    sys.exit(main())
