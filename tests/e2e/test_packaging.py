"""What is shipped: the wheel's content, and how much a base install brings along."""

import re
import subprocess
import sys
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


def test_the_wheel_holds_the_code_the_sql_and_the_page(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    for wanted in (
        "proctor/py.typed",
        "proctor/sdk/trial.py",
        "proctor/sdk/compat/nni/__init__.py",
        "proctor/trial_keeper/reaper/reaper.py",
        "proctor/manager/store/queries.sql",
        "proctor/manager/store/migrations/control/0001.sql",
        "proctor/manager/web/templates/base.html",
    ):
        assert wanted in names
    assert not [name for name in names if name.startswith(("tests/", "sdk/", "manager/"))]
