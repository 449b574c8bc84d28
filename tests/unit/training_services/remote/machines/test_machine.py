"""Machines under virtual time: what goes wrong becomes a reason and a pause, of that machine alone; what is released is
left, or owed that."""

import asyncio
import hashlib
from contextlib import AbstractAsyncContextManager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from fakes.fake_connection import FakeConnection
from unit.training_services.remote.machines.scene import UNREACHABLE, Scene, play, played

from proctor.training_services.base import NodePlacement
from proctor.training_services.errors import ServiceUnavailable
from proctor.training_services.files.code import CodeArchive
from proctor.training_services.nodes.pool import NodeStatus
from proctor.training_services.remote.machines.machine import MachineState
from proctor.training_services.remote.machines.records import Claim, NodeDirectory, read_records
from proctor.training_services.ssh.errors import ConnectionEnded, LoginRefused, Unreachable
from proctor.training_services.ssh.route import RouteTrace


async def pauses(scene: Scene, logins: int) -> list[float]:
    """The seconds between the next logins of gpu-1."""
    times: list[float] = []
    machine = scene.machine("gpu-1")
    first = machine.logins + 1
    for number in range(first, first + logins):
        await scene.until(lambda number=number: machine.logins == number)
        times.append(asyncio.get_running_loop().time())
    return [later - earlier for earlier, later in pairwise(times)]


@played
async def test_a_machine_that_does_not_answer_is_tried_again_after_1_2_4_and_at_most_60_seconds(scene: Scene) -> None:
    scene.machine("gpu-1").failure = UNREACHABLE
    scene.claim("gpu-1")
    for pause, longest in zip(await pauses(scene, 9), [1, 2, 4, 8, 16, 32, 60, 60], strict=True):
        assert 0.75 * longest - 0.5 <= pause <= longest + 0.5
    await scene.until_status("gpu-1", "FAILED", "it does not answer; ")


def take_job(scene: Scene, node_id: str) -> None:
    """A trial job runs on the machine."""
    scene.pool.reserve(f"{node_id}.1", "token", "trial 0", NodePlacement(node_id))


@played
async def test_machines_whose_trials_may_run_are_found_again_before_these_are_given_up(scene: Scene) -> None:
    """They come back when they have been away for nine tenths of nodeTimeout."""
    hosts = [f"gpu-{number}" for number in range(10)]
    await scene.connect(*hosts, node_timeout_seconds=30.0)
    for host in hosts:
        take_job(scene, host)
    began = asyncio.get_running_loop().time()
    for host in hosts:
        scene.machine(host).failure = UNREACHABLE
        scene.machine(host).cut()
    await asyncio.sleep(27.0)
    for host in hosts:
        scene.machine(host).failure = None
    for host in hosts:
        await scene.until_status(host, "CONNECTED")
    assert asyncio.get_running_loop().time() - began < 30.0


@pytest.mark.parametrize(
    ("failure", "has_jobs", "node_timeout", "longest"),
    [
        (UNREACHABLE, True, 30.0, 1.5),
        (UNREACHABLE, True, 10.0, 1.0),
        (UNREACHABLE, True, 86_400.0, 60.0),
        (UNREACHABLE, False, 30.0, 60.0),
        (LoginRefused("login as bob was refused"), True, 30.0, 60.0),  # an account may be locked after some attempts
    ],
)
@played
async def test_pauses_are_short_only_where_there_is_something_to_lose(
    scene: Scene, failure: Unreachable | LoginRefused, has_jobs: bool, node_timeout: float, longest: float
) -> None:
    machine = await scene.connect("gpu-1", node_timeout_seconds=node_timeout)
    if has_jobs:
        take_job(scene, "gpu-1")
    machine.failure = failure
    machine.cut()
    assert 0.75 * longest - 0.5 <= max(await pauses(scene, 9)) <= longest + 0.5


@played
async def test_a_machine_enters_only_states_that_may_follow_and_none_once_it_is_forgotten(scene: Scene) -> None:
    scene.machine("gpu-1").hangs = True
    scene.claim("gpu-1")
    machine = scene.provider.machine("gpu-1")
    with pytest.raises(AssertionError, match="node gpu-1: CONNECTING cannot become SERVING"):
        machine._change(MachineState.SERVING)
    await scene.provider.release("E1")
    with pytest.raises(ConnectionEnded, match="no experiment uses it"):
        machine._change(MachineState.PROBING)


