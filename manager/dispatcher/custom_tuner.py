"""A user's own tuner behind the calls of a session, on two threads as in NNI.

The first thread calls everything but `trial_end`, one call at a time. If `generate_parameters` waits there without
computing while results are at hand, the second thread delivers them, so that a tuner may wait for an earlier trial.
A tuner that computes for long is left in peace: most are not written to be called twice at once.
"""

import inspect
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.hands import Goodbye, Send, TunerHand, succeeded
from proctor.manager.dispatcher.lanes import Job, ThreadLane
from proctor.manager.dispatcher.saved_state import Mark, SavedState
from proctor.manager.dispatcher.wire_values import from_wire, to_wire
from proctor.sdk.errors import NoMoreTrialError
from proctor.sdk.tuner import Tuner

WATCH_SECONDS = 0.25
COMPUTING_SHARE = 0.2
"""A thread that used less of a processor than this over one watch is waiting, not computing."""
VAIN_SECONDS = 3.0
"""How long a tuner may wait inside `generate_parameters` while its session ends."""

Guard = Callable[[Job], Job]
"""Wraps a job so that what it raises ends the session instead of the thread."""


class CustomTuner(TunerHand):
    """Calls come from one thread and return at once; the work is done on the two lanes."""

    def __init__(
        self,
        tuner: Any,
        send: Send,
        *,
        lanes: tuple[ThreadLane, ThreadLane],
        guard: Guard,
        checkpoint_directory: str,
    ) -> None:
        self._tuner = tuner
        self._send = send
        self._first, self._second = lanes
        self._watch_lane = ThreadLane("result-watch")
        self._guard = guard
        self._saved = SavedState(checkpoint_directory, "tuner", tuner, Tuner)
        self._mark = Mark()
        self._position = 0
        self._own_ids: set[int] = set()
        self._request_positions: dict[int, int] = {}
        self._results: deque[protocol.TrialEnd] = deque()
        self._delivery = threading.Lock()
        self._delivered = threading.Event()
        self._calls = 0
        self._asks = True
        self._generating = 0
        """The number of the `generate_parameters` call that is running, or 0."""

    def initialize(self, search_space: Any) -> None:
        ready = threading.Event()

        def begin() -> None:
            try:
                self._guard(partial(self._begin, search_space))()
            finally:
                ready.set()

        self._first.put(begin)
        ready.wait()

    def update_search_space(self, message: protocol.UpdateSearchSpace) -> None:
        self._put(message, lambda: self._tuner.update_search_space(message.search_space))

    def request(self, message: protocol.RequestTrialJobs) -> None:
        self._put(message, partial(self._request, message))

    def trial_end(self, message: protocol.TrialEnd) -> None:
        self._results.append(message)
        self._put(message, self._deliver)
        if self._generating:
            self._watch_lane.put(self._watch)

    def import_data(self, message: protocol.ImportData) -> None:
        rows = [{"parameter": row["parameter"], "value": from_wire(row.get("value"))} for row in message.rows]
        if message.position > self._mark.position:
            self._put(message, lambda: self._tuner.import_data(rows))

    def add_customized(self, message: protocol.AddCustomizedTrial) -> None:
        """Nothing: NNI tells a tuner of a customized trial when its result comes."""

    def stop_asking(self) -> None:
        self._asks = False

    def close(self, goodbye: Goodbye) -> None:
        self.stop_asking()
        until = time.monotonic() + goodbye.seconds
        # What waits on the first lane puts more on the second; the exit hook comes after both.
        if not (self._drain(until) and self._second.finish(until - time.monotonic())):
            return
        if goodbye.saves:
            self._first.put(self._guard(self._save))
        self._first.put(self._guard(self._tuner._on_exit))
        self._first.finish(until - time.monotonic())

    def _drain(self, until: float) -> bool:
        """Wait until the first lane has done everything. False where that takes too long, or where the tuner waits
        inside `generate_parameters`: with no more trials to come, what it waits for may never come."""
        drained = threading.Event()
        self._first.put(drained.set)
        call, waited = self._generating, 0.0
        while time.monotonic() < until:
            used = self._first.cpu_seconds()
            if drained.wait(WATCH_SECONDS):
                return True
            is_waiting = call == self._generating != 0 and not self._has_computed(used)
            call, waited = self._generating, waited + WATCH_SECONDS if is_waiting else 0.0
            if waited >= VAIN_SECONDS:
                return False
        return False

    def _has_computed(self, used: float) -> bool:
        """Whether the first lane has computed during a watch that began at `used` seconds of processor time."""
        return self._first.cpu_seconds() - used >= COMPUTING_SHARE * WATCH_SECONDS

    def _put(self, message: Any, job: Job) -> None:
        def do() -> None:
            job()
            self._position = max(self._position, message.position)
            if self._first.is_idle() and not self._results and isinstance(message, protocol.TrialEnd):
                self._save()

        self._first.put(self._guard(do))

    def _begin(self, search_space: Any) -> None:
        self._tuner.update_search_space(search_space)
        self._mark = self._saved.load()
        self._own_ids.update(self._mark.own_ids)

    def _save(self) -> None:
        if self._position > self._mark.position:
            self._saved.save(Mark(self._position, tuple(sorted(self._own_ids))))

    # ---- asking

    def _request(self, message: protocol.RequestTrialJobs) -> None:
        answered = {answer.parameter_id for answer in message.answers}
        asked = [parameter_id for parameter_id in message.parameter_ids if parameter_id not in answered]
        for parameter_id in asked:
            self._request_positions[parameter_id] = message.position
        if not self._asks:
            return
        done = self._ask_together(asked) if self._proposes_many() else self._ask_each(asked)
        if done < len(asked):
            self._send(protocol.NoMoreTrials(message.position, asked[done:]))

    def _proposes_many(self) -> bool:
        own = getattr(type(self._tuner), "generate_multiple_parameters", Tuner.generate_multiple_parameters)
        return own is not Tuner.generate_multiple_parameters

    def _ask_together(self, asked: list[int]) -> int:
        if not asked:
            return 0
        proposed = self._generate(self._tuner.generate_multiple_parameters, asked)
        for parameter_id, parameters in zip(asked, proposed, strict=False):
            self._propose(parameter_id, parameters)
        return len(proposed)

    def _ask_each(self, asked: list[int]) -> int:
        for done, parameter_id in enumerate(asked):
            if not self._asks:
                return len(asked)  # neither proposed nor declined: asked again by the next session
            try:
                parameters = self._generate(self._tuner.generate_parameters, parameter_id)
            except NoMoreTrialError:
                return done
            self._propose(parameter_id, parameters)
        return len(asked)

    def _generate(self, method: Callable[..., Any], argument: Any) -> Any:
        self._calls += 1
        self._generating = self._calls
        if self._results:
            self._watch_lane.put(self._watch)
        try:
            return method(argument, **_taken_by(method, {"st_callback": self._propose}))
        finally:
            self._generating = 0

    def _propose(self, parameter_id: int, parameters: Any) -> None:
        self._own_ids.add(parameter_id)
        position = self._request_positions.pop(parameter_id, self._position)
        self._send(protocol.NewTrial(position, parameter_id, to_wire(parameters)))

    # ---- telling

    def _deliver(self) -> None:
        with self._delivery:
            try:
                while self._results:
                    self._tell_next()
            finally:
                self._delivered.set()

    def _tell_next(self) -> None:
        foreign: list[dict[str, Any]] = []
        while self._results:
            message = self._results.popleft()
            if message.position <= self._mark.position or not self._may_know(message):
                continue
            if message.customized or message.parameter_id in self._own_ids:
                self._import(foreign)
                self._tell(message)
                return
            if message.has_value:
                foreign.append({"parameter": message.parameters, "value": from_wire(message.value)})
        self._import(foreign)

    def _may_know(self, message: protocol.TrialEnd) -> bool:
        return not message.customized or getattr(self._tuner, "_accept_customized", False)

    def _import(self, rows: list[dict[str, Any]]) -> None:
        if rows:
            self._tuner.import_data(rows)

    def _tell(self, message: protocol.TrialEnd) -> None:
        self._own_ids.discard(message.parameter_id)
        if message.has_value:
            facts = {"customized": message.customized, "trial_job_id": message.trial_id}
            method = self._tuner.receive_trial_result
            value = from_wire(message.value)
            method(message.parameter_id, message.parameters, value, **_taken_by(method, facts))
        end = partial(self._tuner.trial_end, message.parameter_id, succeeded(message))
        self._second.put(self._guard(end))

    def _watch(self) -> None:
        """Have the second lane deliver if the first one waits inside `generate_parameters`."""
        while self._results and (call := self._generating):
            self._delivered.clear()
            used = self._first.cpu_seconds()
            if self._delivered.wait(WATCH_SECONDS):
                continue
            if call == self._generating and not self._has_computed(used):
                self._second.put(self._guard(self._deliver))


def _taken_by(method: Callable[..., Any], keywords: dict[str, Any]) -> dict[str, Any]:
    """Return those keywords that `method` accepts: NNI's examples leave some out."""
    accepted = inspect.signature(method).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in accepted.values()):
        return keywords
    return {name: value for name, value in keywords.items() if name in accepted}
