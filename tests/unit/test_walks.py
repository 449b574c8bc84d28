"""The walks of docs/walks.md lead from place to place; the glossary says where nouns are defined."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

HEAD = re.compile(r"^## (\d+)\. .")
COUNT = re.compile(r"^\*(\d+) files named\.\* .")
FROM = re.compile(r"from (\d+)")
STOP = re.compile(r"^(\d+)\. `([^`]+\.py)` `([\w.]+)`(?: \(([^)]+)\))?: (?!.*\. [A-Z])[A-Z`].*\.$")  # one sentence
TERM = re.compile(r"^\| (`?)([\w ]+)\1 \| [^|]+ \| `([^`|]+)` \|$")


@dataclass(frozen=True)
class Stop:
    """A place on a walk; `entered` says how control passes to it where the stops before it do not lead to it."""

    number: int
    file: str
    name: str
    entered: str | None


@dataclass
class Walk:
    """One walk as it is written."""

    number: int
    counts: list[int] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)


def read_walks() -> list[Walk]:
    walks: list[Walk] = []
    for paragraph in paragraphs((ROOT / "docs/walks.md").read_text(encoding="utf-8")):
        if head := HEAD.match(paragraph):
            walks.append(Walk(int(head[1])))
        elif count := COUNT.match(paragraph):
            walks[-1].counts.append(int(count[1]))
        elif stop := STOP.match(paragraph):
            walks[-1].stops.append(Stop(int(stop[1]), stop[2], stop[3], stop[4]))
        else:
            assert not walks, f"neither a head nor a count nor a stop: {paragraph}"
    return walks


def paragraphs(text: str) -> Iterator[str]:
    """Paragraphs, heads and items of lists, each in one line."""
    for block in re.split(r"\n\s*\n|\n(?=\d+\. )", text):
        if block.strip():
            yield " ".join(block.split())


@cache
def names_in(file: str) -> frozenset[str]:
    """The names that a module uses or imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            found |= {alias.name for alias in node.names}
    return frozenset(found)


