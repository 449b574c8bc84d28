"""`python -m benchmarks.scheduling.peers [--quick]`: HyperBand's decisions, ours against Ray Tune's, the objects alone.

`make bench-peers` installs Ray Tune into an environment of its own and runs this there. Both get the same trials from
100 virtual workers: a report after every step, and a decision for every free worker. They take turns, five times each.
"""

import argparse
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ray.tune.schedulers import HyperBandScheduler as RayHyperBand

from benchmarks.table import Row, render
from proctor.manager.dispatcher.algorithms.schedulers.hyperband import HyperBandScheduler
from proctor.sdk.scheduler import ContinueVerdict, PauseVerdict, StartChoice, TrialReport

WORKERS = 100
ROUNDS = 5
SIDES = ("ours", "ray")


@dataclass(eq=False)
class RayTrial:
    """As much of a trial as Ray's scheduler looks at; it is a key of its dictionaries."""

    trial_id: str
    status: str = "PENDING"
    is_saving: bool = False
    step: int = 0


@dataclass
class RayController:
    """As much of Ray's controller as its scheduler calls."""

    scheduler: RayHyperBand
    stopped: list[RayTrial] = field(default_factory=list)

    def stop_trial(self, trial: RayTrial) -> None:
        """A paused trial ends."""
        trial.status = "TERMINATED"
        self.scheduler.on_trial_remove(self, trial)


def run_ours(trials: int) -> float:
    """Decisions in a second of processor time."""
    rng, scheduler = random.Random(0), HyperBandScheduler(max_t=81, reduction_factor=3)
    quality = [rng.random() for _ in range(trials)]
    step: dict[int, int] = {}
    running: list[int] = []
    decisions, request, begin = 0, 0, time.process_time()
    while True:
        while len(running) < WORKERS:
            request, decisions = request + 1, decisions + 1
            choice = scheduler.choose_trial_to_run(request, len(step) < trials)
            if choice is None:
                break
            if isinstance(choice, StartChoice):
                trial = len(step)
                step[trial] = 0
                scheduler.on_trial_add(trial, {})
            else:
                trial = choice.trial
                scheduler.on_trial_resume(trial)
            running.append(trial)
        for stopped, _ in scheduler.take_stops():
            scheduler.on_trial_remove(stopped)
        if not running:
            return decisions / (time.process_time() - begin)
        place = rng.randrange(len(running))
        trial = running[place]
        step[trial] += 1
        decisions += 1
        verdict = scheduler.on_trial_result(trial, TrialReport(quality[trial], step[trial]))
        if isinstance(verdict, ContinueVerdict):
            continue
        running[place] = running[-1]
        running.pop()
        if not isinstance(verdict, PauseVerdict):
            scheduler.on_trial_remove(trial)


def run_rays(trials: int) -> float:
    """The same of Ray's, which learns of trials before they run: as many as there are workers."""
    rng, scheduler = random.Random(0), RayHyperBand(metric="value", mode="max", max_t=81, reduction_factor=3)
    controller = RayController(scheduler)
    quality = [rng.random() for _ in range(trials)]
    running: list[RayTrial] = []
    added, decisions, begin = 0, 0, time.process_time()
    while True:
        while len(running) < WORKERS:
            decisions += 1
            trial = scheduler.choose_trial_to_run(controller)
            if trial is None and added < trials:
                scheduler.on_trial_add(controller, RayTrial(str(added)))
                added += 1
                continue
            if trial is None:
                break
            trial.status = "RUNNING"
            running.append(trial)
        if not running:
            return decisions / (time.process_time() - begin)
        place = rng.randrange(len(running))
        trial = running[place]
        trial.step += 1
        decisions += 1
        reported = {"value": quality[int(trial.trial_id)], "training_iteration": trial.step}
        action = scheduler.on_trial_result(controller, trial, reported)
        if action == "CONTINUE":
            continue
        running[place] = running[-1]
        running.pop()
        trial.status = "PAUSED" if action == "PAUSE" else "TERMINATED"


def measure(quick: bool) -> list[Row]:
    """One row."""
    trials = 1_000 if quick else 10_000
    sides: dict[str, Callable[[int], float]] = {"ours": run_ours, "ray": run_rays}
    rates: dict[str, list[Any]] = {side: [] for side in SIDES}
    for number in range(1 if quick else ROUNDS):
        for side in SIDES if number % 2 else reversed(SIDES):
            rates[side].append(sides[side](trials))
    ours, rays = median(rates["ours"]), median(rates["ray"])
    return [
        Row(
            f"HyperBand, {trials:,} trials, the object alone: decisions in a second of CPU",
            f"Ray Tune's: {rays:,.0f}",
            f"{ours:,.0f}",
            f"{ours / rays:.2f}",
            "≥ 1 ×",
            ours >= rays,
        )
    ]


def main() -> None:
    """Run it and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduling.peers")
    parser.add_argument("--quick", action="store_true", help="small numbers, once each: only to see that it works")
    print(render(measure(parser.parse_args().quick)))


if __name__ == "__main__":
    main()
