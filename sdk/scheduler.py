"""The base class of a trial scheduler of your own: what pauses, resumes, clones and ends trials by their metrics.

It is named in the configuration as a tuner is, under `trialScheduler:`, in the place of an assessor:

    trialScheduler:
      className: my_scheduler.MyScheduler      # module.Class
      codeDirectory: .
      classArgs: {max_t: 27}

A scheduler is a pure object: what it decides follows from the calls that it got, in their order, and from `rng`. It
reads no clock and draws no other random number. So it is brought back after a crash by the same calls, and continues
as if nothing had happened. The method names are Ray Tune's.

Trials are named by whole numbers: the id of the first parameters that a trial had. They are never reused, and later
trials have higher ones.
"""

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

__all__ = [
    "CONTINUE",
    "MOST_COLUMNS",
    "MOST_ROWS",
    "MOST_TABLES",
    "NO_METRICS",
    "START",
    "TIME_TOTAL",
    "TRAINING_ITERATION",
    "CloneChoice",
    "ContinueVerdict",
    "PauseVerdict",
    "ResumeChoice",
    "StartChoice",
    "StopVerdict",
    "TrialReport",
    "TrialScheduler",
]


MOST_TABLES, MOST_COLUMNS, MOST_ROWS = 20, 20, 300
"""Of what `TrialScheduler.describe` returns; people see no more."""
TRAINING_ITERATION, TIME_TOTAL = "training_iteration", "time_total_s"
"""Ray Tune's names for the resources that each trial uses up: its steps, and the seconds that it runs."""
NO_METRICS: Mapping[str, Any] = MappingProxyType({})
"""Of a report of a number alone: one for all of them."""
_MOST_TIME = 1e300


@dataclass(frozen=True, slots=True)
class TrialReport:
    """One intermediate metric of a trial, or its final one."""

    value: float
    """The trial's `default`, which may be NaN or an infinity; NaN of a final metric without one.
    An intermediate metric without a `default` is not passed to the scheduler."""
    step: int
    """The step that the trial has reached: the one that it reported, else the number of its metrics so far, from 1."""
    seconds: float | None = None
    """How long the trial has run, by its machine's clock; None where that is unknown."""
    metrics: Mapping[str, Any] = field(default_factory=lambda: NO_METRICS)
    """All that it reported, where it reported a mapping."""

    def time(self, attribute: str) -> float:
        """Return the resource used so far: the step for "training_iteration", the seconds for "time_total_s", else
        the metric of that name. NaN where there is no finite one."""
        found: Any
        if attribute == TRAINING_ITERATION:
            found = self.step
        elif attribute == TIME_TOTAL:
            found = self.seconds
        else:
            found = self.metrics.get(attribute)
        if isinstance(found, bool) or not isinstance(found, (int, float)):
            return math.nan
        return float(found) if -_MOST_TIME < found < _MOST_TIME else math.nan


# ---- verdicts on a result -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ContinueVerdict:
    """The trial keeps running."""


@dataclass(frozen=True)
class PauseVerdict:
    """The trial saves and gives up its place until it is resumed, cloned or stopped."""

    reason: str
    """Why, as a clause that people read: "waits in rung 3 for 2 more trials". For people trials have other numbers than
    here: do not name any."""


@dataclass(frozen=True)
class StopVerdict:
    """The trial ends early, as EARLY_STOPPED."""

    reason: str
    is_full: bool = False
    """Whether it has used all that a trial may: then it has SUCCEEDED, and its last metric is its final one."""


Verdict = ContinueVerdict | PauseVerdict | StopVerdict
CONTINUE: Final = ContinueVerdict()


# ---- what runs next -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StartChoice:
    """A new trial, whose parameters the tuner proposes."""


@dataclass(frozen=True)
class ResumeChoice:
    """A paused trial continues from its newest checkpoint, or from the start where it has none."""

    trial: int
    reason: str


@dataclass(frozen=True)
class CloneChoice:
    """A paused or running trial continues from the newest checkpoint of `donor`, with these parameters."""

    trial: int
    donor: int
    parameters: dict[str, Any]
    reason: str


NextTrial = StartChoice | ResumeChoice | CloneChoice
START: Final = StartChoice()


