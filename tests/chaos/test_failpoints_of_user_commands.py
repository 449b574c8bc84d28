"""Deaths while the manager does what a user asked for: it is done, once, by the manager that comes after."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from chaos import audit, places
from chaos.harness import EXPERIMENT_ID, House, house, save_archive
from chaos.places import listed
from chaos.processes import Kind, find

from proctor.sdk.client import Client

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

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


def by_experiment(at: Iterable[str]) -> dict[str, str]:
    """These places by the ids of experiments, one for each."""
    return {place.replace(".", "-"): place for place in sorted(at)}


def has_begun(ledger: Path) -> bool:
    """Whether a job has written its first line."""
    return ledger.exists() and ledger.stat().st_size > 0


def wait_for_trials(built: House, experiment_id: str) -> None:
    """Until two jobs run, as the manager knows and as their ledgers say."""

    def running() -> bool | None:
        rows = built.ask(lambda client: list(client.trials(experiment_id)))
        jobs = [f"{row['id']}.1" for row in rows if row["status"] == "RUNNING"]
        return (len(jobs) == 2 and all(has_begun(built.ledgers / job) for job in jobs)) or None

    built.wait_for(running, "two running trials")


def test_an_experiment_that_is_being_stopped_stops_and_is_cleaned_up_after(tmp_path: Path) -> None:
    at = by_experiment(places.OF_STOPPING | places.OF_A_CLEAN_UP)
    with house(tmp_path) as built:

        def is_cleaned_up() -> bool | None:
            built.ask(lambda client: client.health())
            with closing(sqlite3.connect(f"file:{built.home / 'control.db'}?mode=ro", uri=True)) as database:
                [(owed,)] = database.execute("SELECT sum(clean_up_owed) FROM experiments").fetchall()
            return None if owed else True

        for name, place in at.items():
            built.create(config(built, seconds=LONG), name)
            wait_for_trials(built, name)
            built.places.arm(place)
            built.stop_experiment(name)
            assert find(Kind.TRIAL, built.home, built.tag) == []
            built.wait_for_deaths()
            built.wait_for(is_cleaned_up, "the clean-up")
            assert built.status(name) == "STOPPED"
        built.shut_down()
    unread = {"metrics.db-wal", "metrics.db-shm"}  # the next manager does not open the databases of what is stopped
    for name in at:
        ending = audit.Ending.read(built.home, built.ledgers, name)
        audit.check_list(ending, 2)
        audit.check_processes(ending)
        audit.check_values(ending)
        audit.check_nothing_left(ending, but=unread)
        assert [trial["status"] for trial in ending.trials.values()] == ["WAITING", "WAITING"]
        assert [job["end_reason"] for job in ending.jobs.values()] == ["EXPERIMENT_STOPPED", "EXPERIMENT_STOPPED"]


def test_a_limit_that_was_changed_holds_for_running_trials(tmp_path: Path) -> None:
    with house(tmp_path) as built:
        for name, place in by_experiment(places.OF_LIMITS).items():
            built.create(config(built, seconds=LONG), name)
            wait_for_trials(built, name)
            built.places.arm(place)
            built.give(lambda client, key=name: client.update_experiment(key, {"max_trial_duration_seconds": 0.5}))  # type: ignore[misc]
            built.wait_until_done(name)
            assert built.places.left() == []
        built.shut_down()
    for name in by_experiment(places.OF_LIMITS):
        ending = audit.Ending.read(built.home, built.ledgers, name)
        assert [job["end_reason"] for job in ending.jobs.values()] == ["DEADLINE", "DEADLINE"]
        audit.check_ended_once(ending)
        audit.check_nothing_left(ending)


class Saved:
    """An experiment that is over, what was known of it when it was, and its archive."""

    def __init__(self, built: House, archive: Path) -> None:
        self._built, self._archive = built, archive
        built.create(config(built))
        built.wait_until_done()
        built.stop_experiment()
        self._outcome = built.ask(self._read)
        assert [trial[1] for trial in self._outcome[0]] == ["SUCCEEDED", "SUCCEEDED"]
        built.ask(lambda client: save_archive(client, archive) or True)

    def delete(self) -> None:
        """Delete it, as often as it takes."""
        self._built.give(lambda client: client.delete_experiment(EXPERIMENT_ID))
        assert self._built.ask(lambda client: list(client.experiments())) == []
        assert list((self._built.home / "experiments").iterdir()) == []

    def load(self) -> None:
        """Load the archive, as often as it takes: the experiment is there once, and as it was."""

        handed = self._built.home / "incoming" / "saved.zip"

        def load(client: Client) -> None:
            shutil.copyfile(self._archive, handed)
            client.load_experiment(handed.name)

        self._built.give(load)
        handed.unlink(missing_ok=True)
        assert self._built.status() == "STOPPED"
        assert self._built.ask(self._read) == self._outcome
        [folder] = (self._built.home / "experiments").iterdir()
        assert folder.name == EXPERIMENT_ID
        assert not (folder / "loading").exists()

    @staticmethod
    def _read(client: Client) -> list[Any]:
        trials = list(client.trials(EXPERIMENT_ID, sort="sequence_id"))
        kept = [[trial[name] for name in ("id", "status", "parameters", "final_value", "jobs")] for trial in trials]
        return [kept, [[metric["data"] for metric in client.metrics(trial["id"])] for trial in trials]]

    def load_and_die(self) -> None:
        """Load the archive with a client that is killed when the manager is to read it; kill the manager, too."""
        os.kill(self._built.manager_pid, signal.SIGSTOP)  # it answers no request
        incoming, size = self._built.home / "incoming", self._archive.stat().st_size
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "proctor.manager.cli.main", "experiment", "load", "--path", self._archive],
            env={**os.environ, "PROCTOR_HOME": str(self._built.home)},
            stdout=subprocess.DEVNULL,
        ) as client:

            def is_handed_over() -> bool | None:
                return any(path.stat().st_size == size for path in incoming.glob("*.zip")) or None

            self._built.wait_for(is_handed_over, "the copy")
            client.kill()
        (left,) = incoming.glob("*.zip")
        os.utime(left, (0, left.stat().st_mtime - 60.0))  # that was a minute ago
        os.kill(self._built.manager_pid, signal.SIGKILL)
        assert self._built.ask(lambda client: list(client.experiments())) == []
        assert list(incoming.glob("*.zip")) == []


def test_an_experiment_is_deleted_and_loaded_from_its_archive_whoever_dies(tmp_path: Path) -> None:
    with house(tmp_path) as built:
        saved = Saved(built, tmp_path / "saved.zip")
        for deleting, loading in zip(listed(places.OF_DELETING), listed(places.OF_LOADING), strict=True):
            built.places.arm(deleting)
            saved.delete()
            assert built.places.left() == []
            built.places.arm(loading)
            saved.load()
            assert built.places.left() == []
        assert list((built.home / "incoming").iterdir()) == []
        saved.delete()
        saved.load_and_die()
        assert len(built.deaths) == 5
        built.shut_down()


RAISING = """
from nni.tuner import Tuner

