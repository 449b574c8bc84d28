"""What ~/.ssh/config says about a host, as asyncssh reads it, with SSH's own defaults."""

from pathlib import Path

import pytest

from proctor.training_services.ssh.errors import Unreachable
from proctor.training_services.ssh.login import Hop
from proctor.training_services.ssh.settings import MachineSettings

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("home")]


@pytest.fixture(autouse=True)
def config(home: Path) -> Path:
    """The user's ~/.ssh/config, empty."""
    (home / ".ssh").mkdir(mode=0o700)
    path = home / ".ssh" / "config"
    path.touch()
    return path


async def read(host: str = "gpu-3", **more: object) -> Hop:
    return await Hop.read(MachineSettings.read({"host": host, **more}))


@pytest.mark.parametrize(
    ("text", "jumps"),
    [
        ("none", []),
        ("bastion", [("bastion", None, None)]),
        ("carol@bastion:2222", [("bastion", "carol", 2222)]),
        ("a,b@c", [("a", None, None), ("c", "b", None)]),
        ("ssh://carol@bastion:2222/", [("bastion", "carol", 2222)]),
        ("[::1]:2222", [("::1", None, 2222)]),
        ("carol@[fe80::1]", [("fe80::1", "carol", None)]),
    ],
)
async def test_jump_hosts_are_written_in_many_ways(config: Path, text: str, jumps: list[object]) -> None:
    config.write_text(f"ProxyJump {text}\n")
    assert [(jump.host, jump.user, jump.port) for jump in (await read()).jumps] == jumps


@pytest.mark.parametrize("text", ["a:b", "@a", "a:22:33", '"a b:1:"'])
async def test_a_jump_host_of_another_form_is_refused(config: Path, text: str) -> None:
    config.write_text(f"ProxyJump {text}\n")
    with pytest.raises(Unreachable, match=r"~/.ssh/config cannot be used for gpu-3: ProxyJump .* is not of the form"):
        await read()


async def test_an_empty_configuration_means_the_defaults_of_ssh(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    plain = await read()
    assert plain.address == "ada@gpu-3:22"
    assert plain.known_hosts[:2] == [home / ".ssh/known_hosts", home / ".ssh/known_hosts2"]
    assert plain.key_files == [home / ".ssh" / name for name in ("id_ed25519", "id_ecdsa", "id_rsa")]
    assert (plain.jumps, plain.by_command, plain.by_address) == ([], False, True)


async def test_paths_are_those_of_the_user(config: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", "/keys")
    config.write_text(
        "IdentityFile ~/a\nIdentityFile ${KEYS}/b\nUserKnownHostsFile %d/c ${KEYS}/d\nGlobalKnownHostsFile /e\n"
        "IdentityAgent ~/agent\n"
    )
    hop = await read()
    assert hop.key_files == [home / "a", Path("/keys/b")]
    assert hop.known_hosts == [home / "c", Path("/keys/d"), Path("/e")]
    assert hop.agent == (str(home / "agent"), "~/agent (IdentityAgent)")
    config.write_text("UserKnownHostsFile none\nGlobalKnownHostsFile /e\n")
    assert (await read()).known_hosts == [Path("/e")]


@pytest.mark.parametrize("line", ["", "IdentityAgent SSH_AUTH_SOCK", "IdentityAgent $SSH_AUTH_SOCK"])
async def test_the_agent_is_the_one_of_the_environment(
    config: Path, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config.write_text(line)
    monkeypatch.setenv("SSH_AUTH_SOCK", "/agent")
    assert (await read()).agent == ("/agent", "$SSH_AUTH_SOCK")
    monkeypatch.delenv("SSH_AUTH_SOCK")
    assert (await read()).agent == ("", "$SSH_AUTH_SOCK is not set")


async def test_the_agent_can_be_switched_off(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config.write_text("IdentityAgent none\n")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/agent")
    assert (await read()).agent == ("", "IdentityAgent none")


@pytest.mark.parametrize("line", ["ProxyJump a", "ProxyCommand nc %h %p", "CanonicalizeHostname yes"])
async def test_a_name_that_is_looked_up_elsewhere_is_not_looked_up_here(config: Path, line: str) -> None:
    config.write_text(line)
    assert not (await read()).by_address


async def test_what_the_machine_list_says_comes_before_the_ssh_configuration(config: Path) -> None:
    config.write_text("HostName 10.0.0.3\nUser bob\nPort 2222\n")
    assert (await read()).address == "bob@10.0.0.3:2222"
    assert (await read(user="carol", port=22)).address == "carol@10.0.0.3:22"


async def test_an_address_of_version_six_is_shown_in_brackets() -> None:
    assert (await read("::1", user="bob", port=2222)).address == "bob@[::1]:2222"


async def test_known_hosts_calls_a_host_by_alias_or_address(config: Path) -> None:
    assert (await read("GPU-3.example.org")).known_names == ("gpu-3.example.org",)
    assert (await read("::1", port=2222)).known_names == ("[::1]:2222", "::1")
    config.write_text("HostKeyAlias Cluster\n")
    assert (await read(port=2222)).known_names == ("cluster",)
