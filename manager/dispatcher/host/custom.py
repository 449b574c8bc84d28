"""A user's own tuner and assessor behind the calls of a session: loaded, called on threads, and their saved state.

There are two threads, as in NNI. The first one calls everything of a tuner but `trial_end`, one call at a time. If
`generate_parameters` waits there without computing while results wait, the second thread delivers them, so that
a tuner may wait for an earlier trial. A tuner that computes for long is left alone: most are not written to be called
twice at once. An assessor is called on the second thread.

An algorithm that saves itself continues from there: a file beside its checkpoint says how much of the input log it
holds.
"""

import importlib
import inspect
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.host.interface import (
    Call,
    HostedAssessor,
    HostedTuner,
    Send,
    ShutdownMode,
    WorkerThread,
    succeeded,
)
from proctor.manager.dispatcher.protocol import AlgorithmSpec, from_wire, to_wire
from proctor.sdk.assessor import Assessor, AssessResult
from proctor.sdk.errors import NoMoreTrialError
from proctor.sdk.files import make_folder, remove_file, replace_file, sync_folder, sync_tree
from proctor.sdk.tuner import Tuner

WATCH_SECONDS = 0.25
COMPUTING_SHARE = 0.2
"""A thread that used less of a processor than this over one watch is waiting, not computing."""
UNANSWERED_SECONDS = 3.0
"""How long a tuner may wait inside `generate_parameters` while its session ends."""

CatchErrors = Callable[[Call], Call]
"""Wraps a call so that what it raises ends the session instead of the thread."""


class CustomClassError(Exception):
    """The class named in the configuration is not there or is not of the right kind."""


def load_custom(spec: AlgorithmSpec, methods: tuple[str, ...]) -> Any:
    """Import `module.Class` from its folder and make one with the class arguments.

    Raises CustomClassError, or whatever the user's code raises.
    """
    class_name = spec.class_name or ""
    module_name, _, name = class_name.rpartition(".")
    if not module_name:
        raise CustomClassError(f"className must be module.Class, found {class_name!r}")
    if spec.code_directory is not None:
        sys.path.insert(0, os.path.abspath(spec.code_directory))
    module = importlib.import_module(module_name)
    factory = getattr(module, name, None)
    if factory is None:
        raise CustomClassError(f"{module.__file__} has no class {name}; className is {class_name!r}")
    missing = [method for method in methods if not callable(getattr(factory, method, None))]
    if missing:
        raise CustomClassError(f"{class_name} lacks {', '.join(missing)}; derive it from the base class")
    return factory(**spec.class_args)


def prepare_environment(checkpoint_directory: str) -> None:
    """Set what NNI promises to the code of tuners and assessors."""
    os.environ["SDK_PROCESS"] = "dispatcher"
    os.environ["NNI_CHECKPOINT_DIRECTORY"] = checkpoint_directory
    os.environ.setdefault("NNI_MODE", "start")
    os.environ.setdefault("NNI_LOG_LEVEL", "info")
    os.environ.setdefault("NNI_INCLUDE_INTERMEDIATE_RESULTS", "false")


class SavedDecision(NamedTuple):
    """An assessor's decision to stop a job: the position of the report that was judged, and whose it was."""

    position: int
    trial_id: str
    job_number: int


@dataclass(frozen=True)
class SavedPosition:
    """Written after an algorithm has saved itself."""

    position: int = 0
    """Inputs up to here are part of what was saved."""
    own_ids: tuple[int, ...] = ()
    """Parameter ids that the tuner had proposed and that had not ended."""
    decisions: tuple[SavedDecision, ...] = ()
    """What the assessor had decided about trials that had not ended."""


