"""The connection may die, the manager too; trials keep running, and every report arrives once and in order."""

import signal
from collections.abc import Callable

import pytest
from fakes.machines.machine import Machine
from fakes.machines.requirements import needs_nft
from fakes.machines.scene import Scene, read_records

pytestmark = pytest.mark.slow

STEPS_A_SECOND = 20
NODE_TIMEOUT_SECONDS = 10
"""The least that has an effect: two heartbeats."""
LONGER = (NODE_TIMEOUT_SECONDS + 6) * STEPS_A_SECOND
"""So many steps take longer than a machine may stay away alone: that is noticed with the heartbeat that follows."""


def until_steps(scene: Scene, machine: Machine, number: int) -> None:
    """Wait until the first trial on a machine has made so many more steps, by its own record."""
    before = read_records(machine)[0].steps
    scene.manager.poll_for(lambda: read_records(machine)[0].steps >= before + number, f"{number} steps")


def test_a_link_that_is_cut_for_a_while_loses_nothing(stage: Callable[..., Scene]) -> None:
    scene = stage(2)
    cut, _ = scene.machines
    experiment, running = scene.spread(2)
    cut.cut()
    scene.until_node(cut, "SILENT", "FAILED", "CONNECTING", reason="tried again in")
    until_steps(scene, cut, 5 * STEPS_A_SECOND)
    cut.heal()
    scene.until_node(cut, "CONNECTED")
    scene.release_trials()
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 2}
    assert [trial["jobs"] for trial in scene.manager.trials(experiment)] == [1, 1]
    assert {trial["id"] for trial in scene.manager.trials(experiment)} == {trial["id"] for trial in running}
    scene.expect_all_reports(experiment)
    scene.leave()


def test_an_ssh_server_that_is_restarted_is_reached_again(stage: Callable[..., Scene]) -> None:
    scene = stage(1)
    [machine] = scene.machines
    experiment = scene.create(maxTrialNumber=1)
    scene.until_running(experiment, 1)
    machine.stop_sshd()
    scene.until_node(machine, "FAILED", "CONNECTING", "SILENT", reason="tried again in")
    until_steps(scene, machine, 10)
    machine.start_sshd()
    scene.until_node(machine, "CONNECTED")
    scene.release_trials()
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 1}
    scene.expect_all_reports(experiment)
    assert len(read_records(machine)) == 1
    scene.leave()


def test_a_manager_that_is_killed_and_started_finds_its_trials_again(stage: Callable[..., Scene]) -> None:
    scene = stage(2)
    experiment, running = scene.spread(4, maxTrialNumber=6)
    scene.manager.kill()
    for machine in scene.machines:
        until_steps(scene, machine, STEPS_A_SECOND)
    scene.release_trials(scene.machines[0])  # these end while no manager is connected
    scene.manager.poll_for(
        lambda: all(record.end is not None for record in read_records(scene.machines[0])), "trials that end"
    )
    scene.manager.start()
    for machine in scene.machines:
        scene.until_node(machine, "CONNECTED")
    scene.release_trials()
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 6}
    trials = scene.manager.trials(experiment)
    assert [trial["jobs"] for trial in trials] == [1] * 6
    assert {trial["id"] for trial in running} < {trial["id"] for trial in trials}
    scene.expect_all_reports(experiment)
    assert sum(len(read_records(machine)) for machine in scene.machines) == 6
    scene.leave()


def test_a_manager_that_sleeps_for_longer_than_node_timeout_loses_no_node(stage: Callable[..., Scene]) -> None:
    scene = stage(2)
    experiment, _ = scene.spread(2, trainingService={"nodeTimeout": NODE_TIMEOUT_SECONDS})
    scene.manager.signal(signal.SIGSTOP)
    until_steps(scene, scene.machines[0], LONGER)
    scene.manager.signal(signal.SIGCONT)
    for machine in scene.machines:
        scene.until_node(machine, "CONNECTED")
    before = [trial["intermediate_count"] for trial in scene.manager.trials(experiment)]

    def caught_up() -> bool:
        now = [trial["intermediate_count"] for trial in scene.manager.trials(experiment)]
        return all(new > old for new, old in zip(now, before, strict=True))

    scene.manager.until(lambda: caught_up() or None, "reports after the sleep")
    scene.release_trials()
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 2}
    assert [trial["jobs"] for trial in scene.manager.trials(experiment)] == [1, 1]
    scene.expect_all_reports(experiment)
    scene.leave()


def test_when_our_own_network_is_gone_no_machine_is_lost(stage: Callable[..., Scene]) -> None:
    scene = stage(2)
    network = scene.group.network
    assert network is not None
    experiment, _ = scene.spread(2, trainingService={"nodeTimeout": NODE_TIMEOUT_SECONDS})
    network.cut_manager()
    for machine in scene.machines:
        scene.until_node(machine, "SILENT", "FAILED", "CONNECTING")
    until_steps(scene, scene.machines[0], LONGER)
    network.heal_manager()
    for machine in scene.machines:
        scene.manager.client.check_node(scene.node(machine)["id"])
    for machine in scene.machines:
        scene.until_node(machine, "CONNECTED")
    scene.release_trials()
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 2}
    assert [trial["jobs"] for trial in scene.manager.trials(experiment)] == [1, 1]
    scene.expect_all_reports(experiment)
    scene.leave()


@needs_nft
def test_a_poor_link_is_slow_and_loses_nothing(stage: Callable[..., Scene]) -> None:
    scene = stage(1)
    [machine] = scene.machines
    machine.lose(5)
    machine.slow(8000)
    experiment = scene.create(trialConcurrency=2, maxTrialNumber=2)
    scene.until_running(experiment, 2)
    scene.release_trials()
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 2}
    scene.expect_all_reports(experiment)
    scene.leave()
