"""Every built-in tuner is a function of its inputs, and `restore` takes the place of `suggest`."""

import json
import math
import random
import warnings

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from proctor.manager.dispatcher.algorithms.base import SpaceExhausted, Suggestion
from proctor.manager.dispatcher.algorithms.catalog import ADDED_PARAMETERS, BUILTINS
from proctor.manager.dispatcher.algorithms.registry import check_algorithm, create_algorithm
from proctor.sdk.space import parse_search_space


def axis(kind, *value):
    return {"_type": kind, "_value": list(value)}


FLAT = {"a": axis("uniform", 0, 1), "b": axis("choice", "x", "y", 3), "c": axis("randint", 0, 9)}
SPACES = {
    "flat": FLAT,
    "stepped": {"a": axis("quniform", 0, 10, 2.5), "b": axis("qloguniform", 1, 100, 5), "c": axis("loguniform", 1, 9)},
    "finite": {"a": axis("choice", 1, 2, 3), "b": axis("randint", 0, 3)},
    "single": {"a": axis("choice", "only"), "b": axis("uniform", 2, 2), "c": axis("uniform", 0, 1)},
    "normal": {
        "a": axis("normal", 0, 1),
        "b": axis("lognormal", 0, 1),
        "c": axis("qnormal", 5, 2, 1),
        "d": axis("qlognormal", 1, 1, 2),
    },
    "nested": {
        "layer": axis(
            "choice",
            {"_name": "none"},
            {"_name": "conv", "width": axis("choice", 1, 3), "inner": axis("choice", {"_name": "z", "r": FLAT["a"]})},
        ),
        "rate": axis("uniform", 0, 1),
    },
    "batch": {"sets": axis("choice", {"x": 1}, {"x": 2}, {"x": 2}, {"x": 3})},
}
ARGUMENTS = {
    "TPE": {"tpe_args": {"n_startup_jobs": 3}},
    "GP": {"cold_start_num": 3},
    "Evolution": {"population_size": 3},
    "Hyperband": {"R": 4, "eta": 2},
    "BOHB": {"eta": 2},
    "PBT": {"population_size": 3},
}
REPEATING = ("Hyperband", "BOHB", "PBT")
"""Tuners of which several trials have the same hyperparameters."""
TUNERS = [builtin.name for builtin in BUILTINS if builtin.kind == "tuner"]
ABLE = [
    (name, space)
    for name in TUNERS
    for space, mapping in SPACES.items()
    if not check_algorithm("tuner", {"name": name}, parse_search_space(mapping))
]


def make(name, space, seed=7):
    algorithm = create_algorithm("tuner", name, ARGUMENTS.get(name, {}), seed)
    algorithm.update_search_space(parse_search_space(SPACES[space]))
    return algorithm


class Player:
    """Plays a script on an algorithm and keeps the log from which another one can be brought to the same point."""

    def __init__(self, algorithm, space):
        self.algorithm, self.space = algorithm, space
        self.log, self.running, self.next_id = [], [], 0
        self.suggested = {}  # by place in the log

    def play(self, script):
        for step, number in script:
            getattr(self, step)(number)
        return self

    def suggest(self, _=0):
        parameter_id, self.next_id = self.next_id, self.next_id + 1
        try:
            suggestion = self.algorithm.suggest(parameter_id)
        except SpaceExhausted:
            return None
        stored = json.loads(json.dumps([suggestion.parameters, suggestion.state], allow_nan=False))
        self.suggested[len(self.log)] = found = Suggestion(*stored, suggestion.parent)
        self.log.append(("restore", parameter_id, *stored))
        self.running.append((parameter_id, stored[0]))
        return found

    def finish(self, value):
        if self.running:
            parameter_id, parameters = self.running.pop(0)
            self._do("receive_result", parameter_id, parameters, value)
            self._do("trial_end", parameter_id, True)

    def prune(self, value):
        if self.running:
            parameter_id, parameters = self.running.pop(0)
            self._do("receive_pruned", parameter_id, parameters, value, len(self.log))
            self._do("trial_end", parameter_id, False)

    def pause(self, value):
        if self.running:
            self.running.append(self.running.pop(0))
            self._do("trial_paused", self.running[-1][0], value, len(self.log))

    def fail(self, _):
        if self.running:
            self._do("trial_end", self.running.pop()[0], False)

    def import_one(self, value):
        self._do("import_data", self._foreign(), value)

    def customize(self, _):
        parameter_id, self.next_id = self.next_id, self.next_id + 1
        parameters = self._foreign()
        self._do("accept_customized", parameter_id, parameters)
        self.running.append((parameter_id, parameters))

    def renew(self, _):
        self._do("update_search_space", parse_search_space(SPACES[self.space]))

    def _foreign(self):
        other = parse_search_space(SPACES[self.space])
        drawn = other.sample(random.Random(self.next_id + len(self.log)))
        return drawn["sets"] if type(self.algorithm).__name__ == "BatchTuner" else drawn

    def _do(self, method, *arguments):
        self.log.append((method, *arguments))
        getattr(self.algorithm, method)(*arguments)


