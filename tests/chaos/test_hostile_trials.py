"""What a trial does to the folder of its job costs neither its result nor another attempt, and it can be stopped."""

import sys
from pathlib import Path

import pytest
from chaos import audit
from chaos.harness import EXPERIMENT_ID, house
from chaos.hostile_trial import MANNERS

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

SCRIPT = Path(__file__).with_name("hostile_trial.py")


def test_trials_that_damage_their_folders_end_once_and_with_their_results(tmp_path: Path) -> None:
    with house(tmp_path) as built:
        built.create(
            {
                "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
                "trialCommand": f"{sys.executable} -S {SCRIPT}",
                "trialConcurrency": len(MANNERS),
                "maxTrialNumber": len(MANNERS),
                "tuner": {"name": "Random"},
                "trainingService": {"platform": "local"},
            }
        )

        def one_is_left() -> bool | None:
            trials = built.ask(lambda client: list(client.trials(EXPERIMENT_ID)))
            left = [trial["sequence_id"] for trial in trials if trial["status"] != "SUCCEEDED"]
            is_reported = all(trial["final_value"] == 2 for trial in trials)
            return True if len(trials) == len(MANNERS) and left == [len(MANNERS) - 1] and is_reported else None

        built.wait_for(one_is_left, "all trials to end but the one that never does")
        built.stop_experiment()
        built.shut_down()
    ending = audit.Ending.read(built.home, built.ledgers)
    assert [trial["final_value"] for trial in ending.trials.values()] == [2.0] * len(MANNERS)
    assert sorted(job["end_reason"] for job in ending.jobs.values()) == ["EXITED_OK"] * 4 + ["EXPERIMENT_STOPPED"]
    assert {trial["jobs"] for trial in ending.trials.values()} == {1}
