"""From the mapping in a file to a `SearchSpace`, with every problem named at once."""

import difflib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from proctor.sdk.space.choices import Branch, Choice, NestedChoice, canonical
from proctor.sdk.space.parameters import (
    MOST_DEVIATIONS,
    Normal,
    Parameter,
    RandInt,
    SearchSpaceError,
    SpaceProblem,
    Uniform,
    is_number,
)
from proctor.sdk.space.search_space import SearchSpace, SpacePath

ARGUMENTS: dict[str, tuple[str, ...]] = {
    "choice": ("options",),
    "randint": ("low", "high"),
    "uniform": ("low", "high"),
    "quniform": ("low", "high", "q"),
    "loguniform": ("low", "high"),
    "qloguniform": ("low", "high", "q"),
    "normal": ("mu", "sigma"),
    "qnormal": ("mu", "sigma", "q"),
    "lognormal": ("mu", "sigma"),
    "qlognormal": ("mu", "sigma", "q"),
}
"""Every `_type` and what its `_value` lists."""


class _Choices(NamedTuple):
    """How choices are read; see `parse_search_space`."""

    nested: bool = True
    mixed: bool = False

    def are_nested(self, named: Sequence[bool]) -> bool:
        """Whether a choice is a nested one, or meant to be.

        :param named: of each of its options, whether it has a `_name`.
        """
        return self.nested and (all(named) if self.mixed else any(named))


def parse_search_space(mapping: Any, *, nested: bool = True, mixed: bool = False) -> SearchSpace:
    """Read a search space as NNI writes it: `{name: {"_type": ..., "_value": [...]}}`.

    Raises SearchSpaceError with all problems found, not only the first.

    :param nested: whether a choice of mappings with `_name` is a nested one; if not, its options are plain values.
    :param mixed: whether a choice of which only some options have a `_name` is one of plain values, as in earlier
        versions; if not, it is a problem.
    """
    problems: list[SpaceProblem] = []
    parameters = _read_parameters((), mapping, problems, _Choices(nested, mixed))
    if problems:
        raise SearchSpaceError(problems)
    return SearchSpace(parameters)


def _read_parameters(
    path: SpacePath, mapping: Any, problems: list[SpaceProblem], choices: _Choices
) -> dict[str, Parameter]:
    if not isinstance(mapping, Mapping):
        problems.append(SpaceProblem(path, f"expected a mapping of parameter names, found {_shown(mapping)}"))
        return {}
    if not mapping and not path:
        problems.append(SpaceProblem(path, "the search space is empty; give at least one parameter"))
    parameters: dict[str, Parameter] = {}
    for name, spec in mapping.items():
        if not isinstance(name, str):
            problems.append(SpaceProblem((*path, str(name)), f"a parameter name must be text, found {_shown(name)}"))
            continue
        parameter = _read_parameter((*path, name), spec, problems, choices)
        if parameter is not None:
            parameters[name] = parameter
    return parameters


def _read_parameter(path: SpacePath, spec: Any, problems: list[SpaceProblem], choices: _Choices) -> Parameter | None:
    kind, value = _type_and_value(path, spec, problems)
    if kind is None:
        return None
    if not isinstance(value, (list, tuple)):
        problems.append(SpaceProblem((*path, "_value"), f"expected a list, found {_shown(value)}"))
        return None
    if kind == "choice":
        return _read_choice((*path, "_value"), value, problems, choices)
    names = ARGUMENTS[kind]
    if len(value) != len(names):
        wanted = f"{len(names)} numbers [{', '.join(names)}]"
        problems.append(SpaceProblem((*path, "_value"), f"{kind} takes {wanted}, found {len(value)}"))
        return None
    found = len(problems)
    for index, (name, number) in enumerate(zip(names, value, strict=True)):
        if not is_number(number):
            problems.append(SpaceProblem((*path, "_value", index), _not_a_number(kind, name, number)))
    return _read_numeric(path, kind, tuple(value), problems) if len(problems) == found else None


def _type_and_value(path: SpacePath, spec: Any, problems: list[SpaceProblem]) -> tuple[str | None, Any]:
    if not isinstance(spec, Mapping):
        wanted = "expected a mapping with _type and _value"
        problems.append(SpaceProblem(path, f"{wanted}, found {_shown(spec)}"))
        return None, None
    found = len(problems)
    for key in spec:
        if key not in ("_type", "_value"):
            problems.append(SpaceProblem((*path, str(key)), f"unknown key {key!r}; a parameter has _type and _value"))
    for key in ("_type", "_value"):
        if key not in spec:
            problems.append(SpaceProblem(path, f"{key} is missing; a parameter has _type and _value"))
    kind = spec.get("_type")
    if "_type" in spec and (not isinstance(kind, str) or kind not in ARGUMENTS):
        problems.append(SpaceProblem((*path, "_type"), _unknown_type(kind)))
    return (None, None) if len(problems) > found else (kind, spec["_value"])


