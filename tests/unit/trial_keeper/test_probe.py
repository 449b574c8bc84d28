"""The first look runs on any Python, with any environment, and says what there is."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from proctor.training_services.remote.keeper_archive import read_probe
from proctor.trial_keeper import probe

OLD_ONES = ("3.6", "3.8", "3.10")


def find_python(version: str) -> str:
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for candidate in filter(None, [shutil.which(f"python{version}"), *sorted(pyenv.glob(f"{version}.*/bin/python"))]):
        if subprocess.run([candidate, "-c", "import hashlib"], capture_output=True).returncode == 0:
            return str(candidate)
    pytest.skip(f"no Python {version} on PATH or among pyenv's versions")


def look(home: Path, request: Any = None, python: str = sys.executable) -> dict[str, Any]:
    """Run the probe as a manager does, with an environment that knows nothing but the home."""
    done = subprocess.run(
        [python, "-c", read_probe()],
        input="" if request is None else json.dumps(request),
        env={"HOME": str(home), "PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    answer = json.loads(done.stdout)
    assert isinstance(answer, dict)
    assert done.returncode == (1 if "error" in answer else 0), done.stderr
    return answer


def test_a_machine_that_was_never_seen(tmp_path: Path) -> None:
    answer = look(tmp_path, {"key": "m-n"})
    assert answer["home"] == str(tmp_path)
    assert answer["directory"] == str(tmp_path / ".proctor" / "nodes" / "m-n")
    assert (answer["writable"], answer["why_not_writable"], answer["too_old"], answer["lacks"]) == (True, "", False, [])
    assert answer["uid"] == os.getuid()
    assert answer["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert answer["archives"] == []
    assert answer["verified"] is None
    assert os.listdir(tmp_path) == [], "looking leaves nothing"


def test_only_whole_archives_are_told_of(tmp_path: Path) -> None:
    directory = tmp_path / ".proctor" / "nodes" / "m-n"
    directory.mkdir(parents=True)
    for name in ("keeper-0123.pyz", "keeper-4567.pyz.part", "log"):
        (directory / name).touch()
    assert look(tmp_path, {"key": "m-n"})["archives"] == ["keeper-0123.pyz"]


@pytest.mark.parametrize("version", OLD_ONES)
def test_an_old_python_says_that_it_is_too_old(tmp_path: Path, version: str) -> None:
    answer = look(tmp_path, {"key": "m-n"}, find_python(version))
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
    answer = look(tmp_path / "gone", {"key": "m-n"})
    assert not answer["writable"]
    assert answer["why_not_writable"] == f"the home directory {tmp_path / 'gone'} does not exist"


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_home_that_may_not_be_written_is_said(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    answer = look(tmp_path)
    tmp_path.chmod(0o700)
    assert (answer["writable"], answer["why_not_writable"]) == (False, f"{tmp_path}: Permission denied")


def test_a_whole_upload_gets_its_name_and_a_damaged_one_is_removed(tmp_path: Path) -> None:
    path, sha256 = tmp_path / "upload", hashlib.sha256(b"whole").hexdigest()
    part = tmp_path / "upload.part"
    part.write_bytes(b"damaged")
    request = {"verify": {"path": "~/upload", "sha256": sha256}}
    assert look(tmp_path, request)["verified"]["ok"] is False
    assert os.listdir(tmp_path) == []
    part.write_bytes(b"whole")
    assert look(tmp_path, request)["verified"] == {"ok": True, "found": sha256, "size": 5}
    assert path.read_bytes() == b"whole"
    assert look(tmp_path, request)["verified"]["ok"] is True, "asking again changes nothing"
    path.write_bytes(b"rotten")
    assert look(tmp_path, request)["verified"]["ok"] is False
    assert path.exists(), "what was whole once is not removed: something may run from it"


def test_an_upload_that_never_came_is_not_ok(tmp_path: Path) -> None:
    request = {"verify": {"path": str(tmp_path / "upload"), "sha256": "0" * 64}}
    assert look(tmp_path, request)["verified"] == {"ok": False, "found": "", "size": 0}


def test_what_cannot_be_understood_is_an_error(tmp_path: Path) -> None:
    assert "could not be examined" in look(tmp_path, ["no", "object"])["error"]


def test_the_source_is_ascii_and_imports_nothing_of_ours() -> None:
    source = read_probe()
    assert source.isascii(), "a C locale of Python 3.6 takes nothing else on its command line"
    assert len(source) < 16_384, "it travels on a command line"
    assert "proctor.trial_keeper" not in source
    assert "import proctor" not in source