@played
async def test_a_check_tries_a_machine_at_once(scene: Scene) -> None:
    machine = scene.machine("gpu-1")
    machine.failure = UNREACHABLE
    scene.claim("gpu-1")
    await scene.until(lambda: machine.logins == 8)
    await asyncio.sleep(1)
    began = asyncio.get_running_loop().time()
    machine.failure = None
    scene.provider.check("gpu-1")
    await scene.until_status("gpu-1", "CONNECTED")
    assert asyncio.get_running_loop().time() - began < 5


@played
async def test_one_machine_whose_login_never_ends_keeps_no_other_one_waiting(scene: Scene) -> None:
    scene.machine("bad").hangs = True
    scene.claim("bad", "good")
    await scene.until_status("good", "CONNECTED")
    assert scene.pool.node("bad").status == "CONNECTING"


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"pythons": {}}, "no Python ≥ 3.10 was found"),
        ({"pythons": {"python3": "3.9.1"}}, "python3 is 3.9.1"),
        ({"clock_ahead": 3600.0}, "3600 s ahead of the manager's"),
        ({"clock_ahead": -301.0}, "s behind the manager's"),
        ({"free_mb": 12}, "its disk is full: 12 MiB are free"),
        ({"free_inodes": 3}, "3 inodes are free"),
        ({"why_not_writable": "/home/bob: Read-only file system"}, "Read-only file system"),
        ({"lacks": ["bash"]}, "lacks what a keeper needs: bash"),
    ],
)
@played
async def test_what_a_keeper_could_not_work_with_is_the_reason(
    scene: Scene, changes: dict[str, Any], reason: str
) -> None:
    machine = scene.machine("gpu-1")
    for name, value in changes.items():
        setattr(machine, name, value)
    scene.claim("gpu-1")
    await scene.until_status("gpu-1", "FAILED", reason)
    assert machine.commands == []


@played
async def test_a_machine_without_the_python_of_its_python_path_is_refused_and_others_are_used(scene: Scene) -> None:
    machines = [{"host": "gpu-1", "python_path": "/opt/gone/bin"}, {"host": "gpu-2", "python_path": "/opt/old/bin"}]
    scene.machine("gpu-2").pythons["/opt/old/bin/python3"] = "3.8.2"  # for the trials; the keeper takes the other
    scene.claim("gpu-1", "gpu-2", machine_list=machines)
    await scene.until_status("gpu-1", "FAILED", "pythonPath /opt/gone/bin has no Python that can be executed")
    await scene.until_status("gpu-2", "CONNECTED")
    assert scene.machine("gpu-1").commands == []
    scene.machine("gpu-1").pythons["/opt/gone/bin/python"] = "3.12.1"
    await scene.until_status("gpu-1", "CONNECTED")


@played
async def test_a_machine_whose_python_path_has_gone_is_left_all_the_same(scene: Scene) -> None:
    scene.machine("gpu-1").pythons["/opt/new/bin/python3"] = "3.12.1"
    machine = await scene.connect("gpu-1", machine_list=[{"host": "gpu-1", "python_path": "/opt/new/bin"}])
    del machine.pythons["/opt/new/bin/python3"]
    await scene.provider.release("E1")
    await scene.until_forgotten("gpu-1")
    assert not machine.exists


@played
async def test_a_newer_python_beside_an_old_one_is_used(scene: Scene) -> None:
    scene.machine("gpu-1").pythons = {"python3": "3.6.8", "/usr/bin/python3.12": "3.12.1"}
    await scene.connect("gpu-1")


@played
async def test_the_keepers_file_is_brought_once_and_again_where_it_arrived_damaged(scene: Scene) -> None:
    machine = scene.machine("gpu-1")
    machine.damages = 1
    await scene.connect("gpu-1")
    assert len(machine.uploads) == 2
    machine.cut()
    await scene.until_status("gpu-1", "CONNECTING", "its trials keep running")
    await scene.until_status("gpu-1", "CONNECTED")
    assert len(machine.uploads) == 2


