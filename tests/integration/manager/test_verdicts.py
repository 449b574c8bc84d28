"""Trials that report all the time stop at their rungs: each report there waits for the verdict."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chaos.processes import Kind, find
from fakes.real_manager import RealManager, real_manager

from proctor.sdk.protocol import ENV_VERDICT_SECONDS, WAITS_FILE, boot_time, read_waits

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
IMPATIENT_SECONDS = 0.3
IMPATIENT = f"export {ENV_VERDICT_SECONDS}=${{{ENV_VERDICT_SECONDS}:-{IMPATIENT_SECONDS}}};"
"""A trial waits so long where its manager does not say how long."""
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


def waits(manager: RealManager, experiment_id: str) -> list[float]:
    """How long the jobs of the experiment have waited for verdicts, in seconds."""
    files = manager.home.glob(f"experiments/{experiment_id}/trials/*/jobs/*/{WAITS_FILE}")
    return [read_waits(path.read_bytes(), boot_time()) for path in files]


@pytest.mark.parametrize(
    ("scheduler", "rungs"), [(ASHA, {3, 9, 27}), (HYPERBAND, {1, 3, 9})], ids=["ASHA, promotion", "HyperBand"]
)
def test_no_trial_trains_past_its_rung(manager: RealManager, scheduler: dict[str, Any], rungs: set[int]) -> None:
    experiment_id = manager.create(TRIAL, trialConcurrency=3, maxTrialNumber=9, trialScheduler=scheduler)
    experiment = manager.until_status(experiment_id, "DONE")
    found = reports(manager, experiment_id)
    assert len(found) > 9  # some trials were resumed
    assert {job[-1][0] for job in found} <= rungs, found
    assert not any("past step" in notice for notice in experiment["notices"])


def test_a_trial_that_waits_longer_than_verdict_timeout_trains_past_its_rung_and_says_so(
    manager: RealManager, tmp_path: Path
) -> None:
    away = tmp_path / "away"
    experiment_id = manager.create(TRIAL, away, maxTrialNumber=1, trialScheduler=ASHA, verdictTimeout=0.5)
    manager.poll_for(lambda: any(reports(manager, experiment_id)), "a report")
    manager.kill()
    away.touch()
    (steps,) = manager.poll_for(
        lambda: [job for job in reports(manager, experiment_id) if job and job[-1][0] == STEPS],
        "the trial to come to its end",
    )
    took = {step: seconds for step, seconds in steps if seconds is not None}
    manager.start()
    found = manager.until_status(experiment_id, "DONE")
    assert took[3] >= 0.5
    assert len(took) >= STEPS - 1
    text = "trial 0 has trained past step 3, where its trial scheduler decides: there was no verdict within 0.5 s"
    assert [notice for notice in found["notices"] if "past step" in notice] == [f"{text} (verdictTimeout)"]


def test_a_trial_that_waits_for_its_verdict_says_so_until_it_has_it(manager: RealManager, tmp_path: Path) -> None:
    go = tmp_path / "go"
    experiment_id = manager.create(TRIAL, go, maxTrialNumber=1, trialScheduler=ASHA, verdictTimeout="5m")
    manager.poll_for(lambda: any(reports(manager, experiment_id)), "a report")
    for dispatcher in (dispatchers := find(Kind.DISPATCHER, manager.home, manager.tag)):
        os.kill(dispatcher.pid, signal.SIGSTOP)
    go.touch()
    reason = "waits for the verdict of its trial scheduler, for at most 300 s (verdictTimeout)"
    manager.until(lambda: manager.trials(experiment_id)[0]["reason"] == reason, f"the reason {reason!r}")
    assert manager.trials(experiment_id)[0]["status"] == "RUNNING"
    assert reason in manager.command_line("trial", "show", manager.trials(experiment_id)[0]["id"])
    for dispatcher in dispatchers:
        os.kill(dispatcher.pid, signal.SIGCONT)
    manager.until_status(experiment_id, "DONE")
    [job, *_] = manager.client.jobs(manager.trials(experiment_id)[0]["id"])
    assert job["verdict_seconds"] >= 2.0


def decisions(manager: RealManager, experiment_id: str) -> list[tuple[Any, ...]]:
    """What became of each trial, and how far each of its jobs came."""
    found = []
    for trial in manager.trials(experiment_id):
        jobs = [
            (job["end_reason"], job["resumed_from_step"], job["detail"]) for job in manager.client.jobs(trial["id"])
        ]
        steps = [point["value"] for point in manager.client.metrics(trial["id"])]
        found.append((trial["parameters"], trial["status"], trial["final_value"], jobs, steps))
    return found


@pytest.mark.parametrize("scheduler", [ASHA, HYPERBAND], ids=["ASHA, promotion", "HyperBand"])
def test_an_outage_of_the_manager_while_a_trial_is_at_its_rung_changes_no_decision(
    manager: RealManager, tmp_path: Path, scheduler: dict[str, Any]
) -> None:
    away, here = tmp_path / "away", tmp_path / "here"
    here.touch()
    config = {"before": IMPATIENT, "maxTrialNumber": 5, "trialScheduler": scheduler, "seed": 7}
    undisturbed = manager.create(TRIAL, here, **config)
    manager.until_status(undisturbed, "DONE")
    experiment_id = manager.create(TRIAL, away, **config)
    manager.poll_for(lambda: any(reports(manager, experiment_id)), "a report")
    manager.kill()
    away.touch()
    manager.poll_for(lambda: max(waits(manager, experiment_id), default=0.0) > 5 * IMPATIENT_SECONDS, "a long wait")
    manager.start()
    manager.until_status(experiment_id, "DONE")
    assert decisions(manager, experiment_id) == decisions(manager, undisturbed)