@cache
def imports_of(file: str) -> frozenset[str]:
    """The modules that a module imports, also inside of its functions and for annotations only."""
    found: set[str] = set()
    for node in ast.walk(ast.parse((ROOT / file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return frozenset(found)


@cache
def code_of(file: str) -> dict[str, ast.AST]:
    """The functions and classes of a module, and the methods as `Class.method`."""
    definitions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found: dict[str, ast.AST] = {}
    for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        if isinstance(node, definitions):
            found[node.name] = node
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{inner.name}": inner for inner in node.body if isinstance(inner, definitions)}
    return found


@cache
def used_by(file: str, name: str) -> frozenset[str]:
    """The names of a module that one of them uses, itself or through others of the same module."""
    code, found, todo = code_of(file), set[str](), [name]
    while todo:
        for node in ast.walk(code[todo.pop()]):
            word = node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")
            new = {other for other in code if word and other.rpartition(".")[2] == word} - found
            found |= new
            todo += new
    return frozenset(found)


def leads_to(caller: Stop, stop: Stop) -> bool:
    """Whether one stop may call another: in the same file it uses the place; in another one its file imports the
    module, and uses the function, or the method or its class. A name alone may be another's."""
    if caller.file == stop.file:
        return stop.name in used_by(caller.file, caller.name)
    cls, _, name = stop.name.rpartition(".")
    module = f"proctor.{stop.file.removesuffix('.py').replace('/', '.')}"
    return module in imports_of(caller.file) and bool({cls, name} & names_in(caller.file))


def problems_of(walk: Walk) -> list[str]:
    """What is wrong with the way from stop to stop.

    A stop is reached from the one before it or, after returns, from one that led there: together these are the chain
    of callers. `(from 8)` resumes at an earlier stop that has left the chain. `(over HTTP)` and the like go to another
    process, where the chain begins anew; other words in parentheses are for objects and callbacks to which no import
    leads.
    """
    problems: list[str] = []
    chain = walk.stops[:1]
    chains = {walk.stops[0].number: chain}
    for stop in walk.stops[1:]:
        back = FROM.fullmatch(stop.entered or "")
        place = f"stop {stop.number}, {stop.name}"
        words = re.findall(r"`(\w+)`", stop.entered or "")
        known = {name for each in walk.stops for name in (*names_in(each.file), *code_of(each.file))}
        problems += [f"{place}: no file of the walk has {word}" for word in words if word not in known]
        length = next((end for end in range(len(chain), 0, -1) if leads_to(chain[end - 1], stop)), 0)
        if stop.entered and stop.entered.startswith("over "):
            chain, length = [], 0
        elif length and stop.entered:
            problems.append(f"{place}: it is called; take off ({stop.entered})")
        elif back and int(back[1]) in chains and leads_to(chains[int(back[1])][-1], stop):
            chain = chains[int(back[1])]
        elif back:
            problems.append(f"{place}: {back[0]} is no earlier stop whose file imports and uses it")
        elif not length and not stop.entered:
            problems.append(f'{place}: say behind its name how control passes to it: "(over HTTP)", "(from 3)"')
        chain = [*chain[:length], stop] if length else [*chain, stop]
        chains[stop.number] = chain
    return problems


WALKS = read_walks()
STOPS = [(stop.file, stop.name) for walk in WALKS for stop in walk.stops]


def test_there_are_six_walks() -> None:
    assert [walk.number for walk in WALKS] == [1, 2, 3, 4, 5, 6]
    assert all(walk.stops for walk in WALKS)


@pytest.mark.parametrize(("file", "name"), sorted(set(STOPS)), ids=lambda part: part)
def test_a_stop_names_a_place_that_exists(file: str, name: str) -> None:
    assert (ROOT / file).is_file(), f"there is no file {file}"
    assert name in code_of(file), f"{file} has no function, method or class {name}"


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: str(walk.number))
def test_the_stops_of_a_walk_are_numbered_in_order(walk: Walk) -> None:
    assert [stop.number for stop in walk.stops] == list(range(1, len(walk.stops) + 1))


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: str(walk.number))
def test_every_stop_is_reached_from_an_earlier_one_or_says_how(walk: Walk) -> None:
    assert not (problems := problems_of(walk)), f"walk {walk.number}: {problems}"


@pytest.mark.parametrize("walk", WALKS, ids=lambda walk: str(walk.number))
def test_a_walk_says_how_many_files_its_stops_name(walk: Walk) -> None:
    files = {stop.file for stop in walk.stops}
    assert walk.counts == [len(files)], f"the stops of walk {walk.number} name {len(files)} files, not {walk.counts}"


def read_terms() -> list[tuple[str, str, bool]]:
    """The rows of the glossary's second part: the name, its file, and whether it is a class."""
    part = (ROOT / "docs/glossary.md").read_text(encoding="utf-8").partition("\n## Modules and classes\n")[2]
    rows = [
        line for line in part.splitlines() if line.startswith("|") and not re.match(r"\| (name|word) \||\|---", line)
    ]
    found = [TERM.match(row) for row in rows]
    assert all(found), f"not a row of name, meaning and place: {rows[found.index(None)]}"
    return [(row[2], row[3], row[1] == "`") for row in found if row is not None]


TERMS = read_terms()


def test_the_glossary_explains_each_noun_of_the_code_once() -> None:
    names = [name for name, _, _ in TERMS]
    assert len(names) > 80
    assert len(names) == len(set(names)), sorted(name for name in names if names.count(name) > 1)


def names_for(word: str) -> set[str]:
    """What a class, function or module that a word of the glossary stands for may be called."""
    snake = word.replace(" ", "_").lower()
    return {snake, f"{snake}s", word.title().replace(" ", "")}


@pytest.mark.parametrize(("name", "file", "is_class"), TERMS)
def test_the_glossary_says_where_a_noun_of_the_code_is_defined(name: str, file: str, is_class: bool) -> None:
    assert (ROOT / file).is_file(), f"there is no file {file}"
    if is_class:
        assert name in code_of(file), f"{file} has no class {name}"
        return
    modules = {part.removesuffix(".py") for part in Path(file).parts[1:]}
    public = {last for found in code_of(file) if not (last := found.rpartition(".")[2]).startswith("_")}
    assert names_for(name) & (modules | public), f"{file} has no class, function or module that is called {name!r}"
