"""What runs on a machine dies: its keeper, or everything, in a reboot."""

import signal
from collections.abc import Callable

import pytest
from fakes.machines.scene import Scene, read_records

pytestmark = pytest.mark.slow


@pytest.mark.thorough
def test_trials_outlive_their_keeper_and_run_again_after_a_reboot(stage: Callable[..., Scene]) -> None:
    scene = stage(1)
    [machine] = scene.machines
    experiment, _ = scene.spread(2, maxTrialNumber=3)
    [keeper] = [process for process in machine.processes() if " serve --directory " in process.command]
    keeper.kill(signal.SIGSTOP)
    scene.until_node(
        machine, "SILENT", reason="no report from its keeper for 1.5 s"
    )  # three heartbeats, as they are set
    keeper.kill(signal.SIGCONT)
    scene.until_node(machine, "CONNECTED")
    keeper.kill()
    scene.release_trials()  # these two end while there is no keeper
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 3}
    assert [trial["jobs"] for trial in scene.manager.trials(experiment)] == [1, 1, 1]
    assert len(read_records(machine)) == 3
    scene.expect_all_reports(experiment)

    scene.hold_trials()
    experiment, [trial] = scene.spread(1)
    machine.power_off()
    machine.power_on()
    scene.until_attempt(trial["id"], 2)
    first, second = scene.jobs(trial["id"])
    assert first["end_reason"] == "EXIT_UNKNOWN"
    assert second["start_reason"]
    scene.release_trials()
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 1}
    scene.leave()
