"""What a session holds: one tuner and perhaps one assessor, built in or the user's own, behind the same calls."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.protocol import FromDispatcher

Send = Callable[[FromDispatcher], None]


@dataclass(frozen=True)
class Goodbye:
    """How a session ends."""

    seconds: float
    """How long an algorithm may take to handle what it has been told and to leave."""
    saves: bool
    """Whether algorithms save themselves. Not where the manager is gone: the next one may have started successors,
    which keep their checkpoints in the same folder."""


IN_ORDER = Goodbye(30.0, saves=True)
ABANDONED = Goodbye(2.0, saves=False)


class TunerHand(ABC):
    """Feeds one tuner with messages. All calls come on the tuner's lane."""

    @abstractmethod
    def initialize(self, search_space: Any) -> None:
        """Give the tuner its first search space."""

    @abstractmethod
    def update_search_space(self, message: protocol.UpdateSearchSpace) -> None:
        """Give the tuner a new search space."""

    @abstractmethod
    def request(self, message: protocol.RequestTrialJobs) -> None:
        """Answer every id that has no answer yet."""

    @abstractmethod
    def trial_end(self, message: protocol.TrialEnd) -> None:
        """Tell the tuner a trial's value, if it has one, and its end."""

    @abstractmethod
    def import_data(self, message: protocol.ImportData) -> None:
        """Tell the tuner results from elsewhere."""

    @abstractmethod
    def add_customized(self, message: protocol.AddCustomizedTrial) -> None:
        """Tell the tuner of a trial that the user has added."""

    def stop_asking(self) -> None:  # noqa: B027 - nothing to do where nothing waits
        """Skip requests that wait: their answers would come too late. May be called from any thread."""

    @abstractmethod
    def close(self, goodbye: Goodbye) -> None:
        """Wait until the tuner has handled everything, let it save itself, and call its exit hook last."""


class AssessorHand(ABC):
    """Feeds one assessor with messages. All calls come on the assessor's lane."""

    @abstractmethod
    def report(self, message: protocol.ReportMetrics) -> None:
        """Have every new metric assessed."""

    @abstractmethod
    def restart(self, message: protocol.TrialRestarted) -> None:
        """Forget the metrics that the new job of a trial will report again."""

    @abstractmethod
    def trial_end(self, message: protocol.TrialEnd) -> None:
        """Tell the assessor the end of a trial."""

    @abstractmethod
    def close(self, goodbye: Goodbye) -> None:
        """Wait until the assessor has handled everything, let it save itself, and call its exit hook last."""


def succeeded(message: protocol.TrialEnd) -> bool:
    """Say whether a trial ended as NNI's algorithms understand success."""
    return message.status == "SUCCEEDED"
