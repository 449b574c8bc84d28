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

from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus

ROOT = Path(__file__).parents[2]
FOLDERS = ("sdk", "trial_keeper", "training_services", "manager")
MOST_MODULES = 18
MOST_LINES = 600
MOST_LINES_OF_A_FUNCTION = 60
MOST_CALLABLES = 2
MODULES_IN_ANY_ORDER = 3  # of more, an `__init__` gives the reading order
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

# What has one place (rule "one helper each"), and who else may spell it out.
OTHER_PLACES = {
    "growing pauses": {
        "trial_keeper/linux/backoff.py": "the place",
        "manager/lifecycle/retries.py": "a retry's delay is a rule of the lifecycle, which imports no I/O",
    },
    "jitter": {"trial_keeper/linux/backoff.py": "the place"},
    "words for NaN": {"sdk/metrics.py": "the place"},
    "last lines": {"training_services/ssh/base.py": "the last line of a finished command's output"},
    "ignored folders": {"sdk/client/code_files.py": "the place"},
    "statuses": {
        "manager/lifecycle/states.py": "the place",
        "sdk/client/experiment.py": "the SDK does not import the manager; FINISHED equals `has_ended`",
        "sdk/client/results.py": "the SDK does not import the manager; `errors` are those with `has_failed`",
    },
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
    """The modules that neither the reading order nor words in backticks name; plain prose names none."""
    order = re.sub(r"\([^()]*\)", "", text.partition("Reading order: ")[2])
    words = set(re.findall(r"\w+", order)) | {
        word for quoted in re.findall(r"`([^`]+)`", text) for word in re.findall(r"\w+", quoted)
    }
    return [name for name in members(package) if name not in words]


def names_defined_in(path: Path) -> set[str]:
    """What a module or an `__init__` defines or offers at its top, as text too where it is loaded later."""
    found: set[str] = set()
    for node in tree_of(path).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            found |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            found |= {
                part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and path.stem == "__init__"
            }
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name for alias in node.names}
    return found


def is_there(entry: str, package: str) -> bool:
    """Whether the entry of a package exists: a module, a name in one, a file, or what one imports."""
    folder = ROOT / package
    if entry.startswith("import "):
        return entry == "import proctor" or entry.rpartition(".")[2].removeprefix("import ") == folder.name
    if entry.endswith(".py"):
        return any((above / entry).is_file() for above in (folder, *folder.parents) if above.is_relative_to(ROOT))
    module, _, name = entry.partition(".")
    if module in members(package):
        path = folder / module / "__init__.py" if (folder / module).is_dir() else folder / f"{module}.py"
        return not name or name in names_defined_in(path)
    if package in EQUAL_MODULES:
        return all(entry in names_defined_in(folder / f"{member}.py") for member in members(package))
    return entry in names_defined_in(folder / "__init__.py")


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
    """`Callable`, and the aliases of it that a module defines or imports: `Alias`, and `module.Alias` or `m.Alias`."""
    names = set(defined_callables(path))
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and node.module:
            source = module_named(node.module)
            for alias in node.names:
                known = alias.asname or alias.name
                if source is not None and alias.name in defined_callables(source):
                    names.add(known)
                elif (module := module_named(f"{node.module}.{alias.name}")) is not None:
                    names |= {f"{known}.{name}" for name in defined_callables(module)}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if (module := module_named(alias.name)) is not None:
                    names |= {f"{alias.asname or alias.name}.{name}" for name in defined_callables(module)}
    return names


def is_callable(annotation: str, path: Path) -> bool:
    """Whether an annotation names a callable."""
    words = set(re.findall(r"[\w.]+", annotation))
    return bool((words | {word.removeprefix("collections.abc.") for word in words}) & callable_names(path))


