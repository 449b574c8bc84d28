"""Machines with a real SSH server: connected, given a keeper, again after every loss, and left without a trace."""

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from fakes.hub_manager import EXPERIMENT, HubManager, open_hub_manager, remote_settings
from fakes.machines.group import Group, loopback_group
from fakes.machines.machine import Machine
from fakes.machines.person import PASSWORD
from fakes.machines.processes import Process
from fakes.machines.requirements import needs_loopback

from proctor.training_services.base import TrialJobStatus
from proctor.training_services.providers import CheckVerdict
from proctor.training_services.remote.machines import keeper_session

pytestmark = [pytest.mark.anyio, needs_loopback]

LONG = "exec sleep 1000"
STOPPABLE = "while [ ! -e stop ]; do sleep 0.1; done"


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Group]:
    with loopback_group(tmp_path / "machines", 1) as group:
        for name, value in group.person.environment.items():
            monkeypatch.setenv(name, value)
        yield group


@pytest.fixture
async def manager(tmp_path: Path) -> AsyncIterator[HubManager]:
    async with open_hub_manager(tmp_path / "home") as manager:
        yield manager


def claim(manager: HubManager, group: Group, experiment_id: str = EXPERIMENT) -> str:
    """The machine's node id, once an experiment has claimed it."""
    [node_id] = manager.provider.claim(experiment_id, remote_settings(group.machine_list()), {})
    return node_id


async def until_left(manager: HubManager, group: Group, node_id: str) -> None:
    """Wait until the manager says that it has left a machine, and see whether it has."""
    record = manager.home / "nodes" / node_id
    await manager.until(lambda: not record.exists(), f"node {node_id} to be left")
    await manager.until(lambda: not manager.provider.has(node_id), f"node {node_id} to be forgotten")
    assert [node.id for node in manager.pool.nodes()] == []
    await asyncio.to_thread(group.leavings.expect_none)


async def keeper_of(manager: HubManager, machine: Machine) -> Process:
    """The one keeper process of a machine, once the one that has put it into the background is gone."""

    def find() -> list[Process]:
        return [process for process in machine.processes() if " serve" in process.command]

    await manager.until(lambda: len(find()) == 1, "one keeper to run there")
    return find()[0]


def relays(machine: Machine) -> int:
    """The number of sessions in which a relay runs."""
    return sum(" relay" in process.command for process in machine.processes())


async def stop_trial(manager: HubManager, machine: Machine) -> None:
    """Let job.1 succeed, which waits for the file `stop` in the keeper's directory."""
    [directory] = (machine.home() / ".proctor" / "nodes").iterdir()
    (directory / "stop").touch()
    ended = await manager.until_job("job.1", TrialJobStatus.ENDED)
    assert ended.exit is not None
    assert ended.exit.code == 0


async def test_a_machine_is_left_without_a_trace_by_each_experiment_that_has_claimed_it(
    group: Group, manager: HubManager
) -> None:
    [machine] = group.machines
    node_id = claim(manager, group)
    node = await manager.until_status(node_id, "CONNECTED")
    assert node.hostname == "m1"
    manager.launch(node_id, "job.1", LONG)
    await manager.until_job("job.1", TrialJobStatus.RUNNING)
    assert any("sleep 1000" in process.command for process in machine.processes())

    await manager.provider.forget(EXPERIMENT)  # its job still runs, and its files are not needed
    await manager.until(lambda: manager.provider.machine(node_id).is_cleaning, "the cleaning to begin")
    assert claim(manager, group, "Experim2") == node_id
    await manager.until_status(node_id, "CONNECTED")
    await manager.provider.release("Experim2")
    await until_left(manager, group, node_id)


