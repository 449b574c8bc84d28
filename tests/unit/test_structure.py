"""How the code is laid out: rooms, sizes, and names that mean one thing ("How the code reads" in CONTRIBUTING.md, and
decision 0027)."""

import ast
import re
import tomllib
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
# Packages from which users or authors of plug-ins import names without knowing the module.
WITH_NAMES = {"sdk/pytorch", "sdk/space", "training_services/testing"}
# Packages of equal modules, each named after the thing a reader looks for: "one module for each" names them all.
EQUAL_MODULES = {
    "manager/api/routes",
    "manager/cli/commands",
    "manager/dispatcher/algorithms/assessors",
    "manager/dispatcher/algorithms/tuners",
}


def modules() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from sorted((ROOT / folder).rglob("*.py"))


def packages() -> list[str]:
    return sorted({str(path.parent.relative_to(ROOT)) for path in modules()})


def members(package: str) -> list[str]:
    """The names of a package's modules and of the packages in it."""
    found = [path for path in (ROOT / package).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    return sorted(path.stem for path in found if path.name != "__init__.py")


def init_of(package: str) -> ast.Module:
    return ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8"))


def missing_from(text: str, package: str) -> list[str]:
    return [name for name in members(package) if not re.search(rf"(?<!\w){name}(?!\w)", text)]


def is_import(node: ast.stmt) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def is_list_of_names(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and [ast.unparse(target) for target in node.targets] == ["__all__"]


def layered() -> set[str]:
    """The packages whose layers import-linter checks, and whose every module has one."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    return {
        container.removeprefix("proctor.").replace(".", "/")
        for contract in contracts
        if contract["type"] == "layers" and contract.get("exhaustive")
        for container in contract.get("containers", [])
    }


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
def test_a_package_says_what_belongs_there_its_entry_and_all_its_modules(package: str) -> None:
    text = ast.get_docstring(init_of(package))
    assert text, f"{package}/__init__.py has no docstring"
    assert re.search(r"\bEntry: ", text), f'{package}/__init__.py does not say where to enter ("Entry: ...")'
    unnamed = missing_from(text, package)
    if package in EQUAL_MODULES:
        assert "one module for each" in text, f"{package} does not say what its modules are"
        assert unnamed, f"{package} names all its modules: take it off EQUAL_MODULES"
    else:
        assert not unnamed, f"{package}/__init__.py does not name {unnamed}"


@pytest.mark.parametrize("package", packages())
def test_a_package_holds_no_code(package: str) -> None:
    body = init_of(package).body[1:]
    code = [ast.unparse(node) for node in body if not (is_import(node) or is_list_of_names(node))]
    assert (package in WITH_CODE) == bool(code), f"WITH_CODE is wrong about {package}: {code}"
    if package not in WITH_CODE:
        assert (package in WITH_NAMES) == bool(body), f"WITH_NAMES is wrong about {package}"


@pytest.mark.parametrize("package", packages())
def test_the_layers_of_a_package_are_a_contract(package: str) -> None:
    """import-linter reads them; `exhaustive` makes it ask for the layer of a new module."""
    assert package in layered() or len(members(package)) < 2, (
        f"pyproject.toml has no exhaustive contract of layers for {package}"
    )


def test_no_exempt_package_is_gone() -> None:
    assert not (gone := (WITH_CODE | WITH_NAMES | EQUAL_MODULES) - set(packages())), f"take off: {sorted(gone)}"


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
