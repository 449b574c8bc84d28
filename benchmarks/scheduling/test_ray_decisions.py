"""The schedulers' decisions against Ray Tune's: the same reports must give the same decisions.

`make bench-peers` installs Ray Tune into an environment of its own and runs this there. What may differ, and is
therefore not generated here:

* NaN: Ray Tune never stops a trial for it; here it is the worst value.
* Crashes: Ray Tune does not count them; here they are the worst values of their rungs.
* Skipped rungs: Ray Tune compares the next result of a trial that reports rarely with values of a lower rung.
* Final metrics: Ray Tune's median rule counts the last value of a finished trial twice.
* Brackets that are not full: Ray Tune keeps as many of their trials as of a full one.
* Ties: Ray Tune's percentile of a whole rank may lie the last bit off the value that was recorded.
"""

import itertools
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, Protocol

from hypothesis import given, settings
from hypothesis import strategies as st
from ray.tune import schedulers as ray_schedulers

from proctor.manager.dispatcher.algorithms.schedulers.asha import AshaScheduler
from proctor.manager.dispatcher.algorithms.schedulers.hyperband import HyperBandScheduler, rays_band
from proctor.manager.dispatcher.algorithms.schedulers.median_stopping import MedianStoppingScheduler
from proctor.manager.dispatcher.algorithms.schedulers.pbt import PbtScheduler
from proctor.sdk.scheduler import (
    CloneChoice,
    ContinueVerdict,
    PauseVerdict,
    ResumeChoice,
    StopVerdict,
    TrialReport,
    TrialScheduler,
)

CONTROLLER = SimpleNamespace(get_live_trials=list, get_trials=list, search_alg=None)


class RayTrial:
    """As much of a trial as these schedulers look at; they use it as a key."""

    def __init__(self, number: int) -> None:
        self.trial_id = f"{number:05d}"
        self.status = "RUNNING"
        self.is_saving = False
        self.experiment_tag = ""
        self.config = {"x": 0.5}
        self.run_metadata = SimpleNamespace(
            checkpoint_manager=SimpleNamespace(checkpoint_config=SimpleNamespace(num_to_keep=None))
        )

    def is_finished(self) -> bool:
        return False


def differences(mine: TrialScheduler, rays: Any, *, trials: int, steps: int, seed: int) -> list[Any]:
    """Interleave trials that report every step; the reports on which the two decide differently."""
    rng = random.Random(seed)
    theirs = [RayTrial(number) for number in range(trials)]
    for number, trial in enumerate(theirs):
        mine.on_trial_add(number, {})
        rays.on_trial_add(CONTROLLER, trial)
    step = dict.fromkeys(range(trials), 0)
    running = list(range(trials))
    found: list[Any] = []
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
def test_asha_stops_the_trials_that_ray_tune_stops(
    budget: tuple[int, int, int], mode: str, stops_last: bool, trials: int, seed: int
) -> None:
    max_t, grace_period, factor = budget
    common: dict[str, Any] = {
        "max_t": max_t,
        "grace_period": grace_period,
        "reduction_factor": factor,
        "stop_last_trials": stops_last,
    }
    mine = AshaScheduler(optimize_mode=f"{mode}imize", **common)
    rays = ray_schedulers.AsyncHyperBandScheduler(
        time_attr="training_iteration", metric="value", mode=mode, brackets=1, **common
    )
    assert differences(mine, rays, trials=trials, steps=max_t, seed=seed) == []


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 5), st.integers(1, 4), st.sampled_from(["max", "min"]), st.integers(1, 12), st.integers(0, 10_000)
)
def test_median_stopping_stops_the_trials_that_ray_tune_stops(
    grace_period: int, samples: int, mode: str, trials: int, seed: int
) -> None:
    common: dict[str, Any] = {
        "time_attr": "training_iteration",
        "grace_period": grace_period,
        "min_samples_required": samples,
    }
    mine = MedianStoppingScheduler(optimize_mode=f"{mode}imize", **common)
    rays = ray_schedulers.MedianStoppingRule(metric="value", mode=mode, **common)
    assert differences(mine, rays, trials=trials, steps=15, seed=seed) == []


class HyperBand(Protocol):
    """A scheduler of one of the two sides."""

    def __init__(self, **arguments: Any) -> None: ...

    def add(self, number: int) -> None: ...
    def resumed(self) -> Iterator[int]: ...
    def leaves(self, number: int, value: float, step: int) -> bool: ...


def play_hyperband(scheduler: HyperBand, qualities: list[float], rng: random.Random) -> dict[int, int]:
    """Give every trial a place at once; how far each has come when it ends."""
    step = dict.fromkeys(range(len(qualities)), 0)
    for number in step:
        scheduler.add(number)
    running = list(step)
    while True:
        running += scheduler.resumed()
        if not running:
            return step
        number = running[rng.randrange(len(running))]
        step[number] += 1
        if scheduler.leaves(number, qualities[number], step[number]):
            running.remove(number)


class MyHyperBand:
    def __init__(self, **arguments: Any) -> None:
        self.scheduler = HyperBandScheduler(ray_brackets=True, **arguments)

    def add(self, number: int) -> None:
        self.scheduler.on_trial_add(number, {})

    def resumed(self) -> Iterator[int]:
        for number, _ in self.scheduler.take_stops():
            self.scheduler.on_trial_remove(number)
        while isinstance(choice := self.scheduler.choose_trial_to_run(0, False), ResumeChoice):
            self.scheduler.on_trial_resume(choice.trial)
            yield choice.trial

    def leaves(self, number: int, value: float, step: int) -> bool:
        verdict = self.scheduler.on_trial_result(number, TrialReport(value, step))
        if isinstance(verdict, StopVerdict):
            self.scheduler.on_trial_remove(number)
        return not isinstance(verdict, ContinueVerdict)