@pytest.mark.thorough
async def test_trials_go_on_while_the_ssh_server_is_away_and_while_keepers_die_and_hang(
    group: Group, manager: HubManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper_session, "REGISTRATION_SECONDS", 2.0)
    [machine] = group.machines
    node_id = claim(manager, group)
    await manager.until_status(node_id, "CONNECTED")
    keeper = await keeper_of(manager, machine)
    manager.launch(node_id, "job.1", STOPPABLE)
    await manager.until_job("job.1", TrialJobStatus.RUNNING)
    await asyncio.to_thread(machine.stop_sshd)
    await manager.until_status(node_id, "CONNECTING", reason="its trials keep running")
    await manager.until_status(node_id, "FAILED", reason="does not answer")
    await asyncio.to_thread(machine.start_sshd)
    manager.provider.check(node_id)
    await manager.until_status(node_id, "CONNECTED")
    assert (await keeper_of(manager, machine)).pid == keeper.pid

    for number in (signal.SIGKILL, signal.SIGSTOP):
        keeper.kill(number)
        await manager.until_status(node_id, "SILENT")
        await manager.until_status(node_id, "CONNECTED")
        replaced, keeper = keeper, await keeper_of(manager, machine)
        assert keeper.pid != replaced.pid
    await stop_trial(manager, machine)
    await manager.provider.release(EXPERIMENT)
    await until_left(manager, group, node_id)


async def test_where_forwarding_is_forbidden_a_relay_takes_its_place(group: Group, manager: HubManager) -> None:
    [machine] = group.machines
    machine.configure(DisableForwarding="yes", MaxSessions="5")
    steps = await manager.provider.inspect(remote_settings(group.machine_list()), {})
    [forwarding] = [step for step in steps if step.name == "forwarding"]
    assert forwarding.verdict is CheckVerdict.NOTE
    assert CheckVerdict.FAIL not in {step.verdict for step in steps}, steps
    await asyncio.to_thread(group.leavings.expect_none)
    node_id = claim(manager, group)
    await manager.until_status(node_id, "CONNECTED")
    await manager.until(lambda: relays(machine) == 4, "a session that listens and three for connections")
    manager.launch(node_id, "job.1", "true")
    await manager.until_job("job.1", TrialJobStatus.ENDED)
    machine.break_connections()
    await manager.until_status(node_id, "CONNECTING")
    await manager.until_status(node_id, "CONNECTED")
    (await keeper_of(manager, machine)).kill()
    await manager.until_status(node_id, "SILENT")
    await manager.until_status(node_id, "CONNECTED")
    await manager.until(lambda: relays(machine) == 4, "the sessions of the killed keeper to be replaced")
    await manager.provider.release(EXPERIMENT)
    await until_left(manager, group, node_id)


@pytest.mark.thorough
async def test_where_forwarding_is_forbidden_and_a_relay_has_no_room_the_setting_is_named(
    group: Group, manager: HubManager
) -> None:
    [machine] = group.machines
    machine.configure(DisableForwarding="yes", MaxSessions="4")
    steps = await manager.provider.inspect(remote_settings(group.machine_list()), {})
    [forwarding] = [step for step in steps if step.name == "forwarding"]
    assert forwarding.verdict is CheckVerdict.FAIL
    assert "refuses the 5 sessions at once that a relay needs" in forwarding.found
    assert forwarding.advice == "allow AllowStreamLocalForwarding or raise MaxSessions in its sshd_config"
    node_id = claim(manager, group)
    await manager.until_status(node_id, "FAILED", reason="the 5 sessions at once that a relay needs")
    machine.configure(DisableForwarding=None, AllowStreamLocalForwarding="no", MaxSessions=None)
    machine.break_connections()
    manager.provider.check(node_id)
    await manager.until_status(node_id, "CONNECTED")
    await manager.until(lambda: relays(machine) == 4, "a relay also where only sockets are not forwarded")
    await manager.provider.release(EXPERIMENT)
    await until_left(manager, group, node_id)


