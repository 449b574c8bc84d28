"""Every named place where manager, keeper, spawner, reaper or dispatcher can die, one after another.

An undisturbed small experiment tells which places there are. For each, the same experiment is run again, and the
process that comes there first is killed there with SIGKILL. What comes out must be what came out without it.
"""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from chaos import audit
from chaos.harness import House, house
from chaos.places import OF_AN_EXPERIMENT, listed

TRIALS = 4
SEED = 1  # two trials that win, then two that the assessor stops
STEPS = 2  # the assessor judges at the last one: there must be no race between its word and the next report
SECONDS = (0.05, 0.1)
KILLS_A_TRIAL = ("reaper.start.", "reaper.stop.", "reaper.exit.")
"""Places where the reaper of a started trial dies, and with it the job."""

BUSY = (
    "control.commit.before",
    "control.commit.after",
    "metrics.commit.after",
    "keeper.report.after",
    "file.replace.before",
)
"""Places that are passed many times: late passages come upon more that is under way."""


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[tuple[Any, ...]], Counter[str]]:
    """What comes out when no process is killed, and how often each place was passed."""
    folder = tmp_path_factory.mktemp("undisturbed")
    log = folder / "passages"
    with house(folder, {"PROCTOR_FAILPOINT_LOG": str(log)}) as built:
        ending = run_experiment(built)
    audit.check(ending, trials=TRIALS)
    assert sorted(row["status"] for row in ending.trials.values()) == ["EARLY_STOPPED"] * 2 + ["SUCCEEDED"] * 2
    return ending.outcome(), Counter(log.read_text().split())


def run_experiment(built: House) -> audit.Ending:
    """Create it, wait for its end, shut down, and read what is left."""
    built.create(small_experiment(built))
    built.wait_until_done()
    built.shut_down()
    return audit.Ending.read(built.home, built.ledgers)


def small_experiment(built: House) -> Mapping[str, Any]:
    """Its configuration."""
    return {
        "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
        "trialCommand": built.trial_command("--losers", steps=STEPS, seconds=SECONDS),
        "trialConcurrency": 2,
        "maxTrialNumber": TRIALS,
        "seed": SEED,
        "tuner": {"name": "Random"},
        "assessor": {"name": "Medianstop", "classArgs": {"start_step": STEPS}},
        "trainingService": {"platform": "local"},
    }


def die_at(folder: Path, place: str, passage: int, wanted: list[tuple[Any, ...]]) -> bool:
    """One run in which one process dies at this passage of the place; all must be as if it had not.

    Returns whether anybody came so far.
    """
    folder.mkdir(exist_ok=True)
    counter = folder / "counter"
    environment = {"PROCTOR_FAILPOINT": f"{place}@{passage}", "PROCTOR_FAILPOINT_COUNTER": str(counter)}
    with house(folder, environment) as built:
        ending = run_experiment(built)
    kills_a_trial = place.startswith(KILLS_A_TRIAL) or place.startswith("file.replace")
    audit.check(ending, trials=TRIALS, killed=list(ending.jobs) if kills_a_trial else ())
    assert len(ending.jobs) <= TRIALS + kills_a_trial
    assert ending.outcome() == wanted
    return counter.stat().st_size >= passage


def test_the_experiment_passes_every_fail_point(undisturbed: tuple[Any, Counter[str]]) -> None:
    missed = sorted(OF_AN_EXPERIMENT - undisturbed[1].keys())
    assert not missed, f"renamed or lost, so that less is proved: {missed}"


@pytest.mark.slow
@pytest.mark.parametrize("place", listed(OF_AN_EXPERIMENT))
def test_a_death_at_this_place_changes_nothing(
    place: str, tmp_path: Path, undisturbed: tuple[list[tuple[Any, ...]], Counter[str]]
) -> None:
    assert die_at(tmp_path, place, 1, undisturbed[0]), f"{place} was never reached"


@pytest.mark.slow
@pytest.mark.parametrize("place", BUSY)
def test_a_death_at_a_late_passage_of_a_busy_place_changes_nothing(
    place: str, tmp_path: Path, undisturbed: tuple[list[tuple[Any, ...]], Counter[str]]
) -> None:
    outcome, passages = undisturbed
    assert die_at(tmp_path, place, passages[place] * 3 // 4, outcome), f"{place} was not reached so often"


@pytest.mark.chaos
@pytest.mark.parametrize("place", listed(OF_AN_EXPERIMENT))
def test_a_death_at_any_passage_of_this_place_changes_nothing(
    place: str, tmp_path: Path, undisturbed: tuple[list[tuple[Any, ...]], Counter[str]]
) -> None:
    """How many passages there are depends on how reports gather: a passage that does not come kills nothing."""
    outcome, passages = undisturbed
    for passage in range(2, passages[place] + 1):
        die_at(tmp_path / str(passage), place, passage, outcome)
