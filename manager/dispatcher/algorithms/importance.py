"""`python -m proctor.manager.dispatcher.algorithms.importance`: how much each parameter matters.

A process of its own, which the manager starts: Optuna's PED-ANOVA, of trials that come as JSON on stdin, the answer as
JSON on stdout. It ends at its time limit, and when its parent does.

The parameters of nested choices have their names in the table of trials (`model.width`). Where branches have the same
name, each is a regime of that parameter: conditional PED-ANOVA compares trials of one regime with each other.
"""

import argparse
import json
import math
import os
import signal
import sys
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.trial import TrialState, create_trial

from proctor.manager.dispatcher.algorithms.catalog import ADDED_PARAMETERS
from proctor.manager.dispatcher.algorithms.tuners.flat_space import FlatAxis, FlatSpace, OptunaDistribution
from proctor.manager.dispatcher.algorithms.tuners.optuna_study import distribution_of
from proctor.sdk.client.flattening import flatten
from proctor.sdk.space import NestedChoice, Parameter, SearchSpaceError, parse_search_space

LEAST_TRIALS = 10
"""With a value: of fewer nothing can be said."""
_LOGARITHMIC_RATIO = 1000.0
"""An axis whose range is not known is logarithmic when its greatest value is so many times its least one."""
_MOST_WORDS = 100
"""Different values of an axis without an order; one with more is a name or an id, and is left out."""
_PARENT_CHECK_SECONDS = 0.5

_distribution = cache(distribution_of)


@dataclass(frozen=True)
class _Point:
    """A trial: its values by axis with the distributions of these, and what is to be minimized."""

    values: dict[str, Any]
    distributions: dict[str, OptunaDistribution]
    loss: float


def importances(question: Mapping[str, Any]) -> dict[str, Any]:
    """Answer a question: `search_space`, `key` (of the final metrics; None: their number), `quantile`, `maximize`, and
    `trials`, each with its parameters, its final number and its final metric.

    The answer has `trials` (how many have been compared), `outside` (how many were left out because they are outside of
    the search space), `top` (how many of them are the best), `parameters` (name and share of the sum, the greatest
    first), and `reason`: why there are none.
    """
    valued = list(_valued(question))
    points, outside = _points(question["search_space"], valued)
    answer = {"trials": len(points), "outside": outside, "top": 0, "parameters": [], "reason": None}
    if len(points) < LEAST_TRIALS:
        return answer | {"reason": _too_few(question["key"], len(valued), len(points))}
    losses = sorted(point.loss for point in points)
    limit = losses[math.ceil(question["quantile"] * len(losses)) - 1]
    answer["top"] = sum(loss <= limit for loss in losses)
    if losses[0] == losses[-1]:
        return answer | {"reason": f"all {len(points)} trials have the same value"}
    if answer["top"] == len(points):
        return answer | {"reason": "so many trials have the worst value that it is among the best, too"}
    found = _evaluate(points, question["quantile"])
    total = sum(found.values())
    if not total > 0:
        return answer | {"reason": "no parameter has more than one value in the trials"}
    shares = sorted(((name, value / total) for name, value in found.items()), key=lambda each: (-each[1], each[0]))
    return answer | {"parameters": [{"name": name, "importance": share} for name, share in shares]}


def _valued(question: Mapping[str, Any]) -> Iterator[tuple[Any, float]]:
    """Parameters and loss of the trials that have a finite value."""
    key = question["key"]
    for parameters, number, metric in question["trials"]:
        value = number if key is None else flatten(metric).get(key) if isinstance(metric, dict) else None
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            yield parameters, -float(value) if question["maximize"] else float(value)


def _too_few(key: str | None, valued: int, points: int) -> str:
    what = "a final metric" if key is None else f"a number named {key!r} in their final metric"
    inside = "" if valued == points else f" and parameters of the search space ({valued} have one in all)"
    have = "1 trial that succeeded has" if points == 1 else f"{points} trials that succeeded have"
    return f"too few trials: {have} {what}{inside}, and at least {LEAST_TRIALS} are needed"


