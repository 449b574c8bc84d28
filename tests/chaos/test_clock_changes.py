"""The clock of the manager's machine is set back while a trial waits to run again."""

from pathlib import Path

import pytest
from chaos import audit
from chaos.harness import EXPERIMENT_ID, House, house
from chaos.processes import Kind, find

CLOCK = """
import os, time

def wrong_time(right_time=time.time):
    with open(os.environ["CHAOS_CLOCK"]) as file:
        return right_time() + float(file.read() or 0)

time.time = wrong_time
"""
"""The sitecustomize module of the manager and its processes: a file says how wrong their clock is."""


@pytest.mark.slow
@pytest.mark.thorough
def test_a_retry_comes_soon_when_the_clock_was_set_back_also_after_a_restart(tmp_path: Path) -> None:
    wrong_by = tmp_path / "wrong_by"
    wrong_by.write_text("0")
    (tmp_path / "sitecustomize.py").write_text(CLOCK)
    with house(tmp_path, {"PYTHONPATH": str(tmp_path), "CHAOS_CLOCK": str(wrong_by)}) as built:
        built.create(
            {
                "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
                "trialCommand": built.trial_command(steps=1, seconds=(1.0, 2.0)),
                "trialConcurrency": 1,
                "maxTrialNumber": 1,
                "seed": 1,
                "tuner": {"name": "Random"},
                "trainingService": {"platform": "local"},
            }
        )
        killed = [kill_the_trial(built)]
        wrong_by.write_text("-3600")
        killed.append(kill_the_trial(built))
        wrong_by.write_text("-7200")
        (manager,) = find(Kind.MANAGER, built.home, built.tag)
        assert manager.kill()
        built.wait_until_done()
        built.shut_down()
    ending = audit.Ending.read(built.home, built.ledgers)
    audit.check(ending, trials=1, killed=killed)
    assert [job["end_reason"] for job in ending.jobs.values()] == ["SIGNALED", "SIGNALED", "EXITED_OK"]
    submitted = [job["submitted_at"] for job in ending.jobs.values()]
    assert submitted == sorted(submitted, reverse=True), "the manager has seen its clock set back twice"


def kill_the_trial(built: House) -> str:
    """Kill the running trial, and wait until the manager knows that it must run again; returns the job's id."""
    (victim,) = built.wait_for(lambda: find(Kind.TRIAL, built.home, built.tag) or None, "a trial to kill")
    assert victim.kill()

    def is_waiting() -> bool | None:
        [trial] = built.ask(lambda client: list(client.trials(EXPERIMENT_ID)))
        return True if trial["status"] == "WAITING" and "runs again" in trial["reason"] else None

    built.wait_for(is_waiting, "the trial to wait for another job")
    return victim.job_id
