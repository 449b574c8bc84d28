"""The dashboard that is committed is the one that its source builds."""

import subprocess
from pathlib import Path

import pytest
from fakes.dashboard import ROOT, WEBUI, node_tools

STATIC = ROOT / "manager/static"


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_the_committed_page_is_what_its_source_builds(tmp_path: Path) -> None:
    environment = node_tools()
    command = ["npm", "run", "--silent", "build", "--", "--outDir", str(tmp_path / "static"), "--emptyOutDir"]
    done = subprocess.run(command, cwd=WEBUI, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    built, committed = contents(tmp_path / "static"), contents(STATIC)
    assert built.keys() == committed.keys(), "manager/static is out of date: run make webui and commit it"
    assert [name for name in built if built[name] != committed[name]] == [], "run make webui and commit manager/static"


def test_the_lock_file_names_no_registry() -> None:
    assert '"resolved"' not in (WEBUI / "package-lock.json").read_text()


def test_the_built_page_names_no_other_host() -> None:
    for name, data in contents(STATIC).items():
        if name == "saved.html":  # holds the script, in whose messages addresses are; its policy forbids all of them
            assert b"default-src 'none'; script-src 'sha256-" in data
        elif name.endswith((".html", ".css")):
            assert b"http://" not in data, name
            assert b"https://" not in data, name
