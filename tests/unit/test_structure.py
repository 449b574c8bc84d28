"""How the code is laid out: rooms, sizes, and names that mean one thing ("How the code reads" in CONTRIBUTING.md, and
decision 0027)."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("sdk", "trial_keeper", "training_services", "manager")
MOST_MODULES = 18
MOST_LINES = 600

# REST models, client records and configuration objects of the client mirror a thing of the server and share its name.
MIRRORS = {
    "AddTrial",
    "AlgorithmConfig",
    "CheckStep",
    "Conflict",
    "CurvePoint",
    "Experiment",
    "ExperimentConfig",
    "Job",
    "LocalConfig",
    "ManagerAddress",
    "ManagerNotStarted",
    "Node",
    "NodeCodeConfig",
    "FileCollection",
    "NotFound",
    "ObjectiveConfig",
    "Refused",
    "RemoteConfig",
    "RemoteMachineConfig",
}
# What users import by this name from two frameworks' modules.
PUBLIC_TWINS = {"ProctorCallback"}

# Packages whose names are loaded when they are asked for, and the stand-in for `nni`, which is an `__init__`.
WITH_CODE = {"sdk/client", "sdk/compat/nni", "sdk/compat/nni/experiment"}


def modules() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from sorted((ROOT / folder).rglob("*.py"))


def packages() -> list[str]:
    return sorted({str(path.parent.relative_to(ROOT)) for path in modules()})


def public_classes() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for path in modules():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(ROOT)))
    return found


def test_a_public_class_name_means_one_thing() -> None:
    twins = {name: places for name, places in public_classes().items() if len(places) > 1}
    unknown = {name: places for name, places in twins.items() if name not in MIRRORS | PUBLIC_TWINS}
    assert not unknown, f"give each thing its own name: {unknown}"
    assert not (gone := (MIRRORS | PUBLIC_TWINS) - set(twins)), f"these are not used twice any more: {sorted(gone)}"


@pytest.mark.parametrize("package", packages())
def test_a_package_says_what_belongs_there_and_holds_no_code(package: str) -> None:
    tree = ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8"))
    assert ast.get_docstring(tree), f"{package}/__init__.py has no docstring"
    code = [
        ast.unparse(node)
        for node in tree.body[1:]
        if not isinstance(node, ast.Import | ast.ImportFrom) and "__all__" not in ast.unparse(node)
    ]
    assert package in WITH_CODE or not code, f"{package}/__init__.py holds code: {code}"


@pytest.mark.parametrize("package", packages())
def test_no_package_is_a_corridor(package: str) -> None:
    found = [path.name for path in (ROOT / package).glob("*.py") if path.name != "__init__.py"]
    assert len(found) <= MOST_MODULES, f"{package} has {len(found)} modules: look for rooms"


def test_no_module_is_longer_than_its_story() -> None:
    long = {
        str(path.relative_to(ROOT)): count
        for path in modules()
        if (count := len(path.read_text().splitlines())) > MOST_LINES
    }
    assert not long, f"over {MOST_LINES} lines: {long}"


def test_pathlib_renames_nothing() -> None:
    """The linter refuses `os.rename` outside of `sdk/files.py`; it does not see methods of paths."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in modules()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("rename", "replace")
        and len(node.args) == 1
        and not node.keywords
    ]
    assert not found, f"call proctor.sdk.files: {found}"