@played
async def test_a_connection_that_breaks_is_made_again(scene: Scene) -> None:
    machine = await scene.connect("gpu-1")
    assert [connection.forwarded for connection in machine.connections] == ["/run/manager.sock"]
    machine.cut("it has not answered for 45 s")
    node = await scene.until_status("gpu-1", "CONNECTING")
    assert "it has not answered for 45 s" in node.reason
    await scene.until_status("gpu-1", "CONNECTED")
    assert machine.commands.count("start") == 2


@played
async def test_a_keeper_that_does_not_come_is_started_anew_and_then_told_of(scene: Scene) -> None:
    machine = scene.machine("gpu-1")
    machine.registers = False
    scene.claim("gpu-1")
    await scene.until_status("gpu-1", "FAILED", "does not reach the manager")
    assert machine.commands == ["prepare", "start", "stop", "start"]
    machine.registers = True
    await scene.until_status("gpu-1", "CONNECTED")


@played
async def test_a_keeper_that_falls_silent_is_started_again(scene: Scene) -> None:
    await scene.connect("gpu-1")
    await asyncio.sleep(1)
    machine = scene.machine("gpu-1")
    machine.commands.clear()
    machine.keeper = False
    scene.pool.set_status("gpu-1", NodeStatus.SILENT, "no report from its keeper")
    await scene.until_status("gpu-1", "CONNECTED")
    assert machine.commands == ["start"]


@played
async def test_when_one_experiments_login_is_refused_that_of_another_one_is_taken(scene: Scene) -> None:
    machine = scene.machine("gpu-1")
    inner = machine.connect

    def connect(claim: Claim, trace: RouteTrace | None) -> AbstractAsyncContextManager[FakeConnection]:
        machine.failure = LoginRefused("no") if claim.login.password is None else None
        return inner(claim, trace)

    machine.connect = connect  # type: ignore[method-assign]
    settings = {"machine_list": [{"host": "gpu-1"}]}
    scene.provider.claim("E1", settings, {"training_service.machine_list.0.password": "x"})
    scene.provider.claim("E2", settings, {})
    await scene.until_status("gpu-1", "CONNECTED")
    assert machine.connections[0].claim.experiment_id == "E1"
    assert machine.logins == 2


@played
async def test_a_machine_is_left_when_its_last_experiment_lets_go(scene: Scene) -> None:
    scene.claim("gpu-1", by="E1")
    machine = await scene.connect("gpu-1", by="E2")
    await scene.provider.release("E1")
    await scene.provider.release("never claimed anything")
    await asyncio.sleep(60)
    assert machine.keeper
    assert scene.provider.machine("gpu-1").experiments == ("E2",)
    await scene.provider.release("E2")
    await scene.until_forgotten("gpu-1")
    assert not machine.exists
    assert scene.pool.nodes() == ()
    assert list((scene.folder / "nodes").glob("gpu-1*")) == []


@played
async def test_a_machine_on_which_nothing_of_ours_is_any_more_is_left_without_bringing_anything(scene: Scene) -> None:
    machine = await scene.connect("gpu-1")
    await scene.lose("gpu-1")
    await scene.provider.release("E1")
    await scene.until_status("gpu-1", "FAILED", "released")
    machine.clear()
    machine.uploads.clear()
    machine.failure = None
    await scene.until_forgotten("gpu-1")
    assert machine.uploads == []


@played
async def test_what_could_not_be_removed_is_told_and_tried_again(scene: Scene) -> None:
    machine = await scene.connect("gpu-1")
    machine.left = ["process 17 does not end"]
    await scene.provider.release("E1")
    await scene.until_status("gpu-1", "FAILED", "process 17 does not end")
    machine.left = []
    await scene.until_forgotten("gpu-1")


def test_a_machine_that_was_away_when_it_was_released_is_left_by_the_next_manager(tmp_path: Path) -> None:
    async def release_while_away(scene: Scene) -> None:
        await scene.connect("gpu-1")
        await scene.lose("gpu-1")
        await scene.provider.release("E1")
        await scene.until_status("gpu-1", "FAILED", "released")

    async def leave(scene: Scene) -> None:
        await scene.until(lambda: not (tmp_path / "nodes" / "gpu-1").exists())
        assert not scene.machine("gpu-1").exists

    play(tmp_path, release_while_away)
    [record] = read_records(tmp_path / "nodes")
    assert record.experiments == ()
    play(tmp_path, leave, prepare=lambda scene: setattr(scene.machine("gpu-1"), "exists", True))