async def test_a_machine_without_python_is_shown_with_what_to_do_until_it_has_one(
    group: Group, manager: HubManager
) -> None:
    [machine] = group.machines
    machine.hide_python()
    settings = remote_settings(
        [*group.machine_list(), {"host": "no.such.machine.invalid"}], code={"path_on_node": "/no"}
    )
    steps = await manager.provider.inspect(settings, {})
    [python] = [step for step in steps if step.name == "python" and step.machine != "no.such.machine.invalid"]
    assert python.verdict is CheckVerdict.FAIL
    assert "pythonPath" in python.advice
    [name] = [step for step in steps if step.name == "name" and step.machine == "no.such.machine.invalid"]
    assert name.verdict is CheckVerdict.FAIL
    assert {step.verdict for step in steps if step.name == "code"} == {CheckVerdict.SKIPPED}
    node_id = claim(manager, group)
    await manager.until_status(node_id, "FAILED", reason="no Python ≥ 3.10")
    machine.show_python()
    manager.provider.check(node_id)
    await manager.until_status(node_id, "CONNECTED")
    await manager.provider.release(EXPERIMENT)
    await until_left(manager, group, node_id)


@pytest.mark.thorough
async def test_a_machine_that_cannot_be_left_is_owed_that_over_a_restart_of_the_manager(
    group: Group, tmp_path: Path
) -> None:
    [machine] = group.machines
    home = tmp_path / "home"
    async with open_hub_manager(home) as manager:
        node_id = claim(manager, group)
        await manager.until_status(node_id, "CONNECTED")
        manager.launch(node_id, "job.1", LONG)
        await manager.until_job("job.1", TrialJobStatus.RUNNING)
        await asyncio.to_thread(machine.stop_sshd)
        await manager.until_status(node_id, "FAILED")
        await manager.provider.release(EXPERIMENT)
        await manager.until_status(node_id, "FAILED", reason="released")
    assert any("sleep 1000" in process.command for process in machine.processes())
    await asyncio.to_thread(machine.start_sshd)
    async with open_hub_manager(home) as manager:
        await until_left(manager, group, node_id)


async def test_a_password_is_read_again_where_the_experiment_keeps_it(group: Group, tmp_path: Path) -> None:
    group.machines[0].authorize()
    home = tmp_path / "home"
    kept = tmp_path / "secrets.json"
    secrets = {"training_service.machine_list.0.password": PASSWORD}
    kept.write_text(json.dumps(secrets))
    settings = remote_settings(group.machine_list())
    async with open_hub_manager(home) as manager:
        [node_id] = manager.provider.claim(EXPERIMENT, settings, secrets, secrets_file=kept)
        await manager.until_status(node_id, "CONNECTED")
        written = [path.read_text() for path in (home / "nodes").rglob("*.json")]
        assert written
        assert PASSWORD not in "".join(written)
    async with open_hub_manager(home) as manager:
        await until_left(manager, group, node_id)


@pytest.mark.thorough
async def test_a_killed_managers_successor_finds_its_keeper_and_jobs_and_leaves_what_no_experiment_claims(
    group: Group, tmp_path: Path
) -> None:
    [machine] = group.machines
    home = tmp_path / "home"
    async with open_hub_manager(home) as manager:
        node_id = claim(manager, group)
        await manager.until_status(node_id, "CONNECTED")
        launch = manager.launch(node_id, "job.1", STOPPABLE)
        await manager.until_job("job.1", TrialJobStatus.RUNNING)
        keeper = (await keeper_of(manager, machine)).pid
    async with open_hub_manager(home, ready=False) as manager:
        assert claim(manager, group) == node_id
        manager.hub.expect(launch.job_id, launch.token, EXPERIMENT)
        manager.hub.resume_launch(node_id, launch)
        await manager.hub.mark_reattached()
        await manager.until_status(node_id, "CONNECTED")
        assert (await keeper_of(manager, machine)).pid == keeper
        await stop_trial(manager, machine)
    async with open_hub_manager(home, ready=False) as manager:
        assert not manager.provider.has(node_id)
        await manager.hub.mark_reattached()
        await until_left(manager, group, node_id)


