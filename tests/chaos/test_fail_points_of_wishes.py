"""Deaths while the manager does what a user asked for: the wish is granted, once, by whoever comes after."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from chaos import audit
from chaos.harness import EXPERIMENT_ID, House, house
from chaos.processes import Kind, find

from proctor.sdk.client.errors import NotFound

pytestmark = pytest.mark.slow

LONG = (60.0, 60.0)
SHORT = (0.05, 0.1)


def config(built: House, *, seconds: tuple[float, float] = SHORT, **changes: Any) -> Mapping[str, Any]:
    return {
        "searchSpace": {"x": {"_type": "choice", "_value": [0.4, 0.6]}},
        "trialCommand": built.trial_command(steps=2, seconds=seconds),
        "trialConcurrency": 2,
        "maxTrialNumber": 2,
        "seed": 1,
        "tuner": {"name": "Random"},
        "trainingService": {"platform": "local"},
        **changes,
    }


def dying(folder: Path, place: str) -> Mapping[str, str]:
    """The environment in which the first process to come to this place dies."""
    return {"PROCTOR_FAILPOINT": place, "PROCTOR_FAILPOINT_COUNTER": str(folder / "counter")}


def wait_for_trials(built: House, number: int = 2) -> None:
    """Until so many jobs run, as far as the manager knows."""

    def running() -> bool | None:
        shown = built.ask(lambda client: client.experiment(EXPERIMENT_ID))
        return True if shown["trial_counts"].get("RUNNING") == number else None

    built.wait_for(running, f"{number} running trials")


@pytest.mark.parametrize("place", ["manager.cancel.before", "manager.cancel.after", "keeper.stop.signal.before"])
def test_an_experiment_that_is_being_stopped_stops(place: str, tmp_path: Path) -> None:
    with house(tmp_path, dying(tmp_path, place)) as built:
        built.create(config(built, seconds=LONG))
        wait_for_trials(built)
        built.stop_experiment()
        assert find(Kind.TRIAL, built.home, built.tag) == []
        built.shut_down()
    assert (tmp_path / "counter").exists(), f"nobody came to {place}"
    ending = audit.Ending.read(built.home, built.ledgers)
    audit.check_list(ending, 2)
    audit.check_processes(ending)
    audit.check_values(ending)
    audit.check_nothing_left(ending)
    assert [trial["status"] for trial in ending.trials.values()] == ["WAITING", "WAITING"]
    assert [job["end_reason"] for job in ending.jobs.values()] == ["EXPERIMENT_STOPPED", "EXPERIMENT_STOPPED"]


@pytest.mark.parametrize("place", ["manager.update.before", "manager.update.after"])
def test_a_limit_that_was_changed_holds_for_running_trials(place: str, tmp_path: Path) -> None:
    with house(tmp_path, dying(tmp_path, place)) as built:
        built.create(config(built, seconds=LONG))
        wait_for_trials(built)
        built.ask(lambda client: client.update_experiment(EXPERIMENT_ID, {"max_trial_duration_seconds": 0.5}))
        built.wait_until_done()
        built.shut_down()
    assert (tmp_path / "counter").exists(), f"nobody came to {place}"
    ending = audit.Ending.read(built.home, built.ledgers)
    assert [job["end_reason"] for job in ending.jobs.values()] == ["DEADLINE", "DEADLINE"]
    audit.check_ended_once(ending)
    audit.check_nothing_left(ending)


@pytest.mark.parametrize("place", ["manager.delete.before", "manager.delete.after"])
def test_an_experiment_that_is_being_deleted_can_be_deleted_again(place: str, tmp_path: Path) -> None:
    with house(tmp_path, dying(tmp_path, place)) as built:
        built.create(config(built))
        built.wait_until_done()
        built.stop_experiment()

        def delete(client: Any) -> bool:
            try:
                client.delete_experiment(EXPERIMENT_ID)
            except NotFound:
                return True
            return True

        built.ask(delete)
        assert len(built.deaths) == 1
        assert built.ask(lambda client: list(client.experiments())) == []
        built.shut_down()
    assert list((built.home / "experiments").iterdir()) == []


@pytest.mark.parametrize("place", ["dispatcher.no_more.before", "dispatcher.no_more.after"])
def test_a_search_that_is_exhausted_ends(place: str, tmp_path: Path) -> None:
    with house(tmp_path, dying(tmp_path, place)) as built:
        built.create(config(built, tuner={"name": "GridSearch"}, maxTrialNumber=5))
        built.wait_until_done()
        built.shut_down()
    assert (tmp_path / "counter").exists(), f"nobody came to {place}"
    ending = audit.Ending.read(built.home, built.ledgers)
    audit.check(ending, trials=2)
    assert sorted(json.loads(trial["parameters"])["x"] for trial in ending.trials.values()) == [0.4, 0.6]


@pytest.mark.parametrize("place", ["keeper.stop.before", "keeper.stop.after"])
def test_a_keeper_that_dies_while_it_clears_up_after_a_killed_reaper_is_followed_by_one_that_does(
    place: str, tmp_path: Path
) -> None:
    with house(tmp_path, dying(tmp_path, place)) as built:
        built.create(config(built, seconds=(1.0, 2.0)))
        wait_for_trials(built)
        victim = find(Kind.REAPER, built.home, built.tag)[0]
        assert victim.kill()
        built.wait_until_done()
        built.shut_down()
    assert (tmp_path / "counter").exists(), f"nobody came to {place}"
    audit.check(audit.Ending.read(built.home, built.ledgers), trials=2, killed={victim.job_id})