def test_after_a_restart_machines_wait_for_their_experiments_and_those_that_nobody_claims_are_left(
    tmp_path: Path,
) -> None:
    async def claim_two(scene: Scene) -> None:
        await scene.connect("gpu-1", "gpu-2")

    async def claim_one(scene: Scene) -> None:
        await asyncio.sleep(600)
        assert not scene.provider.has("gpu-1")
        scene.claim("gpu-1")
        await scene.hub.mark_reattached()
        await scene.until(lambda: not (tmp_path / "nodes" / "gpu-2").exists())
        await scene.until_status("gpu-1", "CONNECTED")

    play(tmp_path, claim_two)
    play(tmp_path, claim_one)


def test_after_a_restart_machines_of_an_experiment_that_is_not_loaded_are_kept_until_it_needs_them_no_more(
    tmp_path: Path,
) -> None:
    async def claim(scene: Scene) -> None:
        scene.claim("gpu-1", by="E2")
        await scene.connect("gpu-1", "gpu-2")

    async def hold(scene: Scene) -> None:
        scene.provider.hold("E1")
        scene.provider.hold("E1")
        await scene.hub.mark_reattached()
        await scene.until_status("gpu-1", "CONNECTED")
        await scene.until_status("gpu-2", "CONNECTED")
        await asyncio.sleep(600)
        assert scene.provider.machine("gpu-1").experiments == ("E1",), "E2 is gone"
        scene.claim("gpu-1")
        await asyncio.sleep(600)
        assert scene.provider.machine("gpu-1").experiments == ("E1",), "it has claimed what it needs"

    async def release(scene: Scene) -> None:
        scene.provider.hold("E1")
        await scene.hub.mark_reattached()
        await scene.until_status("gpu-1", "CONNECTED")
        await scene.until_status("gpu-2", "CONNECTED")
        await scene.provider.release("E1")
        await scene.until(lambda: not list((tmp_path / "nodes").glob("gpu-*")))

    play(tmp_path, claim)
    play(tmp_path, hold)
    play(tmp_path, release)


@played
async def test_code_is_brought_once_however_many_ask_and_only_while_connected(scene: Scene) -> None:
    path = scene.folder / "code.tar.gz"
    path.write_bytes(b"code")
    code = CodeArchive(path, "abc", 4, hashlib.sha256(b"code").hexdigest())
    machine = scene.machine("gpu-1")
    machine.failure = UNREACHABLE
    scene.claim("gpu-1")
    await scene.until_status("gpu-1", "FAILED")
    remote = scene.provider.machine("gpu-1")
    with pytest.raises(ServiceUnavailable, match="it does not answer"):
        await remote.ensure_code(code)
    machine.failure = None
    await scene.until_status("gpu-1", "CONNECTED")
    await scene.until(lambda: remote.connected)
    machine.uploads.clear()
    machine.damages = 1
    await asyncio.gather(remote.ensure_code(code), remote.ensure_code(code))
    assert len(machine.uploads) == 2
    machine.cut()
    await scene.until_status("gpu-1", "CONNECTING")
    await scene.until_status("gpu-1", "CONNECTED")
    assert remote.codes == {"abc"}


@played
async def test_no_login_is_written_into_the_record_of_a_machine(scene: Scene) -> None:
    scene.machine("gpu-1")
    secrets = {"training_service.machine_list.0.password": "geheim"}
    scene.provider.claim("E1", {"machine_list": [{"host": "gpu-1"}]}, secrets)
    folder = NodeDirectory(scene.folder / "nodes", "gpu-1").path
    texts = [path.read_text() for path in folder.iterdir()]
    assert len(texts) == 2
    assert "geheim" not in "".join(texts)
    assert {path.stat().st_mode & 0o077 for path in folder.iterdir()} == {0}


