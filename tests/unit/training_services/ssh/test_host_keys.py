"""Finding host keys in known_hosts files, and keeping those that were trusted."""

import base64
import hashlib
import hmac
from pathlib import Path
from typing import Any

import asyncssh
import pytest

from proctor.training_services.ssh.host_keys import HostKeys, KnownHost

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIA66yxMDreo/UqszpkPnBJHUzraf7DQhFlV52hupLzJ4"
OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIB66yxMDreo/UqszpkPnBJHUzraf7DQhFlV52hupLzJ4"
HOST = ("gpu-3.example.org",)
BESIDE = ("[gpu-3.example.org]:2222", "gpu-3.example.org")


def known(tmp_path: Path, text: str, names: tuple[str, ...] = HOST) -> KnownHost:
    (tmp_path / "known_hosts").write_text(text)
    return HostKeys(tmp_path / "own").of(names, [tmp_path / "known_hosts"])


def read(key: str) -> Any:
    return asyncssh.import_public_key(key)


def refused(host: KnownHost, key: str = KEY) -> str:
    return str(host.refusal("gpu-3:22", read(key)))


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
        "*.EXAMPLE.org",
        "gpu-?.example.org",
        "*,!gpu-4.example.org",
        hashed("gpu-3.example.org"),
    ],
)
def test_a_line_may_name_the_host_in_every_way_ssh_knows(tmp_path: Path, names: str) -> None:
    host = known(tmp_path, f"{names} {KEY} a comment\n")
    assert host.trusted == ([read(KEY)], [], [])
    assert not host.is_new


@pytest.mark.parametrize(
    "names",
    [
        "gpu-4.example.org",
        "gpu-3",
        "gpu-4.example.org,",
        ",",
        "gpu-4,,gpu-5",
        "[gpu-3.example.org]:2222",
        "*.example.org,!gpu-3.example.org",
        "gpu-3xexample.org",
        hashed("gpu-4.example.org"),
        "|1|nonsense|nonsense",
        "|1|only-one",
        "# gpu-3.example.org",
    ],
)
def test_a_line_about_another_host_is_not_used(tmp_path: Path, names: str) -> None:
    host = known(tmp_path, f"{names} {KEY}\n")
    assert host.trusted == ([], [], [])
    assert host.is_new


@pytest.mark.parametrize(
    "names", ["[gpu-3.example.org]:2222", "[*.example.org]:2222", hashed("[gpu-3.example.org]:2222")]
)
def test_another_port_stands_beside_the_name(tmp_path: Path, names: str) -> None:
    host = known(tmp_path, f"{names} {KEY}\n", BESIDE)
    assert host.trusted[0] == [read(KEY)]
    assert "HAS CHANGED" in refused(host, OTHER)


def test_a_line_without_port_is_good_for_every_port_but_says_nothing_against_other_keys(tmp_path: Path) -> None:
    host = known(tmp_path, f"gpu-3.example.org {KEY}\n", BESIDE)
    assert host.trusted[0] == [read(KEY)]
    assert host.is_new
    assert refused(host, OTHER).startswith("its host key is not known")


def test_a_line_that_revokes_a_key_holds_for_its_port_and_for_every_port(tmp_path: Path) -> None:
    for name in ("[gpu-3.example.org]:2222", "gpu-3.example.org", "*"):
        host = known(tmp_path, f"gpu-3.example.org {KEY}\n@revoked {name} {KEY}\n", BESIDE)
        assert host.trusted == ([], [], [])
        assert not host.is_new
        assert refused(host).endswith("known_hosts line 2")


def test_markers_are_kept(tmp_path: Path) -> None:
    text = f"@cert-authority *.example.org {KEY}\n@revoked * {OTHER}\n@strange * {OTHER}\n"
    assert known(tmp_path, text).trusted == ([], [read(KEY)], [read(OTHER)])


def test_lines_that_cannot_be_read_are_skipped(tmp_path: Path) -> None:
    bad = "\n#\nnonsense\n@\n@revoked\ngpu-3.example.org\ngpu-3.example.org ssh-rsa ***\n\x00\xff\n"
    bad += "gpu-3.example.org 0\x82\ngpu-3.example.org ssh-ed25519 AAAA\ngpu-3.example.org ssh-unknown AAAA\n"
    bad += "gpu-3.example.org ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAAAB\n"
    host = known(tmp_path, f"{bad}gpu-3.example.org {KEY}\n")
    assert host.trusted[0] == [read(KEY)]
    assert "known_hosts line 13 knows another one" in refused(host, OTHER)


def test_missing_and_unreadable_files_hold_no_keys(tmp_path: Path) -> None:
    assert HostKeys(tmp_path / "own").of(HOST, [tmp_path / "nothing", tmp_path]).is_new


def test_a_remembered_key_is_known_once_and_for_all_managers_of_the_home(tmp_path: Path) -> None:
    keys = HostKeys(tmp_path / "nodes" / "known_hosts")
    line = keys.of(HOST, []).line(read(f"{KEY} a comment"))
    keys.remember(line)
    keys.remember(line)
    keys.remember(f"elsewhere {OTHER}")
    assert HostKeys(keys.store).of(HOST, []).trusted[0] == [read(KEY)]
    assert keys.store.read_text() == f"gpu-3.example.org {KEY}\nelsewhere {OTHER}\n"
    assert keys.store.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in keys.store.parent.iterdir()] == ["known_hosts"]


def test_a_refusal_shows_the_fingerprint_as_ssh_keygen_does_and_the_line_that_adds_the_key(tmp_path: Path) -> None:
    refusal = known(tmp_path, "", BESIDE).refusal("gpu-3:2222", read(KEY))
    assert "ssh-ed25519 key SHA256:IZsmeFdvcPAb0MKjiZ3COG3WRjp4kYsHc5KvYY2Wfx0" in str(refusal)
    assert refusal.line == f"[gpu-3.example.org]:2222 {KEY}"


@pytest.mark.parametrize(
    ("files", "advice"),
    [
        (
            ["/etc/cluster_hosts", "/etc/ssh/ssh_known_hosts"],
            "add this line to /etc/cluster_hosts, or set trustOnFirst",
        ),
        (["/dev/null", "/etc/ssh/ssh_known_hosts"], "add this line to /etc/ssh/ssh_known_hosts, or set trust"),
        (["/dev/null"], "compare it with the machine's own and set trustOnFirstUse"),
    ],
)
def test_a_refusal_names_a_file_that_is_read(tmp_path: Path, files: list[str], advice: str) -> None:
    host = HostKeys(tmp_path / "own").of(HOST, [Path(file) for file in files])
    assert advice in refused(host)
