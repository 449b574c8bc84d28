"""How far the way to a machine was clear: the first steps of `proctor doctor`."""

from proctor.training_services.providers import CheckStep, CheckVerdict
from proctor.training_services.remote.errors import RemoteError

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
        steps: list[CheckStep] = []
        stopped = False
        for stage in STAGES:
            if stage in self._found and not stopped:
                steps.append(CheckStep(self._machine, stage, CheckVerdict.OK, self._found[stage]))
            elif not stopped and self._error is not None:
                stopped = True
                steps.append(self._failure(stage, self._error))
            else:
                steps.append(CheckStep(self._machine, stage, CheckVerdict.SKIPPED, "not reached"))
        return tuple(steps)

    def _failure(self, stage: str, error: RemoteError) -> CheckStep:
        found, _, advice = str(error).rpartition("; ")
        return CheckStep(self._machine, stage, CheckVerdict.FAIL, found or advice, advice if found else "")
