"""How far the way to a machine was clear: the first steps of `proctor doctor`."""

from proctor.training_services.providers import CheckStep, CheckVerdict
from proctor.training_services.remote.errors import KeyUnusable, RemoteError

NAME, PORT, HOST_KEY, LOGIN = STAGES = ("name", "port", "host key", "login")


class RouteTrace:
    """Filled by `open_connection`, whether it succeeds or fails."""

    def __init__(self, machine: str) -> None:
        """:param machine: as the user named it."""
        self._machine = machine
        self._found: dict[str, str] = {}
        self._error: RemoteError | None = None

    def passed(self, stage: str, found: str) -> None:
        """One step is behind us."""
        self._found[stage] = found

    def failed(self, error: RemoteError) -> None:
        """The first step that was not passed failed with this."""
        self._error = error

    def steps(self) -> tuple[CheckStep, ...]:
        """The four steps, those after a failure SKIPPED."""
        return tuple(self._step(stage, self._failed_stage()) for stage in STAGES)

    def _failed_stage(self) -> str:
        if self._error is None:
            return ""
        if isinstance(self._error, KeyUnusable):
            return LOGIN  # found out before anything was asked of the network
        return next((stage for stage in STAGES if stage not in self._found), LOGIN)

    def _step(self, stage: str, failed: str) -> CheckStep:
        if stage == failed and self._error is not None:
            return self._failure(stage, self._error)
        if stage in self._found:
            return CheckStep(self._machine, stage, CheckVerdict.OK, self._found[stage])
        return CheckStep(self._machine, stage, CheckVerdict.SKIPPED, "not reached")

    def _failure(self, stage: str, error: RemoteError) -> CheckStep:
        found, _, advice = str(error).rpartition("; ")
        return CheckStep(self._machine, stage, CheckVerdict.FAIL, found or advice, advice if found else "")