values = st.one_of(st.floats(-10, 10), st.sampled_from([math.nan, math.inf, -math.inf]))
steps = st.one_of(
    st.tuples(st.just("suggest"), st.just(0)),
    st.tuples(st.just("suggest"), st.just(0)),
    st.tuples(st.just("finish"), values),
    st.tuples(st.just("finish"), values),
    st.tuples(st.sampled_from(["fail", "customize", "renew"]), st.just(0)),
    st.tuples(st.sampled_from(["import_one", "prune", "pause", "pause"]), values),
)
scripts = st.lists(steps, max_size=25)
SLOW = {"GP"}
ONE_OF_EACH = [("suggest", 0)] * 6 + [
    ("finish", 0.5), ("finish", math.nan), ("finish", -0.25), ("finish", math.inf), ("fail", 0), ("import_one", 0.75),
    ("suggest", 0), ("prune", 0.25),
    ("customize", 0), ("suggest", 0), ("finish", 1.5), ("renew", 0),
]  # fmt: skip
"""A script for tuners that are too slow for many."""
MANY = settings(max_examples=15, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])


def without_added(parameters):
    return {name: value for name, value in parameters.items() if name not in ADDED_PARAMETERS}


def future(player, count=3):
    return [player.suggest() for _ in range(count)]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "space"), ABLE)
def test_the_same_inputs_in_the_same_order_give_the_same_suggestions_after_a_restart_too(name, space):
    def check(script):
        first = Player(make(name, space), space).play(script)
        second = Player(make(name, space), space).play(script)
        restarted = Player(make(name, space), space)
        for method, *arguments in first.log:
            getattr(restarted.algorithm, method)(*arguments)
        restarted.next_id = first.next_id
        state = first.algorithm.state_dict()
        expected = future(first)
        assert future(second) == expected
        assert future(restarted) == expected
        if state is not None:
            loaded = Player(make(name, space), space)
            loaded.algorithm.load_state_dict(json.loads(json.dumps(state, allow_nan=False)))
            assert loaded.algorithm.state_dict() == state
            loaded.next_id = first.next_id - 3
            assert future(loaded) == expected

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if name in SLOW:
            check(ONE_OF_EACH)
        else:
            MANY(given(scripts)(check))()


long_scripts = st.lists(steps, min_size=20, max_size=70)


@pytest.mark.slow
@pytest.mark.parametrize("name", REPEATING)
def test_rungs_and_generations_are_the_same_wherever_the_dispatcher_was_restarted(name):
    def check(script):
        first = Player(make(name, "flat"), "flat").play(script)
        for place, expected in first.suggested.items():
            restarted = make(name, "flat")
            for method, *arguments in first.log[:place]:
                getattr(restarted, method)(*arguments)
            assert restarted.suggest(first.log[place][1]) == expected

    MANY(given(long_scripts)(check))()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "space"), ABLE)
def test_every_suggestion_belongs_to_the_search_space(name, space):
    player = Player(make(name, space), space)
    parsed = parse_search_space(SPACES[space])
    for round_ in range(8):
        suggestion = player.suggest()
        if suggestion is None:
            break
        inside = {"sets": suggestion.parameters} if name == "Batch" else without_added(suggestion.parameters)
        assert parsed.contains(inside)
        player.finish(math.sin(round_))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in TUNERS if name not in ("Batch", *REPEATING)])
def test_a_finite_space_is_used_up_without_repetition(name):
    player = Player(make(name, "finite"), "finite")
    player.import_one(0.5)
    known = {json.dumps(player.log[-1][1], sort_keys=True)}
    while (suggestion := player.suggest()) is not None:
        key = json.dumps(suggestion.parameters, sort_keys=True)
        assert key not in known
        known.add(key)
        player.finish(1.0)
    assert len(known) == 9


@pytest.mark.parametrize("name", [name for name in TUNERS if name not in ("Batch", "GridSearch")])
def test_another_seed_gives_another_search(name):
    assert future(Player(make(name, "flat", seed=1), "flat")) != future(Player(make(name, "flat", seed=2), "flat"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TPE", "CmaEs", "Evolution"])
@pytest.mark.parametrize("mode", ["minimize", "maximize"])
def test_a_tuner_that_learns_comes_close_to_the_optimum(name, mode):
    algorithm = create_algorithm("tuner", name, {**ARGUMENTS.get(name, {}), "optimize_mode": mode}, 3)
    algorithm.update_search_space(parse_search_space({"x": axis("uniform", -5, 5), "y": axis("uniform", -5, 5)}))
    losses = []
    for parameter_id in range(120):
        parameters = algorithm.suggest(parameter_id).parameters
        losses.append((parameters["x"] - 1) ** 2 + (parameters["y"] + 2) ** 2)
        algorithm.receive_result(parameter_id, parameters, losses[-1] if mode == "minimize" else -losses[-1])
        algorithm.trial_end(parameter_id, True)
    assert min(losses) < 0.2
    assert sum(losses[-30:]) < sum(losses[:30]) / 2


@pytest.mark.parametrize("name", ["TPE", "GP", "CmaEs", "Evolution", "Random"])
def test_a_range_of_whole_numbers_may_be_longer_than_any_list(name):
    space = parse_search_space({"x": axis("randint", 0, 10**12)})
    algorithm = create_algorithm("tuner", name, ARGUMENTS.get(name, {}), 3)
    algorithm.update_search_space(space)
    for parameter_id in range(6):
        parameters = algorithm.suggest(parameter_id).parameters
        assert space.contains(parameters)
        assert type(parameters["x"]) is int
        algorithm.receive_result(parameter_id, parameters, float(parameter_id))