def callables_given_to(cls: ast.ClassDef, path: Path) -> int:
    """How many callables a class is made of: parameters of its constructor, or fields of a dataclass. `*args` and
    `**kwargs` of callables are too many."""
    found: list[ast.expr | None] = []
    many: list[ast.expr | None] = []
    for node in cls.body:
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            found += [each.annotation for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            many += [each.annotation for each in (node.args.vararg, node.args.kwarg) if each is not None]
    if any("dataclass" in ast.unparse(decorator) for decorator in cls.decorator_list):
        found += [node.annotation for node in cls.body if isinstance(node, ast.AnnAssign)]
    counts = [
        sum(is_callable(ast.unparse(annotation), path) for annotation in each if annotation is not None)
        for each in (found, many)
    ]
    return counts[0] + (MOST_CALLABLES + 1) * counts[1]


@cache
def statuses() -> frozenset[frozenset[str]]:
    """What the properties of a status are about, both ways, where that is more than one status."""
    found = []
    for kind in (ExperimentStatus, TrialStatus):
        for name, value in vars(kind).items():
            if isinstance(value, property):
                true = frozenset(status.value for status in kind if getattr(status, name))
                found += [true, frozenset(status.value for status in kind) - true]
    return frozenset(each for each in found if len(each) > 1)


def named_statuses(node: ast.AST) -> frozenset[str]:
    """The statuses of a set, list or tuple that holds nothing else, as words or as members of an enum."""
    if not isinstance(node, ast.Set | ast.List | ast.Tuple):
        return frozenset()
    words = [
        each.value if isinstance(each, ast.Constant) else each.attr if isinstance(each, ast.Attribute) else None
        for each in node.elts
    ]
    return frozenset(word for word in words if isinstance(word, str)) if None not in words else frozenset()


def doubles(node: ast.AST) -> bool:
    """`2 ** n`, `2 * pause`, `pause * 2`: the growth of a pause, where it is bounded by `min`."""
    if not isinstance(node, ast.BinOp):
        return False
    sides = [side.value if isinstance(side, ast.Constant) else None for side in (node.left, node.right)]
    if isinstance(node.op, ast.Pow):
        return sides[0] == 2
    return isinstance(node.op, ast.Mult) and 2 in sides and bool(re.search("pause|delay|backoff", ast.unparse(node)))


def what_has_one_place(node: ast.AST) -> str | None:
    """Which of OTHER_PLACES an expression spells out."""
    text = node.value if isinstance(node, ast.Constant) else None
    if text in ("NaN", "Infinity", "-Infinity"):
        return "words for NaN"
    if text in (".git", ".hg", "__pycache__", "node_modules", ".mypy_cache"):
        return "ignored folders"
    if named_statuses(node) in statuses():
        return "statuses"
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == "min" and any(doubles(part) for part in ast.walk(node)):
            return "growing pauses"
        if isinstance(node.func, ast.Attribute) and ast.unparse(node.func) in ("random.random", "random.uniform"):
            return "jitter"
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Call):
        first = node.slice.lower if isinstance(node.slice, ast.Slice) else node.slice
        is_from_end = isinstance(first, ast.UnaryOp) and getattr(node.value.func, "attr", "") == "splitlines"
        return "last lines" if is_from_end else None
    return None


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
        if isinstance(node, ast.ClassDef) and callables_given_to(node, path) > MOST_CALLABLES
    }
    assert not found, f"pass an object instead: {sorted(found)}"


def test_no_callback_is_set_on_an_object_from_outside() -> None:
    """It is an argument of the constructor, or of the method that calls it."""
    found = [
        f"{place_of(path)}:{node.lineno}"
        for path in modules()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Attribute)
        and target.attr.startswith("on_")
        and ast.unparse(target.value) not in ("self", "cls")
    ]
    assert not found, f"pass it as an argument: {found}"


def test_what_has_one_place_has_no_second_one() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for path in modules():
        for node in ast.walk(tree_of(path)):
            if (what := what_has_one_place(node)) is not None:
                found[what].add(place_of(path))
    assert set(found) == set(OTHER_PLACES)
    for what, places in OTHER_PLACES.items():
        assert not (unknown := found[what] - set(places)), f"{what}: use {next(iter(places))} in {sorted(unknown)}"
        assert not (gone := set(places) - found[what]), f"{what}: these are gone or differ; take off: {sorted(gone)}"


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
    entry = re.search(r"\bEntry: `([^`]+)`", text)
    assert entry, f'{package}/__init__.py does not say where to enter ("Entry: `...`")'
    assert is_there(entry[1], package), f"{package}/__init__.py: there is no {entry[1]}"
    unnamed = missing_from(text, package)
    if package in EQUAL_MODULES:
        assert "one module for each" in text, f"{package} does not say what its modules are"
        assert unnamed, f"{package} names all its modules: take it off EQUAL_MODULES"
    else:
        assert not unnamed, f"{package}/__init__.py does not name {unnamed} in its reading order or in backticks"
        few = len(members(package)) <= MODULES_IN_ANY_ORDER
        assert few or "Reading order: " in text, f"{package}/__init__.py does not give the reading order"


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
        and ((len(node.args) == 1 and not node.keywords) or any(word.arg == "target" for word in node.keywords))
    ]
    assert not found, f"call proctor.sdk.files: {found}"
