"""The walks of docs/walks.md lead from place to place; the glossary says where nouns are defined."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from checks.sources import fail_for, source_of
from fakes.documentation import ROOT

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

    def __str__(self) -> str:
        return f"stop {self.number}, {self.name}"


@dataclass
class Walk:
    """One walk as it is written."""

    number: int
    counts: list[int] = field(default_factory=list)
    stops: list[Stop] = field(default_factory=list)


@cache
def walks() -> list[Walk]:
    found: list[Walk] = []
    for paragraph in paragraphs((ROOT / "docs/walks.md").read_text(encoding="utf-8")):
        if head := HEAD.match(paragraph):
            found.append(Walk(int(head[1])))
        elif count := COUNT.match(paragraph):
            found[-1].counts.append(int(count[1]))
        elif stop := STOP.match(paragraph):
            found[-1].stops.append(Stop(int(stop[1]), stop[2], stop[3], stop[4]))
        else:
            assert not found, f"neither a head nor a count nor a stop: {paragraph}"
    return found


def paragraphs(text: str) -> Iterator[str]:
    """Paragraphs, heads and items of lists, each in one line."""
    for block in re.split(r"\n\s*\n|\n(?=\d+\. )", text):
        if block.strip():
            yield " ".join(block.split())


@cache
def names_in(file: str) -> frozenset[str]:
    """The names that a module uses or imports."""
    source = source_of(file)
    names = {node.id for node in source.nodes(ast.Name)} | {node.attr for node in source.nodes(ast.Attribute)}
    return frozenset(names | {alias.name for node in source.nodes(ast.Import, ast.ImportFrom) for alias in node.names})


@cache
def used_by(file: str, name: str) -> frozenset[str]:
    """The names of a module that one of them uses, itself or through others of the same module."""
    code, found, todo = source_of(file).code, set[str](), [name]
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
    return module in source_of(caller.file).imports and bool({cls, name} & names_in(caller.file))


def problems_of(walk: Walk) -> Iterator[str]:
    """What is wrong with the way from stop to stop.

    A stop is reached from the one before it or, after returns, from one that led there: together these are the chain
    of callers. `(from 8)` resumes at an earlier stop that has left the chain. `(over HTTP)` and the like go to another
    process, where the chain begins anew; other words in parentheses are for objects and callbacks to which no import
    leads.
    """
    known = {name for each in walk.stops for name in (*names_in(each.file), *source_of(each.file).code)}
    chain = walk.stops[:1]
    chains = {walk.stops[0].number: chain}
    for stop in walk.stops[1:]:
        back = FROM.fullmatch(stop.entered or "")
        words = re.findall(r"`(\w+)`", stop.entered or "")
        yield from (f"{stop}: no file of the walk has {word}" for word in words if word not in known)
        length = next((end for end in range(len(chain), 0, -1) if leads_to(chain[end - 1], stop)), 0)
        if stop.entered and stop.entered.startswith("over "):
            chain, length = [], 0
        elif length and stop.entered:
            yield f"{stop}: it is called; take off ({stop.entered})"
        elif back and int(back[1]) in chains and leads_to(chains[int(back[1])][-1], stop):
            chain = chains[int(back[1])]
        elif back:
            yield f"{stop}: {back[0]} is no earlier stop whose file imports and uses it"
        elif not length and not stop.entered:
            yield f'{stop}: say behind its name how control passes to it: "(over HTTP)", "(from 3)"'
        chain = [*chain[:length], stop] if length else [*chain, stop]
        chains[stop.number] = chain


def test_there_are_six_walks_whose_stops_are_numbered() -> None:
    assert [walk.number for walk in walks()] == [1, 2, 3, 4, 5, 6]
    for walk in walks():
        assert walk.stops
        assert [stop.number for stop in walk.stops] == list(range(1, len(walk.stops) + 1)), f"walk {walk.number}"


def test_every_stop_names_a_place_that_exists() -> None:
    stops = [(walk, stop) for walk in walks() for stop in walk.stops]
    fail_for(f"walk {walk.number}, {stop}: {gone}" for walk, stop in stops if (gone := missing(stop.file, stop.name)))


def missing(file: str, name: str) -> str:
    """What is not there: the file, or the function, method or class in it."""
    if not (ROOT / file).is_file():
        return f"there is no file {file}"
    return "" if name in source_of(file).code else f"{file} has no function, method or class {name}"


def test_every_stop_is_reached_from_an_earlier_one_or_says_how() -> None:
    fail_for(f"walk {walk.number}, {problem}" for walk in walks() for problem in problems_of(walk))


def test_a_walk_says_how_many_files_its_stops_name() -> None:
    named = {walk.number: [len({stop.file for stop in walk.stops})] for walk in walks()}
    assert {walk.number: walk.counts for walk in walks()} == named


# ---- the glossary ----------------------------------------------------------------------------------------------------


def read_terms() -> list[tuple[str, str, bool]]:
    """The rows of the glossary's second part: the name, its file, and whether it is a class."""
    part = (ROOT / "docs/glossary.md").read_text(encoding="utf-8").partition("\n## Modules and classes\n")[2]
    rows = [
        line for line in part.splitlines() if line.startswith("|") and not re.match(r"\| (name|word) \||\|---", line)
    ]
    found = [(row, TERM.match(row)) for row in rows]
    fail_for((row for row, match in found if match is None), "not rows of name, meaning and place:")
    return [(match[2], match[3], match[1] == "`") for _, match in found if match is not None]


def test_the_glossary_explains_each_noun_of_the_code_once() -> None:
    names = Counter(name for name, _, _ in read_terms())
    assert len(names) > 80
    fail_for(name for name, count in names.items() if count > 1)


def names_for(word: str) -> set[str]:
    """What a class, function or module that a word of the glossary stands for may be called."""
    snake = word.replace(" ", "_").lower()
    return {snake, f"{snake}s", word.title().replace(" ", "")}


def test_the_glossary_says_where_each_noun_of_the_code_is_defined() -> None:
    fail_for(problem for term in read_terms() if (problem := problem_of_term(*term)))


def problem_of_term(name: str, file: str, is_class: bool) -> str:
    if is_class or not (ROOT / file).is_file():
        return missing(file, name)
    modules = {part.removesuffix(".py") for part in Path(file).parts[1:]}
    public = {last for found in source_of(file).code if not (last := found.rpartition(".")[2]).startswith("_")}
    is_named = names_for(name) & (modules | public)
    return "" if is_named else f"{file} has no class, function or module that is called {name!r}"
