"""What is shipped: the wheel's content, and how much a base install brings along."""

import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
MOST_PACKAGES = 40


def closure(name: str, extras: frozenset[str] = frozenset(), seen: set[str] | None = None) -> set[str]:
    """Every installed package that `name` needs, itself included."""
    seen = set() if seen is None else seen
    key = re.sub(r"[-_.]+", "-", name).lower()
    if key in seen:
        return seen
    seen.add(key)
    for text in distribution(name).requires or ():
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in (extras or {""})):
            try:
                closure(requirement.name, frozenset(requirement.extras), seen)
            except PackageNotFoundError:
                pytest.fail(f"{requirement.name}, which {name} needs, is not installed")
    return seen


def test_a_base_install_brings_at_most_forty_packages() -> None:
    packages = closure("proctor") - {"proctor"}
    assert len(packages) <= MOST_PACKAGES, sorted(packages)


def build(target: str, folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.iterdir()
    return built


def dashboard_files() -> set[str]:
    """The built dashboard: its index and all that this links to, below the package's folder."""
    index = (ROOT / "manager/static/index.html").read_text()
    return {
        "manager/static/index.html",
        *(f"manager/static/{name}" for name in re.findall(r'="\./([^"]+)"', index) if name),
    }


def test_the_wheel_holds_the_code_the_sql_and_the_page(tmp_path: Path) -> None:
    names = set(zipfile.ZipFile(build("wheel", tmp_path)).namelist())
    for wanted in (
        "proctor/py.typed",
        "proctor/sdk/trial.py",
        "proctor/sdk/compat/nni/__init__.py",
        "proctor/trial_keeper/reaper/reaper.py",
        "proctor/manager/store/queries.sql",
        "proctor/manager/store/migrations/control/0001.sql",
        *(f"proctor/{name}" for name in dashboard_files()),
    ):
        assert wanted in names
    assert len(dashboard_files()) >= 4
    assert not [name for name in names if name.startswith(("tests/", "sdk/", "manager/"))]


def test_the_source_archive_holds_the_built_page(tmp_path: Path) -> None:
    with tarfile.open(build("sdist", tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/proctor/{name}" for name in dashboard_files()} <= names
