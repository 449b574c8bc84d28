"""Getting into machines: passwords, keys, host keys; one machine that refuses does not hinder the others."""

from collections.abc import Callable

import pytest
from fakes.machines.person import PASSWORD
from fakes.machines.scene import Scene

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


@pytest.mark.thorough
def test_machines_open_for_a_password_and_for_keys(stage: Callable[..., Scene]) -> None:
    scene = stage(3)
    first, second, third = scene.machines
    person = scene.group.person
    locked, public = person.make_key("locked", passphrase="open sesame")
    first.configure(PubkeyAuthentication="no")
    second.configure(PasswordAuthentication="no")
    third.configure(PasswordAuthentication="no")
    third.authorize(public)
    machines = [
        first.entry(passwordEnv="SECRET_OF_FIRST"),
        second.entry(),
        third.entry(sshKeyFile=str(locked), sshPassphraseEnv="SECRET_OF_KEY"),
    ]
    config = scene.write_config(machines=machines, maxTrialNumber=3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(scene.manager.environment, "SECRET_OF_FIRST", PASSWORD)
        patch.setitem(scene.manager.environment, "SECRET_OF_KEY", "open sesame")
        experiment = scene.manager.command_line("create", "--config", config).strip()
    scene.widen(experiment, 3)
    # A manager that is started again gets in without anybody's help, and no secret lies about.
    scene.manager.kill()
    scene.manager.start()
    for machine in scene.machines:
        scene.until_node(machine, "CONNECTED")
    scene.release_trials()
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 3}
    reported = scene.manager.said() + scene.manager.command_line("experiment", "show", experiment, "-o", "json")
    home = scene.manager.home
    files = [path for path in home.rglob("*") if path.is_file() and path.name != "secrets.json"]
    for secret in (PASSWORD, "open sesame"):
        assert secret not in reported
        assert [path for path in files if secret.encode() in path.read_bytes()] == []
    for path in home.rglob("secrets.json"):
        assert path.stat().st_mode & 0o077 == 0
    scene.leave()
    assert [path for path in home.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()] == []


def test_machines_that_refuse_the_login_are_told_with_what_would_help_and_used_once_they_let_us_in(
    stage: Callable[..., Scene],
) -> None:
    scene = stage(5)
    closed, strange, changed, refusing, good = scene.machines
    person = scene.group.person
    wrong, _ = person.make_key("wrong")
    closed.configure(PasswordAuthentication="no")
    person.forget(strange.name)
    person.know(changed.name, f"{changed.place.address} {good.host_key}")
    refusing.refuse_logins()
    person.forget(good.name)
    entries = [machine.entry() for machine in (strange, changed, refusing)]
    machines = [closed.entry(sshKeyFile=str(wrong)), *entries, good.entry(trustOnFirstUse=True)]
    experiment = scene.create(machines=machines, seconds=0.1, trialConcurrency=2, maxTrialNumber=2)
    assert scene.manager.until_status(experiment, "DONE")["trial_counts"] == {"SUCCEEDED": 2}
    assert {scene.machine_of(trial).name for trial in scene.manager.trials(experiment)} == {good.name}
    assert f"{good.place.address} " not in person.known_hosts.read_text()  # it is kept in the home of the manager
    refused = scene.until_node(closed, "FAILED", reason="refused")
    assert str(wrong) in refused["reason"] or "~/.ssh/wrong" in refused["reason"]
    unknown = scene.until_node(strange, "FAILED", reason=strange.known_hosts_line)
    assert "known_hosts" in unknown["reason"]
    assert changed.place.address in scene.until_node(changed, "FAILED", reason="CHANGED")["reason"]
    scene.until_node(refusing, "FAILED", reason="refused")
    printed = scene.manager.command_line("nodes")
    assert strange.place.address in printed

    for machine in (strange, refusing):
        assert scene.manager.attempt("nodes", "check", scene.node(machine)["id"]).returncode == 1
    person.know(strange.name, strange.known_hosts_line)
    refusing.accept_logins()
    for machine in (strange, refusing):
        scene.manager.command_line("nodes", "check", scene.node(machine)["id"])
        assert scene.node(machine)["status"] == "CONNECTED"
    scene.leave()
