"""Machines that share a home, and managers that share machines."""

from collections.abc import Callable
from pathlib import Path

import pytest
from fakes.machines.scene import Scene, another_scene, read_records
from fakes.nvidia import find_compiler

pytestmark = pytest.mark.slow


@pytest.mark.thorough
def test_machines_with_one_home_keep_apart(stage: Callable[..., Scene]) -> None:
    scene = stage(2, homes="shared")
    experiment, running = scene.spread(4)
    assert {scene.machine_of(trial).name for trial in running} == {"m1", "m2"}
    for machine in scene.machines:
        assert len(read_records(machine)) == 2
    scene.manager.kill()
    scene.manager.start()
    for machine in scene.machines:
        scene.until_node(machine, "CONNECTED")
    scene.release_trials()
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 4}
    assert [trial["jobs"] for trial in scene.manager.trials(experiment)] == [1] * 4
    scene.expect_all_reports(experiment)
    scene.leave()


@pytest.mark.thorough
def test_users_of_one_machine_are_nodes_of_their_own_and_many_trials_need_few_logins_and_sessions(
    stage: Callable[..., Scene],
) -> None:
    users = tuple(f"user{number}" for number in range(4))
    scene = stage(1, users=users)
    [machine] = scene.machines
    machine.configure(MaxStartups="2:100:2", MaxSessions="2")
    machines = [machine.entry(user) for user in users]
    experiment = scene.create(machines=machines, maxTrialNumber=12)
    running = scene.widen(experiment, 12, nodes=len(users))
    for trial in running:
        assert scene.manager.client.trial_log(trial["id"]).data == b"trial begins\n"
        assert scene.manager.client.trial_tail(trial["id"], 1) == b"trial begins\n"
    scene.release_trials()
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 12}
    scene.expect_all_reports(experiment)
    scene.leave()


@pytest.mark.skipif(find_compiler() is None, reason="no C compiler here to build the fake NVML library")
@pytest.mark.thorough
def test_managers_leave_each_others_keepers_alone_and_see_whose_gpus_are_taken_since_when(
    stage: Callable[..., Scene], tmp_path: Path
) -> None:
    scene = stage(1, users=("bob", "eve"))
    [machine] = scene.machines
    uuids = machine.set_gpus(2)
    first = scene.create(trialGpuNumber=1, maxTrialNumber=1)
    scene.until_running(first, 1)
    with another_scene(scene.group, tmp_path / "other") as other:
        of_same_user = other.create(seconds=0.1, maxTrialNumber=1)
        assert other.manager.until_status(of_same_user, "DONE")["trial_counts"] == {"SUCCEEDED": 1}
        other.remove(of_same_user)
        other.until_left()

        second = other.create(machines=[machine.entry("eve")], trialGpuNumber=1, trialConcurrency=2, maxTrialNumber=2)
        other.until_running(second, 1)
        [mine], [theirs] = (
            [record for record in read_records(machine) if record.trial_id in trials]
            for trials in (ids(scene, first), ids(other, second))
        )
        assert {mine.gpus, theirs.gpus} == {(uuids[0],), (uuids[1],)}

        def reported() -> str | None:
            reasons = [trial["reason"] for trial in other.manager.trials(second) if trial["status"] == "WAITING"]
            return next((reason for reason in reasons if first in reason), None)

        reason = other.manager.until(reported, "a trial that says who holds the GPU")
        assert "since" in reason
        assert f"trial 0 of experiment {first}" in reason or f"experiment {first}" in reason
        devices = other.node(machine, user="eve")["facts"]["devices"]
        [device] = [device for device in devices if device["uuid"] == mine.gpus[0]]  # type: ignore[index]
        assert any(first in holder for holder in device["held_by"])
        assert first in other.manager.command_line("nodes")
        [trial] = scene.manager.trials(first)
        assert (trial["status"], trial["jobs"]) == ("RUNNING", 1)
        scene.release_trials()
        assert scene.manager.until_status(first, "DONE")["trial_counts"] == {"SUCCEEDED": 1}
        scene.expect_all_reports(first)
        assert other.manager.until_status(second, "DONE")["trial_counts"] == {"SUCCEEDED": 2}
        other.remove(second)
        other.until_left()
    scene.leave()


def ids(scene: Scene, experiment: str) -> set[str]:
    return {trial["id"] for trial in scene.manager.trials(experiment)}
