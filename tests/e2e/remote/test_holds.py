"""Machines that get no new jobs: quarantined after failures that others do not have."""

from collections.abc import Callable

import pytest
from fakes.machines.scene import TRIAL, Scene

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

FAILING = TRIAL.replace("parameters =", "if os.uname().nodename == 'm1':\n    sys.exit('broken here')\nparameters =")


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