class RaysHyperBand:
    def __init__(self, **arguments: Any) -> None:
        self.scheduler = ray_schedulers.HyperBandScheduler(metric="value", mode="max", **arguments)
        self.trials: dict[int, RayTrial] = {}

    def add(self, number: int) -> None:
        trial = self.trials[number] = RayTrial(number)
        self.scheduler.on_trial_add(self, trial)

    def stop_trial(self, trial: RayTrial) -> None:
        trial.status = "TERMINATED"
        self.scheduler.on_trial_remove(self, trial)

    def resumed(self) -> Iterator[int]:
        # A trial that was added is PENDING until it is chosen; here each one has a place from the beginning.
        while (trial := self.scheduler.choose_trial_to_run(self)) is not None:
            trial.status = "RUNNING"
            yield int(trial.trial_id)

    def leaves(self, number: int, value: float, step: int) -> bool:
        trial = self.trials[number]
        decision = self.scheduler.on_trial_result(self, trial, {"value": value, "training_iteration": step})
        trial.status = {"CONTINUE": "RUNNING", "PAUSE": "PAUSED", "STOP": "TERMINATED"}[decision]
        return bool(decision != "CONTINUE")


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from([(9, 3), (27, 3), (16, 4), (16, 2), (81, 3), (50, 3), (20, 2)]),
    st.integers(1, 7),
    st.integers(0, 10_000),
)
def test_hyperband_trains_each_trial_as_far_as_ray_tune(budget: tuple[int, int], brackets: int, seed: int) -> None:
    max_t, factor = budget
    sizes = itertools.islice(itertools.cycle([size for size, _ in rays_band(max_t, factor)]), brackets)
    rng = random.Random(seed)
    qualities = [rng.random() for _ in range(sum(sizes))]
    kinds: tuple[type[HyperBand], ...] = (MyHyperBand, RaysHyperBand)
    sides = (kind(max_t=max_t, reduction_factor=factor) for kind in kinds)
    mine, rays = (play_hyperband(side, qualities, random.Random(seed)) for side in sides)
    assert mine == rays


class RaysPbt(ray_schedulers.PopulationBasedTraining):
    """Notes which trials are to continue from which, and leaves them as they are."""

    found: set[int] | None = None

    def _checkpoint_or_exploit(
        self, trial: RayTrial, tune_controller: Any, upper_quantile: list[RayTrial], lower_quantile: list[RayTrial]
    ) -> None:
        self.found = {int(each.trial_id) for each in upper_quantile} if trial in lower_quantile else None

    def is_to_exploit(self, trial: RayTrial, reported: dict[str, Any]) -> set[int] | None:
        """The donors among which Ray Tune draws one; None: the trial continues as it is."""
        self.found = None
        self.on_trial_result(CONTROLLER, trial, reported)
        return self.found


@settings(max_examples=100, deadline=None)
@given(
    st.integers(2, 12),
    st.sampled_from([0.125, 0.25, 0.5]),
    st.integers(1, 4),
    st.integers(0, 6),
    st.integers(0, 10_000),
)
def test_pbt_replaces_the_trials_that_ray_tune_replaces(
    population: int, quantile: float, interval: int, burn_in: int, seed: int
) -> None:
    common: dict[str, Any] = {
        "perturbation_interval": interval,
        "burn_in_period": burn_in,
        "quantile_fraction": quantile,
    }
    mine = PbtScheduler(
        time_attr="training_iteration", population_size=population, seed=seed, optimize_mode="maximize", **common
    )
    mine.set_search_space({"x": {"_type": "uniform", "_value": [0, 1]}})
    rays = RaysPbt(
        time_attr="training_iteration", metric="value", mode="max", hyperparam_mutations={"x": [0.1, 0.9]}, **common
    )
    rng, theirs = random.Random(seed), [RayTrial(number) for number in range(population)]
    for number, trial in enumerate(theirs):
        mine.on_trial_add(number, trial.config)
        rays.on_trial_add(CONTROLLER, trial)
    step, compared, replaced = [0] * population, [0] * population, 0
    for _ in range(40 * population):
        number = rng.randrange(population)
        step[number] += 1
        reported = {"value": rng.random(), "training_iteration": step[number]}
        verdict = mine.on_trial_result(number, TrialReport(reported["value"], step[number]))
        donors = rays.is_to_exploit(theirs[number], reported)
        assert isinstance(verdict, PauseVerdict) == (donors is not None), (number, step[number], verdict, donors)
        if rays._trial_state[theirs[number]].last_perturbation_time == step[number]:
            compared[number] = step[number]
        if donors is not None:
            choice = mine.choose_trial_to_run(0, False)
            assert isinstance(choice, CloneChoice)
            assert choice.trial == number
            assert choice.donor in donors
            mine.on_trial_clone(number, choice.donor, choice.parameters)
            rays._trial_state[theirs[number]].last_perturbation_time = compared[choice.donor]
            step[number] = compared[number] = compared[choice.donor]
            replaced += 1
    assert replaced
