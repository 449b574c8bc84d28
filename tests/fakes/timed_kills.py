"""Kills from outside, at times drawn uniformly over a run, its start-up included."""

import random
import time
from pathlib import Path

from fakes.incarnations import Incarnations
from fakes.trained_models import Recipe
from fakes.trained_runs import check_equal, check_samples

PAUSE_SECONDS = 0.004  # for each sample: the training takes longer than all that surrounds it
TIMED_RECIPES = {
    "epochs": Recipe(accumulation=3, scheduler="plateau", pause_seconds=PAUSE_SECONDS),
    "iterations": Recipe(unit="iteration", accumulation=3, scheduler="plateau", workers=2, pause_seconds=PAUSE_SECONDS),
    "two processes": Recipe(unit="iteration", accumulation=2, processes=2, pause_seconds=PAUSE_SECONDS),
}
RUNS_A_KILL = 10  # so many runs at most that end before their kill


def check_timed_kills(incarnations: Incarnations, recipe: Recipe, *, kills: int, seed: str, root: Path) -> None:
    """Kill runs until so many kills have happened, and compare the end of each of them with that of one left alone."""
    draw, whole, run, left = random.Random(seed), root / "uninterrupted", 0, kills
    begun = time.monotonic()
    reference = incarnations.run(recipe, whole)
    seconds = time.monotonic() - begun
    while left > 0:
        killed = root / f"killed {run}"
        is_new, begun = not killed.exists(), time.monotonic()
        last = incarnations.run(recipe, killed, kill_after_seconds=draw.uniform(0.0, seconds))
        left -= last["killed"]
        if last["killed"] and left > 0:
            continue
        if last["killed"]:
            last = incarnations.run(recipe, killed)
        elif is_new:
            seconds = time.monotonic() - begun  # the machine has become faster
        check_equal(last, reference)
        check_samples(whole, killed)
        run += 1
        assert run <= RUNS_A_KILL * kills, f"{kills - left} of {kills} kills happened"
