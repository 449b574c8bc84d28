"""Trials that have to run again on another machine: from their checkpoint where it can be had, else from the start."""

import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes.machines.machine import Machine
from fakes.machines.scene import Scene

from proctor.sdk.client.errors import NotFound

pytestmark = pytest.mark.slow

SERVICE = {"nodeTimeout": 3}
CONTINUING = """\
import os, tempfile, time

import proctor

proctor.get_next_parameter()
found = proctor.get_checkpoint()
step = 0 if found is None else int(open(os.path.join(found, "step")).read())
print("begins at step", step, flush=True)
while not os.path.exists("/run/machine/records/go"):
    step += 1
"""
"""How both scripts begin: from their checkpoint, if they have one."""
SAVING = f'''\
"""Save a checkpoint after three steps; continue until asked to end."""
{CONTINUING}    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "step"), "w") as file:
            file.write(str(step))
        proctor.report(float(step), checkpoint=folder if step == 3 else None)
    time.sleep(0.05)
proctor.report_final_result(float(step))
'''


def begin(scene: Scene, **config: Any) -> tuple[str, dict[str, Any], Machine]:
    """An experiment with one trial that has saved its checkpoint, and where it runs."""
    experiment, [trial] = scene.spread(1, script=SAVING, trainingService=SERVICE, **config)
    scene.manager.until(
        lambda: scene.manager.client.trial(trial["id"])["intermediate_count"] > 3 or None, "the checkpoint to be saved"
    )
    return experiment, trial, scene.machine_of(trial)


def second_job(scene: Scene, trial: dict[str, Any]) -> dict[str, Any]:
    """Its second attempt, once that runs and has said where it began."""

    def read_state() -> bool:
        found = scene.manager.client.trial(trial["id"])
        return bool(found["status"] == "RUNNING" and found["jobs"] == 2)

    scene.manager.until(lambda: read_state() or None, "the trial to run elsewhere")
    [_, job] = sorted(scene.manager.client.jobs(trial["id"]), key=lambda job: job["number"])
    scene.manager.until(lambda: scene.manager.command_line("trial", "log", trial["id"]) or None, "its first line")
    return dict(job)


def finish(scene: Scene, experiment: str) -> None:
    scene.release_trials()
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 1}


def test_a_trial_goes_on_from_its_checkpoint_in_a_home_that_the_machines_share(stage: Callable[..., Scene]) -> None:
    scene = stage(2, homes="shared")
    experiment, trial, dead = begin(scene)
    dead.power_off()
    job = second_job(scene, trial)
    assert job["resumed_from_job"] == f"{trial['id']}.1"
    assert job["start_reason"].endswith(f"of node {trial['node_id']}, whose home this node shares")
    assert scene.manager.command_line("trial", "log", trial["id"]) == "begins at step 3\n"
    finish(scene, experiment)
    values = [
        metric["value"]
        for metric in scene.manager.client.metrics(trial["id"], kind="intermediate")
        if metric["job"] == 2
    ]
    assert values[0] == 4.0
    scene.manager.client.stop_experiment(experiment)
    scene.manager.until_status(experiment, "STOPPED")
    dead.power_on()
    scene.leave()


def test_a_checkpoint_travels_from_one_machine_to_the_other(stage: Callable[..., Scene]) -> None:
    scene = stage(2)
    experiment, trial, first = begin(scene, maxTrialRetries=1)
    scene.manager.client.drain_node(trial["node_id"])
    for process in first.processes():
        if "trial.py" in process.command:
            process.kill()
    job = second_job(scene, trial)
    assert job["node_id"] != trial["node_id"]
    assert job["resumed_from_job"] == f"{trial['id']}.1"
    assert "from checkpoint" in job["start_reason"]
    assert ("fetched from node" in job["start_reason"]) or ("copied from the manager's machine" in job["start_reason"])
    assert scene.manager.command_line("trial", "log", trial["id"]) == "begins at step 3\n"
    finish(scene, experiment)
    scene.leave()


def test_a_trial_goes_on_from_a_folder_that_the_machines_share(stage: Callable[..., Scene]) -> None:
    scene = stage(2)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shared:
        os.chmod(shared, 0o1777)
        experiment, trial, dead = begin(scene, checkpointStorage=shared)
        dead.power_off()
        job = second_job(scene, trial)
        assert job["start_reason"] == "from checkpoint 1 of job 1, in the folder that the nodes share"
        assert scene.manager.command_line("trial", "log", trial["id"]) == "begins at step 3\n"
        assert [path.name for path in Path(shared, experiment, trial["id"]).iterdir()] == ["1"]
        finish(scene, experiment)
        points = [point["value"] for point in scene.manager.client.trial_curve(trial["id"])]
        assert points == [float(step) for step in range(1, len(points) + 1)]
        scene.manager.client.stop_experiment(experiment)
        scene.manager.until_status(experiment, "STOPPED")
        dead.power_on()
        scene.leave()
        assert list(Path(shared).iterdir()) == []


def test_a_torn_checkpoint_is_passed_over_when_a_trial_moves(stage: Callable[..., Scene]) -> None:
    scene = stage(2)
    script = SAVING.replace("if step == 3 else", "if step <= 3 else")
    experiment, [trial] = scene.spread(1, script=script, trainingService=SERVICE, maxTrialRetries=1)
    scene.manager.until(
        lambda: scene.manager.client.trial(trial["id"])["intermediate_count"] > 3 or None, "the checkpoints to be saved"
    )
    machine = scene.machine_of(trial)
    (newest,) = machine.home().glob("**/jobs/1/output/checkpoints/3/step")
    newest.write_text("")
    scene.manager.client.drain_node(trial["node_id"])
    for process in machine.processes():
        if "trial.py" in process.command:
            process.kill()
    job = second_job(scene, trial)
    assert job["node_id"] != trial["node_id"]
    assert (job["resumed_from_job"], job["resumed_from_step"]) == (f"{trial['id']}.1", 2)
    begun, passed_over = job["start_reason"].split("; ")
    assert begun.startswith("from checkpoint 2 of job 1, ")
    assert passed_over == "checkpoint 3 was passed over: step has 0 bytes, 1 expected"
    assert scene.manager.command_line("trial", "log", trial["id"]) == "begins at step 2\n"
    finish(scene, experiment)
    scene.leave()


