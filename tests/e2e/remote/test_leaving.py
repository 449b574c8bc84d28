"""Stop and delete leave nothing behind, whatever the trials have started."""

from collections.abc import Callable

import pytest
from fakes.machines.person import PASSWORD
from fakes.machines.scene import TRIAL, Scene
from fakes.nvidia import find_compiler

pytestmark = pytest.mark.slow

CHILDREN = (
    "import subprocess, sys\n"
    "subprocess.Popen(['sleep', '1000'])\n"
    "subprocess.Popen(['setsid', 'sh', '-c', 'trap \"\" TERM; sleep 1000; sleep 1000'])\n"
    "open('in-the-code', 'w').close()\n" + TRIAL
)


def test_stop_ends_trials_with_all_their_children_and_leaves_the_machines(stage: Callable[..., Scene]) -> None:
    scene = stage(2)
    if find_compiler():
        for machine in scene.machines:
            machine.set_gpus(1)
    gpus = {"trialGpuNumber": 1} if find_compiler() else {}
    experiment, _ = scene.spread(2, script=CHILDREN, **gpus)
    for machine in scene.machines:
        assert any("sleep 1000" in process.command for process in machine.processes())
        assert (machine.home() / ".proctor").exists()
    scene.manager.command_line("stop", experiment)
    scene.manager.until_status(experiment, "STOPPED")
    scene.expect_nothing_left()
    # It can be taken up again: everything is brought there anew.
    scene.manager.command_line("resume", experiment)
    scene.leave()


def test_an_experiment_that_is_deleted_while_a_machine_is_away_is_forgotten_there_later(
    stage: Callable[..., Scene],
) -> None:
    scene = stage(2)
    away, _ = scene.machines
    experiment, _ = scene.spread(2, trainingService={"nodeTimeout": 3})
    away.cut()
    scene.manager.command_line("stop", experiment)
    scene.manager.until_status(experiment, "STOPPED")
    scene.manager.command_line("experiment", "delete", experiment, "--yes")
    scene.manager.kill()
    scene.manager.start()
    assert scene.group.leavings.find() != []
    away.heal()
    scene.expect_nothing_left()


def test_machines_that_were_never_entered_are_forgotten_with_their_experiment(stage: Callable[..., Scene]) -> None:
    scene = stage(2)
    closed, good = scene.machines
    wrong, _ = scene.group.person.make_key("wrong")
    closed.configure(PasswordAuthentication="no")
    machines = [{"host": "gpuu-1.invalid"}, closed.entry(sshKeyFile=str(wrong)), good.entry()]
    experiment = scene.create(machines=machines, maxTrialNumber=1)
    scene.until_running(experiment, 1)
    scene.until_node(closed, "FAILED", reason="refused")
    scene.manager.kill()
    scene.manager.start()
    scene.until_node(closed, "FAILED", reason="refused")
    assert scene.manager.attempt("nodes", "forget", "gpuu-1.invalid", "--yes").returncode == 5  # it is needed still
    scene.manager.command_line("stop", experiment)
    scene.manager.until_status(experiment, "STOPPED")
    scene.manager.command_line("experiment", "delete", experiment, "--yes")
    scene.until_left()
    assert "gpuu-1" not in scene.manager.command_line("nodes")
    scene.expect_nothing_left()


@pytest.mark.parametrize("means", ["clean", "forget"])
def test_a_machine_whose_password_went_with_its_experiment_is_cleaned_or_given_up(
    stage: Callable[..., Scene], means: str
) -> None:
    scene = stage(1)
    [away] = scene.machines
    away.configure(PubkeyAuthentication="no")
    machines = [away.entry(password=PASSWORD)]
    config = scene.write_config(machines=machines, maxTrialNumber=1, trainingService={"nodeTimeout": 3})
    experiment = scene.manager.command_line("create", "--config", config).strip()
    scene.until_running(experiment, 1)
    away.cut()
    scene.manager.command_line("stop", experiment)
    scene.manager.until_status(experiment, "STOPPED")
    scene.manager.command_line("experiment", "delete", experiment, "--yes")
    scene.manager.kill()
    scene.manager.start()
    away.heal()
    node = scene.until_node(away, "FAILED", reason="refused")
    assert "proctor platform clean FILE" in node["reason"]
    assert f"proctor nodes forget {node['id']}" in node["reason"]
    if means == "clean":
        scene.manager.command_line("platform", "clean", "--config", config)
        scene.expect_nothing_left()
    else:
        scene.manager.command_line("nodes", "forget", node["id"], "--yes")
        assert scene.group.leavings.find() != []
    scene.until_left()
    assert list((scene.manager.home / "nodes").glob("*/node.json")) == []


def test_stop_all_leaves_every_machine(stage: Callable[..., Scene]) -> None:
    scene = stage(2)
    first, second = (scene.create(maxTrialNumber=1), scene.create(maxTrialNumber=1))
    for experiment in (first, second):
        scene.until_running(experiment, 1)
    scene.manager.command_line("stop", "--all")
    for experiment in (first, second):
        scene.manager.until_status(experiment, "STOPPED")
    scene.expect_nothing_left()
