"""The first look runs on any Python, with any environment, and says what there is."""

import errno
import hashlib
import io
import json
import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from proctor.training_services.keepers.archive import build
from proctor.training_services.remote.bootstrap.node import read_probe
from proctor.training_services.ssh.shell import ISOLATED, READ_SOURCE, with_source
from proctor.trial_keeper import probe

OLD_ONES = ("3.6", "3.8", "3.10")


def find_python(version: str) -> str:
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for candidate in filter(None, [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"))]):
        if subprocess.run([candidate, "-c", "import hashlib"], capture_output=True).returncode == 0:
            return str(candidate)
    pytest.skip(f"no Python {version} on PATH or among pyenv's versions")


def ask(home: Path, request: Any, data: bytes = b"", *, python: str = "") -> dict[str, Any]:
    """Ask the probe with an environment that knows nothing but the home; with `python` as a manager does, else in this
    process."""
    line = json.dumps(request).encode() + b"\n"
    environment = {"HOME": str(home), "PATH": "/usr/bin:/bin", "LC_ALL": "C"}
    if not python:
        with mock.patch.dict(os.environ, environment, clear=True):
            return dict(json.loads(json.dumps(probe.answer_to(line, io.BytesIO(data)))))
    [answer] = run_probe(python, environment, line + data)
    return answer


def run_probe(python: str, environment: dict[str, str], printed: bytes) -> list[dict[str, Any]]:
    """The answers of a Python to what a manager writes to it."""
    done = subprocess.run(
        [python, *ISOLATED, "-c", READ_SOURCE],
        input=with_source(read_probe()) + printed,
        env=environment,
        capture_output=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    return [json.loads(answer) for answer in done.stdout.splitlines()]


def read_state(home: Path, key: str = "m-n", python: str = "") -> dict[str, Any]:
    return ask(home, {"inspect": key}, python=python)


def take(home: Path, path: Path, data: bytes, *, expected: bytes) -> dict[str, Any]:
    """Bring a file."""
    sha256 = hashlib.sha256(expected).hexdigest()
    return ask(home, {"write": str(path), "size": len(expected), "sha256": sha256}, data)


def test_a_machine_that_was_never_seen(tmp_path: Path) -> None:
    answer = read_state(tmp_path, python=sys.executable)
    assert answer["home"] == str(tmp_path)
    assert answer["directory"] == str(tmp_path / ".proctor" / "nodes" / "m-n")
    assert (answer["writable"], answer["why_not_writable"], answer["too_old"], answer["lacks"]) == (True, "", False, [])
    assert answer["uid"] == os.getuid()
    assert answer["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert answer["archives"] == []
    assert os.listdir(tmp_path) == [], "looking leaves nothing"


def test_a_python_path_without_a_python_is_told_of(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, mode in (("python3-config", 0o755), ("python3", 0o644)):
        (folder / name).touch(mode=mode)
    request = {"inspect": "m-n", "python_path": str(folder)}
    assert ask(tmp_path, request)["python_path_without"] == str(folder)
    (folder / "python3.8").symlink_to(sys.executable)
    assert ask(tmp_path, request)["python_path_without"] == ""
    assert ask(tmp_path, {**request, "python_path": str(tmp_path / "x")})["python_path_without"] == str(tmp_path / "x")
    assert read_state(tmp_path)["python_path_without"] == ""


def test_only_whole_archives_are_told_of(tmp_path: Path) -> None:
    directory = tmp_path / ".proctor" / "nodes" / "m-n"
    directory.mkdir(parents=True)
    for name in ("keeper-0123.pyz", "keeper-4567.pyz.part", "log"):
        (directory / name).touch()
    assert read_state(tmp_path)["archives"] == ["keeper-0123.pyz"]


@pytest.mark.slow
@pytest.mark.parametrize("version", OLD_ONES)
def test_an_old_python_says_that_it_is_too_old(tmp_path: Path, version: str) -> None:
    answer = read_state(tmp_path, python=find_python(version))
    assert answer["python"].startswith(f"{version}.")
    assert answer["too_old"] == (version != "3.10")


def test_newer_pythons_are_found_by_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("python3", "python3.9", "python3.10", "python3.13", "python3.12-config", "python3.14"):
        (tmp_path / name).touch(mode=0o755)
    (tmp_path / "python3.14").chmod(0o644)
    monkeypatch.setenv("PATH", f"{tmp_path / 'nowhere'}:{tmp_path}")
    found = probe.newer_pythons()
    executable = [tmp_path / "python3.13", tmp_path / "python3.10"]
    assert found == [str(path) for path in executable]


def test_a_home_that_is_not_there_is_said(tmp_path: Path) -> None:
    answer = read_state(tmp_path / "gone")
    assert not answer["writable"]
    assert answer["why_not_writable"] == f"the home directory {tmp_path / 'gone'} does not exist"


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_home_that_may_not_be_written_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    answer = read_state(tmp_path)
    tmp_path.chmod(0o700)
    assert (answer["writable"], answer["why_not_writable"]) == (False, f"{tmp_path}: Permission denied")


def test_a_whole_file_gets_its_name_and_nothing_stays_of_any_other(tmp_path: Path) -> None:
    path = tmp_path / ".proctor" / "nodes" / "m-n" / "keeper-0123.pyz"
    assert "arrived damaged" in take(tmp_path, path, b"wrong", expected=b"whole")["error"]
    assert "arrived damaged (3 bytes)" in take(tmp_path, path, b"who", expected=b"whole")["error"]
    assert os.listdir(tmp_path) == []
    assert take(tmp_path, path, b"whole", expected=b"whole") == {}
    assert path.read_bytes() == b"whole"
    assert os.listdir(path.parent) == ["keeper-0123.pyz"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert read_state(tmp_path)["archives"] == ["keeper-0123.pyz"]


def test_what_the_system_refuses_is_told_with_its_word_for_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    answer = take(tmp_path, tmp_path / "file" / "m-n" / "keeper-0123.pyz", b"whole", expected=b"whole")
    assert answer == {"error": f"Not a directory: {tmp_path / 'file' / 'm-n'}", "errno": "ENOTDIR"}


def test_one_python_answers_one_line_after_another_and_carries_out_the_keepers_commands(tmp_path: Path) -> None:
    archive = build(tmp_path / "archive")
    directory = tmp_path / ".proctor" / "nodes" / "m-n"
    path = directory / archive.name
    lines = [
        {"inspect": "m-n"},
        {"write": str(path), "size": archive.path.stat().st_size, "sha256": archive.sha256},
        {"command": "prepare", "file": str(path), "directory": str(directory)},
        {"command": "nonsense", "file": str(path), "directory": str(directory)},
        {"list": "m-"},
        {"remove": str(directory)},
    ]
    data = [archive.path.read_bytes() if "write" in line else b"" for line in lines]
    printed = b"".join(json.dumps(line).encode() + b"\n" + more for line, more in zip(lines, data, strict=True))
    answers = run_probe(sys.executable, {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}, printed)
    checked, taken, prepared, refused, listed, removed = answers
    assert (checked["exists"], taken) == (False, {})
    assert prepared["directory"] == str(directory)
    assert "there is no command 'nonsense'" in refused["error"]
    assert (listed, removed) == ({"names": ["m-n"]}, {"left": False})
    assert os.listdir(tmp_path) == ["archive"], "no empty folder of ours stays"


def test_the_folders_of_a_managers_nodes_are_listed_and_removed(tmp_path: Path) -> None:
    nodes = tmp_path / ".proctor" / "nodes"
    assert ask(tmp_path, {"list": "m-"}) == {"names": []}
    for name in ("m-2", "m-1", "other"):
        (nodes / name).mkdir(parents=True)
    assert ask(tmp_path, {"list": "m-"}) == {"names": ["m-1", "m-2"]}
    assert ask(tmp_path, {"remove": str(nodes / "m-1")}) == {"left": False}
    assert sorted(os.listdir(nodes)) == ["m-2", "other"]


def test_what_a_keeper_needs_and_does_not_find_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    assert probe.list_lacks() == []
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(os, "pidfd_open", refuse)
    assert probe.list_lacks() == ["bash", f"a kernel with pidfd_open, 5.3 or newer (this is {os.uname().release})"]
    monkeypatch.setattr(sys, "platform", "freebsd14")
    assert probe.list_lacks() == [f"Linux (this is {os.uname().sysname})"]


def test_a_user_without_a_name_and_files_that_are_not_there_are_no_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_nobody(uid: int) -> object:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", find_nobody)
    assert probe.user_name() == str(os.getuid())
    assert probe.first_line(str(tmp_path / "gone")) == ""
    assert probe.room(str(tmp_path / "gone")) == (None, None)
    assert probe.list_archives(str(tmp_path / "gone")) == []
    assert not probe.has_python(str(tmp_path / "gone"))


def test_what_cannot_be_understood_is_an_error(tmp_path: Path) -> None:
    assert "error" in ask(tmp_path, ["no", "object"])
    assert "error" in ask(tmp_path, {"nothing": "known"})


def test_the_source_is_ascii_and_imports_nothing_of_ours() -> None:
    source = read_probe()
    assert source.isascii(), "a C locale of Python 3.6 takes nothing else"
    imports = [line for line in source.splitlines() if re.match(r"(import|from) ", line)]
    assert not any("proctor" in line for line in imports)
