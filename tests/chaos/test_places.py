"""Every fail point of the source is killed at by some test, and told of in the documents."""

import ast
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import get_args

from chaos.places import ELSEWHERE, KILLED_AT, is_elsewhere

from proctor.manager.dispatcher.host import session
from proctor.manager.store.migrations import SchemaName

ROOT = Path(__file__).parents[2]
FOLDERS = ("manager", "sdk", "trial_keeper", "training_services")


@cache
def _trees() -> tuple[ast.Module, ...]:
    texts = (path.read_text("utf-8") for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    return tuple(ast.parse(text) for text in texts if "failpoint" in text or "place=" in text)


def _calls(tree: ast.Module) -> Iterator[ast.Call]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.Call))


@cache
def _files_places() -> tuple[str, ...]:
    """What files are written as."""
    keywords = (keyword for tree in _trees() for call in _calls(tree) for keyword in call.keywords)
    values = [keyword.value for keyword in keywords if keyword.arg == "place"]
    return tuple(str(value.value) for value in values if isinstance(value, ast.Constant))


def _names(argument: ast.expr) -> Iterator[str]:
    """What a fail point is called: one name, or one for every meaning of its placeholders."""
    meanings = {
        "schema": get_args(SchemaName),
        "self._schema": get_args(SchemaName),
        "point": tuple(session._FAILPOINTS.values()),
        "place": _files_places(),
    }
    parts = argument.values if isinstance(argument, ast.JoinedStr) else [argument]
    choices: list[tuple[str, ...]] = []
    for part in parts:
        if isinstance(part, ast.Constant):
            choices.append((str(part.value),))
        else:
            assert isinstance(part, ast.FormattedValue), f"a fail point without a written name: {ast.dump(part)}"
            placeholder = ast.unparse(part.value)
            assert placeholder in meanings, f"say in this test what {{{placeholder}}} stands for in a fail point"
            choices.append(meanings[placeholder])
    return ("".join(choice) for choice in product(*choices))


@cache
def places_in_the_source() -> frozenset[str]:
    found: set[str] = set()
    for tree in _trees():
        for call in _calls(tree):
            if isinstance(call.func, ast.Name) and call.func.id == "failpoint":
                found.update(_names(call.args[0]))
    return frozenset(found)


def test_every_fail_point_is_killed_at() -> None:
    places = places_in_the_source()
    assert len(places) > 60
    here = {place for place in places if not is_elsewhere(place)}
    assert not (new := sorted(here - KILLED_AT)), f"add these to places.py, and kill there: {new}"
    assert not (gone := sorted(KILLED_AT - here)), f"these are in places.py, but nowhere in the source: {gone}"


def test_every_prefix_that_is_left_out_is_one_of_the_source() -> None:
    for prefix in ELSEWHERE:
        assert any(place.startswith(prefix) for place in places_in_the_source()), prefix


def test_every_fail_point_is_in_the_documents() -> None:
    text = (ROOT / "docs" / "nothing-is-lost.md").read_text("utf-8")
    reported = [place for place in KILLED_AT if f"`{place}`" in text or f"`{place.rpartition('.')[0]}`" in text]
    assert sorted(KILLED_AT - set(reported)) == []
