"""How the code is laid out: rooms, sizes, and names that mean one thing ("How the code reads" in CONTRIBUTING.md, and
decision 0027)."""

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("sdk", "trial_keeper", "training_services", "manager")
MOST_MODULES = 18
MOST_LINES = 600
MOST_LINES_OF_A_FUNCTION = 60
MOST_CALLABLES = 2
SMALL_LINES = 80  # a smaller module needs importers in two packages
SMALL_LINES_OF_ONE_IMPORTER = 120
DECISION = "docs/decisions/0027-rooms-with-standard-names.md"

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

# Aliases of types that share their name with another alias or with a class: the same thing on both sides of a border.
SHARED_ALIASES = {"Duration", "JsonObject", "JsonValue"}
# Why each of these is no class.
PROTOCOLS = {
    "manager/config/sections.py Registered": "the border to the registry of algorithms, which reads a home",
    "manager/dispatcher/class_args.py Validated": "the two values that the process in the user's interpreter needs",
    "manager/engine/loop/reservations.py Placer": "two implementations: FreePlacer and PoolPlacer",
    "training_services/ssh/base.py NodeConnection": "the border to asyncssh",
}

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


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def packages() -> list[str]:
    return sorted({str(path.parent.relative_to(ROOT)) for path in modules()})


def members(package: str) -> list[str]:
    """The names of a package's modules and of the packages in it."""
    found = [path for path in (ROOT / package).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    return sorted(path.stem for path in found if path.name != "__init__.py")


def init_of(package: str) -> ast.Module:
    return tree_of(ROOT / package / "__init__.py")


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


def place_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def top_level(tree: ast.Module) -> Iterator[ast.stmt]:
    """The statements of a module, those under `if TYPE_CHECKING` included."""
    for node in tree.body:
        yield from node.body if isinstance(node, ast.If) else [node]


def type_aliases(tree: ast.Module) -> dict[str, str]:
    """What each public alias of a module stands for."""
    found = {}
    for node in top_level(tree):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and value is not None and re.fullmatch(r"[A-Z]\w*[a-z]\w*", target.id):
            found[target.id] = ast.unparse(value)
    return found


def module_named(name: str) -> Path | None:
    """The file of `proctor.x.y`; None for a package and for what is not ours."""
    path = ROOT.joinpath(*name.split(".")[1:]).with_suffix(".py")
    return path if name.startswith("proctor.") and path.is_file() else None


def imported_modules(tree: ast.Module) -> set[Path]:
    """The modules of ours that a module imports, also inside of its functions."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {path for name in names if (path := module_named(name)) is not None}


def words_of(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


@cache
def defined_callables(path: Path) -> set[str]:
    """`Callable`, and the aliases of it that a module defines."""
    names = {"Callable"}
    for name, text in type_aliases(tree_of(path)).items():
        if words_of(text) & names:
            names.add(name)
    return names


@cache
def callable_names(path: Path) -> set[str]:
    """`Callable`, and the aliases of it that a module defines or imports."""
    names = set(defined_callables(path))
    for node in ast.walk(tree_of(path)):
        source = module_named(node.module) if isinstance(node, ast.ImportFrom) and node.module else None
        if isinstance(node, ast.ImportFrom) and source is not None:
            names |= {alias.asname or alias.name for alias in node.names if alias.name in defined_callables(source)}
    return names


def given_to(cls: ast.ClassDef) -> list[str]:
    """The annotations of what a class is made of: the parameters of its constructor, or the fields of a dataclass."""
    found = []
    for node in cls.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            found += [ast.unparse(argument.annotation) for argument in arguments if argument.annotation]
    if any("dataclass" in ast.unparse(decorator) for decorator in cls.decorator_list):
        found += [ast.unparse(node.annotation) for node in cls.body if isinstance(node, ast.AnnAssign)]
    return found


def is_joined_by_the_rule(path: Path, importers: set[Path]) -> bool:
    """Whether a module is so small, and so little used, that it should lie in another one."""
    lines = len(path.read_text(encoding="utf-8").splitlines())
    is_shared = len({importer.parent for importer in importers}) > 1
    return (lines < SMALL_LINES and not is_shared) or (lines < SMALL_LINES_OF_ONE_IMPORTER and len(importers) == 1)


def small_modules() -> set[str]:
    """The modules that need a reason."""
    importers: dict[Path, set[Path]] = defaultdict(set)
    for path in modules():
        for imported in imported_modules(tree_of(path)) if path.name != "__init__.py" else ():
            importers[imported].add(path)
    return {
        place_of(path)
        for path in modules()
        if path.name not in ("__init__.py", "__main__.py")
        and place_of(path.parent) not in EQUAL_MODULES
        and is_joined_by_the_rule(path, importers[path])
    }


def modules_with_a_reason() -> list[str]:
    """The modules in the first column of the decision's table."""
    rows = re.findall(r"^\| (`.+`) \| .+ \|$", (ROOT / DECISION).read_text(encoding="utf-8"), re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def public_classes() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for path in modules():
        for node in tree_of(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(str(path.relative_to(ROOT)))
    return found


def test_a_public_class_name_means_one_thing() -> None:
    twins = {name: places for name, places in public_classes().items() if len(places) > 1}
    unknown = {name: places for name, places in twins.items() if name not in MIRRORS | PUBLIC_TWINS}
    assert not unknown, f"give each thing its own name: {unknown}"
    assert not (gone := (MIRRORS | PUBLIC_TWINS) - set(twins)), f"these are not used twice any more: {sorted(gone)}"


def test_an_alias_of_a_type_means_one_thing() -> None:
    meanings: dict[str, set[str]] = defaultdict(set)
    for path in modules():
        for name, text in type_aliases(tree_of(path)).items():
            meanings[name].add(text)
    assert len(meanings) > 50
    classes = public_classes()
    shared = {name for name, texts in meanings.items() if len(texts) > 1 or name in classes}
    assert not (unknown := shared - SHARED_ALIASES), f"give each thing its own name: {sorted(unknown)}"
    assert not (gone := SHARED_ALIASES - shared), f"these mean one thing now; take off: {sorted(gone)}"


def test_every_protocol_has_a_reason() -> None:
    found = {
        f"{place_of(path)} {node.name}"
        for path in modules()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
        and any(re.match(r"(typing\.)?Protocol\b", ast.unparse(base)) for base in node.bases)
    }
    assert not (unknown := found - set(PROTOCOLS)), f"a Protocol needs a reason (CONTRIBUTING.md): {sorted(unknown)}"
    assert not (gone := set(PROTOCOLS) - found), f"these are gone; take off: {sorted(gone)}"


def test_a_constructor_takes_two_callables_at_most() -> None:
    found = {
        node.name
        for path in modules()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef)
        and sum(bool(words_of(text) & callable_names(path)) for text in given_to(node)) > MOST_CALLABLES
    }
    assert not found, f"pass an object instead: {sorted(found)}"


def test_a_small_module_has_a_reason() -> None:
    """Importers in two packages are one; the table of decision 0027 gives all others."""
    small = set(small_modules())
    named = list(modules_with_a_reason())
    assert len(named) == len(set(named)), "a module is named twice in the table"
    assert not (unknown := small - set(named)), f"join these with others, or say why not in {DECISION}: {unknown}"
    assert not (gone := set(named) - small), f"these are gone or not small any more; take them off the table: {gone}"


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


def test_no_function_is_longer_than_a_screen() -> None:
    long = {
        f"{place_of(path)}:{node.lineno} {node.name}": count
        for path in modules()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (count := (node.end_lineno or node.lineno) - node.lineno + 1) > MOST_LINES_OF_A_FUNCTION
    }
    assert not long, f"over {MOST_LINES_OF_A_FUNCTION} lines: {long}"


def test_pathlib_renames_nothing() -> None:
    """The linter refuses `os.rename` and `os.link` outside of `sdk/files.py`; it does not see methods of paths."""
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in modules()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("rename", "replace", "hardlink_to")
        and len(node.args) == 1
        and not node.keywords
    ]
    assert not found, f"call proctor.sdk.files: {found}"
