"""Machines that stay away for longer than node_timeout: their trials run elsewhere, and what comes back is fenced."""

from collections.abc import Callable

import pytest
from fakes.machines.machine import Machine
from fakes.machines.scene import NODE_TIMEOUT, Scene, read_records

pytestmark = pytest.mark.slow


def runs_trials(machine: Machine) -> bool:
    return any("trial.py" in process.command for process in machine.processes())


def test_trials_of_lost_machines_run_elsewhere_and_a_machine_that_comes_back_is_fenced(
    stage: Callable[..., Scene],
) -> None:
    scene = stage(3)
    dead, away, other = scene.machines
    experiment, running = scene.spread(3, trainingService=NODE_TIMEOUT)
    trials = {scene.machine_of(trial).name: trial["id"] for trial in running}
    lost = [trials[dead.name], trials[away.name]]
    dead.power_off()
    away.cut()
    for trial in lost:
        scene.until_attempt(trial, 2)
        first, second = scene.jobs(trial)
        assert first["end_reason"] == "NODE_LOST"
        assert first["node_id"] in first["detail"]
        assert second["node_id"] == scene.node(other)["id"]
        assert "from the start" in second["start_reason"]
    assert scene.manager.client.trial(trials[other.name])["jobs"] == 1

    before = read_records(away)[0].steps
    scene.manager.poll_for(lambda: read_records(away)[0].steps > before, "the orphaned copy to make progress")
    away.heal()
    scene.reconnect(away)
    scene.manager.poll_for(lambda: not runs_trials(away), "the orphaned copy to be stopped")
    [orphan] = read_records(away)
    assert orphan.end is None
    scene.release_trials()
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 3}
    for trial in lost:
        [steps] = [record.steps for record in read_records(other) if record.job_id == f"{trial}.2"]
        assert scene.manager.client.trial(trial)["final_value"] == steps
        assert [metric["job"] for metric in scene.manager.client.metrics(trial, kind="final")] == [2]
    dead.power_on()
    scene.reconnect(dead)
    scene.leave()


@pytest.mark.thorough
def test_neither_a_kill_nor_a_stop_waits_for_ever_for_the_only_machine(stage: Callable[..., Scene]) -> None:
    scene = stage(1)
    [away] = scene.machines
    killed, [trial] = scene.spread(1, trainingService=NODE_TIMEOUT)
    stopped, _ = scene.spread(1, trainingService=NODE_TIMEOUT)
    away.cut()
    scene.manager.client.kill_trial(trial["id"])
    scene.manager.client.stop_experiment(stopped)
    scene.manager.until(
        lambda: scene.manager.client.trial(trial["id"])["status"] == "USER_CANCELED" or None, "the trial to be given up"
    )
    scene.manager.until_status(killed, "DONE")
    scene.manager.until_status(stopped, "STOPPED")
    scene.manager.client.delete_experiment(stopped)
    away.heal()
    scene.manager.client.check_node(scene.node(away)["id"])
    scene.manager.poll_for(lambda: not runs_trials(away), "the orphaned copies to be stopped")
    scene.leave()
