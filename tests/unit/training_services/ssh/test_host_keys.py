"""Finding host keys in known_hosts files, and keeping those that were trusted."""

import base64
import hashlib
import hmac
from dataclasses import replace
from pathlib import Path

import pytest

from proctor.training_services.ssh.config import Hop
from proctor.training_services.ssh.host_keys import HostKeys, KnownKey, fingerprint, line_for, refusal

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA66yxMDreo/UqszpkPnBJHUzraf7DQhFlV52hupLzJ4"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB66yxMDreo/UqszpkPnBJHUzraf7DQhFlV52hupLzJ4"


@pytest.fixture
def hop(tmp_path: Path) -> Hop:
    return Hop(
        name="gpu-3",
        host="gpu-3.example.org",
        port=22,
        user="bob",
        alias=None,
        identity_files=(),
        identities_only=False,
        agent="",
        agent_source="$SSH_AUTH_SOCK",
        known_hosts=(tmp_path / "known_hosts",),
        jumps=(),
        by_address=True,
        by_command=False,
        picks_host_key_algorithms=False,
    )


def known(tmp_path: Path, hop: Hop, text: str) -> list[KnownKey]:
    (tmp_path / "known_hosts").write_text(text)
    return HostKeys(tmp_path / "own").known(hop)


def hashed(name: str) -> str:
    salt = b"0123456789abcdefghij"
    digest = hmac.new(salt, name.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


@pytest.mark.parametrize(
    "names",
    [
        "gpu-3.example.org",
        "GPU-3.Example.ORG",
        "gpu-3,gpu-3.example.org,10.0.0.3",
        "*.example.org",
        "gpu-?.example.org",
        "*,!gpu-4.example.org",
        hashed("gpu-3.example.org"),
    ],
)
def test_a_line_may_name_the_host_in_every_way_ssh_knows(tmp_path: Path, hop: Hop, names: str) -> None:
    (found,) = known(tmp_path, hop, f"{names} {KEY} a comment\n")
    assert (found.marker, found.key, found.exact) == ("", KEY, True)


@pytest.mark.parametrize(
    "names",
    [
        "gpu-4.example.org",
        "gpu-3",
        "[gpu-3.example.org]:2222",
        "*.example.org,!gpu-3.example.org",
        "gpu-3xexample.org",
        hashed("gpu-4.example.org"),
        "|1|nonsense|nonsense",
        "|1|only-one",
        "# gpu-3.example.org",
    ],
)
def test_a_line_about_another_host_is_not_taken(tmp_path: Path, hop: Hop, names: str) -> None:
    assert known(tmp_path, hop, f"{names} {KEY}\n") == []


@pytest.mark.parametrize(
    "names", ["[gpu-3.example.org]:2222", "[*.example.org]:2222", hashed("[gpu-3.example.org]:2222")]
)
def test_another_port_stands_beside_the_name(tmp_path: Path, hop: Hop, names: str) -> None:
    (found,) = known(tmp_path, replace(hop, port=2222), f"{names} {KEY}\n")
    assert found.exact


def test_a_line_without_port_is_good_for_every_port_but_says_nothing_against_other_keys(
    tmp_path: Path, hop: Hop
) -> None:
    (found,) = known(tmp_path, replace(hop, port=2222), f"gpu-3.example.org {KEY}\n")
    assert not found.exact


def test_an_alias_replaces_name_and_port(tmp_path: Path, hop: Hop) -> None:
    aliased = replace(hop, alias="Cluster", port=2222)
    (found,) = known(tmp_path, aliased, f"gpu-3.example.org {OTHER}\ncluster {KEY}\n")
    assert found.key == KEY
    assert line_for(aliased, KEY) == f"cluster {KEY}"


def test_markers_are_kept(tmp_path: Path, hop: Hop) -> None:
    text = f"@cert-authority *.example.org {KEY}\n@revoked * {OTHER}\n@strange * {OTHER}\n"
    assert [item.marker for item in known(tmp_path, hop, text)] == ["cert-authority", "revoked"]


def test_lines_nobody_can_read_are_passed_over(tmp_path: Path, hop: Hop) -> None:
    text = f"\n#\nnonsense\n@\ngpu-3.example.org\ngpu-3.example.org ssh-rsa ***\n\x00\xff\ngpu-3.example.org {KEY}\n"
    (found,) = known(tmp_path, hop, text)
    assert found.place.endswith("known_hosts line 8")


def test_missing_and_unreadable_files_hold_no_keys(tmp_path: Path, hop: Hop) -> None:
    assert HostKeys(tmp_path / "own").known(replace(hop, known_hosts=(tmp_path / "nothing", tmp_path))) == []


def test_a_remembered_key_is_known_once_and_for_all_managers_of_the_home(tmp_path: Path, hop: Hop) -> None:
    keys = HostKeys(tmp_path / "nodes" / "known_hosts")
    keys.remember(line_for(hop, KEY))
    keys.remember(line_for(hop, KEY))
    keys.remember(f"elsewhere {OTHER}")
    assert [item.key for item in HostKeys(keys.store).known(hop)] == [KEY]
    assert keys.store.read_text() == f"gpu-3.example.org {KEY}\nelsewhere {OTHER}\n"
    assert keys.store.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in keys.store.parent.iterdir()] == ["known_hosts"]


def test_the_line_for_another_port_is_bracketed(hop: Hop) -> None:
    assert line_for(replace(hop, host="::1", port=2222), KEY) == f"[::1]:2222 {KEY}"


def test_a_fingerprint_is_shown_as_ssh_keygen_does() -> None:
    assert fingerprint(KEY) == "SHA256:IZsmeFdvcPAb0MKjiZ3COG3WRjp4kYsHc5KvYY2Wfx0"


def test_a_key_known_for_another_port_only_makes_the_host_unknown_not_changed(hop: Hop) -> None:
    text = str(refusal(replace(hop, port=2222), KEY, [KnownKey("", OTHER, "there line 1", exact=False)]))
    assert text.startswith("its host key is not known")