def _read_choice(path: SpacePath, options: Any, problems: list[SpaceProblem], choices: _Choices) -> Parameter | None:
    if not options:
        problems.append(SpaceProblem(path, "a choice needs at least one option"))
        return None
    named = [isinstance(option, Mapping) and "_name" in option for option in options]
    if not choices.are_nested(named):
        return Choice(tuple(options))
    if not all(named):
        advice = "give every option a _name (a nested choice) or none (plain values)"
        for index in (index for index, is_named in enumerate(named) if not is_named):
            wanted = (
                f"expected a mapping with _name, as other options of this choice are, found {_shown(options[index])}"
            )
            problems.append(SpaceProblem((*path, index), f"{wanted}; {advice}"))
        return None
    branches = []
    for index, option in enumerate(options):
        children = {key: spec for key, spec in option.items() if key != "_name"}
        branches.append(Branch(option["_name"], _read_parameters((*path, index), children, problems, choices)))
    names: set[str] = set()
    for index, branch in enumerate(branches):
        if canonical(branch.name) in names:
            problems.append(SpaceProblem((*path, index, "_name"), f"{branch.name!r} is the name of two branches"))
        names.add(canonical(branch.name))
    return NestedChoice(tuple(branches))


def _read_numeric(
    path: SpacePath, kind: str, value: tuple[float, ...], problems: list[SpaceProblem]
) -> Parameter | None:
    first, second = value[0], value[1]
    q = value[2] if len(value) == 3 else None
    found = len(problems)
    if q is not None and q <= 0:
        problems.append(SpaceProblem((*path, "_value", 2), f"the step q of {kind} must be above 0, found {q}"))
    if kind.endswith("normal"):
        if second <= 0:
            problems.append(SpaceProblem((*path, "_value", 1), f"sigma of {kind} must be above 0, found {second}"))
    else:
        problems.extend(_range_problems((*path, "_value"), kind, first, second))
    if len(problems) == found:
        problems.extend(_precision_problems((*path, "_value"), kind, first, second, q))
    if len(problems) > found:
        return None
    log = "log" in kind
    if kind == "randint":
        return RandInt(math.ceil(first), math.ceil(second))
    return Normal(first, second, log, q) if kind.endswith("normal") else Uniform(first, second, log, q)


def _range_problems(path: SpacePath, kind: str, low: float, high: float) -> list[SpaceProblem]:
    problems = []
    if "log" in kind and low <= 0:
        problems.append(SpaceProblem((*path, 0), f"the low end of {kind} must be above 0, found {low}"))
    if low > high:
        problems.append(SpaceProblem(path, f"low must not be above high, found {low} > {high}; swap them"))
    elif kind == "randint" and math.ceil(low) >= math.ceil(high):
        problems.append(SpaceProblem(path, f"randint [{low}, {high}) contains no integer; high is not included"))
    return problems


def _precision_problems(path: SpacePath, kind: str, first: float, second: float, q: float | None) -> list[SpaceProblem]:
    """What float arithmetic cannot do: a range without a finite width, or steps that cannot be counted."""
    low, high = (first, second)
    if kind.endswith("normal"):
        reach = MOST_DEVIATIONS * float(second)
        low, high = (0.0, 0.0) if "log" in kind else (first - reach, first + reach)
    width = float(high) - float(low)
    if not math.isfinite(width):
        return [SpaceProblem(path, f"{kind} {[first, second]} exceeds the range of floating-point numbers")]
    farthest = max(abs(low), abs(high), width)
    if q is not None and not math.isfinite(farthest / q):
        return [SpaceProblem((*path, 2), f"the step q of {kind} is too small for its range, found {q}")]
    return []


def _unknown_type(kind: Any) -> str:
    near = difflib.get_close_matches(str(kind).lower(), ARGUMENTS, n=1, cutoff=0.5)
    advice = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(ARGUMENTS)}"
    return f"unknown _type {_shown(kind)}; {advice}"


def _not_a_number(kind: str, name: str, value: Any) -> str:
    hint = ""
    if isinstance(value, str):
        try:
            hint = f"; write it without quotes, or as {float(value)!r}"
        except ValueError:
            hint = ""
    return f"{name} of {kind} must be a finite number, found {_shown(value)}{hint}"


def _shown(value: Any) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 60 else text[:57] + '...'}"
