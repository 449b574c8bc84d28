"""Hyperband and BOHB: which trials a bracket has, when they can begin, and what a trial without a value changes."""

import math
from statistics import NormalDist, pstdev

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proctor.manager.dispatcher.algorithms.base import SpaceExhausted
from proctor.manager.dispatcher.algorithms.registry import create_algorithm
from proctor.manager.dispatcher.algorithms.tuners.bohb import _Density
from proctor.manager.dispatcher.algorithms.tuners.hyperband import bracket_rungs, most_halvings
from proctor.sdk.space import parse_search_space

SPACE = {"x": {"_type": "uniform", "_value": [0, 1]}}
TABLES = {
    (60, 3): [[(27, 2), (9, 6), (3, 20), (1, 60)], [(12, 6), (4, 20), (1, 60)], [(6, 20), (2, 60)], [(4, 60)]],
    (81, 3): [
        [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        [(34, 3), (11, 9), (3, 27), (1, 81)],
        [(15, 9), (5, 27), (1, 81)],
        [(8, 27), (2, 81)],
        [(5, 81)],
    ],
    (16, 2): [
        [(16, 1), (8, 2), (4, 4), (2, 8), (1, 16)],
        [(10, 2), (5, 4), (2, 8), (1, 16)],
        [(7, 4), (3, 8), (1, 16)],
        [(5, 8), (2, 16)],
        [(5, 16)],
    ],
}
"""What NNI's formulas give; for R=81 that is the table of the paper, but for the rounding up of 33.75 and 7.5."""


def make(name="Hyperband", space=SPACE, seed=7, **class_args):
    algorithm = create_algorithm("tuner", name, class_args, seed)
    algorithm.update_search_space(parse_search_space(space))
    return algorithm


class Trials:
    """Runs an algorithm's trials: ids count from 0, and a value is a function of hyperparameters and budget."""

    def __init__(self, algorithm, value=lambda x, budget: x):
        self.algorithm, self.value = algorithm, value
        self.suggestions = {}

    def suggest(self):
        parameter_id = len(self.suggestions)
        suggestion = self.algorithm.suggest(parameter_id)
        self.suggestions[parameter_id] = suggestion
        return parameter_id

    def suggest_all(self):
        found = []
        while True:
            try:
                found.append(self.suggest())
            except SpaceExhausted:
                return found

    def budget(self, parameter_id):
        return self.suggestions[parameter_id].parameters["TRIAL_BUDGET"]

    def finish(self, *ids, value=None):
        for parameter_id in ids:
            parameters = self.suggestions[parameter_id].parameters
            found = self.value(parameters["x"], parameters["TRIAL_BUDGET"]) if value is None else value
            self.algorithm.receive_result(parameter_id, parameters, found)
            self.algorithm.trial_end(parameter_id, True)

    def fail(self, *ids):
        for parameter_id in ids:
            self.algorithm.trial_end(parameter_id, False)


@pytest.mark.parametrize(("largest", "eta"), TABLES)
def test_the_brackets_are_nnis(largest, eta):
    most = most_halvings(eta, 1, largest)
    assert [
        [(rung.size, rung.budget) for rung in bracket_rungs(halvings, most, eta, largest)]
        for halvings in range(most, -1, -1)
    ] == TABLES[largest, eta]


@pytest.mark.parametrize(("largest", "eta"), TABLES)
def test_serial_brackets_come_one_after_the_other_and_begin_again_after_the_last(largest, eta):
    trials = Trials(make(R=largest, eta=eta, exec_mode="serial"))
    for bracket in TABLES[largest, eta] * 2:
        for size, budget in bracket:
            ids = trials.suggest_all()
            assert [trials.budget(each) for each in ids] == [budget] * size
            trials.finish(*ids)


def test_the_best_of_a_rung_are_proposed_again_with_a_larger_budget_the_best_first():
    trials = Trials(make(R=9, exec_mode="serial", optimize_mode="minimize"))
    first = trials.suggest_all()
    trials.finish(*reversed(first))
    second = trials.suggest_all()
    best = sorted(first, key=lambda each: trials.suggestions[each].parameters["x"])[:3]
    assert [trials.suggestions[each].parent for each in first] == [None] * 9
    assert [trials.suggestions[each].parent for each in second] == best
    for parent, each in zip(best, second, strict=True):
        parameters = trials.suggestions[each].parameters
        assert parameters == {"x": trials.suggestions[parent].parameters["x"], "TRIAL_BUDGET": 3}


def test_equal_values_are_ranked_in_the_order_of_the_proposals():
    trials = Trials(make(R=9, exec_mode="serial"), value=lambda x, budget: 1.0)
    trials.finish(*reversed(trials.suggest_all()))
    assert [trials.suggestions[each].parent for each in trials.suggest_all()] == [0, 1, 2]


def test_in_parallel_the_next_bracket_begins_while_the_former_one_waits_and_the_former_one_comes_first():
    trials = Trials(make(R=9))
    first = [trials.suggest() for _ in range(9)]
    assert trials.budget(trials.suggest()) == 3  # of the second bracket, which has 5 of them
    trials.finish(*first)
    promoted = [trials.suggest() for _ in range(3)]
    assert all(trials.suggestions[each].parent in first for each in promoted)
    rest = [trials.suggest() for _ in range(4)]
    assert [(trials.budget(each), trials.suggestions[each].parent) for each in rest] == [(3, None)] * 4
    assert trials.budget(trials.suggest()) == 9  # the third bracket


def test_trials_without_a_value_block_nothing_and_are_not_proposed_again():
    trials = Trials(make(R=9, exec_mode="serial"))
    first = trials.suggest_all()
    trials.fail(*first[:3])
    trials.finish(*first[3:7], value=math.nan)
    trials.finish(*first[7:])
    second = trials.suggest_all()
    assert {trials.suggestions[each].parent for each in second} == {*first[7:]}  # two in a rung of three
    trials.fail(*second)
    assert [trials.budget(each) for each in trials.suggest_all()] == [3] * 5  # the next bracket


def test_results_of_a_users_trial_are_part_of_no_bracket():
    trials = Trials(make(R=9, exec_mode="serial"))
    first = trials.suggest_all()
    trials.algorithm.accept_customized(900, {"x": 0.5})
    trials.algorithm.receive_result(900, {"x": 0.5}, 1e9)
    trials.algorithm.trial_end(900, True)
    trials.finish(*first)
    assert 900 not in {trials.suggestions[each].parent for each in trials.suggest_all()}


def test_after_a_new_search_space_only_what_belongs_to_it_is_proposed():
    trials = Trials(make(R=9, exec_mode="serial"))
    first = trials.suggest_all()
    trials.finish(*first)  # the three greatest are waiting
    trials.algorithm.update_search_space(parse_search_space({"x": {"_type": "uniform", "_value": [0, 0.01]}}))
    ids = trials.suggest_all()
    assert [trials.budget(each) for each in ids] == [3] * 5
    assert all(trials.suggestions[each].parameters["x"] <= 0.01 for each in ids)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["Hyperband", "BOHB"]),
    st.integers(2, 4),
    st.integers(1, 4),
    st.integers(4, 40),
    st.sampled_from(["parallelism", "serial"]),
    st.randoms(use_true_random=False),
)
def test_every_bracket_ends_whatever_becomes_of_its_trials(name, eta, smallest, largest, mode, rng):
    own = (
        {"R": largest, "exec_mode": mode}
        if name == "Hyperband"
        else {"min_budget": smallest, "max_budget": largest, "num_samples": 2}
    )
    algorithm = make(name, eta=eta, **own)
    trials, running = Trials(algorithm), []
    while len(trials.suggestions) < 150:
        if len(running) < 8:
            try:
                running.append(trials.suggest())
                continue
            except SpaceExhausted:
                assert running
        ended = running.pop(rng.randrange(len(running)))
        rng.choice([trials.fail, trials.finish])(ended)
    budgets = {trials.budget(each) for each in trials.suggestions}
    assert min(budgets) >= (1 if name == "Hyperband" else smallest)
    assert max(budgets) <= largest


