"""The code of the documentation as a reader runs it: page by page, each in an empty folder, all in one home.

The tutorial runs in fresh environments that hold the wheel and what it requires, and nothing of the repository.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from fakes.documentation import COMMANDS, ROOT, blocks_of, pages

from proctor.trial_keeper.start import stop_keeper

pytestmark = pytest.mark.slow

LIMIT_SECONDS = 900
TUTORIAL = "docs/tutorial.md"
MARKED = [page for page in pages() if "<!-- run" in (ROOT / page).read_text(encoding="utf-8")]  # few need parsing
RUN_PAGES = [page for page in MARKED if page != TUTORIAL and any(block.mark == "run" for block in blocks_of(page))]
PLAIN_PAGES = ("docs/trial-api.md", "docs/how-to/interruptions.md")
NEWEST = "python3.13"
NO_INDEX = ("NewConnectionError", "NameResolutionError", "ConnectTimeoutError", "ProxyError")  # what pip retries after


@dataclass
class Reader:
    """A shell in an empty folder, with a home for all its pages and one environment's programs first on its PATH."""

    folder: Path
    bin: Path

    @property
    def environment(self) -> dict[str, str]:
        """What a reader's shell has, less what could lead to another manager, or to our packages."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PROCTOR_", "PYTHON", "VIRTUAL_ENV"))}
        ours = {"PROCTOR_HOME": str(self.folder / "home"), "PROCTOR_PORT": "0"}
        ours["PYTEST_ADDOPTS"] = "-p no:kmock"  # a package of the tests, whose plug-in does not load
        return {**kept, **ours, "PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}"}

    def attempt(self, script: str, work: "Path | None" = None) -> "subprocess.CompletedProcess[str]":
        """Run commands, whatever comes of it."""
        command = ["bash", "-c", script]
        return subprocess.run(
            command,
            cwd=work or self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )

    def follow(self, page: str) -> str:
        """Do what a page says, in order; returns what its commands have printed. A failure names the block."""
        name = page.replace("/", "-")
        work = self.folder / name
        work.mkdir()
        done = self.attempt(script_of(page, self.folder / f"blocks of {name}"), work)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout


def script_of(page: str, staging: Path) -> str:
    """A page's files and commands as one script of bash. Each block is announced on stderr, so that one that fails is
    known."""
    staging.mkdir()
    lines = ["set -euo pipefail"]
    for number, block in enumerate(blocks_of(page)):
        if block.mark not in ("run", "file"):
            continue
        staged = staging / f"{number}.txt"
        staged.write_text(block.text, encoding="utf-8")
        lines.append(f"echo '--- {block.place}' >&2")
        if block.mark == "file":
            lines.append(f"cp '{staged}' '{block.detail}'")
        elif block.language in COMMANDS:
            lines.append(block.text)
        else:
            assert block.language == "python", f"{block.place}: {block.language} cannot be run"
            lines.append(f"python3 '{staged}'")
    return "\n".join(lines)


@contextmanager
def reading(folder: Path, programs: Path) -> Iterator[Reader]:
    """A reader. Afterwards the manager, its keeper and its experiments are gone."""
    reader = Reader(folder, programs)
    try:
        yield reader
    finally:
        reader.attempt("proctor stop --all; proctor manager stop")
        for directory in (folder / "home" / "nodes").glob("*"):
            stop_keeper(directory)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    with reading(tmp_path_factory.mktemp("pages"), Path(sys.executable).parent) as reader:
        yield reader


@pytest.mark.parametrize(
    "page", [page if page in PLAIN_PAGES else pytest.param(page, marks=pytest.mark.thorough) for page in RUN_PAGES]
)
def test_the_code_of_a_page_runs(reader: Reader, page: str) -> None:
    reader.follow(page)


def find_python() -> str:
    """An interpreter of the newest version that we support, if the machine has one, else this one."""
    installed = sorted(Path.home().glob(f".pyenv/versions/{NEWEST.removeprefix('python')}*/bin/{NEWEST}"))
    found = (python for python in (shutil.which(NEWEST), *map(str, installed)) if python and works(python))
    return next(found, sys.executable)


def works(python: str) -> bool:
    """Whether it is an interpreter, and not a shim that looks for one."""
    return subprocess.run([python, "--version"], capture_output=True, check=False).returncode == 0


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def install(wheel: Path, python: str, folder: Path) -> Path:
    """A fresh environment with the wheel and what it requires; returns the folder of its programs."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True, env=without_ours())
    command = [folder / "bin" / "python", "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", wheel]
    done = subprocess.run(command, env=without_ours(), capture_output=True, text=True, check=False)
    if done.returncode and any(words in done.stderr for words in NO_INDEX):
        pytest.skip(f"no index of packages to install from: {done.stderr.strip().splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    return folder / "bin"


def without_ours() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}


@pytest.mark.thorough
@pytest.mark.timeout(1800)  # it installs all that Proctor needs
def test_the_tutorial_runs_with_nothing_but_the_wheel(wheel: Path, tmp_path: Path) -> None:
    programs = install(wheel, find_python(), tmp_path / "venv")
    with reading(tmp_path, programs) as reader:
        where = reader.attempt("python3 -c 'import proctor; print(proctor.__file__)'").stdout
        assert where.startswith(str(tmp_path / "venv")), where
        printed = reader.follow(TUTORIAL)
    best = re.search(r"^best loss (0\.\d+) with \{'lr': ", printed, re.MULTILINE)
    assert best is not None, printed
    assert float(best[1]) < 0.1  # the script's own settings give a worse one
