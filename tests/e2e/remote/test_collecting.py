"""Files of an experiment that was stopped while a machine was away stay there, until `proctor nodes collect`."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.machines.machine import Machine
from fakes.machines.scene import NODE_TIMEOUT, TRIAL, Scene
from fakes.real_manager import Row

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

MODEL = bytes(range(256)) * 4000
MAKING = (
    "import os\n"
    "model = os.path.join(os.environ['PROCTOR_OUTPUT_DIR'], 'model.bin')\n"
    "open(model, 'wb').write(bytes(range(256)) * 4000)\n" + TRIAL
)


def stop_while_away(scene: Scene) -> tuple[Machine, str, Row]:
    """An experiment with a trial on each machine is stopped while one is away: that machine, the experiment, and the
    trial there."""
    away = scene.machines[0]
    experiment, trials = scene.spread(len(scene.machines), script=MAKING, trainingService=NODE_TIMEOUT)
    [trial] = [trial for trial in trials if scene.machine_of(trial) is away]
    away.cut()
    scene.manager.command_line("stop", experiment)
    scene.manager.until_status(experiment, "STOPPED")
    scene.until_node(away, "FAILED", "CONNECTING", "LOST", reason=f"released, but files of experiment {experiment}")
    return away, experiment, trial


def heal(scene: Scene, machine: Machine) -> Row:
    """Have the machine back; the manager tries it at once. Its node, once it is released."""
    machine.heal()
    scene.manager.client.check_node(scene.node(machine)["id"])
    return scene.until_node(machine, "RELEASED")


def expect_collected(scene: Scene, trial: Row, folder: Path) -> None:
    """Everything of the trial is here, and nothing on the machines."""
    scene.expect_nothing_left()
    scene.until_left()
    [path] = [file["path"] for file in scene.manager.client.files(trial["id"]) if "model.bin" in file["path"]]
    scene.manager.command_line("trial", "download", trial["id"], "--path", path, "-d", folder)
    assert (folder / path).read_bytes() == MODEL
    assert scene.manager.command_line("trial", "log", trial["id"]).startswith("trial begins\n")


def test_files_of_a_machine_that_was_away_are_collected_when_it_is_asked_for(
    stage: Callable[..., Scene], tmp_path: Path
) -> None:
    scene = stage(2)
    away, experiment, trial = stop_while_away(scene)
    node, command = scene.node(away), scene.manager.attempt
    shown = scene.manager.client.experiment(experiment)
    assert f"`proctor nodes collect {node['id']}`" in shown["reason"]
    [notice] = [text for text in shown["notices"] if "were not collected" in text]
    assert f"files on node {node['id']} were not collected: the machine is unreachable: " in notice
    assert f"on {node['address']} in ~/.proctor/nodes/" in notice
    assert node["uncollected"] == [experiment]
    assert "model.bin" not in command("trial", "files", trial["id"]).stdout
    refused = command("nodes", "collect", node["id"])
    assert refused.returncode == 1
    assert "the others stay there: the machine is unreachable" in refused.stderr
    assert f"experiment {experiment} has files here" in heal(scene, away)["reason"]
    assert "model.bin" not in command("trial", "files", trial["id"]).stdout
    other = scene.create(maxTrialNumber=1, machines=[away.entry()])
    scene.until_running(other, 1)
    refused = command("nodes", "collect", node["id"], "--experiment", other)
    assert refused.returncode == 5
    assert "its files are collected when it is stopped" in refused.stderr
    done = command("nodes", "collect")
    assert (done.returncode, done.stdout) == (0, "")
    assert re.search(r": done: \d+ files?, \d+\.\d MB\.", done.stderr)
    assert len(scene.until_running(other, 1)) == 1
    scene.manager.command_line("stop", other)
    scene.manager.until_status(other, "STOPPED")
    expect_collected(scene, trial, tmp_path / "saved")
    assert "collect" not in scene.manager.client.experiment(experiment)["reason"]
    assert "No node has files that were not collected." in command("nodes", "collect").stderr
    assert command("nodes", "collect", node["id"]).returncode == 3  # it was cleaned and forgotten
    scene.leave()


@pytest.mark.thorough
def test_a_collection_is_repeated_after_the_manager_was_killed_in_it(
    stage: Callable[..., Scene], tmp_path: Path
) -> None:
    scene = stage(1)
    away, experiment, trial = stop_while_away(scene)
    for place in ("manager.collect.before", "manager.collect.after"):
        scene.manager.kill()
        scene.manager.environment["PROCTOR_FAILPOINT"] = place
        scene.manager.start()
        assert f"experiment {experiment} has files here" in heal(scene, away)["reason"]
        assert scene.manager.attempt("nodes", "collect", scene.node(away)["id"]).returncode != 0
    scene.manager.kill()  # what is left of it
    del scene.manager.environment["PROCTOR_FAILPOINT"]
    scene.manager.start()
    scene.until_node(away, "RELEASED")
    scene.manager.command_line("nodes", "collect", scene.node(away)["id"])
    expect_collected(scene, trial, tmp_path / "saved")
    scene.leave()
