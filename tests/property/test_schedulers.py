"""What holds for every built-in trial scheduler, whatever the trials do."""

import json
import math

import pytest
from fakes.scheduled_trials import SPACE, Conditions, Simulation
from hypothesis import given, settings
from hypothesis import strategies as st

from proctor.manager.dispatcher.algorithms.schedulers.asha import AshaScheduler, Ranking
from proctor.manager.dispatcher.algorithms.schedulers.hyperband import BohbScheduler, HyperBandScheduler
from proctor.manager.dispatcher.algorithms.schedulers.median_stopping import MedianStoppingScheduler
from proctor.manager.dispatcher.algorithms.schedulers.pbt import PbtScheduler
from proctor.sdk.space import parse_search_space

STEPS = "training_iteration"
SCHEDULERS = {
    "asha stopping": lambda: AshaScheduler(max_t=27, reduction_factor=3, seed=7),
    "asha stopping, 3 brackets": lambda: AshaScheduler(max_t=20, reduction_factor=2, brackets=3, seed=7),
    "asha stopping, to the end": lambda: AshaScheduler(max_t=9, reduction_factor=3, stop_last_trials=False),
    "asha promotion": lambda: AshaScheduler(type="promotion", max_t=27, reduction_factor=3, seed=7),
    "asha promotion, 2 brackets": lambda: AshaScheduler(type="promotion", max_t=20, reduction_factor=2, brackets=2),
    "asha promotion, to the end": lambda: AshaScheduler(
        type="promotion", max_t=9, reduction_factor=3, stop_last_trials=False
    ),
    "hyperband": lambda: HyperBandScheduler(max_t=9, seed=7),
    "hyperband, halving": lambda: HyperBandScheduler(max_t=16, reduction_factor=2, optimize_mode="minimize"),
    "hyperband, to the end": lambda: HyperBandScheduler(max_t=9, stop_last_trials=False),
    "bohb": lambda: BohbScheduler(max_t=9, seed=7),
    "median stopping": lambda: MedianStoppingScheduler(time_attr=STEPS, grace_period=2),
    "median stopping, pausing": lambda: MedianStoppingScheduler(grace_period=3.0, hard_stop=False),
    "pbt": lambda: PbtScheduler(time_attr=STEPS, perturbation_interval=3, population_size=6, seed=7),
    "pbt by seconds": lambda: PbtScheduler(
        perturbation_interval=4.0, burn_in_period=9.0, quantile_fraction=0.5, population_size=4
    ),
    "pbt, synchronous": lambda: PbtScheduler(
        time_attr=STEPS, perturbation_interval=4, synch=True, population_size=6, seed=7
    ),
    "pbt, synchronous, large": lambda: PbtScheduler(
        time_attr=STEPS, perturbation_interval=4, synch=True, population_size=99, optimize_mode="minimize"
    ),
}
ENDS = {"asha promotion": 27, "asha promotion, 2 brackets": 20, "asha stopping": 27, "asha stopping, 3 brackets": 20,
        "hyperband": 9, "hyperband, halving": 16, "bohb": 9}  # fmt: skip
shares = st.sampled_from([0.0, 0.2, 0.7])
conditions = st.builds(
    Conditions,
    workers=st.integers(1, 6),
    trials=st.integers(0, 40),
    length=st.sampled_from([1, 12, 30]),
    stride=st.sampled_from([1, 1, 2, 5]),
    overrun=st.sampled_from([0, 0, 1, 3]),
    failing=shares,
    short=shares,
    without_number=shares,
    resumed_by_itself=shares,
    added_by_user=st.integers(0, 3),
    digits=st.sampled_from([6, 1, 0]),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULERS)
@settings(max_examples=20, deadline=None)
@given(conditions, st.integers(0, 10_000))
def test_every_trial_ends_within_its_budget_and_as_if_no_state_had_been_restored(name, conditions, seed):
    simulation = Simulation(SCHEDULERS[name], conditions, seed=seed).run()
    assert simulation.problems == []
    assert all(trial.end is not None for trial in simulation.trials.values())
    assert len(simulation.trials) >= (conditions.trials if "pbt" not in name else min(conditions.trials, 4))
    if "promotion" not in name:
        assert simulation.left_paused == [], "waits for what never comes"
    if name in ENDS:
        most = ENDS[name] + (conditions.overrun + 1) * conditions.stride - 1
        assert all(max(trial.steps, default=0) <= most for trial in simulation.trials.values())
    tables = simulation.scheduler.describe()
    assert all(len(row) == len(table["columns"]) for table in tables for row in table["rows"])
    if name == "asha promotion":
        (table,) = tables
        assert all(promoted <= trials // 3 for _, trials, _, promoted, _ in table["rows"])
    if "pbt" in name:
        space = parse_search_space(SPACE)
        assert all(space.contains(trial.parameters) for trial in simulation.trials.values())
    other = Simulation(SCHEDULERS[name], conditions, seed=seed, replaced=0.1).run()
    assert repr(other.trace) == repr(simulation.trace)  # a text, for NaN equals NaN in it
    assert json.dumps(other.scheduler.state_dict()) == json.dumps(simulation.scheduler.state_dict())


@given(st.lists(st.floats(-5, 5).map(lambda x: round(x, 1)) | st.just(math.inf), min_size=1, max_size=80))
def test_a_ranking_is_a_sorted_list(losses):
    ranking = Ranking(losses[::2], block=5)
    for loss in losses[1::2]:
        ranking.add(loss)
    for each in (ranking, Ranking.unpack(ranking.packed())):
        assert [each.at(index) for index in range(len(losses))] == sorted(losses)
        assert len(each) == len(losses)
    assert [ranking.count_better(loss) for loss in losses] == [sum(x < loss for x in losses) for loss in losses]
