"""Every named place where manager, keeper, spawner, reaper or dispatcher can die, one after another.

An undisturbed small experiment tells which places there are. For each, the same experiment is run again, and the process
that comes there first is killed there with SIGKILL. What comes out must be what came out without it.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from chaos import audit
from chaos.harness import House, house

TRIALS = 4
SEED = 1  # two trials that win, then two that the assessor stops
STEPS = 2
SECONDS = (0.05, 0.1)
KILLS_A_TRIAL = ("reaper.start.", "reaper.stop.", "reaper.exit.")
"""Places where the reaper of a started trial dies, and with it the job."""

REQUIRED = {
    *(f"{place}.{side}" for side in ("before", "after") for place in (
        "control.migrate", "metrics.migrate", "control.commit", "metrics.commit", "file.replace",
        "manager.create", "manager.metrics", "manager.submit", "manager.cancel",
        "manager.dispatcher.start", "manager.dispatcher.send",
        "dispatcher.initialize", "dispatcher.suggest", "dispatcher.kill",
        "keeper.register", "keeper.commands", "keeper.intent", "keeper.launch", "keeper.report", "keeper.exit.ack",
        "keeper.stop.signal", "spawner.fork", "reaper.claim", "reaper.start", "reaper.stop", "reaper.exit",
    )),
    "manager.ready.after", "manager.dispatcher.receive.before", "hub.commands.handed_over", "hub.report.taken",
}  # fmt: skip
"""Fail points that the experiment passes. One that is missing was renamed or lost: then this test proves less."""


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[tuple[Any, ...]], Counter[str]]:
    """What comes out when nobody dies, and how often each place was passed."""
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
        "trialCommand": built.trial_command(steps=STEPS, seconds=SECONDS, losers=True),
        "trialConcurrency": 2,
        "maxTrialNumber": TRIALS,
        "seed": SEED,
        "tuner": {"name": "Random"},
        "assessor": {"name": "Medianstop"},
        "trainingService": {"platform": "local"},
    }


def die_at(folder: Path, place: str, passage: int, wanted: list[tuple[Any, ...]]) -> None:
    """One run in which one process dies at this passage of the place; all must be as if it had not."""
    folder.mkdir(exist_ok=True)
    counter = folder / "counter"
    environment = {"PROCTOR_FAILPOINT": f"{place}@{passage}", "PROCTOR_FAILPOINT_COUNTER": str(counter)}
    with house(folder, environment) as built:
        ending = run_experiment(built)
    assert counter.stat().st_size >= passage, f"nobody came to passage {passage} of {place}"
    kills_a_trial = place.startswith(KILLS_A_TRIAL) or place.startswith("file.replace")
    audit.check(ending, trials=TRIALS, killed=list(ending.jobs) if kills_a_trial else ())
    assert len(ending.jobs) <= TRIALS + kills_a_trial
    assert ending.outcome() == wanted


def test_the_experiment_passes_every_fail_point(undisturbed: tuple[Any, Counter[str]]) -> None:
    assert REQUIRED <= undisturbed[1].keys(), f"not passed: {sorted(REQUIRED - undisturbed[1].keys())}"


@pytest.mark.slow
@pytest.mark.parametrize("place", sorted(REQUIRED))
def test_a_death_at_this_place_changes_nothing(
    place: str, tmp_path: Path, undisturbed: tuple[list[tuple[Any, ...]], Counter[str]]
) -> None:
    die_at(tmp_path, place, 1, undisturbed[0])