class SavedState:
    """One algorithm's checkpoint, and the file beside it that holds the position in the input log."""

    def __init__(self, directory: str, kind: str, algorithm: Any, base: type[Any]) -> None:
        own = getattr(type(algorithm), "save_checkpoint", base.save_checkpoint)
        self.is_wanted = own is not base.save_checkpoint
        self._path = Path(directory or ".") / f"{kind}.mark.json"
        self._algorithm = algorithm

    def load(self) -> SavedPosition:
        """Have the algorithm read what it saved; the position of that, which is 0 if it never did."""
        if not self.is_wanted or not self._path.is_file():
            return SavedPosition()
        found = json.loads(self._path.read_text())
        self._algorithm.load_checkpoint()
        decisions = tuple(SavedDecision(*decision) for decision in found.get("decisions", ()))
        return SavedPosition(found["position"], tuple(found["own_ids"]), decisions)

    def save(self, position: SavedPosition) -> None:
        """Have the algorithm save itself, then write the position. Does nothing for one that cannot.

        There is such a file only while the checkpoint is complete and on the disk: an algorithm may write over what it
        saved before, and after a power cut in the middle of that it must get all inputs again.
        """
        if not self.is_wanted:
            return
        folder = str(self._path.parent)
        make_folder(folder)
        remove_file(str(self._path))
        sync_folder(folder)
        self._algorithm.save_checkpoint()
        sync_tree(folder)
        replace_file(str(self._path), json.dumps(asdict(position)).encode(), durable=True)


