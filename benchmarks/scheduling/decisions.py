"""What a decision of a trial scheduler costs, the object alone, among few trials and among many."""

import random
import time
from collections.abc import Callable
from statistics import median

from benchmarks.harness import BenchmarkError
from benchmarks.table import Row
from proctor.manager.dispatcher.algorithms.schedulers.hyperband import HyperBandScheduler
from proctor.manager.dispatcher.algorithms.schedulers.median_stopping import MedianStoppingScheduler
from proctor.manager.dispatcher.algorithms.schedulers.pbt import PbtScheduler
from proctor.sdk.scheduler import PauseVerdict, ResumeChoice, TrialReport

ROUNDS = 5
TARGET = 3.0
"""How many times as much a decision may cost among many trials: a logarithm, and the caches of a processor."""


def time_pbt(trials: int, decisions: int) -> float:
    """Microseconds of a result at which a trial is compared, and of the choice after it."""
    rng = random.Random(0)
    scheduler = PbtScheduler(time_attr="training_iteration", perturbation_interval=1, population_size=trials)
    scheduler.set_search_space({"rate": {"_type": "uniform", "_value": [0, 1]}})
    for trial in range(trials):
        scheduler.on_trial_add(trial, {"rate": rng.random()})
    step = dict.fromkeys(range(trials), 0)

    def report(trial: int) -> bool:
        step[trial] += 1
        return isinstance(scheduler.on_trial_result(trial, TrialReport(rng.random(), step[trial])), PauseVerdict)

    def continue_one() -> None:
        choice = scheduler.choose_trial_to_run(0, False)
        if isinstance(choice, ResumeChoice):
            scheduler.on_trial_resume(choice.trial)
        elif choice is not None:
            scheduler.on_trial_clone(choice.trial, choice.donor, choice.parameters)  # type: ignore[union-attr]

    losses = sorted(rng.random() for _ in range(trials))
    state = scheduler.state_dict()
    for trial, saved in enumerate(state["trials"]):
        step[trial] = 1
        saved |= {"loss": losses[trial], "time": 1.0}
    scheduler.load_state_dict(state)
    begin = time.process_time()
    for number in range(decisions):
        if report(number % trials):
            continue_one()
    return (time.process_time() - begin) / decisions * 1e6


def time_hyperband(trials: int, decisions: int) -> float:
    """Microseconds of a choice among so many trials that live: most of them wait, in brackets that miss one trial."""
    rng = random.Random(0)
    scheduler = HyperBandScheduler(max_t=81)
    for trial in range(trials):
        scheduler.on_trial_add(trial, {})
    members: dict[int, list[int]] = {}
    for trial, number in scheduler._bracket_of.items():
        members.setdefault(number, []).append(trial)
    for number, waiting in members.items():
        for trial in waiting[1:] if number % 7 else waiting:  # each seventh is cut, and has trials to resume
            milestone = scheduler.next_milestone(trial)
            if milestone is not None and milestone < 81:
                scheduler.on_trial_result(trial, TrialReport(rng.random(), milestone))
    for trial, _ in scheduler.take_stops():
        scheduler.on_trial_remove(trial)
    begin = time.process_time()
    for number in range(decisions):
        if not isinstance(scheduler.choose_trial_to_run(number, False), ResumeChoice):
            raise BenchmarkError("expected a trial to resume")
    return (time.process_time() - begin) / decisions * 1e6


def time_median_stopping(trials: int, decisions: int) -> float:
    """Microseconds of a result that is judged by all other trials' means."""
    rng = random.Random(0)
    scheduler = MedianStoppingScheduler(time_attr="training_iteration", grace_period=1, hard_stop=False)
    curve = [float(step) for step in range(1, 11)]
    scheduler.load_state_dict(
        {
            "histories": [[trial, curve, [-loss for loss in curve]] for trial in range(trials)],
            "judged": [],
            "paused": [],
            "exempt": [],
            "stopped": 0,
        }
    )
    begin = time.process_time()
    for number in range(decisions):
        scheduler.on_trial_result(number % trials, TrialReport(20.0 + rng.random(), 11 + number // trials))
    return (time.process_time() - begin) / decisions * 1e6


def _row(what: str, measure_one: Callable[[int, int], float], few: int, many: int, decisions: int) -> Row:
    times: dict[int, list[float]] = {few: [], many: []}
    for number in range(ROUNDS):
        for trials in (few, many) if number % 2 else (many, few):
            times[trials].append(measure_one(trials, decisions))
    less, more = median(times[few]), median(times[many])
    return Row(
        f"{what}: CPU of a decision among {many:,} trials",
        f"among {few:,}: {less:.1f} µs",
        f"{more:.1f} µs",
        f"{more / less:.2f}",
        f"≤ {TARGET:g} ×",
        more <= TARGET * less,
    )


def measure(quick: bool) -> list[Row]:
    """One row for each scheduler."""
    decisions = 20 if quick else 300
    return [
        _row("PBT", time_pbt, 100, 200 if quick else 1_600, decisions),
        _row("HyperBand", time_hyperband, 200, 400 if quick else 20_000, decisions),
        _row("MedianStopping by steps", time_median_stopping, 100, 200 if quick else 5_000, decisions),
    ]
