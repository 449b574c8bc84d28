"""What a session hosts: one tuner and perhaps one assessor, built in or the user's own, behind the same calls. A trial
scheduler has another host, `scheduling`.

Messages are handled in order on a `WorkerThread`; the methods of the user's own algorithms are called on threads of
their own.
"""

import queue
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.protocol import FromDispatcher

Send = Callable[[FromDispatcher], None]
Call = Callable[[], None]
"""Something to be done on a `WorkerThread`. It handles its own errors."""


@dataclass(frozen=True)
class ShutdownMode:
    """How a session ends."""

    seconds: float
    """How long an algorithm may take to handle what it was sent and to leave."""
    saves: bool
    """Whether algorithms save themselves. Not where the manager is gone: the next one may have started successors,
    which keep their checkpoints in the same folder."""


IN_ORDER = ShutdownMode(30.0, saves=True)
ABANDONED = ShutdownMode(2.0, saves=False)


class HostedTuner(ABC):
    """Feeds one tuner with messages. All calls come from one thread."""

    proposes_later = False
    """Whether `request` returns before a new trial is proposed, which another thread then sends."""

    @abstractmethod
    def initialize(self, search_space: Any) -> None:
        """Give the tuner its first search space."""

    @abstractmethod
    def update_search_space(self, message: protocol.UpdateSearchSpace) -> None:
        """Give the tuner a new search space."""

    @abstractmethod
    def request(self, message: protocol.RequestTrialJobs) -> list[int]:
        """Answer every id that has no answer yet with a new trial, as long as there is something to propose.

        Returns the parameter ids for which there is nothing; a tuner that proposes later returns none, and sends them.
        """

    @abstractmethod
    def trial_end(self, message: protocol.TrialEnd, pruned: tuple[int, float] | None = None) -> None:
        """Give the tuner a trial's value, if it has one, and its end.

        :param pruned: where a trial scheduler has ended it before its time: the last step that was judged, and the
            value there.
        """

    @abstractmethod
    def pause(self, position: int, parameter_id: int, value: float, step: int) -> None:
        """Give the tuner the value at the step at which a trial scheduler has paused a trial.

        :param position: of the input that this follows from.
        """

    @abstractmethod
    def accept_clone(self, parameter_id: int, parameters: Any, *, instead_of: int) -> None:
        """Notify the tuner that a trial's result will come under this id, with parameters that it has not proposed, and
        not under the id that the trial had before."""

    @abstractmethod
    def import_data(self, message: protocol.ImportData) -> None:
        """Give the tuner imported results."""

    @abstractmethod
    def add_customized(self, message: protocol.AddCustomizedTrial) -> None:
        """Notify the tuner of a trial that the user has added."""

    def state_dict(self) -> protocol.JsonObject | None:
        """Return all that later decisions depend on; None if only the whole input log can bring it back."""
        return None

    def load_state_dict(self, state: protocol.JsonObject) -> None:
        """Be as the one that returned this from `state_dict`; called after `initialize`."""
        raise NotImplementedError(f"{type(self).__name__} saves no state")

    def stop_asking(self) -> None:  # noqa: B027 - nothing to do where nothing waits
        """Skip requests that wait: their answers would come too late. May be called from any thread."""

    @abstractmethod
    def close(self, mode: ShutdownMode) -> None:
        """Wait until the tuner has handled everything, let it save itself, and call its exit hook last."""


class HostedAssessor(ABC):
    """Feeds one assessor with messages. All calls come from one thread."""

    @abstractmethod
    def report(self, message: protocol.ReportMetrics) -> None:
        """Have every new metric assessed."""

    @abstractmethod
    def restart(self, message: protocol.TrialRestarted) -> None:
        """Discard the metrics that the new job of a trial will report again."""

    @abstractmethod
    def trial_end(self, message: protocol.TrialEnd) -> None:
        """Notify the assessor of the end of a trial."""

    @abstractmethod
    def close(self, mode: ShutdownMode) -> None:
        """Wait until the assessor has handled everything, let it save itself, and call its exit hook last."""


def succeeded(message: protocol.TrialEnd) -> bool:
    """Whether a trial ended as NNI's algorithms understand success."""
    return message.status == "SUCCEEDED"


class WorkerThread:
    """Does calls in the order they are put, on a thread of its own, which ends with the process."""

    def __init__(self, name: str) -> None:
        self._calls: queue.SimpleQueue[Call] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, call: Call) -> None:
        """Do `call` after everything put before it; returns at once."""
        self._calls.put(call)

    def finish(self, seconds: float) -> bool:
        """Wait until everything that was put is done; False where that takes longer."""
        done = threading.Event()
        self.put(done.set)
        return done.wait(seconds)

    def is_idle(self) -> bool:
        """Whether no call waits after the one that is being done."""
        return self._calls.empty()

    def cpu_seconds(self) -> float:
        """The processor time that the thread has used so far."""
        ident = self._thread.ident
        assert ident is not None, "a worker's thread runs from its beginning"
        return time.clock_gettime(time.pthread_getcpuclockid(ident))

    def _work(self) -> None:
        while True:
            self._calls.get()()
