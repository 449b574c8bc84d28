"""What runs on a machine dies: its keeper, or everything, in a reboot."""

from collections.abc import Callable

import pytest
from fakes.machines.scene import Scene, read_records

pytestmark = pytest.mark.slow


def test_a_keeper_that_dies_is_started_again_and_finds_its_trials(stage: Callable[..., Scene]) -> None:
    scene = stage(1)
    [machine] = scene.machines
    experiment, _ = scene.spread(2, maxTrialNumber=3)
    [keeper] = [process for process in machine.processes() if " serve --directory " in process.command]
    keeper.kill()
    scene.release_trials()  # these two end while there is no keeper
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 3}
    assert [trial["jobs"] for trial in scene.manager.trials(experiment)] == [1, 1, 1]
    assert len(read_records(machine)) == 3
    scene.expect_all_reports(experiment)
    scene.leave()


def test_trials_that_a_reboot_has_ended_run_again(stage: Callable[..., Scene]) -> None:
    scene = stage(1)
    [machine] = scene.machines
    experiment, [trial] = scene.spread(1)
    machine.power_off()
    machine.power_on()

    def read_state() -> bool:
        found = scene.manager.client.trial(trial["id"])
        return bool(found["status"] == "RUNNING" and found["jobs"] == 2)

    scene.manager.until(lambda: read_state() or None, "the trial to run again")
    first, second = sorted(scene.manager.client.jobs(trial["id"]), key=lambda job: job["number"])
    assert first["end_reason"] == "EXIT_UNKNOWN"
    assert second["start_reason"]
    scene.release_trials()
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 1}
    scene.leave()
