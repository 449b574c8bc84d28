"""Trials that have to run again on another machine: from their checkpoint where it can be had, else from the start."""

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fakes.machines.machine import Machine
from fakes.machines.scene import NODE_TIMEOUT, Scene

from proctor.sdk.client.errors import NotFound

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

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
"""How all scripts begin: from their checkpoint, if they have one."""
SAVING = f'''\
"""Save a checkpoint after three steps; continue until asked to end."""
{CONTINUING}    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "step"), "w") as file:
            file.write(str(step))
        proctor.report(float(step), checkpoint=folder if step == 3 else None)
    time.sleep(0.05)
proctor.report_final_result(float(step))
'''


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that all machines have."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        os.chmod(name, 0o1777)
        yield Path(name)


def begin(scene: Scene, script: str = SAVING, **config: Any) -> tuple[str, dict[str, Any], Machine]:
    """An experiment with one trial that has saved its checkpoints, and where it runs."""
    experiment, [trial] = scene.spread(1, script=script, trainingService=NODE_TIMEOUT, **config)
    scene.manager.until(
        lambda: scene.manager.client.trial(trial["id"])["intermediate_count"] > 3 or None, "the checkpoint to be saved"
    )
    return experiment, trial, scene.machine_of(trial)


def second_job(scene: Scene, trial: dict[str, Any], begins: int) -> dict[str, Any]:
    """Its second attempt, once that runs and has said that it begins at this step."""
    scene.until_attempt(trial["id"], 2)
    _, job = scene.jobs(trial["id"])
    log = scene.manager.until(lambda: scene.manager.command_line("trial", "log", trial["id"]), "its first line")
    assert log == f"begins at step {begins}\n"
    return job


def finish(scene: Scene, *experiments: str) -> None:
    scene.release_trials()
    for experiment in experiments:
        assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 1}


def test_trials_of_a_lost_machine_continue_from_a_copy_or_a_shared_folder_or_start_over(
    stage: Callable[..., Scene], shared: Path
) -> None:
    scene = stage(2)
    first, second = scene.machines
    copying, copied, dead = begin(scene)
    other = second if dead is first else first
    scene.manager.client.drain_node(scene.node(other)["id"])
    here_only, lost, _ = begin(scene, copyCheckpoints=False)
    sharing, stored, _ = begin(scene, checkpointStorage=str(shared))
    scene.manager.client.resume_node(scene.node(other)["id"])
    assert scene.machine_of(lost) is scene.machine_of(stored) is dead
    copy = Path(copied["directory"]) / "jobs" / "1" / "output" / "checkpoints" / "1"
    scene.manager.until(lambda: (copy.is_dir() and noted(copy)) or None, "the checkpoint to be copied to the manager")
    dead.power_off()

    job = second_job(scene, copied, begins=3)
    assert job["node_id"] == scene.node(other)["id"]
    assert job["resumed_from_job"] == f"{copied['id']}.1"
    assert job["start_reason"].endswith("copied from the manager's machine")
    job = second_job(scene, stored, begins=3)
    assert job["start_reason"] == "from checkpoint 1 of job 1, in the folder that the nodes share"
    assert [path.name for path in (shared / sharing / stored["id"]).iterdir()] == ["1"]
    job = second_job(scene, lost, begins=0)
    assert job["resumed_from_job"] is None
    assert job["start_reason"].startswith("from the start: ")
    assert "was saved on a machine that cannot be read" in job["start_reason"]

    dead.power_on()
    scene.reconnect(dead)
    finish(scene, copying, here_only, sharing)
    points = [point["value"] for point in scene.manager.client.trial_curve(stored["id"])]
    assert points == [float(step) for step in range(1, len(points) + 1)]
    scene.leave()
    assert list(shared.iterdir()) == []


def test_a_machine_that_has_the_folder_of_checkpoints_for_itself_gets_no_trials(stage: Callable[..., Scene]) -> None:
    scene = stage(2)
    experiment, trial, machine = begin(scene, checkpointStorage="/run/machine/records", maxTrialNumber=2)
    scene.manager.client.update_experiment(experiment, {"trial_concurrency": 2})
    (other,) = (each for each in scene.machines if each is not machine)
    place = f"/run/machine/records/{experiment}"
    expected = f"waiting: trials on node {scene.node(other)['id']} cannot store checkpoints: {place} is not the place"

    def look() -> bool:
        return any(row["reason"].startswith(expected) for row in scene.manager.trials(experiment))

    scene.manager.poll_for(look, expected)
    assert not any((other.records / experiment).rglob("stdout"))
    assert (machine.records / experiment / trial["id"]).is_dir()
    scene.manager.client.stop_experiment(experiment)
    scene.manager.until_status(experiment, "STOPPED")


def noted(copy: Path) -> bool:
    """Whether a checkpoint is known to be whole on the manager's machine."""
    note = copy.parents[2].with_name("1.collected.json")
    return note.exists() and f"output/checkpoints/{copy.name}" in json.loads(note.read_text())["whole"]


@pytest.mark.thorough
def test_what_is_not_kept_is_deleted_on_the_machine_and_on_the_managers(
    stage: Callable[..., Scene], tmp_path: Path
) -> None:
    scene = stage(1)
    experiment, trial, machine = begin(scene, ALWAYS_SAVING, keepCheckpoints=1)

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