class CustomTuner(HostedTuner):
    """Calls come from one thread and return at once; the work is done on the two threads."""

    proposes_later = True

    def __init__(
        self,
        tuner: Any,
        send: Send,
        *,
        threads: tuple[WorkerThread, WorkerThread],
        catch_errors: CatchErrors,
        checkpoint_directory: str,
        rules: int,
    ) -> None:
        self._tuner = tuner
        own = getattr(type(tuner), "receive_pruned", Tuner.receive_pruned)
        self._hears_pauses = rules > 1 and own is not Tuner.receive_pruned
        self._parameters: dict[int, Any] = {}
        """Of the trials that have not ended, where the tuner hears of pauses."""
        self._send = send
        self._first, self._second = threads
        self._watcher = WorkerThread("result-watch")
        self._catch_errors = catch_errors
        self._saved = SavedState(checkpoint_directory, "tuner", tuner, Tuner)
        self._loaded = SavedPosition()
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
                self._catch_errors(partial(self._begin, search_space))()
            finally:
                ready.set()

        self._first.put(begin)
        ready.wait()

    def update_search_space(self, message: protocol.UpdateSearchSpace) -> None:
        self._put(message, lambda: self._tuner.update_search_space(message.search_space))

    def request(self, message: protocol.RequestTrialJobs) -> list[int]:
        self._put(message, partial(self._request, message))
        return []

    def accept_clone(self, parameter_id: int, parameters: Any, *, instead_of: int) -> None:
        """Nothing: its result comes as that of a trial which the tuner has not proposed."""

    def trial_end(self, message: protocol.TrialEnd, pruned: tuple[int, float] | None = None) -> None:
        self._results.append(message)
        self._put(message, self._deliver)
        if self._generating:
            self._watcher.put(self._watch)

    def pause(self, position: int, parameter_id: int, value: float, step: int) -> None:
        """Only to a tuner that overrides `receive_pruned`, and of trials that it has proposed."""

        def tell() -> None:
            if position > self._loaded.position and parameter_id in self._own_ids:
                self._tuner.receive_pruned(parameter_id, self._parameters.get(parameter_id), value, step)

        if self._hears_pauses:
            self._put(protocol.ReportMetrics(position, []), tell)

    def import_data(self, message: protocol.ImportData) -> None:
        rows = [{"parameter": row["parameter"], "value": from_wire(row.get("value"))} for row in message.rows]
        if message.position > self._loaded.position:
            self._put(message, lambda: self._tuner.import_data(rows))

    def add_customized(self, message: protocol.AddCustomizedTrial) -> None:
        """Nothing: NNI notifies a tuner of a customized trial when its result comes."""

    def stop_asking(self) -> None:
        self._asks = False

    def close(self, mode: ShutdownMode) -> None:
        self.stop_asking()
        until = time.monotonic() + mode.seconds
        # What waits on the first thread puts more on the second; the exit hook comes after both.
        if not (self._drain(until) and self._second.finish(until - time.monotonic())):
            return
        if mode.saves:
            self._first.put(self._catch_errors(self._save))
        self._first.put(self._catch_errors(self._tuner._on_exit))
        self._first.finish(until - time.monotonic())

    def _drain(self, until: float) -> bool:
        """Wait until the first thread has done everything. False where that takes too long, or where the tuner waits
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
            if waited >= UNANSWERED_SECONDS:
                return False
        return False

    def _has_computed(self, used: float) -> bool:
        """Whether the first thread has computed during a watch that began at `used` seconds of processor time."""
        return self._first.cpu_seconds() - used >= COMPUTING_SHARE * WATCH_SECONDS

    def _put(self, message: Any, call: Call) -> None:
        def do() -> None:
            call()
            self._position = max(self._position, message.position)
            if self._first.is_idle() and not self._results and isinstance(message, protocol.TrialEnd):
                self._save()

        self._first.put(self._catch_errors(do))

    def _begin(self, search_space: Any) -> None:
        self._tuner.update_search_space(search_space)
        self._loaded = self._saved.load()
        self._own_ids.update(self._loaded.own_ids)

    def _save(self) -> None:
        if self._position > self._loaded.position:
            self._saved.save(SavedPosition(self._position, tuple(sorted(self._own_ids))))

    # ---- suggestions ----------------------------------------------------------------------------------------------

    def _request(self, message: protocol.RequestTrialJobs) -> None:
        answered = {answer.parameter_id for answer in message.answers}
        if self._hears_pauses:
            self._parameters |= {answer.parameter_id: answer.parameters for answer in message.answers}
        asked = [parameter_id for parameter_id in message.parameter_ids if parameter_id not in answered]
        for parameter_id in asked:
            self._request_positions[parameter_id] = message.position
        if not self._asks:
            return
        own = getattr(type(self._tuner), "generate_multiple_parameters", Tuner.generate_multiple_parameters)
        proposes_many = own is not Tuner.generate_multiple_parameters
        done = self._ask_together(asked) if proposes_many else self._ask_each(asked)
        if done < len(asked):
            self._send(protocol.NoMoreTrials(message.position, asked[done:]))

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
            self._watcher.put(self._watch)
        try:
            return method(argument, **_taken_by(method, {"st_callback": self._propose}))
        finally:
            self._generating = 0

    def _propose(self, parameter_id: int, parameters: Any) -> None:
        self._own_ids.add(parameter_id)
        position = self._request_positions.pop(parameter_id, self._position)
        proposed = to_wire(parameters)
        if self._hears_pauses:
            self._parameters[parameter_id] = proposed
        self._send(protocol.NewTrial(position, parameter_id, proposed))

    # ---- results --------------------------------------------------------------------------------------------------

    def _deliver(self) -> None:
        with self._delivery:
            try:
                while self._results:
                    self._deliver_next()
            finally:
                self._delivered.set()

    def _deliver_next(self) -> None:
        foreign: list[dict[str, Any]] = []
        while self._results:
            message = self._results.popleft()
            is_wanted = not message.customized or getattr(self._tuner, "_accept_customized", False)
            if message.position <= self._loaded.position or not is_wanted:
                continue
            if message.customized or message.parameter_id in self._own_ids:
                self._import(foreign)
                self._give_result(message)
                return
            if message.has_value:
                foreign.append({"parameter": message.parameters, "value": from_wire(message.value)})
        self._import(foreign)

    def _import(self, rows: list[dict[str, Any]]) -> None:
        if rows:
            self._tuner.import_data(rows)

    def _give_result(self, message: protocol.TrialEnd) -> None:
        self._own_ids.discard(message.parameter_id)
        self._parameters.pop(message.parameter_id, None)
        if message.has_value:
            facts = {"customized": message.customized, "trial_job_id": message.trial_id}
            method = self._tuner.receive_trial_result
            value = from_wire(message.value)
            method(message.parameter_id, message.parameters, value, **_taken_by(method, facts))
        end = partial(self._tuner.trial_end, message.parameter_id, succeeded(message))
        self._second.put(self._catch_errors(end))

    def _watch(self) -> None:
        """Have the second thread deliver if the first one waits inside `generate_parameters`."""
        while self._results and (call := self._generating):
            self._delivered.clear()
            used = self._first.cpu_seconds()
            if self._delivered.wait(WATCH_SECONDS):
                continue
            if call == self._generating and not self._has_computed(used):
                self._second.put(self._catch_errors(self._deliver))


def _taken_by(method: Callable[..., Any], keywords: dict[str, Any]) -> dict[str, Any]:
    """Return those keywords that `method` accepts: NNI's examples leave some out."""
    accepted = inspect.signature(method).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in accepted.values()):
        return keywords
    return {name: value for name, value in keywords.items() if name in accepted}


