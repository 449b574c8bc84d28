"""A trial scheduler that uses everything a scheduler can decide."""

from typing import Any

from proctor.sdk.scheduler import (
    CONTINUE,
    START,
    CloneChoice,
    NextTrial,
    PauseVerdict,
    ResumeChoice,
    StopVerdict,
    TrialReport,
    TrialScheduler,
    Verdict,
)

PAUSES_AT = (200, 400)
"""Steps."""


class PausingScheduler(TrialScheduler):
    """Pauses each trial twice. Every other request is answered by a new trial, the others by the one that has been
    paused for longest, which is resumed or cloned from the best. Every seventh trial is stopped when it is paused for
    the second time, and every ninth is ended while it is paused for the first time."""

    def __init__(self) -> None:
        self._paused: list[int] = []
        self._pauses: dict[int, set[int]] = {}
        self._values: dict[int, float] = {}
        self._doomed: list[int] = []
        self._stops: list[tuple[int, str]] = []

    def on_trial_result(self, trial: int, result: TrialReport) -> Verdict:
        self._values[trial] = result.value
        known = self._pauses.setdefault(trial, set())
        if result.step not in PAUSES_AT or result.step in known:
            return CONTINUE
        known.add(result.step)
        if trial % 7 == 1 and len(known) == 2:
            return StopVerdict("it is every seventh")
        if trial % 9 == 4:
            self._doomed.append(trial)
        else:
            self._paused.append(trial)
        return PauseVerdict(f"it is at {result.step}")

    def on_trial_complete(self, trial: int, result: TrialReport | None) -> None:
        self._stops += [(each, "it is every ninth") for each in self._doomed]
        self._doomed.clear()
        self._forget(trial)

    def on_trial_error(self, trial: int) -> None:
        self._forget(trial)

    def on_trial_remove(self, trial: int) -> None:
        self._forget(trial)

    def on_trial_resume(self, trial: int, chosen: bool = True) -> None:
        self._paused.remove(trial)

    def on_trial_clone(self, trial: int, donor: int, parameters: Any) -> None:
        if trial in self._paused:
            self._paused.remove(trial)

    def choose_trial_to_run(self, request: int, can_start: bool) -> NextTrial | None:
        if can_start and (not self._paused or request % 2 == 0):
            return START
        if not self._paused:
            return None
        trial = self._paused[0]
        others = {each: value for each, value in self._values.items() if each != trial}
        if others and request % 4 == 1:
            best = max(others, key=lambda each: others[each])
            return CloneChoice(trial, best, {"x": others[best] / 100}, f"{best} is the best")
        return ResumeChoice(trial, "it is the first one")

    def take_stops(self) -> list[tuple[int, str]]:
        stops, self._stops = self._stops, []
        return stops

    def _forget(self, trial: int) -> None:
        self._values.pop(trial, None)
        self._pauses.pop(trial, None)
        if trial in self._paused:
            self._paused.remove(trial)
