"""Machines that get no new jobs: drained by a person, quarantined after failures that others do not have."""

from collections.abc import Callable

import pytest
from fakes.machines.scene import TRIAL, Scene

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

FAILING = TRIAL.replace("parameters =", "if os.uname().nodename == 'm1':\n    sys.exit('broken here')\nparameters =")


@pytest.mark.thorough
def test_a_drained_machine_gets_no_new_trials_until_it_is_resumed(stage: Callable[..., Scene]) -> None:
    scene = stage(2)
    drained, other = scene.machines
    experiment, _ = scene.spread(2, maxTrialNumber=4)
    node = scene.node(drained)["id"]
    scene.manager.command_line("nodes", "drain", node, "--reason", "its disk is replaced")
    assert "its disk is replaced" in scene.node(drained)["hold"]
    scene.manager.kill()
    scene.manager.start()
    scene.until_node(drained, "CONNECTED")
    assert "its disk is replaced" in scene.node(drained)["hold"]
    scene.release_trials()
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 4}
    used = [scene.machine_of(trial).name for trial in scene.manager.trials(experiment)]
    assert used.count(drained.name) == 1
    assert used.count(other.name) == 3
    scene.hold_trials()
    scene.manager.command_line("nodes", "resume", node)
    assert scene.node(drained)["hold"] == ""
    scene.leave()
    again, _ = scene.spread(2)
    scene.release_trials()
    scene.manager.until_status(again, "DONE")
    scene.leave()


def test_a_machine_on_which_only_trials_fail_is_quarantined(stage: Callable[..., Scene]) -> None:
    scene = stage(2)
    bad, _ = scene.machines
    holding, _ = scene.spread(2)  # so that both machines are there when the other experiment begins
    service = {"quarantineAfter": 2}
    experiment = scene.create(
        script=FAILING, seconds=0.1, trialConcurrency=2, maxTrialNumber=16, trainingService=service
    )
    held = scene.manager.poll_for(lambda: scene.node(bad)["hold"], "the quarantine")
    assert "quarantined" in held
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"]["FAILED"] >= 2
    trials = scene.manager.trials(experiment)  # how many fail before one succeeds elsewhere is a matter of luck
    assert [trial["status"] for trial in trials[-4:]] == ["SUCCEEDED"] * 4
    assert "quarantined" in scene.manager.command_line("nodes")
    assert [trial["status"] for trial in scene.manager.trials(holding)] == ["RUNNING", "RUNNING"]
    scene.manager.command_line("nodes", "resume", scene.node(bad)["id"])
    assert scene.node(bad)["hold"] == ""
    scene.leave()
