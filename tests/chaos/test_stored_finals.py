"""Deaths after the final metric: the trial has succeeded, whatever becomes of its processes."""

import json
from pathlib import Path

import pytest
from chaos import audit
from chaos.harness import EXPERIMENT_ID, House, house
from chaos.processes import Found, Kind, find

TRIALS = 3


@pytest.mark.slow
def test_a_trial_that_is_killed_after_its_final_metric_has_succeeded_and_runs_no_second_time(tmp_path: Path) -> None:
    with house(tmp_path) as built:
        built.create(
            {
                "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
                "trialCommand": built.trial_command("--lingers", steps=1, seconds=(0.1, 0.2)),
                "trialConcurrency": TRIALS,
                "maxTrialNumber": TRIALS,
                "maxInfrastructureRetries": 0,
                "seed": 1,
                "tuner": {"name": "Random"},
                "trainingService": {"platform": "local"},
            }
        )
        built.wait_for(lambda: True if len(finished(built)) == TRIALS else None, "the final metrics of all trials")
        reapers, trials = (by_job(built, kind) for kind in (Kind.REAPER, Kind.TRIAL))
        first, second, third = sorted(trials)
        assert trials[first].kill()
        assert reapers[second].kill()
        (manager,) = find(Kind.MANAGER, built.home, built.tag)
        assert manager.kill()  # the end of the third trial comes while no manager is there
        assert trials[third].kill()
        built.wait_until_done()
        notices = built.ask(lambda client: client.experiment(EXPERIMENT_ID))["notices"]
        built.shut_down()
    ending = audit.Ending.read(built.home, built.ledgers)
    audit.check(ending, trials=TRIALS, killed={first, second, third})
    assert [trial["status"] for trial in ending.trials.values()] == ["SUCCEEDED"] * TRIALS
    assert {key: job["end_reason"] for key, job in ending.jobs.items()} == {
        first: "SIGNALED",
        second: "EXIT_UNKNOWN",
        third: "SIGNALED",
    }
    assert sum("its final metric is stored" in text for text in notices) == TRIALS


def finished(built: House) -> list[str]:
    """The jobs whose final metric was reported."""
    printed = {path.name: path.read_text().splitlines() for path in built.ledgers.iterdir()}
    return [
        job_id for job_id, lines in printed.items() if any(json.loads(line)[:2] == ["done", "final"] for line in lines)
    ]


def by_job(built: House, kind: Kind) -> dict[str, Found]:
    """The living processes of a kind by their jobs."""
    return {found.job_id: found for found in find(kind, built.home, built.tag)}