def test_a_trial_whose_checkpoint_is_out_of_reach_starts_over_and_says_so(stage: Callable[..., Scene]) -> None:
    scene = stage(2)
    experiment, trial, away = begin(scene, copyCheckpoints=False)
    away.cut()
    job = second_job(scene, trial)
    assert job["resumed_from_job"] is None
    assert job["start_reason"].startswith("from the start: checkpoint")
    assert "was saved on a machine that cannot be read" in job["start_reason"]
    assert scene.manager.command_line("trial", "log", trial["id"]) == "begins at step 0\n"
    away.heal()
    scene.until_node(away, "CONNECTED")
    finish(scene, experiment)
    scene.leave()


def test_a_trial_whose_machine_is_lost_continues_from_the_copy_of_its_checkpoint(stage: Callable[..., Scene]) -> None:
    scene = stage(2)
    experiment, trial, dead = begin(scene)
    copy = Path(trial["directory"]) / "jobs" / "1" / "output" / "checkpoints" / "1"
    scene.manager.until(lambda: (copy.is_dir() and noted(copy)) or None, "the checkpoint to be copied to the manager")
    dead.power_off()
    job = second_job(scene, trial)
    assert job["node_id"] != trial["node_id"]
    assert job["resumed_from_job"] == f"{trial['id']}.1"
    assert job["start_reason"].endswith("copied from the manager's machine")
    assert scene.manager.command_line("trial", "log", trial["id"]) == "begins at step 3\n"
    finish(scene, experiment)
    scene.manager.client.stop_experiment(experiment)
    scene.manager.until_status(experiment, "STOPPED")
    dead.power_on()
    scene.leave()


def noted(copy: Path) -> bool:
    """Whether a checkpoint is known to be whole on the manager's machine."""
    note = copy.parents[2].with_name("1.collected.json")
    return note.exists() and f"output/checkpoints/{copy.name}" in json.loads(note.read_text())["whole"]


def test_what_is_not_kept_is_deleted_on_the_machine_and_on_the_managers(
    stage: Callable[..., Scene], tmp_path: Path
) -> None:
    scene = stage(1)
    experiment, [trial] = scene.spread(1, script=ALWAYS_SAVING, trainingService=SERVICE, keepCheckpoints=1)
    machine = scene.machine_of(trial)

    def both() -> list[list[str]]:
        here = Path(trial["directory"]) / "jobs" / "1" / "output" / "checkpoints"
        there = next(machine.home().glob("**/trials/*/jobs/1/output/checkpoints"))
        return [sorted(path.name for path in place.glob("[0-9]*")) for place in (there, here)]

    def listed() -> list[dict[str, Any]]:
        return list(scene.manager.client.checkpoints(trial["id"]))

    scene.manager.until(lambda: len(listed()) >= 4 or None, "four checkpoints")
    machine.cut()
    machine.heal()
    scene.until_node(machine, "CONNECTED")
    scene.release_trials()
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 1}
    newest = listed()[-1]
    number = Path(newest["path"]).name
    scene.manager.until(lambda: all(set(names) <= {number} for names in both()) or None, "the others to be deleted")
    assert both()[0] == [number]
    scene.manager.client.download_checkpoint(trial["id"], newest["id"], tmp_path / "m")
    assert (tmp_path / "m" / "step").read_text() == str(newest["step"])
    with pytest.raises(NotFound, match="was deleted"):
        scene.manager.client.download_checkpoint(trial["id"], listed()[0]["id"], tmp_path / "n")
    scene.leave()


ALWAYS_SAVING = f'''\
"""Save a checkpoint with every second step."""
{CONTINUING}    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "step"), "w") as file:
            file.write(str(step))
        proctor.report(float(step), checkpoint=folder if step % 2 == 0 else None, step=step)
    time.sleep(0.1)
proctor.report_final_result(float(step))
'''

LATE = f'''\
"""Save a checkpoint only when asked to stop, on which the experiment was stopped; continue from it."""
{CONTINUING}    proctor.report_intermediate_result(float(step))
    if proctor.should_stop():
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "step"), "w") as file:
                file.write(str(step))
            time.sleep(0.5)
            proctor.report(float(step), checkpoint=folder, step=step)
        print("saved step", step, flush=True)
        raise SystemExit
    time.sleep(0.05)
proctor.report_final_result(float(step))
'''


def test_a_stopped_trial_saves_on_its_machine_and_goes_on_from_there_after_a_resume(
    stage: Callable[..., Scene],
) -> None:
    scene = stage(1)
    experiment, [trial] = scene.spread(1, script=LATE)
    scene.manager.command_line("stop", experiment)
    scene.manager.until_status(experiment, "STOPPED")
    began, saved = scene.manager.command_line("trial", "log", trial["id"]).splitlines()
    assert began == "begins at step 0"
    step = saved.removeprefix("saved step ")
    scene.manager.client.resume_experiment(experiment)
    job = second_job(scene, trial)
    assert job["resumed_from_job"] == f"{trial['id']}.1"
    assert scene.manager.command_line("trial", "log", trial["id"]) == f"begins at step {step}\n"
    finish(scene, experiment)
    scene.leave()