class Raising(Tuner):
    def update_search_space(self, search_space): ...
    def receive_trial_result(self, parameter_id, parameters, value, **kwargs): ...
    def generate_parameters(self, parameter_id, **kwargs):
        raise ValueError("nothing comes to mind")
"""


def test_a_search_that_is_exhausted_ends_and_a_tuner_that_raises_is_reported(tmp_path: Path) -> None:
    (tmp_path / "raising.py").write_text(RAISING)
    raising = {"className": "raising.Raising", "codeDirectory": str(tmp_path)}
    with house(tmp_path) as built:
        for name, place in by_experiment(places.OF_EXHAUSTION).items():
            built.places.arm(place)
            built.create(config(built, tuner={"name": "GridSearch"}, maxTrialNumber=5), name)
            built.wait_until_done(name)
            assert built.places.left() == []
        for name, place in by_experiment(places.OF_A_TUNER_THAT_RAISES).items():
            built.places.arm(place)
            built.create(config(built, tuner=raising), name)
            built.wait_for(lambda key=name: built.status(key) == "ERROR" or None, "the experiment to be in ERROR")  # type: ignore[misc]
            found = built.ask(lambda client, key=name: client.experiment(key))  # type: ignore[misc]
            assert "nothing comes to mind" in found["reason"]
            assert "generate_parameters" in found["error"]
            assert found["trial_counts"] == {}
            assert built.places.left() == []
        built.shut_down()
    for name in by_experiment(places.OF_EXHAUSTION):
        ending = audit.Ending.read(built.home, built.ledgers, name)
        audit.check(ending, trials=2)
        assert sorted(json.loads(trial["parameters"])["x"] for trial in ending.trials.values()) == [0.4, 0.6]


def test_a_keeper_that_dies_while_it_clears_up_after_a_killed_reaper_is_followed_by_one_that_does(
    tmp_path: Path,
) -> None:
    killed = {}
    with house(tmp_path) as built:
        for name, place in by_experiment(places.OF_A_DEAD_REAPER).items():
            built.create(config(built, seconds=(1.0, 2.0)), name)
            wait_for_trials(built, name)
            built.places.arm(place)
            victim = find(Kind.REAPER, built.home, built.tag)[0]
            assert victim.kill()
            killed[name] = victim.job_id
            built.wait_until_done(name)
            assert built.places.left() == []
        built.shut_down()
    for name, job_id in killed.items():
        audit.check(audit.Ending.read(built.home, built.ledgers, name), trials=2, killed={job_id})


def test_a_manager_that_dies_while_it_replaces_a_suspended_dispatcher_is_followed_by_one_that_has_another(
    tmp_path: Path,
) -> None:
    space = {"x": {"_type": "uniform", "_value": [0, 1]}}
    with house(tmp_path, {"PROCTOR_DISPATCHER_PATIENCE_SECONDS": "3"}) as built:
        for name, place in by_experiment(places.OF_A_SUSPENDED_DISPATCHER).items():
            built.create(config(built, seconds=(1.0, 2.0), maxTrialNumber=4, searchSpace=space), name)
            wait_for_trials(built, name)
            built.places.arm(place)
            suspended = max(find(Kind.DISPATCHER, built.home, built.tag), key=lambda found: found.started)
            os.kill(suspended.pid, signal.SIGSTOP)
            built.wait_until_done(name)
            with suppress(ProcessLookupError):  # it was killed, or finds that its manager is gone
                os.kill(suspended.pid, signal.SIGCONT)
            assert built.places.left() == []
        assert len(built.deaths) == 2
        built.shut_down()
    for name in by_experiment(places.OF_A_SUSPENDED_DISPATCHER):
        ending = audit.Ending.read(built.home, built.ledgers, name)
        audit.check(ending, trials=4)
        assert len({trial["parameter_id"] for trial in ending.trials.values()}) == 4
