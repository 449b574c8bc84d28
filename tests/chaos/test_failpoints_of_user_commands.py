"""Deaths while the manager does what a user asked for: it is done, once, by the manager that comes after."""

import json
import os
import shutil
import signal
import sqlite3
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from chaos import audit, places
from chaos.harness import EXPERIMENT_ID, House, house, save_archive
from chaos.places import listed
from chaos.processes import Kind, find

from proctor.sdk.client import Client
from proctor.sdk.client.errors import Conflict, NotFound

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


@pytest.mark.parametrize("place", listed(places.OF_STOPPING))
def test_an_experiment_that_is_being_stopped_stops(place: str, tmp_path: Path) -> None:
    with house(tmp_path, dying(tmp_path, place)) as built:
        built.create(config(built, seconds=LONG))
        wait_for_trials(built)
        built.stop_experiment()
        assert find(Kind.TRIAL, built.home, built.tag) == []
        built.shut_down()
    assert (tmp_path / "counter").exists(), f"{place} was never reached"
    ending = audit.Ending.read(built.home, built.ledgers)
    audit.check_list(ending, 2)
    audit.check_processes(ending)
    audit.check_values(ending)
    audit.check_nothing_left(ending)
    assert [trial["status"] for trial in ending.trials.values()] == ["WAITING", "WAITING"]
    assert [job["end_reason"] for job in ending.jobs.values()] == ["EXPERIMENT_STOPPED", "EXPERIMENT_STOPPED"]


@pytest.mark.parametrize("place", listed(places.OF_A_CLEAN_UP))
def test_a_stopped_experiment_is_cleaned_up_after_by_the_next_manager(place: str, tmp_path: Path) -> None:
    with house(tmp_path, dying(tmp_path, place)) as built:
        built.create(config(built))
        built.wait_until_done()
        built.stop_experiment()

        def is_cleaned_up() -> bool | None:
            built.ask(lambda client: client.health())
            with closing(sqlite3.connect(f"file:{built.home / 'control.db'}?mode=ro", uri=True)) as database:
                [(owed,)] = database.execute("SELECT clean_up_owed FROM experiments").fetchall()
            return None if owed else True

        built.wait_for(is_cleaned_up, "the clean-up")
        assert len(built.deaths) == 1, f"{place} was never reached"
        assert built.status() == "STOPPED"
        built.shut_down()
    unread = {"metrics.db-wal", "metrics.db-shm"}  # the next manager does not open the databases of what is stopped
    audit.check_nothing_left(audit.Ending.read(built.home, built.ledgers), but=unread)


@pytest.mark.parametrize("place", listed(places.OF_LIMITS))
def test_a_limit_that_was_changed_holds_for_running_trials(place: str, tmp_path: Path) -> None:
    with house(tmp_path, dying(tmp_path, place)) as built:
        built.create(config(built, seconds=LONG))
        wait_for_trials(built)
        built.ask(lambda client: client.update_experiment(EXPERIMENT_ID, {"max_trial_duration_seconds": 0.5}))
        built.wait_until_done()
        built.shut_down()
    assert (tmp_path / "counter").exists(), f"{place} was never reached"
    ending = audit.Ending.read(built.home, built.ledgers)
    assert [job["end_reason"] for job in ending.jobs.values()] == ["DEADLINE", "DEADLINE"]
    audit.check_ended_once(ending)
    audit.check_nothing_left(ending)


@pytest.mark.parametrize("place", listed(places.OF_DELETING))
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


@pytest.mark.parametrize("place", listed(places.OF_EXHAUSTION))
def test_a_search_that_is_exhausted_ends(place: str, tmp_path: Path) -> None:
    with house(tmp_path, dying(tmp_path, place)) as built:
        built.create(config(built, tuner={"name": "GridSearch"}, maxTrialNumber=5))
        built.wait_until_done()
        built.shut_down()
    assert (tmp_path / "counter").exists(), f"{place} was never reached"
    ending = audit.Ending.read(built.home, built.ledgers)
    audit.check(ending, trials=2)
    assert sorted(json.loads(trial["parameters"])["x"] for trial in ending.trials.values()) == [0.4, 0.6]


@pytest.mark.parametrize("place", listed(places.OF_A_DEAD_REAPER))
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
    assert (tmp_path / "counter").exists(), f"{place} was never reached"
    audit.check(audit.Ending.read(built.home, built.ledgers), trials=2, killed={victim.job_id})


