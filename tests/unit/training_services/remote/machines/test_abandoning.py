"""Machines that cannot be left, under virtual time: those to which nothing was ever brought are forgotten at once, the
others when they were cleaned, or when a person gives them up."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fakes.fake_connection import FakeConnection, FakeMachine
from unit.training_services.remote.machines.scene import UNREACHABLE, Scene, play, played

from proctor.training_services.errors import NodeInUse, UnknownNode
from proctor.training_services.providers import CheckVerdict
from proctor.training_services.remote.machines.records import NodeDirectory, NodeRecord, read_records
from proctor.training_services.ssh.errors import HostKeyRefused, KeyUnusable, LoginRefused, RemoteError, Unreachable

NODE = "gpu-1"
SETTINGS = {"machine_list": [{"host": NODE}]}
FORGET = f"`proctor nodes forget {NODE}`"
CLEAN = "`proctor platform clean FILE`"


async def is_forgotten(scene: Scene) -> None:
    """Neither pool nor provider nor disk know the machine."""
    assert scene.pool.nodes() == ()
    assert not (scene.folder / "nodes" / NODE).exists()
    await scene.until_forgotten(NODE)


async def release_locked(scene: Scene, failure: RemoteError = UNREACHABLE) -> FakeMachine:
    """Something was brought to the machine, then it refuses every login and is released."""
    machine = await scene.connect(NODE)
    await scene.lose(NODE, failure)
    await scene.provider.release("E1")
    await scene.until_status(NODE, "FAILED", "released, but files of experiment E1 may still be there")
    return machine


async def is_left_alone(scene: Scene) -> None:
    """The machine is forgotten, and no more login is tried."""
    logins = scene.machine(NODE).logins
    await is_forgotten(scene)
    await asyncio.sleep(600)
    assert scene.machine(NODE).logins == logins


@pytest.mark.parametrize(
    "changes",
    [
        {"failure": Unreachable("there is no such host")},
        {"failure": LoginRefused("the key is wrong")},
        {"failure": HostKeyRefused("its host key is unknown")},
        {"pythons": {}},
    ],
    ids=["no host", "a wrong key", "an unknown host", "no Python"],
)
@played
async def test_a_machine_on_which_nothing_was_done_is_forgotten_when_it_is_released(
    scene: Scene, changes: dict[str, Any]
) -> None:
    scene.machines[NODE] = FakeMachine(scene.pool, NODE, **changes)
    scene.claim(NODE)
    await scene.until_status(NODE, "FAILED")
    await scene.provider.release("E1")
    assert scene.provider.uncollected() == []
    await is_left_alone(scene)


@pytest.mark.parametrize("is_forgotten_before", [True, False])
@played
async def test_a_machine_that_is_released_in_its_first_login_can_be_claimed_again(
    scene: Scene, is_forgotten_before: bool
) -> None:
    machine = scene.machine(NODE)
    machine.hangs = True
    scene.claim(NODE)
    await scene.until(lambda: machine.logins)
    await scene.provider.release("E1")
    if is_forgotten_before:
        await is_forgotten(scene)
    machine.hangs = False
    await scene.connect(NODE, by="E2")
    assert scene.provider.machine(NODE).experiments == ("E2",)
    [record] = read_records(scene.folder / "nodes")
    assert [claim.experiment_id for claim in record.claims] == ["E2"]
    assert record.installed


@played
async def test_that_something_is_brought_is_on_the_disk_before_it_is(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(folder: NodeDirectory, record: NodeRecord) -> None:
        raise OSError("No space left on device")

    scene.claim(NODE)
    with monkeypatch.context() as full:
        full.setattr(NodeDirectory, "write", refuse)
        await scene.until_status(NODE, "FAILED", "No space left on device")
        assert scene.machine(NODE).uploads == []
        assert not scene.machine(NODE).exists
    await scene.until_status(NODE, "CONNECTED")
    [record] = read_records(scene.folder / "nodes")
    assert record.installed


@pytest.mark.parametrize("released", [False, True])
def test_a_record_of_a_machine_that_was_never_entered_is_forgotten_by_the_next_manager(
    tmp_path: Path, released: bool
) -> None:
    async def claim(scene: Scene) -> None:
        scene.machine(NODE).failure = Unreachable("there is no such host")
        scene.claim(NODE)
        await scene.until_status(NODE, "FAILED")

    async def start(scene: Scene) -> None:
        await scene.hub.mark_reattached()
        await scene.until(lambda: not (tmp_path / "nodes" / NODE).exists())
        await is_forgotten(scene)
        assert scene.machine(NODE).logins <= 1

    play(tmp_path, claim)
    path = tmp_path / "nodes" / NODE / "node.json"
    body = json.loads(path.read_text())
    body["claims"][0]["released"] = released
    path.write_text(json.dumps(body))
    play(tmp_path, start, prepare=lambda scene: setattr(scene.machine(NODE), "failure", Unreachable("no")))


def test_a_record_that_does_not_say_whether_something_was_brought_is_that_of_a_machine_to_leave(tmp_path: Path) -> None:
    NodeDirectory(tmp_path, NODE).write(NodeRecord(NODE, NODE))
    path = tmp_path / NODE / "node.json"
    body = json.loads(path.read_text())
    del body["entered"]
    path.write_text(json.dumps(body))
    [record] = read_records(tmp_path)
    assert record.installed


@pytest.mark.parametrize(
    ("failure", "advice"),
    [
        (LoginRefused("login as bob was refused"), f"{CLEAN} removes what is there, {FORGET} abandons what is there"),
        (KeyUnusable("its key has a passphrase"), f"{CLEAN} removes what is there, {FORGET} abandons what is there"),
        (HostKeyRefused("its host key has CHANGED"), f"{CLEAN} removes what is there, {FORGET} abandons what is there"),
        (UNREACHABLE, f"if it will not come back, {FORGET} abandons what is there"),
    ],
)
@played
async def test_the_reason_of_a_machine_that_cannot_be_left_says_what_to_do(
    scene: Scene, failure: RemoteError, advice: str
) -> None:
    await release_locked(scene, failure)
    await scene.until_status(NODE, "FAILED", f"{failure}; {advice}; tried again in")


@played
async def test_a_machine_that_is_needed_says_nothing_of_giving_it_up(scene: Scene) -> None:
    scene.machine(NODE).failure = LoginRefused("login as bob was refused")
    scene.claim(NODE)
    node = await scene.until_status(NODE, "FAILED", "login as bob was refused; tried again in")
    assert "forget" not in node.reason


@played
async def test_a_machine_that_was_cleaned_with_a_login_that_works_is_left(scene: Scene) -> None:
    machine = await release_locked(scene, LoginRefused("login as bob was refused"))
    machine.failure, machine.refused = None, {"E1"}  # the way in of the experiment is gone with it
    [step] = await scene.provider.clean(SETTINGS, {})
    assert (step.verdict, step.found) == (CheckVerdict.OK, f"~/.proctor/nodes/m1-{NODE} removed")
    await is_left_alone(scene)


@played
async def test_a_machine_that_could_not_be_cleaned_is_still_to_be_left(scene: Scene) -> None:
    machine = await release_locked(scene, LoginRefused("login as bob was refused"))
    machine.failure, machine.refused = None, {"E1"}
    machine.left = ["process 17 does not end"]
    [step] = await scene.provider.clean(SETTINGS, {})
    assert step.verdict is CheckVerdict.FAIL
    assert scene.provider.has(NODE)
    assert (scene.folder / "nodes" / NODE / "node.json").exists()
    machine.left, machine.refused = [], set()
    await scene.until_forgotten(NODE)


@played
async def test_a_machine_that_is_gone_for_good_is_given_up_by_a_person_and_its_files_with_it(scene: Scene) -> None:
    await release_locked(scene)
    assert [left.experiment_id for left in scene.provider.uncollected()] == ["E1"]
    scene.provider.abandon(NODE)
    await is_left_alone(scene)
    with pytest.raises(UnknownNode):
        scene.provider.abandon(NODE)
    await scene.provider.forget("E1")
    assert scene.provider.uncollected() == []


@played
async def test_a_machine_that_an_experiment_needs_cannot_be_given_up(scene: Scene) -> None:
    scene.machine(NODE).failure = UNREACHABLE
    scene.claim(NODE)
    with pytest.raises(NodeInUse, match=f"node {NODE} is used by experiment E1; stop it first: proctor stop E1"):
        scene.provider.abandon(NODE)
    assert scene.provider.has(NODE)


@pytest.mark.parametrize("moment", ["in the login", "in the pause", "while its files are removed"])
@played
async def test_a_machine_may_be_given_up_at_any_moment(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    async def hang(*_: object, **__: object) -> Any:
        await asyncio.Event().wait()

    machine = await release_locked(scene)
    if moment == "in the login":
        machine.hangs = True
    elif moment == "while its files are removed":
        monkeypatch.setattr(FakeConnection, "run", hang)
        machine.failure = None
    logins = machine.logins
    await scene.until(lambda: machine.logins > logins)
    scene.provider.abandon(NODE)
    await is_forgotten(scene)
    monkeypatch.undo()
    machine.hangs, machine.failure = False, None
    await scene.connect(NODE, by="E2")
