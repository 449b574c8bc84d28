"""A trial that is stopped or paused continues from what it saved when it was asked to stop, whatever dies meanwhile."""

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from chaos import audit, places
from chaos.harness import EXPERIMENT_ID, House, house
from chaos.places import listed
from chaos.processes import Kind, find

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

SAVING_TRIAL = Path(__file__).with_name("saving_trial.py")


def stop_and_resume(built: House) -> None:
    """The experiment."""
    built.stop_experiment()
    assert find(Kind.TRIAL, built.home, built.tag) == []
    built.give(lambda client: client.resume_experiment(EXPERIMENT_ID))


def pause_and_resume(built: House) -> None:
    """The trial, which is the only one."""
    [trial] = built.ask(lambda client: [row["id"] for row in client.trials(EXPERIMENT_ID)])
    built.give(lambda client: client.pause_trial(trial))

    def is_paused() -> bool | None:
        return built.ask(lambda client: client.trial(trial)["status"]) == "PAUSED" or None

    built.wait_for(is_paused, "the trial to be PAUSED")
    assert built.status() == "NO_MORE_TRIAL"
    assert find(Kind.TRIAL, built.home, built.tag) == []
    built.give(lambda client: client.resume_trial(trial))


STOPS = ["", *listed(places.OF_A_SOFT_STOP | places.OF_A_CONTINUED_JOB)]
PAUSES = ["", "manager.cancel.before", "manager.cancel.after", *listed(places.OF_A_SOFT_STOP)]
ROUNDS: list[tuple[Callable[[House], None], str]] = [
    *((stop_and_resume, place) for place in STOPS),
    *((pause_and_resume, place) for place in PAUSES),
]
"""How the trial is interrupted, and the place at which a process dies meanwhile, if one does."""


def test_a_stopped_or_paused_trial_saves_and_goes_on_from_there(tmp_path: Path) -> None:
    ledger, finish = tmp_path / "ledger", tmp_path / "finish"
    with house(tmp_path) as built:
        built.create(
            {
                "searchSpace": {"x": {"_type": "choice", "_value": [1]}},
                "trialCommand": f"{sys.executable} -S {SAVING_TRIAL} {ledger} {finish}",
                "trialConcurrency": 1,
                "maxTrialNumber": 1,
                "tuner": {"name": "Random"},
                "trainingService": {"platform": "local"},
            }
        )
        for job, (interrupt, place) in enumerate(ROUNDS, start=1):
            built.wait_until_it_asks(job)
            if place:
                built.places.arm(place)
            interrupt(built)
            built.wait_for_deaths()
        built.wait_until_it_asks(len(ROUNDS) + 1)
        finish.touch()
        built.finish()
    words = ledger.read_text().split()
    assert words[::2] == ["begin", "saved"] * len(ROUNDS) + ["begin"]
    steps = [int(word) for word in words[1::2]]
    assert steps[0] == 0
    assert steps[1::2] == steps[2::2], "each begins with what the one before has saved"
    assert steps[1::2] == sorted(set(steps[1::2]))
    ending = audit.Ending.read(built.home, built.ledgers)
    reasons = {stop_and_resume: "EXPERIMENT_STOPPED", pause_and_resume: "PAUSED"}
    ends = [reasons[interrupt] for interrupt, _ in ROUNDS]
    [trial] = ending.trials.values()
    assert [job["end_reason"] for job in ending.jobs_of(trial["id"])] == [*ends, "EXITED_OK"]
    assert trial["status"] == "SUCCEEDED"
    assert trial["final_value"] >= steps[-1]
    audit.check_nothing_left(ending)
