"""The schedulers against Ray Tune's own, where Ray is installed: the same reports must give the same decisions.

What may differ, and is therefore not generated here:

* NaN: Ray Tune never stops a trial for it; here it is the worst value.
* Crashes: Ray Tune does not count them; here they are the worst values of their rungs.
* Skipped rungs: Ray Tune compares the next result of a trial that reports rarely with values of a lower rung.
* Final metrics: Ray Tune's median rule counts the last value of a finished trial twice.
* Ties: Ray Tune's percentile of a whole rank may lie the last bit off the value that was recorded.
"""

import random
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proctor.manager.dispatcher.algorithms.schedulers.asha import AshaScheduler
from proctor.manager.dispatcher.algorithms.schedulers.median_stopping import MedianStoppingScheduler
from proctor.sdk.scheduler import StopVerdict, TrialReport

ray_schedulers = pytest.importorskip("ray.tune.schedulers")

CONTROLLER = SimpleNamespace(get_live_trials=list, get_trials=list)


class RayTrial:
    """As much of a trial as these schedulers look at; they use it as a key."""

    def __init__(self, number):
        self.trial_id = f"{number:05d}"
        self.status = "RUNNING"


def differences(mine, rays, *, trials, steps, seed):
    """Interleave trials that report every step; the reports on which the two decide differently."""
    rng = random.Random(seed)
    theirs = [RayTrial(number) for number in range(trials)]
    for number, trial in enumerate(theirs):
        mine.on_trial_add(number, {})
        rays.on_trial_add(CONTROLLER, trial)
    step = dict.fromkeys(range(trials), 0)
    running, found = list(range(trials)), []
    while running:
        number = rng.choice(running)
        step[number] += 1
        value = rng.random()
        reported = {"value": value, "training_iteration": step[number]}
        verdict = mine.on_trial_result(number, TrialReport(value, step[number]))
        decision = rays.on_trial_result(CONTROLLER, theirs[number], reported)
        if isinstance(verdict, StopVerdict) != (decision == "STOP"):
            found.append((number, step[number], verdict, decision))
        if decision == "STOP":
            mine.on_trial_remove(number)
            running.remove(number)
        elif step[number] == steps:
            mine.on_trial_complete(number, None)
            running.remove(number)
    return found


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([(100, 1, 4), (81, 1, 3), (64, 4, 4), (20, 2, 2)]),
    st.sampled_from(["max", "min"]),
    st.booleans(),
    st.integers(1, 30),
    st.integers(0, 10_000),
)
def test_asha_stops_the_trials_that_ray_tune_stops(budget, mode, stops_last, trials, seed):
    max_t, grace_period, factor = budget
    common = {"max_t": max_t, "grace_period": grace_period, "reduction_factor": factor, "stop_last_trials": stops_last}
    mine = AshaScheduler(optimize_mode=f"{mode}imize", **common)
    rays = ray_schedulers.AsyncHyperBandScheduler(
        time_attr="training_iteration", metric="value", mode=mode, brackets=1, **common
    )
    assert differences(mine, rays, trials=trials, steps=max_t, seed=seed) == []


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 5), st.integers(1, 4), st.sampled_from(["max", "min"]), st.integers(1, 12), st.integers(0, 10_000)
)
def test_median_stopping_stops_the_trials_that_ray_tune_stops(grace_period, samples, mode, trials, seed):
    common = {"time_attr": "training_iteration", "grace_period": grace_period, "min_samples_required": samples}
    mine = MedianStoppingScheduler(optimize_mode=f"{mode}imize", **common)
    rays = ray_schedulers.MedianStoppingRule(metric="value", mode=mode, **common)
    assert differences(mine, rays, trials=trials, steps=15, seed=seed) == []
