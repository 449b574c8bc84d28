"""An experiment of synthetic trials under a trial scheduler: virtual workers, in virtual time.

What happens is drawn from one seed, so two simulations of the same scheduler are the same, call for call. One of them
may have its scheduler replaced now and then by a new one with its state.
"""

import heapq
import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

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

SPACE = {
    "lr": {"_type": "loguniform", "_value": [0.001, 1.0]},
    "layers": {"_type": "randint", "_value": [1, 9]},
    "width": {"_type": "quniform", "_value": [8, 64, 8]},
    "activation": {"_type": "choice", "_value": ["relu", "tanh", "gelu"]},
}
LOOKED_AT = 7
"""Of so many choices, one is looked at for whether it changes the state: to write the state takes most of the time."""


@dataclass(frozen=True)
class Conditions:
    """What the trials of a simulation are like; shares are of all trials or of all pauses."""

    workers: int = 3
    trials: int = 12
    length: int = 30
    """The steps that the training code makes by itself."""
    stride: int = 1
    """Steps from one report to the next."""
    overrun: int = 0
    """Reports that a trial still makes after it was to pause or to stop."""
    failing: float = 0.0
    short: float = 0.0
    """Trials that end by themselves earlier, some before their first report."""
    without_number: float = 0.0
    resumed_by_itself: float = 0.0
    """Pauses that end at once because the trial had failed meanwhile, or the user resumed it."""
    added_by_user: int = 0
    digits: int = 6
    """Of values; few of them make ties."""


@dataclass
class SyntheticTrial:
    quality: float
    ends_at: int
    fails: bool
    step: int = 0
    jobs: int = 0
    """How often it was given a worker; an event of an earlier time is void."""
    running: bool = False
    paused: bool = False
    leaves_in: int | None = None
    """Reports until a verdict takes effect."""
    verdict: PauseVerdict | StopVerdict | None = None
    steps: list[int] = field(default_factory=list)
    end: str | None = None
    parameters: Any = None


