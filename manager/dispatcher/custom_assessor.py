"""A user's own assessor behind the calls of a session, on the second thread."""

from functools import partial
from typing import Any

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.custom_tuner import Guard
from proctor.manager.dispatcher.hands import AssessorHand, Goodbye, Send, succeeded
from proctor.manager.dispatcher.lanes import Job, ThreadLane
from proctor.manager.dispatcher.saved_state import Mark, SavedDecision, SavedState
from proctor.manager.dispatcher.wire_values import from_wire
from proctor.sdk.assessor import Assessor, AssessResult


class CustomAssessor(AssessorHand):
    """Calls come from one thread and return at once; the work is done on the lane."""

    def __init__(self, assessor: Any, send: Send, *, lane: ThreadLane, guard: Guard, checkpoint_directory: str) -> None:
        self._assessor = assessor
        self._send = send
        self._lane = lane
        self._guard = guard
        self._saved = SavedState(checkpoint_directory, "assessor", assessor, Assessor)
        self._mark = Mark()
        self._position = 0
        self._histories: dict[str, list[Any]] = {}
        self._condemned: dict[str, SavedDecision] = {}
        lane.put(guard(self._load))

    def report(self, message: protocol.ReportMetrics) -> None:
        self._put(message, partial(self._report, message))

    def restart(self, message: protocol.TrialRestarted) -> None:
        self._put(message, partial(self._restart, message))

    def trial_end(self, message: protocol.TrialEnd) -> None:
        self._put(message, partial(self._end, message))

    def close(self, goodbye: Goodbye) -> None:
        if goodbye.saves:
            self._lane.put(self._guard(self._save))
        self._lane.put(self._guard(self._assessor._on_exit))
        self._lane.finish(goodbye.seconds)

    def _put(self, message: Any, job: Job) -> None:
        def do() -> None:
            job()
            self._position = max(self._position, message.position)
            if self._lane.is_idle() and isinstance(message, protocol.TrialEnd):
                self._save()

        self._lane.put(self._guard(do))

    def _load(self) -> None:
        self._mark = self._saved.load()

    def _save(self) -> None:
        if self._position > self._mark.position:
            self._saved.save(Mark(self._position, decisions=tuple(self._condemned.values())))

    def _report(self, message: protocol.ReportMetrics) -> None:
        for row in message.rows:
            history = self._histories.setdefault(row.trial_id, [])
            del history[row.sequence :]
            history.append(from_wire(row.value))
            if row.trial_id in self._condemned:
                continue
            decision = SavedDecision(message.position, row.trial_id, row.job_number)
            # What the saved assessor has assessed is not assessed again. What it decided is sent again, because the
            # manager may have been killed before it had committed the decision.
            known = message.position <= self._mark.position
            if decision in self._mark.decisions or not (known or self._is_good(row.trial_id, history)):
                self._condemned[row.trial_id] = decision
                self._send(protocol.KillTrial(message.position, row.parameter_id, row.trial_id, row.job_number))

    def _is_good(self, trial_id: str, history: list[Any]) -> bool:
        result = self._assessor.assess_trial(trial_id, list(history))
        if isinstance(result, (bool, AssessResult)):
            return result in (True, AssessResult.Good)
        name = type(self._assessor).__name__
        raise TypeError(f"{name}.assess_trial must return AssessResult.Good or Bad (or a bool), found {result!r}")

    def _restart(self, message: protocol.TrialRestarted) -> None:
        self._condemned.pop(message.trial_id, None)
        del self._histories.setdefault(message.trial_id, [])[message.from_sequence :]

    def _end(self, message: protocol.TrialEnd) -> None:
        self._condemned.pop(message.trial_id, None)
        self._histories.pop(message.trial_id, None)
        if message.position > self._mark.position:
            self._assessor.trial_end(message.trial_id, succeeded(message))
