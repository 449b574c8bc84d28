"""Checking `classArgs` against what an algorithm takes."""

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class AlgorithmProblem:
    """One thing wrong with an algorithm's settings. `path` is relative to the algorithm's own mapping; problems of the
    search space with this algorithm start with "search_space"."""

    path: tuple[str | int, ...]
    message: str

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.path))}: {self.message}"


@dataclass(frozen=True)
class Argument:
    """One class argument of a built-in algorithm."""

    name: str
    kind: type
    """bool, int, float, str or dict. A whole number is fine where a float is wanted."""
    default: Any
    description: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    required: bool = False
    optional: bool = False
    """Whether null is allowed."""
    inner: tuple["Argument", ...] = ()
    """What a dict argument may hold."""


_WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: "a mapping"}


def check_arguments(path: tuple[str | int, ...], given: Any, allowed: Iterable[Argument]) -> list[AlgorithmProblem]:
    """Return what is wrong with the arguments `given`; empty if nothing is."""
    if not isinstance(given, Mapping):
        return [AlgorithmProblem(path, f"expected a mapping, found {given!r}")]
    known = {argument.name: argument for argument in allowed}
    problems = [
        AlgorithmProblem((*path, str(name)), unknown_name("argument", str(name), known))
        for name in given
        if name not in known
    ]
    for name, argument in known.items():
        if name in given:
            problems.extend(_check_value((*path, name), given[name], argument))
        elif argument.required:
            problems.append(AlgorithmProblem(path, f"{name} is missing: {argument.description}"))
    return problems


def fill_arguments(given: Mapping[str, Any], allowed: Iterable[Argument]) -> dict[str, Any]:
    """Return all arguments, checked ones as given and the rest by default."""
    filled = {}
    for argument in allowed:
        value = given.get(argument.name, argument.default)
        filled[argument.name] = fill_arguments(value or {}, argument.inner) if argument.inner else value
    return filled


def unknown_name(what: str, name: str, known: Iterable[str]) -> str:
    """Return a sentence that names the nearest known name."""
    names = list(known)
    folded = {candidate.lower().replace("_", ""): candidate for candidate in names}
    near = difflib.get_close_matches(name.lower().replace("_", ""), folded, n=1, cutoff=0.5)
    if near:
        return f"unknown {what} {name!r}; did you mean {folded[near[0]]!r}?"
    return f"unknown {what} {name!r}; " + (f"known are {', '.join(names)}" if names else "none is taken here")


def _check_value(path: tuple[str | int, ...], value: Any, argument: Argument) -> list[AlgorithmProblem]:
    if value is None and argument.optional:
        return []
    if not _has_kind(value, argument.kind):
        return [AlgorithmProblem(path, f"expected {_WORDS[argument.kind]}, found {value!r}")]
    if argument.kind is dict:
        return check_arguments(path, value, argument.inner)
    if argument.choices and value not in argument.choices:
        return [AlgorithmProblem(path, f"expected one of {', '.join(argument.choices)}, found {value!r}")]
    if argument.minimum is not None and value < argument.minimum:
        return [AlgorithmProblem(path, f"must be at least {argument.minimum}, found {value!r}")]
    if argument.maximum is not None and value > argument.maximum:
        return [AlgorithmProblem(path, f"must be at most {argument.maximum}, found {value!r}")]
    return []


def _has_kind(value: Any, kind: type) -> bool:
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if kind is float:
        return isinstance(value, (int, float)) and math.isfinite(value)
    if kind is int:
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return isinstance(value, kind)
