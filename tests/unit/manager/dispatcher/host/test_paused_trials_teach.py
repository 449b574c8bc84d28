"""What a tuner learns from trials that its scheduler pauses."""

import json
from dataclasses import replace
from statistics import median
from typing import Any

import pytest
from fakes.recorded_sessions import CASES, NUMBERS, Case, RecordedExperiment

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.algorithms.catalog import CURRENT_RULES
from proctor.manager.dispatcher.host.session import HostSession

PROMOTION, STOPPING = CASES["asha-promotion-tpe"], CASES["asha-stopping-tpe"]
HYPERBAND = replace(CASES["bohb-tpe"], trials=40)

ANSWERS = {"NewTrial": "new", "ResumeTrial": "resume", "CloneTrial": "clone"}


class Negated(RecordedExperiment):
    """The objective turned round."""

    def _value(self, trial: Any, step: int) -> float:
        return -super()._value(trial, step)


class Limited(RecordedExperiment):
    """Trials take so many steps in all."""

    def __init__(self, case: Case, *, steps: int, seed: int) -> None:
        super().__init__(case, seed=seed, rules=CURRENT_RULES)
        self.best = -1e9
        self._steps = steps

    def _advance(self, trial: Any) -> None:
        if self._steps > 0:
            super()._advance(trial)
        else:
            for each in self._trials.values():
                each.is_running = False
            self._waits = True

    def _value(self, trial: Any, step: int) -> float:
        self._steps -= 1
        value = super()._value(trial, step)
        self.best = max(self.best, value)
        return value


def first_difference(case: Case, *, rules: int = CURRENT_RULES) -> int | None:
    """The first suggestion that is another one where the objective is turned round; None: all are the same."""
    played = []
    for kind in (RecordedExperiment, Negated):
        experiment = kind(case, rules=rules)
        experiment.play()
        played.append(experiment.proposed())
    pairs = enumerate(zip(*played, strict=False))
    return next((number for number, (one, other) in pairs if one != other), None)


def test_tpe_learns_from_paused_trials_as_soon_as_from_stopped_ones():
    stopping, promotion = first_difference(STOPPING), first_difference(PROMOTION)
    assert stopping is not None
    assert promotion is not None
    assert promotion <= stopping


def test_by_the_first_rules_it_learns_only_from_trials_that_have_ended():
    found, before = first_difference(PROMOTION), first_difference(PROMOTION, rules=1)
    assert before is None or before > 2 * (found or 0)


def test_tpe_learns_from_trials_that_wait_for_their_bracket():
    found, before = first_difference(HYPERBAND), first_difference(HYPERBAND, rules=1)
    assert found is not None
    assert before is None or found <= before


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        CASES["asha-stopping-gp"],
        pytest.param(
            replace(CASES["asha-promotion-cmaes"], tuner=("GP", {"cold_start_num": 3})), marks=pytest.mark.thorough
        ),
    ],
    ids=["stopping", "promotion"],
)
def test_gp_learns_from_trials_that_were_stopped_or_paused(case):
    few = replace(case, trials=9)
    assert first_difference(few) is not None
    assert first_difference(few, rules=1) is None


@pytest.mark.thorough
def test_tpe_with_promotion_is_better_than_random_search_with_promotion():
    best: dict[str, list[float]] = {"TPE": [], "Random": []}
    arguments = {"TPE": {"tpe_args": {"n_startup_jobs": 8}}, "Random": {}}
    for seed in range(20):
        for name, found in best.items():
            case = replace(PROMOTION, tuner=(name, arguments[name]), trials=10_000)
            experiment = Limited(case, steps=120, seed=seed + 100)
            experiment.play()
            found.append(experiment.best)
    assert median(best["TPE"]) > median(best["Random"])


def replayed(lines: list[tuple[str, dict[str, Any]]], until: int) -> list[dict[str, Any]]:
    """A session that gets everything again up to a line, with the answers that were given, and continues."""
    answers = {body["position"]: body for way, body in lines[:until] if way == "<" and body["type"] in ANSWERS}
    found: list[dict[str, Any]] = []
    session = HostSession(lambda message: found.append(json.loads(protocol.encode(message))))
    for number, (way, body) in enumerate(lines):
        if way == "<":
            continue
        if number == until:
            found.clear()
        sent = dict(body)
        if number < until and body["type"] == "RequestTrialJobs" and body["position"] in answers:
            answer = answers[body["position"]]
            names = ("parameter_id", "parameters", "state", "trial_id", "donor_trial")
            sent["answers"] = [{name: answer.get(name) for name in names} | {"kind": ANSWERS[answer["type"]]}]
        session.handle(protocol.decode(json.dumps(sent).encode()))
    return found


@pytest.mark.parametrize("name", ["asha-promotion-tpe", "bohb-tpe"])
def test_a_replay_suggests_what_would_have_been_suggested(name):
    experiment = RecordedExperiment(replace(CASES[name], space=NUMBERS), rules=CURRENT_RULES)
    experiment.play()
    lines = experiment.lines
    requests = [number for number, (_, body) in enumerate(lines) if body["type"] == "RequestTrialJobs"]
    for until in requests[:: max(len(requests) // 4, 1)]:
        expected = [body for way, body in lines[until:] if way == "<" and body["type"] != "Milestone"]
        found = [body for body in replayed(lines, until) if body["type"] != "Milestone"]
        assert found == expected, f"from line {until}"