def test_bohb_plays_the_brackets_between_its_budgets():
    trials = Trials(make("BOHB"))  # NNI's defaults
    first = [trials.suggest() for _ in range(3)]
    trials.finish(*first)
    second = trials.suggest()
    assert ([trials.budget(each) for each in first], trials.budget(second)) == ([1, 1, 1], 3)
    assert trials.suggestions[second].parent in first
    assert most_halvings(3, 2, 20) == 2  # 20, 6, 2


def spread(trials):
    return [abs(trials.suggestions[each].parameters["x"] - 0.7) for each in trials.suggestions]


def test_bohb_proposes_near_good_results_of_the_largest_budget_that_has_enough():
    algorithm = make("BOHB", random_fraction=0.0, min_budget=1, max_budget=9)
    for step in range(41):
        algorithm.import_data({"x": step / 40, "TRIAL_BUDGET": 1}, step / 40)  # misleading
        algorithm.import_data({"x": step / 40}, -abs(step / 40 - 0.7))  # without a budget: of a whole training
    trials = Trials(algorithm)
    for _ in range(20):
        trials.suggest()
    assert max(spread(trials)) < 0.25


def test_bohb_draws_at_random_until_a_budget_has_enough_results():
    algorithm, other = make("BOHB", random_fraction=0.0), make("BOHB", random_fraction=1.0)
    for x in (0.1, 0.2, 0.3):  # one parameter: at least two are good, and two more are needed
        algorithm.import_data({"x": x}, x)
    algorithm.import_data({"x": 0.4}, math.nan)
    assert algorithm.suggest(0) == other.suggest(0)
    algorithm.import_data({"x": 0.4}, 0.4)
    assert algorithm.suggest(1) != other.suggest(1)


def test_the_density_is_the_product_of_its_kernels():
    axes = [*parse_search_space({**SPACE, "kind": {"_type": "choice", "_value": ["a", "b", "c"]}}).parameters.values()]
    a, b, c = 1 / 6, 3 / 6, 5 / 6
    points = [(0.2, a), (0.3, a), (0.7, b), (0.4, a)]
    rule = 1.06 * 4 ** (-1 / 6)
    width, other = rule * pstdev([0.2, 0.3, 0.7, 0.4]), rule * math.sqrt((1 - 0.75**2 - 0.25**2) / 2)

    def expected(x, option):
        kernels = [NormalDist(at, width).pdf(x) * (1 - other if its == option else other / 2) for at, its in points]
        return sum(kernels) / 4

    density = _Density(axes, points, 1e-3)
    for point in [(0.1, a), (0.5, b), (0.9, c)]:
        assert density.at(point) / density.at((0.3, b)) == pytest.approx(expected(*point) / expected(0.3, b))


def test_bohb_models_choices_without_an_order():
    space = {**SPACE, "kind": {"_type": "choice", "_value": ["a", "b", "c", "d"]}}
    algorithm = make("BOHB", space, random_fraction=0.0)
    for step in range(40):
        kind = "abcd"[step % 4]
        algorithm.import_data({"x": step / 40, "kind": kind}, float(kind in "ad"))
    found = [algorithm.suggest(each).parameters["kind"] for each in range(30)]
    assert sum(kind in "ad" for kind in found) > 24
