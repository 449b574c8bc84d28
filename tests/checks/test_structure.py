"""How the code is laid out: rooms, sizes, and names that mean one thing ("How the code reads" in CONTRIBUTING.md, and
decision 0027)."""

import ast
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import cache

from checks.sources import Source, fail_for, source_of, sources
from fakes.documentation import ROOT

from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus

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


@cache
def packages() -> list[str]:
    return sorted({source.place.rpartition("/")[0] for source in sources()})


@cache
def members(package: str) -> list[str]:
    """The names of a package's modules and of the packages in it."""
    found = [path for path in (ROOT / package).iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()]
    return sorted(path.stem for path in found if path.name != "__init__.py")


def init_of(package: str) -> Source:
    return source_of(f"{package}/__init__.py")


def missing_from(text: str, package: str) -> list[str]:
    """The modules that neither the reading order nor words in backticks name; plain prose names none."""
    order = re.sub(r"\([^()]*\)", "", text.partition("Reading order: ")[2])
    words = set(re.findall(r"\w+", order)) | {
        word for quoted in re.findall(r"`([^`]+)`", text) for word in re.findall(r"\w+", quoted)
    }
    return [name for name in members(package) if name not in words]


def names_defined_in(source: Source) -> set[str]:
    """What a module or an `__init__` defines or offers at its top, as text too where it is loaded later."""
    found = {name for name in source.code if "." not in name}
    for node in source.tree.body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            found |= {part.id for part in ast.walk(node) if isinstance(part, ast.Name)}
            if source.place.endswith("/__init__.py"):
                found |= {part.value for part in ast.walk(node) if isinstance(part, ast.Constant)}
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
        is_package = (folder / module).is_dir()
        source = source_of(f"{package}/{module}/__init__.py" if is_package else f"{package}/{module}.py")
        return not name or name in names_defined_in(source)
    if package in EQUAL_MODULES:
        return all(entry in names_defined_in(source_of(f"{package}/{member}.py")) for member in members(package))
    return entry in names_defined_in(init_of(package))


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


@cache
def module_named(name: str) -> Source | None:
    """The file of `proctor.x.y`; None for a package and for what is not ours."""
    place = f"{name.removeprefix('proctor.').replace('.', '/')}.py"
    return source_of(place) if name.startswith("proctor.") and (ROOT / place).is_file() else None


