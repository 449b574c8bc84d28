"""`proctor doctor` and `proctor platform clean` on machines of all kinds."""

import json
from collections.abc import Callable

import pytest
from fakes.machines.scene import NODE_TIMEOUT, Scene
from fakes.real_manager import Row

pytestmark = pytest.mark.slow


def doctor(scene: Scene, **config: object) -> tuple[int, list[Row]]:
    """What it finds."""
    done = scene.manager.attempt("doctor", "--config", scene.write_config(maxTrialNumber=1, **config), "-o", "json")
    rows = json.loads(done.stdout)
    return done.returncode, rows["items"] if isinstance(rows, dict) else rows


def test_doctor_finds_what_is_wrong_with_each_machine_and_leaves_nothing(stage: Callable[..., Scene]) -> None:
    scene = stage(5)
    bare, closed, strange, dead, good = scene.machines
    bare.hide_python()
    closed.refuse_logins()
    scene.group.person.forget(strange.name)
    dead.power_off()
    good.forbid_forwarding()
    code, rows = doctor(scene)
    assert code == 1
    failed = {row["machine"]: (row["name"], row["found"] + row["advice"]) for row in rows if row["verdict"] == "fail"}
    address = {machine.name: f"trial@{machine.place.address}:{machine.place.port}" for machine in scene.machines}
    assert set(failed) - {""} == {address[machine.name] for machine in (bare, closed, strange, dead)}
    assert failed[address[bare.name]][0] == "python"
    assert failed[address[closed.name]][0] == "login"
    assert failed[address[strange.name]][0] == "host key"
    assert strange.known_hosts_line in failed[address[strange.name]][1]
    assert failed[address[dead.name]][0] in ("port", "name")
    found = {row["name"]: row for row in rows if row["machine"] == address[good.name]}
    assert {"login", "python", "disk", "sftp"} <= set(found)
    table = scene.manager.attempt("doctor", "--config", scene.write_config(maxTrialNumber=1)).stdout
    for machine in scene.machines:
        assert machine.place.address in table
    scene.expect_nothing_left()


@pytest.mark.thorough
def test_machines_are_cleaned_of_experiments_that_were_stopped_and_of_no_others(stage: Callable[..., Scene]) -> None:
    scene = stage(2)
    away, _ = scene.machines
    config = scene.write_config(maxTrialNumber=2, trainingService=NODE_TIMEOUT)
    experiment = scene.manager.command_line("create", "--config", config).strip()
    scene.widen(experiment, 2)
    refused = scene.manager.attempt("platform", "clean", "--config", config)
    assert refused.returncode == 1
    assert experiment in refused.stdout + refused.stderr
    assert len(scene.until_running(experiment, 2)) == 2
    scene.manager.client.stop_experiment(experiment)
    scene.manager.command_line("platform", "clean", "--config", config)  # right after it was stopped
    scene.manager.until_status(experiment, "STOPPED")
    scene.expect_nothing_left()

    scene.manager.client.resume_experiment(experiment)
    scene.widen(experiment, 2)
    away.cut()
    scene.manager.client.stop_experiment(experiment)
    scene.manager.until_status(experiment, "STOPPED")
    away.heal()
    scene.manager.command_line("platform", "clean", "--config", config)
    scene.expect_nothing_left()
    scene.leave()
