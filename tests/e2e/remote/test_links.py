"""The connection may die, the manager too; trials keep running, and every report arrives once and in order."""

import signal
from collections.abc import Callable

import pytest
from fakes.machines.machine import Machine
from fakes.machines.requirements import needs_nft
from fakes.machines.scene import NODE_TIMEOUT, Scene, read_records

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

STEPS_A_SECOND = 20
LONGER = int((NODE_TIMEOUT["nodeTimeout"] + 1) * STEPS_A_SECOND)
"""So many steps take longer than a machine may stay away alone: that is noticed with the heartbeat that follows."""


def until_steps(scene: Scene, machine: Machine, number: int) -> None:
    """Wait until the first trial on a machine has made so many more steps, by its own record."""
    before = read_records(machine)[0].steps
    scene.manager.poll_for(lambda: read_records(machine)[0].steps >= before + number, f"{number} steps")


def expect_nothing_lost(scene: Scene, experiment: str, number: int) -> None:
    """Let the trials end: each has run once, and every report is there."""
    scene.release_trials()
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": number}
    assert [trial["jobs"] for trial in scene.manager.trials(experiment)] == [1] * number
    assert sum(len(read_records(machine)) for machine in scene.machines) == number
    scene.expect_all_reports(experiment)
    scene.leave()


def test_a_link_that_is_cut_and_an_ssh_server_that_is_restarted_lose_nothing(stage: Callable[..., Scene]) -> None:
    scene = stage(2)
    cut, restarted = scene.machines
    experiment, _ = scene.spread(2)
    cut.cut()
    restarted.stop_sshd()
    for machine in scene.machines:
        scene.until_node(machine, "SILENT", "FAILED", "CONNECTING", reason="tried again in")
        until_steps(scene, machine, STEPS_A_SECOND)
    cut.heal()
    restarted.start_sshd()
    for machine in scene.machines:
        scene.reconnect(machine)
    expect_nothing_lost(scene, experiment, 2)


@pytest.mark.thorough
def test_a_manager_that_is_killed_and_started_finds_its_trials_again(stage: Callable[..., Scene]) -> None:
    scene = stage(2)
    experiment, _ = scene.spread(4, maxTrialNumber=6)
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
    expect_nothing_lost(scene, experiment, 6)


@pytest.mark.thorough
def test_no_machine_is_lost_while_the_manager_sleeps_or_has_no_network(stage: Callable[..., Scene]) -> None:
    scene = stage(2)
    experiment, _ = scene.spread(2, trainingService=NODE_TIMEOUT)
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

    scene.network.cut_manager()
    for machine in scene.machines:
        scene.until_node(machine, "SILENT", "FAILED", "CONNECTING")
    until_steps(scene, scene.machines[0], LONGER)
    scene.network.heal_manager()
    for machine in scene.machines:
        scene.reconnect(machine)
    expect_nothing_lost(scene, experiment, 2)


@needs_nft
@pytest.mark.thorough
def test_a_poor_link_is_slow_and_loses_nothing(stage: Callable[..., Scene]) -> None:
    scene = stage(1)
    [machine] = scene.machines
    machine.lose(5)
    machine.slow(8000)
    experiment = scene.create(trialConcurrency=2, maxTrialNumber=2)
    scene.until_running(experiment, 2)
    expect_nothing_lost(scene, experiment, 2)
