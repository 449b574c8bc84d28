"""Trials that report all the time stop at their rungs: each report there waits for the verdict."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.real_manager import RealManager, real_manager

from proctor.sdk.channel import VERDICT_SECONDS

STEP_SECONDS = 0.01
STEPS = 30
TRIAL = f"""
import os, sys, time
import proctor
folder = os.environ["PROCTOR_OUTPUT_DIR"] + "/work"
os.makedirs(folder, exist_ok=True)
start = 0
if found := proctor.get_checkpoint():
    start = int(open(found + "/step").read())
x = proctor.get_next_parameter()["x"]
steps = open(os.environ["PROCTOR_OUTPUT_DIR"] + "/steps", "w")
for step in range(start + 1, {STEPS} + 1):
    time.sleep({STEP_SECONDS})
    while step == 2 and len(sys.argv) > 1 and not os.path.exists(sys.argv[1]):
        time.sleep(0.01)
    with open(folder + "/step", "w") as file:
        file.write(str(step))
    print(step, end=" ", file=steps, flush=True)
    began = time.monotonic()
    proctor.report({{"default": x + step}}, checkpoint=folder)
    print(time.monotonic() - began, file=steps, flush=True)
    if proctor.should_stop():
        raise SystemExit
proctor.report_final_result(x + {STEPS})
"""
ASHA = {"name": "ASHA", "classArgs": {"type": "promotion", "grace_period": 3, "max_t": 27, "reduction_factor": 3}}
HYPERBAND = {"name": "HyperBand", "classArgs": {"max_t": 9, "reduction_factor": 3}}


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealManager]:
    with real_manager(tmp_path_factory.mktemp("manager")) as manager:
        yield manager


def reports(manager: RealManager, experiment_id: str) -> list[list[tuple[int, float | None]]]:
    """Of each job of the experiment the steps that it reported, with how long the report took; None: it was ended
    meanwhile."""
    found = []
    for steps in manager.home.glob(f"experiments/{experiment_id}/trials/*/jobs/*/output/steps"):
        lines = [line.split() for line in steps.read_text().splitlines()]
        found.append([(int(step), float(took[0]) if took else None) for step, *took in lines])
    return found


@pytest.mark.parametrize(
    ("scheduler", "rungs"), [(ASHA, {3, 9, 27}), (HYPERBAND, {1, 3, 9})], ids=["ASHA, promotion", "HyperBand"]
)
def test_no_trial_trains_past_its_rung(manager: RealManager, scheduler: dict[str, Any], rungs: set[int]) -> None:
    experiment_id = manager.create(TRIAL, trialConcurrency=3, maxTrialNumber=9, trialScheduler=scheduler)
    manager.until_status(experiment_id, "DONE")
    found = reports(manager, experiment_id)
    assert len(found) > 9  # some trials were resumed
    assert {job[-1][0] for job in found} <= rungs, found
    waited = sorted(took for job in found for step, took in job if step in rungs and took is not None)
    assert waited[-1] < VERDICT_SECONDS


def test_a_trial_waits_once_for_a_manager_that_is_away_and_is_judged_when_it_is_back(
    manager: RealManager, tmp_path: Path
) -> None:
    away = tmp_path / "away"
    command = "PROCTOR_VERDICT_SECONDS=1"
    experiment_id = manager.create(TRIAL, away, before=command, maxTrialNumber=1, trialScheduler=ASHA)
    manager.poll_for(lambda: any(reports(manager, experiment_id)), "a report")
    manager.kill()
    away.touch()
    (steps,) = manager.poll_for(
        lambda: [job for job in reports(manager, experiment_id) if job and job[-1][0] == STEPS],
        "the trial to come to its end",
    )
    took = {step: seconds for step, seconds in steps if seconds is not None}
    manager.start()
    manager.until_status(experiment_id, "DONE")
    assert took.pop(3) >= 1
    assert max(took.values()) < 1
    assert len(took) >= STEPS - 2