def _evaluate(points: Sequence[_Point], quantile: float) -> dict[str, float]:
    study = optuna.create_study(direction="minimize")
    study.add_trials(
        [
            create_trial(
                state=TrialState.COMPLETE, value=point.loss, params=point.values, distributions=point.distributions
            )
            for point in points
        ]
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that regimes have few trials
        return dict(PedAnovaImportanceEvaluator(target_quantile=quantile).evaluate(study))


# ---- axes -----------------------------------------------------------------------------------------------------------


def _points(search_space: Any, trials: Sequence[tuple[Any, float]]) -> tuple[list[_Point], int]:
    """The trials on the axes of the search space, and how many are outside of it. Where it is none of ours (a class of
    the user's reads it), or no trial belongs to it, the axes are made of the values that there are."""
    try:
        space = FlatSpace(parse_search_space(search_space, mixed=True))
    except SearchSpaceError:
        return _points_by_values(trials), 0
    names = dict(_names(space.space.parameters))
    added = ADDED_PARAMETERS - set(space.space.parameters)
    found = []
    for parameters, loss in trials:
        try:
            flat = space.flatten({name: parameters[name] for name in parameters if name not in added})
        except (ValueError, TypeError, AttributeError, KeyError):
            continue
        axes: list[FlatAxis] = space.axes_of(flat)
        values = {names[axis.name]: flat[axis.name] for axis in axes}
        found.append(_Point(values, {names[axis.name]: _distribution(axis) for axis in axes}, loss))
    return (found, len(trials) - len(found)) if found else (_points_by_values(trials), 0)


def _names(parameters: Mapping[str, Parameter], flat: str = "", dotted: str = "") -> Iterator[tuple[str, str]]:
    """The name in the table of trials of every axis."""
    for name, parameter in parameters.items():
        yield flat + name, dotted + name
        if isinstance(parameter, NestedChoice):
            for number, branch in enumerate(parameter.branches):
                yield from _names(branch.parameters, f"{flat}{name}/{number}/", f"{dotted}{name}.")


def _points_by_values(trials: Sequence[tuple[Any, float]]) -> list[_Point]:
    rows = [(flatten(parameters), loss) for parameters, loss in trials if isinstance(parameters, dict)]
    distributions: dict[str, OptunaDistribution] = {}
    for name in dict.fromkeys(name for row, _ in rows for name in row):
        found = _distribution_by_values([row[name] for row, _ in rows if name in row])
        if found is not None:
            distributions[name] = found
    points = []
    for row, loss in rows:
        values = {name: _as_value(row[name], distributions[name]) for name in row if name in distributions}
        points.append(_Point(values, {name: distributions[name] for name in values}, loss))
    return points


def _distribution_by_values(values: Sequence[Any]) -> OptunaDistribution | None:
    if all(_is_number(value) for value in values):
        low, high = float(min(values)), float(max(values))
        return FloatDistribution(low, high, log=low > 0 and high >= low * _LOGARITHMIC_RATIO)
    words = Counter(json.dumps(value, sort_keys=True) for value in values)
    return CategoricalDistribution(sorted(words)) if len(words) <= _MOST_WORDS else None


def _as_value(value: Any, distribution: OptunaDistribution) -> Any:
    return float(value) if isinstance(distribution, FloatDistribution) else json.dumps(value, sort_keys=True)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# ---- the process ----------------------------------------------------------------------------------------------------


def _leave_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_PARENT_CHECK_SECONDS)
    os._exit(1)


def main() -> None:
    """Read, answer, leave."""
    parser = argparse.ArgumentParser(description="Started by the manager.", allow_abbrev=False)
    parser.add_argument("--parent", type=int, required=True, help="the process id of the manager")
    parser.add_argument("--seconds", type=int, required=True, help="the time limit")
    options = parser.parse_args()
    signal.alarm(options.seconds)
    threading.Thread(target=_leave_with_parent, args=(options.parent,), name="parent", daemon=True).start()
    os.nice(10)
    json.dump(importances(json.load(sys.stdin)), sys.stdout)


if __name__ == "__main__":
    main()