class Simulation:
    """One run. `trace` is every call with what it returned; `problems` are promises that were not kept."""

    def __init__(
        self,
        create: Callable[[], TrialScheduler],
        conditions: Conditions,
        *,
        seed: int,
        replaced: float = 0.0,
    ) -> None:
        self._create = create
        self._conditions = conditions
        self._rng = random.Random(seed)
        self._replaced = replaced
        self._replacements = random.Random(seed + 1)
        self.scheduler = create()
        self.scheduler.set_search_space(SPACE)
        self.trials: dict[int, SyntheticTrial] = {}
        self.trace: list[Any] = []
        self.problems: list[str] = []
        self.left_paused: list[int] = []
        self._events: list[tuple[float, int, int]] = []
        self._now = 0.0
        self._started = 0
        self._requests = 0

    def run(self, most_calls: int = 20_000) -> "Simulation":
        """Run until nothing is left to do, then end what is paused, as the engine does."""
        self._give_places()
        while self._events and len(self.trace) < most_calls:
            self._now, trial, job = heapq.heappop(self._events)
            if self.trials[trial].running and self.trials[trial].jobs == job:
                self._step(trial)
            if self._rng.random() < 0.05 and len(self.trials) - self._started < self._conditions.added_by_user:
                self._run(self._add())
            self._give_places()
        if self._events:
            self.problems.append("does not end")
        self.left_paused = [number for number, trial in self.trials.items() if trial.paused]
        for number in self.left_paused:
            self._finish(number, "ended by the engine", "on_trial_remove", number)
        return self

    # ---- calls

    def _call(self, name: str, *args: Any) -> Any:
        if self._replacements.random() < self._replaced:
            state = json.loads(json.dumps(self.scheduler.state_dict(), allow_nan=False))
            self.scheduler = self._create()
            self.scheduler.set_search_space(SPACE)
            self.scheduler.load_state_dict(state)
        found = getattr(self.scheduler, name)(*args)
        self.trace.append((name, args, found))
        if name != "take_stops":
            for trial, reason in self._call("take_stops"):
                self._stop_paused(trial, reason)
        return found

    def _stop_paused(self, number: int, reason: str) -> None:
        trial = self.trials[number]
        if trial.end is not None:
            self.problems.append(f"trial {number} was to stop after its end")
        elif trial.paused:
            self._finish(number, reason, "on_trial_remove", number)
        else:
            trial.verdict = StopVerdict(reason)

    def _choose(self, can_start: bool) -> Any:
        self._requests += 1
        before = json.dumps(self.scheduler.state_dict()) if self._requests % LOOKED_AT == 0 else ""
        choice = self._call("choose_trial_to_run", self._requests, can_start)
        if self.scheduler.choose_trial_to_run(self._requests, can_start) != choice:
            self.problems.append("chose otherwise when asked again")
        if before and json.dumps(self.scheduler.state_dict()) != before:
            self.problems.append("a choice changed the state")
        return choice

    # ---- trials

    def _give_places(self) -> None:
        while sum(trial.running for trial in self.trials.values()) < self._conditions.workers:
            choice = self._choose(self._started < self._conditions.trials)
            if choice is None:
                return
            if isinstance(choice, StartChoice):
                self._started += 1
                self._run(self._add())
                continue
            trial = self.trials[choice.trial]
            if trial.end is not None:
                self.problems.append(f"chose trial {choice.trial}, which has ended")
                return
            if isinstance(choice, CloneChoice):
                donor = self.trials[choice.donor]
                trial.step, trial.quality = donor.step, donor.quality + self._rng.uniform(-0.1, 0.1)
                trial.parameters = choice.parameters
                self._call("on_trial_clone", choice.trial, choice.donor, choice.parameters)
            else:
                assert isinstance(choice, ResumeChoice)
                self._call("on_trial_resume", choice.trial)
            self._run(choice.trial)

    def _add(self) -> int:
        number = len(self.trials)
        rng, conditions = self._rng, self._conditions
        is_short = rng.random() < conditions.short
        fails = rng.random() < conditions.failing
        ends_at = rng.randint(0, conditions.length) if is_short or fails else conditions.length
        trial = SyntheticTrial(rng.random(), ends_at, fails)
        if rng.random() < conditions.without_number:
            trial.quality = math.nan
        trial.parameters = {
            "lr": 10 ** rng.uniform(-3, 0), "layers": rng.randint(1, 8), "width": 8.0 * rng.randint(1, 8),
            "activation": rng.choice(["relu", "tanh", "gelu"]),
        }  # fmt: skip
        self.trials[number] = trial
        self._call("on_trial_add", number, trial.parameters)
        return number

    def _run(self, number: int) -> None:
        trial = self.trials[number]
        trial.running, trial.paused, trial.verdict, trial.leaves_in = True, False, None, None
        trial.jobs += 1
        self._schedule(number)

    def _schedule(self, number: int) -> None:
        heapq.heappush(self._events, (self._now + self._rng.uniform(0.5, 1.5), number, self.trials[number].jobs))

    def _step(self, number: int) -> None:
        trial = self.trials[number]
        if trial.step >= trial.ends_at:
            if trial.fails:
                self._finish(number, "failed", "on_trial_error", number)
            else:
                final = self._result(trial) if trial.step else None
                self._finish(number, "succeeded", "on_trial_complete", number, final)
            return
        trial.step = min(trial.step + self._conditions.stride, trial.ends_at)
        trial.steps.append(trial.step)
        milestone = self.scheduler.next_milestone(number)
        verdict = self._call("on_trial_result", number, self._result(trial))
        self._check_milestone(number, milestone, verdict)
        if trial.verdict is not None and isinstance(verdict, ContinueVerdict):
            verdict = trial.verdict
        if trial.leaves_in is not None:
            trial.leaves_in -= 1
            verdict = trial.verdict if isinstance(verdict, ContinueVerdict) else verdict
        elif not isinstance(verdict, ContinueVerdict):
            trial.leaves_in = self._conditions.overrun
        trial.verdict = None if isinstance(verdict, ContinueVerdict) else verdict
        if trial.verdict is None or (trial.leaves_in or 0) > 0:
            self._schedule(number)
        elif isinstance(trial.verdict, StopVerdict):
            self._finish(number, trial.verdict.reason, "on_trial_remove", number)
        elif self._rng.random() < self._conditions.resumed_by_itself:
            self._call("on_trial_resume", number, False)
            self._run(number)
        else:
            trial.running, trial.paused = False, True

    def _check_milestone(self, number: int, milestone: int | None, verdict: Any) -> None:
        if milestone is None or self.trials[number].step < milestone or not isinstance(verdict, ContinueVerdict):
            return
        after = self.scheduler.next_milestone(number)
        if after is not None and after <= milestone:
            self.problems.append(f"trial {number} passed {milestone} without a verdict")

    def _result(self, trial: SyntheticTrial) -> TrialReport:
        value = trial.quality * (1 - math.exp(-trial.step / 5))
        return TrialReport(round(value, self._conditions.digits), trial.step, seconds=trial.step * 1.5)

    def _finish(self, number: int, end: str, call: str, *args: Any) -> None:
        trial = self.trials[number]
        trial.running = trial.paused = False
        trial.end = end
        self._call(call, *args)
