"""What ~/.ssh/config says about a host, as a hop."""

from pathlib import Path

import pytest

from proctor.training_services.ssh.config import Hop, Jump, parse_jumps

pytestmark = pytest.mark.usefixtures("home")


def hop(options: dict[str, object], *, host: str = "10.0.0.3", port: int = 22) -> Hop:
    return Hop.read("gpu-3", options, host=host, port=port, user="bob")


@pytest.mark.parametrize(
    ("text", "jumps"),
    [
        ("", ()),
        ("bastion", (Jump("bastion"),)),
        ("carol@bastion:2222", (Jump("bastion", "carol", 2222),)),
        ("a, b@c", (Jump("a"), Jump("c", "b"))),
        ("ssh://carol@bastion:2222/", (Jump("bastion", "carol", 2222),)),
        ("[::1]:2222", (Jump("::1", None, 2222),)),
        ("carol@[fe80::1]", (Jump("fe80::1", "carol"),)),
    ],
)
def test_jump_hosts_are_written_in_many_ways(text: str, jumps: tuple[Jump, ...]) -> None:
    assert parse_jumps(text) == jumps


@pytest.mark.parametrize("text", ["a:b", "@a", "a:22:33", "a b:1:"])
def test_a_jump_host_nobody_understands_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not of the form"):
        parse_jumps(text)


def test_a_silent_configuration_means_the_defaults_of_ssh(home: Path) -> None:
    plain = hop({})
    assert plain.known_hosts[:2] == (home / ".ssh/known_hosts", home / ".ssh/known_hosts2")
    assert (plain.identity_files, plain.agent, plain.jumps, plain.by_address) == ((), "", (), True)


def test_paths_are_those_of_the_user(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEYS", "/keys")
    read = hop(
        {
            "IdentityFile": ["~/a", "${KEYS}/b"],
            "UserKnownHostsFile": ["%d/c", "/d"],
            "GlobalKnownHostsFile": ["/e"],
            "IdentityAgent": "~/agent",
        }
    )
    assert read.identity_files == (home / "a", Path("/keys/b"))
    assert read.known_hosts == (home / "c", Path("/d"), Path("/e"))
    assert (read.agent, read.agent_source) == (str(home / "agent"), "~/agent (IdentityAgent)")


@pytest.mark.parametrize("options", [{}, {"IdentityAgent": "SSH_AUTH_SOCK"}, {"IdentityAgent": "$SSH_AUTH_SOCK"}])
def test_the_agent_is_the_one_of_the_environment(options: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/agent")
    assert (hop(options).agent, hop(options).agent_source) == ("/agent", "$SSH_AUTH_SOCK")
    monkeypatch.delenv("SSH_AUTH_SOCK")
    assert (hop(options).agent, hop(options).agent_source) == ("", "$SSH_AUTH_SOCK is not set")


def test_the_agent_can_be_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SSH_AUTH_SOCK", "/agent")
    assert hop({"IdentityAgent": None}).agent == ""


@pytest.mark.parametrize("options", [{"ProxyJump": "a"}, {"ProxyCommand": "nc %h %p"}, {"CanonicalizeHostname": "yes"}])
def test_a_name_that_is_looked_up_elsewhere_is_not_looked_up_here(options: dict[str, object]) -> None:
    assert not hop(options).by_address


def test_an_address_of_version_six_is_shown_in_brackets() -> None:
    assert hop({}, host="::1", port=2222).address == "bob@[::1]:2222"
