"""The decision vectors of `tests/vectors`, whose README says how they are written."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from proctor.manager.dispatcher.algorithms.schedulers.asha import AshaScheduler
from proctor.manager.dispatcher.algorithms.schedulers.hyperband import BohbScheduler, HyperBandScheduler
from proctor.manager.dispatcher.algorithms.schedulers.median_stopping import MedianStoppingScheduler
from proctor.manager.dispatcher.algorithms.schedulers.pbt import PbtScheduler
from proctor.sdk.scheduler import (
    CloneChoice,
    ContinueVerdict,
    PauseVerdict,
    ResumeChoice,
    StartChoice,
    StopVerdict,
    TrialReport,
    TrialScheduler,
)

VECTORS = Path(__file__).parents[5] / "vectors"
SCHEDULERS = (AshaScheduler, BohbScheduler, HyperBandScheduler, MedianStoppingScheduler, PbtScheduler)
SPACE = {"lr": {"_type": "uniform", "_value": [0.0, 1.0]}}
CASES = [case for path in sorted(VECTORS.glob("*.json")) for case in json.loads(path.read_text())]


def word_of(found: Any) -> str:
    """pause, stop, resume or clone."""
    return type(found).__name__.removesuffix("Verdict").removesuffix("Choice").lower()


def shown(found: Any) -> list[Any]:
    """A verdict or a choice as it is written in a vector, with its reason last."""
    if found is None:
        return [None]
    if isinstance(found, ContinueVerdict | StartChoice):
        return ["continue" if isinstance(found, ContinueVerdict) else "start"]
    if isinstance(found, PauseVerdict | StopVerdict):
        return [word_of(found), found.reason]
    assert isinstance(found, ResumeChoice | CloneChoice)
    donors = [found.donor] if isinstance(found, CloneChoice) else []
    return [word_of(found), found.trial, *donors, found.reason]


def result_of(step: int, value: float | None) -> TrialReport:
    return TrialReport(math.nan if value is None else value, step, seconds=10.0 * step)


def make(scheduler: TrialScheduler, call: list[Any]) -> tuple[Any, Any]:
    """Make one call; what is expected of it and what it returned."""
    name, *args = call
    match name:
        case "result":
            trial, step, value, expected = args
            return expected, shown(scheduler.on_trial_result(trial, result_of(step, value)))
        case "choose":
            return args[1], shown(scheduler.choose_trial_to_run(1, args[0]))
        case "milestone":
            return args[1], [scheduler.next_milestone(args[0])]
        case "stops":
            return sorted(args[0]), sorted(map(list, scheduler.take_stops()))
        case "add":
            scheduler.on_trial_add(args[0], args[1] if len(args) > 1 else {})
        case "complete":
            scheduler.on_trial_complete(args[0], result_of(args[1], args[2]) if len(args) > 1 else None)
        case "clone":
            scheduler.on_trial_clone(*args)
        case _:
            getattr(scheduler, f"on_trial_{name}")(*args)
    return [], []


@pytest.mark.parametrize("case", CASES, ids=[f"{case['scheduler']}: {case['title']}" for case in CASES])
def test_a_scheduler_decides_as_the_vector_says(case):
    scheduler = next(cls for cls in SCHEDULERS if cls.__name__ == case["scheduler"])(**case["arguments"])
    scheduler.set_search_space(SPACE)
    for number, call in enumerate(case["calls"]):
        expected, found = make(scheduler, call)
        if not isinstance(expected, list):
            expected = [expected]
        elif call[0] != "stops" and len(found) < len(expected):
            found = [*found, "(no reason)"]
        compared = found if call[0] == "stops" else found[: len(expected)]
        assert compared == expected, f"call {number}, {call}: found {found}"


def test_every_case_says_where_its_rule_is_from():
    assert all(case["source"] for case in CASES)
