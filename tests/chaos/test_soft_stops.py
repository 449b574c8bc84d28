"""A stopped experiment continues from what its trial saved when it was asked to stop, even if the keeper is killed."""

import sys
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from chaos import audit, places
from chaos.harness import EXPERIMENT_ID, House, house
from chaos.places import listed
from chaos.processes import Kind, find

from proctor.sdk.client import Client
from proctor.sdk.client.errors import Conflict

pytestmark = pytest.mark.slow

SAVING_TRIAL = Path(__file__).with_name("saving_trial.py")


def create(built: House, folder: Path) -> None:
    """One trial, which saves when it is asked to stop."""
    command = f"{sys.executable} -S {SAVING_TRIAL} {folder / 'ledger'} {folder / 'finish'}"
    built.create(
        {
            "searchSpace": {"x": {"_type": "choice", "_value": [1]}},
            "trialCommand": command,
            "trialConcurrency": 1,
            "maxTrialNumber": 1,
            "tuner": {"name": "Random"},
            "trainingService": {"platform": "local"},
        }
    )

    def asks() -> bool | None:
        return True if list((built.home / "experiments").glob("*/trials/*/jobs/1/can-save")) else None

    built.wait_for(asks, "the trial to ask whether to stop")


@pytest.mark.parametrize("place", ["", *listed(places.OF_A_SOFT_STOP | places.OF_A_CONTINUED_JOB)])
def test_a_stopped_trial_saves_and_goes_on_from_there(place: str, tmp_path: Path) -> None:
    dying = {"PROCTOR_FAILPOINT": place, "PROCTOR_FAILPOINT_COUNTER": str(tmp_path / "counter")}
    with house(tmp_path, dying if place else {}) as built:
        create(built, tmp_path)
        built.stop_experiment()
        saved = (tmp_path / "ledger").read_text().split()
        assert saved[:3] == ["begin", "0", "saved"]
        (tmp_path / "finish").touch()
        built.ask(lambda client: client.resume_experiment(EXPERIMENT_ID))
        built.wait_until_done()
        built.shut_down()
    assert (tmp_path / "counter").exists() == bool(place), f"{place} was never reached"
    assert (tmp_path / "ledger").read_text().split() == [*saved, "begin", saved[3]]
    ending = audit.Ending.read(built.home, tmp_path / "ledgers")
    assert [job["end_reason"] for job in ending.jobs.values()] == ["EXPERIMENT_STOPPED", "EXITED_OK"]
    (trial,) = ending.trials.values()
    assert (trial["status"], trial["final_value"]) == ("SUCCEEDED", float(saved[3]))
    audit.check_nothing_left(ending)


@pytest.mark.parametrize("place", ["", "manager.cancel.before", "manager.cancel.after", *listed(places.OF_A_SOFT_STOP)])
def test_a_paused_trial_saves_and_continues_from_there_when_it_is_resumed(place: str, tmp_path: Path) -> None:
    dying = {"PROCTOR_FAILPOINT": place, "PROCTOR_FAILPOINT_COUNTER": str(tmp_path / "counter")}
    with house(tmp_path, dying if place else {}) as built:
        create(built, tmp_path)
        (trial_id,) = built.ask(lambda client: [row["id"] for row in client.trials(EXPERIMENT_ID)])

        def pause(client: Client) -> bool:
            # A manager that was killed before it answered may have paused it.
            with suppress(Conflict) if place else nullcontext():
                client.pause_trial(trial_id)
            return True

        built.ask(pause)

        def is_paused() -> bool | None:
            return True if built.ask(lambda client: client.trial(trial_id)["status"]) == "PAUSED" else None

        built.wait_for(is_paused, "the trial to be PAUSED")
        assert built.status() == "NO_MORE_TRIAL"
        saved = (tmp_path / "ledger").read_text().split()
        assert saved[:3] == ["begin", "0", "saved"]
        assert find(Kind.TRIAL, built.home, built.tag) == []
        (tmp_path / "finish").touch()
        built.ask(lambda client: client.resume_trial(trial_id))
        built.wait_until_done()
        built.shut_down()
    assert (tmp_path / "counter").exists() == bool(place), f"{place} was never reached"
    assert (tmp_path / "ledger").read_text().split() == [*saved, "begin", saved[3]]
    ending = audit.Ending.read(built.home, tmp_path / "ledgers")
    assert [job["end_reason"] for job in ending.jobs.values()] == ["PAUSED", "EXITED_OK"]
    (trial,) = ending.trials.values()
    assert (trial["status"], trial["final_value"]) == ("SUCCEEDED", float(saved[3]))
    audit.check_nothing_left(ending)