def words_of(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


@cache
def defined_callables(source: Source) -> set[str]:
    """`Callable`, and the aliases of it that a module defines."""
    names = {"Callable"}
    for name, text in type_aliases(source.tree).items():
        if words_of(text) & names:
            names.add(name)
    return names


@cache
def callable_names(source: Source) -> set[str]:
    """`Callable`, and the aliases of it that a module defines or imports: `Alias`, and `module.Alias` or `m.Alias`."""
    names = set(defined_callables(source))
    for node in source.nodes(ast.ImportFrom):
        origin = module_named(node.module or "")
        for alias in node.names:
            known = alias.asname or alias.name
            if origin is not None and alias.name in defined_callables(origin):
                names.add(known)
            elif (module := module_named(f"{node.module}.{alias.name}")) is not None:
                names |= {f"{known}.{name}" for name in defined_callables(module)}
    for imported in source.nodes(ast.Import):
        for alias in imported.names:
            if (module := module_named(alias.name)) is not None:
                names |= {f"{alias.asname or alias.name}.{name}" for name in defined_callables(module)}
    return names


def count_callables(annotations: list[ast.expr | None], source: Source) -> int:
    """How many of these annotations name a callable."""
    names = callable_names(source)
    texts = (ast.unparse(annotation) for annotation in annotations if annotation is not None)
    words = (re.findall(r"[\w.]+", text) for text in texts)
    return sum(bool({*found, *(word.removeprefix("collections.abc.") for word in found)} & names) for found in words)


def callables_given_to(cls: ast.ClassDef, source: Source) -> int:
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
    return count_callables(found, source) + (MOST_CALLABLES + 1) * count_callables(many, source)


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


def is_joined_by_the_rule(source: Source, importers: set[str]) -> bool:
    """Whether a module is so small, and so little used, that it should lie in another one."""
    lines = source.text.count("\n")
    is_shared = len({importer.rpartition("/")[0] for importer in importers}) > 1
    return (lines < SMALL_LINES and not is_shared) or (lines < SMALL_LINES_OF_ONE_IMPORTER and len(importers) == 1)


def small_modules() -> set[str]:
    """The modules that need a reason."""
    importers: dict[str, set[str]] = defaultdict(set)
    for source in sources():
        for name in source.imports if not source.place.endswith("__init__.py") else ():
            if (imported := module_named(name)) is not None:
                importers[imported.place].add(source.place)
    return {
        source.place
        for source in sources()
        if source.path.name not in ("__init__.py", "__main__.py")
        and source.place.rpartition("/")[0] not in EQUAL_MODULES
        and is_joined_by_the_rule(source, importers[source.place])
    }


def modules_with_a_reason() -> list[str]:
    """The modules in the first column of the decision's table."""
    rows = re.findall(r"^\| (`.+`) \| .+ \|$", (ROOT / DECISION).read_text(encoding="utf-8"), re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


@cache
def public_classes() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for source in sources():
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(source.at(node))
    return found


def compare(found: set[str], known: set[str], rule: str) -> None:
    """Fail for what breaks a rule without being known, and for what is known and is there no more."""
    assert not (unknown := found - known), f"{rule}: {sorted(unknown)}"
    assert not (gone := known - found), f"these are gone or differ; take off: {sorted(gone)}"


# ---- names -----------------------------------------------------------------------------------------------------------


def test_a_public_class_name_means_one_thing() -> None:
    twins = {name for name, places in public_classes().items() if len(places) > 1}
    places = {name: public_classes()[name] for name in twins - MIRRORS - PUBLIC_TWINS}
    compare(twins, MIRRORS | PUBLIC_TWINS, f"give each thing its own name; {places}")


def test_an_alias_of_a_type_means_one_thing() -> None:
    meanings: dict[str, set[str]] = defaultdict(set)
    for source in sources():
        for name, text in type_aliases(source.tree).items():
            meanings[name].add(text)
    assert len(meanings) > 50
    shared = {name for name, texts in meanings.items() if len(texts) > 1 or name in public_classes()}
    compare(shared, SHARED_ALIASES, "give each thing its own name")


def test_every_protocol_has_a_reason() -> None:
    found = {
        f"{source.place} {node.name}"
        for source in sources()
        for node in source.nodes(ast.ClassDef)
        if any(re.match(r"(typing\.)?Protocol\b", ast.unparse(base)) for base in node.bases)
    }
    compare(found, set(PROTOCOLS), "a Protocol needs a reason (CONTRIBUTING.md)")


def test_a_constructor_takes_two_callables_at_most() -> None:
    fail_for(
        (
            f"{source.at(node)}: {node.name}"
            for source in sources()
            for node in source.nodes(ast.ClassDef)
            if callables_given_to(node, source) > MOST_CALLABLES
        ),
        "pass an object instead:",
    )


def test_no_callback_is_set_on_an_object_from_outside() -> None:
    """It is an argument of the constructor, or of the method that calls it."""
    fail_for(
        (
            source.at(node)
            for source in sources()
            for node in source.nodes(ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Attribute)
            and target.attr.startswith("on_")
            and ast.unparse(target.value) not in ("self", "cls")
        ),
        "pass it as an argument:",
    )


def test_what_has_one_place_has_no_second_one() -> None:
    found: dict[str, set[str]] = defaultdict(set)
    for source in sources():
        for node in source.nodes(ast.Constant, ast.Set, ast.List, ast.Tuple, ast.Call, ast.Subscript):
            if (what := what_has_one_place(node)) is not None:
                found[what].add(source.place)
    assert set(found) == set(OTHER_PLACES)
    for what, places in OTHER_PLACES.items():
        compare(found[what], set(places), f"{what}: use {next(iter(places))} in")


def test_a_small_module_has_a_reason() -> None:
    """Importers in two packages are one; the table of decision 0027 gives all others."""
    named = Counter(modules_with_a_reason())
    assert max(named.values()) == 1, "a module is named twice in the table"
    compare(small_modules(), set(named), f"join these with others, or say why not in {DECISION}")


# ---- packages --------------------------------------------------------------------------------------------------------


def test_a_package_says_what_belongs_there_its_entry_and_all_its_modules() -> None:
    fail_for(
        f"{package}/__init__.py: {problem}" for package in packages() for problem in problems_of_docstring(package)
    )


def problems_of_docstring(package: str) -> Iterator[str]:
    text = ast.get_docstring(init_of(package).tree) or ""
    entry = re.search(r"\bEntry: `([^`]+)`", text)
    if entry is None:
        yield 'does not say what belongs there and where to enter ("Entry: `...`")'
    elif not is_there(entry[1], package):
        yield f"there is no {entry[1]}"
    unnamed = missing_from(text, package)
    if package in EQUAL_MODULES:
        if "one module for each" not in text:
            yield "does not say what its modules are"
        if not unnamed:
            yield "names all its modules: take it off EQUAL_MODULES"
        return
    if unnamed:
        yield f"does not name {unnamed} in its reading order or in backticks"
    if len(members(package)) > MODULES_IN_ANY_ORDER and "Reading order: " not in text:
        yield "does not give the reading order"


def test_a_package_holds_no_code() -> None:
    bodies = {package: init_of(package).tree.body[1:] for package in packages()}
    with_code = {
        package
        for package, body in bodies.items()
        if not all(is_import(node) or is_list_of_names(node) for node in body)
    }
    compare(with_code, WITH_CODE, "move the code to a module")
    compare(
        {package for package, body in bodies.items() if body} - WITH_CODE, WITH_NAMES, "name modules, do not import"
    )
    assert not (gone := EQUAL_MODULES - set(packages())), f"take off: {sorted(gone)}"


def test_the_layers_of_a_package_are_a_contract() -> None:
    """import-linter reads them; `exhaustive` makes it ask for the layer of a new module."""
    known = layered()
    fail_for(
        (package for package in packages() if package not in known and len(members(package)) > 1),
        "pyproject.toml has no exhaustive contract of layers for:",
    )


def test_no_package_is_a_corridor() -> None:
    counts = Counter(source.place.rpartition("/")[0] for source in sources() if source.path.name != "__init__.py")
    fail_for((f"{place}: {count}" for place, count in counts.items() if count > MOST_MODULES), "look for rooms:")


# ---- modules and functions -------------------------------------------------------------------------------------------


def test_no_module_is_longer_than_its_story() -> None:
    counts = {source.place: source.text.count("\n") for source in sources()}
    fail_for(f"{place}: {count} lines, at most {MOST_LINES}" for place, count in counts.items() if count > MOST_LINES)


def test_no_function_is_longer_than_a_screen() -> None:
    fail_for(
        f"{source.at(node)}: {node.name} has {count} lines, at most {MOST_LINES_OF_A_FUNCTION}"
        for source in sources()
        for node in source.nodes(ast.FunctionDef, ast.AsyncFunctionDef)
        if (count := (node.end_lineno or node.lineno) - node.lineno + 1) > MOST_LINES_OF_A_FUNCTION
    )


def test_pathlib_renames_nothing() -> None:
    """The linter refuses `os.rename` and `os.link` outside of `sdk/files.py`; it does not see methods of paths."""
    fail_for(
        (
            source.at(node)
            for source in sources()
            for node in source.nodes(ast.Call)
            if isinstance(node.func, ast.Attribute)
            and node.func.attr in ("rename", "replace", "hardlink_to")
            and ((len(node.args) == 1 and not node.keywords) or any(word.arg == "target" for word in node.keywords))
        ),
        "call proctor.sdk.files:",
    )