@pytest.mark.parametrize("place", listed(places.OF_LOADING))
def test_an_archive_that_is_being_loaded_can_be_loaded_again_and_is_there_once(place: str, tmp_path: Path) -> None:
    archive = tmp_path / "saved.zip"

    def save(client: Client) -> bool:
        save_archive(client, archive)
        return True

    def load(client: Client) -> bool:
        handed = built.home / "incoming" / "saved.zip"
        shutil.copyfile(archive, handed)
        try:
            client.load_experiment(handed.name)
        except Conflict:  # the manager died when it was there
            return True
        finally:
            handed.unlink()
        return True

    def outcome(client: Client) -> list[Any]:
        trials = list(client.trials(EXPERIMENT_ID, sort="sequence_id"))
        kept = [[trial[name] for name in ("id", "status", "parameters", "final_value", "jobs")] for trial in trials]
        return [kept, [[metric["data"] for metric in client.metrics(trial["id"])] for trial in trials]]

    with house(tmp_path, dying(tmp_path, place)) as built:
        built.create(config(built))
        built.wait_until_done()
        built.stop_experiment()
        wanted = built.ask(outcome)
        assert [trial[1] for trial in wanted[0]] == ["SUCCEEDED", "SUCCEEDED"]
        built.ask(lambda client: save_archive(client, archive) or True)
        built.ask(lambda client: client.delete_experiment(EXPERIMENT_ID) or True)
        built.ask(load)
        assert len(built.deaths) == 1, f"{place} was never reached"
        assert built.status() == "STOPPED"
        assert built.ask(outcome) == wanted
        built.shut_down()
    assert [path.name for path in (built.home / "experiments").iterdir()] == [EXPERIMENT_ID]
    assert not (built.home / "experiments" / EXPERIMENT_ID / "loading").exists()
    assert list((built.home / "incoming").iterdir()) == []


RAISING = """
from nni.tuner import Tuner

class Raising(Tuner):
    def update_search_space(self, search_space): ...
    def receive_trial_result(self, parameter_id, parameters, value, **kwargs): ...
    def generate_parameters(self, parameter_id, **kwargs):
        raise ValueError("nothing comes to mind")
"""


@pytest.mark.parametrize("place", listed(places.OF_A_TUNER_THAT_RAISES))
def test_a_tuner_that_raises_is_reported(place: str, tmp_path: Path) -> None:
    (tmp_path / "raising.py").write_text(RAISING)
    tuner = {"className": "raising.Raising", "codeDirectory": str(tmp_path)}
    with house(tmp_path, dying(tmp_path, place)) as built:
        built.create(config(built, tuner=tuner))
        built.wait_for(lambda: True if built.status() == "ERROR" else None, "the experiment to be in ERROR")
        found = built.ask(lambda client: client.experiment(EXPERIMENT_ID))
        assert "nothing comes to mind" in found["reason"]
        assert "generate_parameters" in found["error"]
        assert found["trial_counts"] == {}
        built.shut_down()
    assert (tmp_path / "counter").exists(), f"{place} was never reached"


@pytest.mark.parametrize("place", listed(places.OF_A_SUSPENDED_DISPATCHER))
def test_a_manager_that_dies_while_it_replaces_a_suspended_dispatcher_is_followed_by_one_that_has_another(
    place: str, tmp_path: Path
) -> None:
    environment = {**dying(tmp_path, place), "PROCTOR_DISPATCHER_PATIENCE_SECONDS": "3"}
    with house(tmp_path, environment) as built:
        space = {"x": {"_type": "uniform", "_value": [0, 1]}}
        built.create(config(built, seconds=(1.0, 2.0), maxTrialNumber=4, searchSpace=space))
        wait_for_trials(built)
        (suspended,) = find(Kind.DISPATCHER, built.home, built.tag)
        os.kill(suspended.pid, signal.SIGSTOP)
        built.wait_until_done()
        with suppress(ProcessLookupError):  # it was killed, or finds that its manager is gone
            os.kill(suspended.pid, signal.SIGCONT)
        assert len(built.deaths) == 1, f"{place} was never reached"
        built.shut_down()
    ending = audit.Ending.read(built.home, built.ledgers)
    audit.check(ending, trials=4)
    assert len({trial["parameter_id"] for trial in ending.trials.values()}) == 4