class CustomAssessor(HostedAssessor):
    """Calls come from one thread and return at once; the work is done on the second thread."""

    def __init__(
        self, assessor: Any, send: Send, *, thread: WorkerThread, catch_errors: CatchErrors, checkpoint_directory: str
    ) -> None:
        self._assessor = assessor
        self._send = send
        self._thread = thread
        self._catch_errors = catch_errors
        self._saved = SavedState(checkpoint_directory, "assessor", assessor, Assessor)
        self._loaded = SavedPosition()
        self._position = 0
        self._histories: dict[str, list[Any]] = {}
        self._stopped: dict[str, SavedDecision] = {}
        thread.put(catch_errors(self._load))

    def report(self, message: protocol.ReportMetrics) -> None:
        self._put(message, partial(self._report, message))

    def restart(self, message: protocol.TrialRestarted) -> None:
        self._put(message, partial(self._restart, message))

    def trial_end(self, message: protocol.TrialEnd) -> None:
        self._put(message, partial(self._end, message))

    def close(self, mode: ShutdownMode) -> None:
        if mode.saves:
            self._thread.put(self._catch_errors(self._save))
        self._thread.put(self._catch_errors(self._assessor._on_exit))
        self._thread.finish(mode.seconds)

    def _put(self, message: Any, call: Call) -> None:
        def do() -> None:
            call()
            self._position = max(self._position, message.position)
            if self._thread.is_idle() and isinstance(message, protocol.TrialEnd):
                self._save()

        self._thread.put(self._catch_errors(do))

    def _load(self) -> None:
        self._loaded = self._saved.load()

    def _save(self) -> None:
        if self._position > self._loaded.position:
            self._saved.save(SavedPosition(self._position, decisions=tuple(self._stopped.values())))

    def _report(self, message: protocol.ReportMetrics) -> None:
        for row in message.rows:
            history = self._histories.setdefault(row.trial_id, [])
            del history[row.sequence :]
            history.append(from_wire(row.value))
            if row.trial_id in self._stopped:
                continue
            decision = SavedDecision(message.position, row.trial_id, row.job_number)
            # What the saved assessor has assessed is not assessed again. What it decided is sent again, because the
            # manager may have been killed before it had committed the decision.
            known = message.position <= self._loaded.position
            if decision in self._loaded.decisions or not (known or self._is_good(row.trial_id, history)):
                self._stopped[row.trial_id] = decision
                self._send(protocol.KillTrial(message.position, row.parameter_id, row.trial_id, row.job_number))

    def _is_good(self, trial_id: str, history: list[Any]) -> bool:
        result = self._assessor.assess_trial(trial_id, list(history))
        if isinstance(result, (bool, AssessResult)):
            return result in (True, AssessResult.Good)
        name = type(self._assessor).__name__
        raise TypeError(f"{name}.assess_trial must return AssessResult.Good or Bad (or a bool), found {result!r}")

    def _restart(self, message: protocol.TrialRestarted) -> None:
        self._stopped.pop(message.trial_id, None)
        del self._histories.setdefault(message.trial_id, [])[message.from_sequence :]

    def _end(self, message: protocol.TrialEnd) -> None:
        self._stopped.pop(message.trial_id, None)
        self._histories.pop(message.trial_id, None)
        if message.position > self._loaded.position:
            self._assessor.trial_end(message.trial_id, succeeded(message))