def test_a_manager_that_ends_waits_a_moment_for_a_machine_that_is_just_being_left(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        scene.claim("gpu-1")
        await scene.until(lambda: scene.provider.has("gpu-1") and scene.provider.machine("gpu-1").connected)
        await scene.provider.release("E1")
        assert scene.provider.machine("gpu-1").is_cleaning

    play(tmp_path, act)
    assert not (tmp_path / "nodes" / "gpu-1").exists()


def test_a_manager_that_ends_does_not_wait_for_a_machine_that_is_away(tmp_path: Path) -> None:
    async def act(scene: Scene) -> None:
        await scene.connect("gpu-1")
        machine = scene.machine("gpu-1")
        machine.hangs = True
        machine.cut()
        await scene.until(lambda: machine.logins == 2)
        await scene.provider.release("E1")
        assert not scene.provider.machine("gpu-1").is_cleaning

    play(tmp_path, act)
    assert (tmp_path / "nodes" / "gpu-1").exists()


def refuse(*_: object) -> None:
    raise OSError("No space left on device")


@played
async def test_a_machine_is_left_even_where_the_home_of_the_manager_is_full(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    await scene.connect("gpu-1")
    monkeypatch.setattr(NodeDirectory, "write", refuse)
    with pytest.raises(OSError, match="No space left"):
        scene.claim("gpu-2")
    assert not scene.provider.has("gpu-2")
    await scene.provider.release("E1")
    await scene.until_forgotten("gpu-1")


@played
async def test_an_error_of_this_program_is_the_reason_of_its_machine_only(scene: Scene) -> None:
    machine = scene.machine("bad")
    machine.pythons = {"python3": "nonsense"}
    scene.claim("bad", "good")
    await scene.until_status("good", "CONNECTED")
    await scene.until_status("bad", "FAILED", "internal error")
    machine.pythons = {"python3": "3.11.2"}
    await scene.until_status("bad", "CONNECTED")


@played
async def test_a_node_whose_trials_were_given_up_stays_lost_until_its_keeper_is_back(scene: Scene) -> None:
    machine = await scene.connect("gpu-1")
    await scene.lose("gpu-1")
    scene.pool.set_status("gpu-1", NodeStatus.LOST, "no report from its keeper for 600 s; its trials were abandoned")
    await scene.until_status("gpu-1", "LOST", "it does not answer")
    machine.failure = None
    await scene.until_status("gpu-1", "CONNECTED")


@played
async def test_a_machine_that_is_connected_for_the_first_time_is_waited_for_at_most_15_seconds(scene: Scene) -> None:
    def arriving() -> list[str]:
        return [host for host in scene.machines if scene.pool.capacity([host])[0].arriving]

    scene.machine("hangs").hangs = True
    scene.machine("bad").failure = UNREACHABLE
    scene.claim("hangs", "bad", "good")
    began = asyncio.get_running_loop().time()
    assert arriving() == ["hangs", "bad", "good"]
    await scene.until_status("good", "CONNECTED")
    await scene.until_status("bad", "FAILED")
    assert arriving() == ["hangs"]
    await asyncio.sleep(5)
    scene.claim("hangs", by="E2")  # it is known already, and no longer waited for
    await scene.until(lambda: not arriving())
    assert 14 <= asyncio.get_running_loop().time() - began <= 16
    scene.claim("hangs", "bad", by="E3")
    assert arriving() == []


@played
async def test_a_connection_that_ends_before_the_keeper_has_come_ends_the_wait(scene: Scene) -> None:
    machine = scene.machine("gpu-1")
    machine.registers = False
    scene.claim("gpu-1")
    await scene.until(lambda: machine.commands)
    assert scene.pool.node("gpu-1").arriving
    machine.cut()
    await scene.until_status("gpu-1", "CONNECTING", "has ended")
    assert not scene.pool.node("gpu-1").arriving


@played
async def test_a_machine_that_is_claimed_again_while_it_is_being_left_is_waited_for(scene: Scene) -> None:
    arriving: list[bool] = []

    def claim_again() -> None:
        if not arriving and "removing files" in scene.pool.node("gpu-1").reason:
            arriving.append(scene.pool.node("gpu-1").arriving)
            scene.claim("gpu-1", by="E2")
            arriving.append(scene.pool.node("gpu-1").arriving)

    await scene.connect("gpu-1")
    stop = scene.pool.on_change(claim_again)
    await scene.provider.release("E1")
    await scene.until(lambda: arriving)
    stop()
    assert arriving == [False, True]
    await scene.until_status("gpu-1", "CONNECTED")
    assert not scene.pool.node("gpu-1").arriving
