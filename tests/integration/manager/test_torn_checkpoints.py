"""Trials that are resumed after something has happened to their checkpoints: real keepers verify real files."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.real_manager import RealManager, real_manager

pytestmark = pytest.mark.slow

SAVES_FOUR = """
import json, os, sys, tempfile, time
import proctor

proctor.get_next_parameter()
found = proctor.get_checkpoint()
step = 0 if found is None else int(open(found + "/step").read())
print("begins at", step, flush=True)
while step < 4:
    step += 1
    with tempfile.TemporaryDirectory() as folder:
        with open(folder + "/step", "w") as file:
            file.write(str(step))
        with open(folder + "/model", "w") as file:
            file.write("w" * 4096)
        proctor.report(step, checkpoint=folder)
proctor.report(100 + proctor.get_sequence_id())
while not os.path.exists(sys.argv[1]):
    if proctor.should_stop():
        sys.exit()
    time.sleep(0.02)
proctor.report_final_result(step)
"""
"""A point of the curve with each checkpoint, and one more behind the newest."""


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[RealManager]:
    with real_manager(tmp_path) as made:
        yield made


def change_byte(place: Path) -> None:
    (place / "model").write_text("w" * 2048 + "v" + "w" * 2047)


def truncate(place: Path) -> None:
    os.truncate(place / "model", 12)


def truncate_all(place: Path) -> None:
    for number in "1234":
        truncate(place.with_name(number))


DAMAGES = (
    (truncate, "model has 12 bytes, 4,096 expected"),
    (change_byte, "model is damaged: its content is not what was saved"),
    (lambda place: (place / "step").unlink(), "step is missing"),
    (shutil.rmtree, "its folder is gone"),
    (truncate_all, ""),
    (lambda place: None, ""),
)
"""What happens to checkpoint 4 of each trial, and what is said of it."""


def pause_all(manager: RealManager, experiment: str) -> None:
    for trial in manager.trials(experiment):
        manager.client.pause_trial(trial["id"])
    manager.until(
        lambda: all(trial["status"] == "PAUSED" for trial in manager.trials(experiment)) or None, "all to be paused"
    )


def newest_job(manager: RealManager, trial: dict[str, Any]) -> dict[str, Any]:
    return dict(max(manager.client.jobs(trial["id"]), key=lambda job: job["number"]))


@pytest.mark.thorough
def test_trials_are_resumed_from_their_newest_whole_checkpoints(manager: RealManager, tmp_path: Path) -> None:
    end, count = tmp_path / "end", len(DAMAGES)
    limits = {"maxTrialNumber": count, "trialConcurrency": count, "keepCheckpoints": "all"}
    experiment = manager.create(SAVES_FOUR, end, **limits)

    def reported(points: int) -> list[dict[str, Any]] | None:
        found = manager.trials(experiment)
        return found if len(found) == count and all(row["intermediate_count"] >= points for row in found) else None

    trials = manager.until(lambda: reported(5), "every trial to have saved its checkpoints")
    pause_all(manager, experiment)
    for trial, (damage, _) in zip(trials, DAMAGES, strict=True):
        damage(Path(trial["directory"]) / "jobs" / "1" / "output" / "checkpoints" / "4")
    for trial in trials:
        manager.client.resume_trial(trial["id"])
    manager.until(
        lambda: all(row["jobs"] == 2 and row["status"] == "RUNNING" for row in manager.trials(experiment)) or None,
        "all to run again",
    )
    end.touch()
    manager.until_status(experiment, "DONE")
    torn, whole = trials[:-2], trials[-1]
    for trial, (_, clause) in zip(torn, DAMAGES, strict=False):
        job = newest_job(manager, trial)
        assert job["start_reason"] == f"from checkpoint 3 of job 1; checkpoint 4 was passed over: {clause}"
        assert (job["resumed_from_job"], job["resumed_from_step"]) == (f"{trial['id']}.1", 3)
    assert newest_job(manager, whole)["start_reason"] == "from checkpoint 4 of job 1"
    hopeless = newest_job(manager, trials[-2])
    assert hopeless["resumed_from_job"] is None
    damage = "model has 12 bytes, 4,096 expected"
    named = [f"checkpoint {number} of job 1 was passed over: {damage}" for number in (4, 3, 2)]
    clauses = ("none of 4 checkpoints is whole", *named, "1 more was passed over")
    assert hopeless["start_reason"] == f"from the start: {'; '.join(clauses)}"
    for trial, begin in [*((trial, 3) for trial in torn), (trials[-2], 0), (whole, 4)]:
        curve = [(point["job"], point["value"]) for point in manager.client.trial_curve(trial["id"])]
        again = [*range(begin + 1, 5), 100 + trial["sequence_id"]]
        assert curve == [*((1, step) for step in range(1, begin + 1)), *((2, value) for value in again)]


def test_a_checkpoint_that_an_earlier_version_has_registered_is_continued_from(
    manager: RealManager, tmp_path: Path
) -> None:
    """Its record names neither size nor manifest."""
    end = tmp_path / "end"
    old = f"""
import json, os
if not os.environ.get("PROCTOR_RESUME_CHECKPOINT"):
    folder = os.environ["PROCTOR_OUTPUT_DIR"] + "/checkpoints/1"
    os.makedirs(folder)
    with open(folder + "/step", "w") as file:
        file.write("4")
    with open(os.environ["PROCTOR_JOB_DIR"] + "/journal", "a") as file:
        file.write({json.dumps({"kind": "checkpoint", "path": "output/checkpoints/1", "time": 1.0})!r} + "\\n")
"""
    experiment = manager.create(old + SAVES_FOUR, end, maxTrialNumber=1)
    trial = manager.until(
        lambda: next((row for row in manager.trials(experiment) if row["intermediate_count"]), None), "a report"
    )
    (row,) = manager.client.checkpoints(trial["id"])
    assert (row["size_bytes"], row["manifest"]) == (None, None)
    pause_all(manager, experiment)
    manager.client.resume_trial(trial["id"])
    end.touch()
    manager.until_status(experiment, "DONE")
    assert newest_job(manager, trial)["start_reason"] == "from checkpoint 1 of job 1"
