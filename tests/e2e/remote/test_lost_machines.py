"""Machines that stay away for longer than node_timeout: their trials run elsewhere, and what comes back is fenced."""

from collections.abc import Callable

import pytest
from fakes.machines.machine import Machine
from fakes.machines.scene import Scene, read_records

pytestmark = pytest.mark.slow

SERVICE = {"nodeTimeout": 3}


def runs_trials(machine: Machine) -> bool:
    return any("trial.py" in process.command for process in machine.processes())


def test_the_trials_of_a_machine_that_is_dead_for_good_run_elsewhere(stage: Callable[..., Scene]) -> None:
    scene = stage(2)
    dead, _ = scene.machines
    experiment, running = scene.spread(2, trainingService=SERVICE)
    [lost] = [trial for trial in running if scene.machine_of(trial) is dead]
    [kept] = [trial for trial in running if trial is not lost]
    dead.power_off()

    def moved() -> bool:
        trial = scene.manager.client.trial(lost["id"])
        return trial["status"] == "RUNNING" and trial["jobs"] == 2 and trial["node_id"] == kept["node_id"]

    scene.manager.until(lambda: moved() or None, "the trial to run elsewhere")
    first, second = sorted(scene.manager.client.jobs(lost["id"]), key=lambda job: job["number"])
    assert first["end_reason"] == "NODE_LOST"
    assert scene.node(dead)["id"] in first["detail"]
    assert "from the start" in second["start_reason"]
    assert scene.manager.client.trial(kept["id"])["jobs"] == 1
    scene.release_trials()
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 2}
    scene.leave()


def test_a_machine_that_comes_back_after_its_trials_were_moved_is_fenced(stage: Callable[..., Scene]) -> None:
    scene = stage(2)
    away, other = scene.machines
    experiment, running = scene.spread(2, trainingService=SERVICE)
    [lost] = [trial for trial in running if scene.machine_of(trial) is away]
    away.cut()

    def moved() -> bool:
        trial = scene.manager.client.trial(lost["id"])
        return bool(trial["status"] == "RUNNING" and trial["jobs"] == 2)

    scene.manager.until(lambda: moved() or None, "the trial to run elsewhere")
    before = read_records(away)[0].steps
    scene.manager.poll_for(lambda: read_records(away)[0].steps > before, "the orphaned copy to make progress")
    away.heal()
    scene.until_node(away, "CONNECTED")
    scene.manager.poll_for(
        lambda: not any("trial.py" in process.command for process in away.processes()),
        "the orphaned copy to be stopped",
    )
    [orphan] = read_records(away)
    assert orphan.end is None
    scene.release_trials()
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 2}
    second = next(record for record in read_records(other) if record.job_id == f"{lost['id']}.2")
    trial = scene.manager.client.trial(lost["id"])
    assert trial["final_value"] == second.steps
    reported = list(scene.manager.client.metrics(lost["id"], kind="final"))
    assert [metric["job"] for metric in reported] == [2]
    scene.leave()


def test_a_stop_does_not_wait_for_ever_for_the_only_machine(stage: Callable[..., Scene]) -> None:
    scene = stage(1)
    [dead] = scene.machines
    experiment, _ = scene.spread(1, trainingService=SERVICE)
    dead.power_off()
    scene.manager.client.stop_experiment(experiment)
    scene.manager.until_status(experiment, "STOPPED")
    scene.manager.client.delete_experiment(experiment)
    node = scene.node(dead)
    dead.power_on()
    scene.manager.client.check_node(node["id"])  # a machine that no trial waits for is tried again after a minute only
    scene.expect_nothing_left()


def test_a_keeper_without_a_manager_stops_its_jobs_when_their_lease_is_over(stage: Callable[..., Scene]) -> None:
    scene = stage(1)
    [machine] = scene.machines
    experiment = scene.create(maxTrialNumber=1, leaseSeconds=2)
    scene.until_running(experiment, 1)
    scene.manager.kill()
    scene.manager.poll_for(lambda: not runs_trials(machine), "the trial to be stopped")
    [record] = read_records(machine)
    assert record.end is None
    scene.release_trials()
    scene.manager.start()
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 1}
    [trial] = scene.manager.trials(experiment)
    assert trial["jobs"] == 2
    scene.leave()


def test_a_trial_on_the_only_machine_can_be_killed_while_that_is_away(stage: Callable[..., Scene]) -> None:
    scene = stage(1)
    [away] = scene.machines
    experiment, [trial] = scene.spread(1, trainingService=SERVICE)
    away.cut()
    scene.manager.client.kill_trial(trial["id"])

    def read_state() -> bool:
        return bool(scene.manager.client.trial(trial["id"])["status"] == "USER_CANCELED")

    scene.manager.until(lambda: read_state() or None, "the trial to be given up")
    scene.manager.until_status(experiment, "DONE")
    away.heal()
    scene.manager.poll_for(lambda: not runs_trials(away), "the orphaned copy to be stopped")
    scene.leave()
