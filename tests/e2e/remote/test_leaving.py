"""Stop and delete leave nothing behind, whatever the trials have started."""

from collections.abc import Callable

import pytest
from fakes.machines.person import PASSWORD
from fakes.machines.scene import NODE_TIMEOUT, TRIAL, Scene
from fakes.nvidia import find_compiler

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

CHILDREN = (
    "import subprocess, sys\n"
    "subprocess.Popen(['sleep', '1000'])\n"
    "subprocess.Popen(['setsid', 'sh', '-c', 'trap \"\" TERM; sleep 1000; sleep 1000'])\n"
    "open('in-the-code', 'w').close()\n" + TRIAL
)


def test_stop_all_ends_trials_with_all_their_children_and_leaves_the_machines(stage: Callable[..., Scene]) -> None:
    scene = stage(2)
    if find_compiler():
        for machine in scene.machines:
            machine.set_gpus(1)
    gpus = {"trialGpuNumber": 1} if find_compiler() else {}
    experiment, _ = scene.spread(2, script=CHILDREN, **gpus)
    another = scene.create(maxTrialNumber=1)
    scene.until_running(another, 1)
    for machine in scene.machines:
        assert any("sleep 1000" in process.command for process in machine.processes())
        assert (machine.home() / ".proctor").exists()
    scene.manager.command_line("stop", "--all")
    for stopped in (experiment, another):
        scene.manager.until_status(stopped, "STOPPED")
    scene.expect_nothing_left()
    # It can be taken up again: everything is brought there anew.
    scene.manager.command_line("resume", experiment)
    scene.leave()


@pytest.mark.thorough
def test_machines_whose_passwords_went_with_their_experiment_are_cleaned_or_given_up(
    stage: Callable[..., Scene],
) -> None:
    scene = stage(2)
    for machine in scene.machines:
        machine.configure(PubkeyAuthentication="no")
    config = scene.write_config(
        machines=scene.group.machine_list(password=PASSWORD), maxTrialNumber=2, trainingService=NODE_TIMEOUT
    )
    experiment = scene.manager.command_line("create", "--config", config).strip()
    scene.widen(experiment, 2)
    for machine in scene.machines:
        machine.cut()
    scene.manager.command_line("stop", experiment)
    scene.manager.until_status(experiment, "STOPPED")
    scene.manager.command_line("experiment", "delete", experiment, "--yes")
    scene.manager.kill()
    scene.manager.start()
    for machine in scene.machines:
        machine.heal()
        node = scene.until_node(machine, "FAILED", reason="refused")
        assert "proctor platform clean FILE" in node["reason"]
        assert f"proctor nodes forget {node['id']}" in node["reason"]
    forgotten = scene.machines[1]
    scene.manager.command_line("nodes", "forget", scene.node(forgotten)["id"], "--yes")
    assert any(left.startswith(forgotten.name) for left in scene.group.leavings.find())
    scene.manager.command_line("platform", "clean", "--config", config)  # of both machines
    scene.expect_nothing_left()
    scene.until_left()
    assert list((scene.manager.home / "nodes").glob("*/node.json")) == []
