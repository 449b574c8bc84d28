"""Every named place where manager, keeper, spawner, reaper or dispatcher can die, one after another.

An undisturbed small experiment passes all of these places. In a few longer ones of the same kind a process is killed
with SIGKILL at one place after another, each time the one that gets there first, and the experiment continues. What
comes out must be what came out without it.
"""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from chaos import audit
from chaos.harness import EXPERIMENT_ID, House, house
from chaos.places import OF_AN_EXPERIMENT, listed
from chaos.seeds import in_chaos
from chaos.trial_script import LOSER

from proctor.manager.dispatcher.algorithms.tuners.random_search import RandomTuner
from proctor.sdk.space import parse_search_space

SEARCH_SPACE = {"x": {"_type": "uniform", "_value": [0, 2 * LOSER]}}
SEED = 7  # two trials that win; then every other one, or so, loses, and the assessor stops it
STEPS = 2  # the assessor judges at the last one: there must be no race between its word and the next report
SECONDS = (0.05, 0.1)
KILLS_A_TRIAL = ("reaper.start.", "reaper.stop.", "reaper.exit.", "file.replace.")
"""Places where the reaper of a started trial dies, or may, and with it the job."""

OF_JOBS = [place for place in listed(OF_AN_EXPERIMENT) if place.startswith(("spawner.", "reaper.", "file."))]
OTHERS = [place for place in listed(OF_AN_EXPERIMENT) if place not in OF_JOBS]
LIVES = {"jobs": OF_JOBS, **{f"others-{number}": OTHERS[number::3] for number in range(3)}}
"""Experiments, and the places at which processes die in each. Keepers and managers die in turn: before a manager starts
a keeper again that dies all the time it waits longer and longer."""

AT_ITS_START = (
    *("file.replace.", "control.migrate.", "metrics.migrate.", "control.commit."),
    *("manager.ready.", "manager.create.", "manager.dispatcher.start.", "dispatcher.initialize.", "keeper.register."),
)
"""Places that are armed before there is a home; some are passed at no other time."""

LATER_TOO = ("file.replace.", "control.commit.")
"""Of these the places that are passed all the time: late passages come upon more that is under way."""


def test_the_experiment_passes_every_fail_point(tmp_path: Path) -> None:
    log = tmp_path / "passages"
    with house(tmp_path, {"PROCTOR_FAILPOINT_LOG": str(log)}) as built:
        built.create(experiment(built, trials=4))
        built.finish()
    missed = sorted(OF_AN_EXPERIMENT - set(log.read_text().split()))
    assert not missed, f"renamed or lost, so that less is proved: {missed}"
    ending = audit.Ending.read(built.home, built.ledgers)
    audit.check(ending, trials=4)
    assert ending.outcome() == undisturbed(4)
    assert sorted(row["status"] for row in ending.trials.values()) == [
        "EARLY_STOPPED",
        "SUCCEEDED",
        "SUCCEEDED",
        "SUCCEEDED",
    ]


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("rounds", [1, *in_chaos([12])])
@pytest.mark.parametrize("life", LIVES)
def test_deaths_at_one_place_after_another_change_nothing(life: str, rounds: int, tmp_path: Path) -> None:
    """Each is recovered from before the next: trials begin and end again."""
    at_its_start = [place for place in LIVES[life] if place.startswith(AT_ITS_START)]
    later = [place for place in LIVES[life] if place not in at_its_start or place.startswith(LATER_TOO)] * rounds
    if rounds > 1:
        random.Random(life).shuffle(later)
    with house(tmp_path, armed=at_its_start) as built:
        built.create(experiment(built, trials=1000 * rounds))  # more than there is time for
        built.wait_for_deaths()
        built.wait_for_jobs(2)
        for place in later:
            built.places.arm(place)
            built.wait_for_deaths()
            built.wait_for_jobs(2)  # as many as run at a time: each of them in a place that another one has left
        end_soon(built)
        built.finish()
    ending = audit.Ending.read(built.home, built.ledgers)
    costs = [place for place in later if place.startswith(KILLS_A_TRIAL)]
    audit.check(ending, trials=len(ending.trials), killed=ending.jobs if costs else ())
    assert len(ending.jobs) <= len(ending.trials) + len(costs)
    assert ending.outcome() == undisturbed(len(ending.trials))


def experiment(built: House, *, trials: int) -> Mapping[str, Any]:
    """Its configuration."""
    return {
        "searchSpace": SEARCH_SPACE,
        "trialCommand": built.trial_command("--losers", steps=STEPS, seconds=SECONDS),
        "trialConcurrency": 2,
        "maxTrialNumber": trials,
        "seed": SEED,
        "maxInfrastructureRetries": 20,
        "tuner": {"name": "Random"},
        "assessor": {"name": "Medianstop", "classArgs": {"start_step": STEPS}},
        "trainingService": {"platform": "local"},
    }


def end_soon(built: House) -> None:
    """Have the experiment end with the trials that there are."""
    count = built.ask(lambda client: len(list(client.trials(EXPERIMENT_ID))))
    built.ask(lambda client: client.update_experiment(EXPERIMENT_ID, {"max_trial_number": count}))


def undisturbed(trials: int) -> list[tuple[Any, ...]]:
    """The outcome when no process is killed."""
    tuner = RandomTuner(seed=SEED)
    tuner.update_search_space(parse_search_space(SEARCH_SPACE))
    found: list[tuple[Any, ...]] = []
    for number in range(trials):
        parameters = tuner.suggest(number).parameters
        x = parameters["x"]
        if x < LOSER:
            found.append((parameters, "EARLY_STOPPED", None, None, 0.0, STEPS, [0.0] * STEPS))
        else:
            values = [1.0 + step for step in range(STEPS)]
            found.append((parameters, "SUCCEEDED", x, json.dumps(x), values[-1], STEPS, [*values, x]))
    return found