async def test_every_hop_is_looked_at_and_nothing_of_that_stays(group: Group, manager: HubManager) -> None:
    [machine] = group.machines
    machine.set_gpus(4)
    steps = await manager.provider.inspect(remote_settings(group.machine_list()), {})
    assert [step.name for step in steps] == [
        *("name", "port", "host key", "login", "python", "clock", "disk", "home", "sftp"),
        *("forwarding", "keeper", "gpus", "trials", "code"),
    ]
    assert {step.verdict for step in steps} == {CheckVerdict.OK}, steps
    assert "4 ×" in next(step.found for step in steps if step.name == "gpus")
    await asyncio.to_thread(group.leavings.expect_none)


@pytest.mark.thorough
async def test_a_machine_in_use_is_not_cleaned_and_one_that_a_manager_without_records_has_left_is(
    group: Group, tmp_path: Path
) -> None:
    settings = remote_settings(group.machine_list())
    async with open_hub_manager(tmp_path / "home") as manager:
        node_id = claim(manager, group)
        await manager.until_status(node_id, "CONNECTED")
        [step] = await manager.provider.clean(settings, {})
        assert step.verdict is CheckVerdict.FAIL
        assert EXPERIMENT in step.found
        manager.launch(node_id, "job.1", LONG)
        await manager.until_job("job.1", TrialJobStatus.RUNNING)
    async with open_hub_manager(tmp_path / "another") as manager:
        [step] = await manager.provider.clean(settings, {})
        assert step.verdict is CheckVerdict.OK, step
        await asyncio.to_thread(group.leavings.expect_none)
        [step] = await manager.provider.clean(settings, {})
        assert step.found == "nothing of this manager was there"


@pytest.mark.thorough
async def test_two_machines_that_share_one_home_are_looked_after_and_left_each_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with loopback_group(tmp_path / "machines", 2, homes="shared") as group:
        for name, value in group.person.environment.items():
            monkeypatch.setenv(name, value)
        first, second = group.machines
        async with open_hub_manager(tmp_path / "home") as manager:
            one, other = remote_settings([first.entry()]), remote_settings([second.entry()])
            [first_id] = manager.provider.claim("Experim1", one, {})
            [second_id] = manager.provider.claim("Experim2", other, {})
            assert first_id != second_id
            await manager.until_status(first_id, "CONNECTED")
            await manager.until_status(second_id, "CONNECTED")
            manager.launch(second_id, "job.2", LONG)
            await manager.until_job("job.2", TrialJobStatus.RUNNING)
            steps = await manager.provider.inspect(remote_settings(group.machine_list()), {})
            assert CheckVerdict.FAIL not in {step.verdict for step in steps}, steps
            await manager.provider.release("Experim1")
            await manager.until(lambda: not manager.provider.has(first_id), "the first one to be left")
            assert any("sleep 1000" in process.command for process in second.processes())
            await manager.until_status(second_id, "CONNECTED")
            await manager.provider.release("Experim2")
            await until_left(manager, group, second_id)


@pytest.mark.thorough
async def test_a_full_disk_is_the_reason_until_there_is_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with loopback_group(tmp_path / "machines", 1, disk_mb=100) as group:
        for name, value in group.person.environment.items():
            monkeypatch.setenv(name, value)
        [machine] = group.machines
        machine.fill_disk()
        async with open_hub_manager(tmp_path / "home") as manager:
            node_id = claim(manager, group)
            await manager.until_status(node_id, "FAILED", reason="its disk is full")
            steps = await manager.provider.inspect(remote_settings(group.machine_list()), {})
            [disk] = [step for step in steps if step.name == "disk"]
            assert disk.verdict is CheckVerdict.FAIL
            machine.empty_disk()
            manager.provider.check(node_id)
            await manager.until_status(node_id, "CONNECTED")
            machine.fill_disk()
            await manager.provider.release(EXPERIMENT)
            await until_left(manager, group, node_id)