class TrialScheduler:
    """Starts a new trial for each free place and lets every trial run to its end. Override what is to be different.

    The calls about one trial come in this order: `on_trial_add`; then results, with `on_trial_resume` or
    `on_trial_clone` after each pause that is over; then one of `on_trial_complete`, `on_trial_error` and
    `on_trial_remove`, and nothing after that. Results come with rising steps unless the trial itself goes back. A trial
    that begins again after a failure reports what is known already; that is not given twice. A trial that was to pause
    may be found running nevertheless (it had failed meanwhile, or the user has resumed it): `on_trial_resume` says so,
    and its next result asks for a verdict again.
    """

    version = 1
    """Of what `state_dict` returns; a state of another version is not loaded."""

    def set_search_space(self, search_space: Any) -> None:
        """Take the search space as it stands in the configuration. Called first, and whenever the user changes it."""

    # ---- what happens to trials

    def on_trial_add(self, trial: int, parameters: Any) -> None:
        """There is a new trial: of the tuner's, or the user's."""

    def on_trial_result(self, trial: int, result: TrialReport) -> Verdict:
        """Judge one intermediate metric of a running trial."""
        return CONTINUE

    def on_trial_complete(self, trial: int, result: TrialReport | None) -> None:
        """A trial has succeeded, with its final metric at its last step, if it reported one."""

    def on_trial_error(self, trial: int) -> None:
        """A trial has failed for good: it counts as the worst there is."""

    def on_trial_remove(self, trial: int) -> None:
        """A trial has ended otherwise: you have stopped it, the user has, or a limit of the experiment."""

    def on_trial_resume(self, trial: int, chosen: bool = True) -> None:
        """A trial that you had paused runs again.

        :param chosen: as you chose; if not, by itself: it had failed before it could pause, or the user has resumed it.
        """

    def on_trial_clone(self, trial: int, donor: int, parameters: Any) -> None:
        """A trial continues from another's checkpoint with these parameters, as you chose.

        Where that was not possible, because the donor has no checkpoint that can be read, the same is called again with
        the trial itself as `donor` and the parameters that it had.
        """

    # ---- decisions

    def choose_trial_to_run(self, request: int, can_start: bool) -> NextTrial | None:
        """Say what takes a free place; None for nothing, until there is news.

        This changes nothing: where the choice is carried out, `on_trial_add`, `on_trial_resume` or `on_trial_clone`
        follows. If `START` is returned and the tuner has nothing to propose, it is called again without `can_start`.

        :param request: a number of this request alone, for `rng`.
        :param can_start: whether a new trial may be started; if not, only those that exist count.
        """
        return START if can_start else None

    def take_stops(self) -> list[tuple[int, str]]:
        """Return the paused trials that are to end, each with the reason as a clause, and forget that they were due.
        Called after every other call."""
        return []

    def next_milestone(self, trial: int) -> int | None:
        """Return the step at whose report a running trial should wait for the verdict; None for no such step. Asked
        after every other call about this trial. A trial that has passed the step does not wait for it."""
        return None

    # ---- state

    def state_dict(self) -> dict[str, Any] | None:
        """Return everything that later decisions depend on, as JSON; None if that is not possible, so that after a
        restart all calls are made again."""
        return None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Be as the scheduler that returned this from `state_dict`. Called on a new one, after `set_search_space`."""
        raise NotImplementedError(f"{type(self).__name__}.load_state_dict is missing")

    def describe(self) -> list[dict[str, Any]]:
        """Return what people should see, as tables:
        `{"title": …, "columns": […], "rows": [[…], …], "trial_columns": [0, 4]}`.

        A cell is a text, a number, a boolean or None. `trial_columns` names, from 0, the columns that hold trials as
        they are named here: people see the numbers that these trials have in the experiment. It may be left out. At
        most 20 tables of 300 rows and 20 columns are shown.

        Called from time to time, only for people: it changes nothing. What it raises is printed to the dispatcher's
        log, and nothing else follows from it.
        """
        return []

    # ---- randomness

    seed: int = 0
    """The experiment's."""

    def rng(self, *key: int | str) -> random.Random:
        """Return the generator that belongs to one decision: the same seed and key give the same numbers."""
        return random.Random(":".join(map(str, (self.seed, *key))))
