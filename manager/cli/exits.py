"""How a command ends: the exit codes that scripts may rely on, and the error that carries one."""

from enum import IntEnum


class ExitCode(IntEnum):
    """The documented exit codes."""

    OK = 0  # it is done
    FAILED = 1  # it could not be done
    USAGE = 2  # wrong arguments, or a configuration that is not valid
    NOT_FOUND = 3  # there is no such experiment, trial, file or algorithm
    NOT_AUTHORIZED = 4  # the token is missing, wrong, or may only look
    CONFLICT = 5  # not in this status, or the id matches several
    UNREACHABLE = 6  # no manager answers, or none could be started
    EXPERIMENT_FAILED = 100  # the experiment that was waited for ended in ERROR, or without one trial that succeeded
    STILL_RUNNING = 101  # the time to wait is over
    CANCELLED = 103  # the experiment that was waited for was stopped
    INTERRUPTED = 130  # Ctrl-C; what was watched keeps running


class CommandError(Exception):
    """A command cannot be carried out. The text is one or more sentences for a person."""

    def __init__(self, message: str, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.code = code


def describe_error(error: BaseException) -> tuple[str, ExitCode] | None:
    """The sentence and the exit code of an expected error; None for any other.

    Classes are compared by name first, so that no command pays for importing what it does not use.
    """
    if isinstance(error, CommandError):
        return str(error), error.code
    names = {kind.__name__ for kind in type(error).__mro__}
    if "ProblemError" in names:
        lines = [
            str(error),
            *(f"  {problem}" for problem in getattr(error, "problems", ()) if problem not in str(error)),
        ]
        return "\n".join(lines), next((code for name, code in _CODES.items() if name in names), ExitCode.FAILED)
    if "ClientError" in names:
        return str(error), ExitCode.UNREACHABLE
    if names & {"ConfigError", "SettingsError"}:
        return str(error), ExitCode.USAGE
    if "RegistrationError" in names:
        return str(error), ExitCode.FAILED
    if isinstance(error, OSError):
        what = error.strerror or str(error)
        return (f"{error.filename}: {what}" if error.filename else what), ExitCode.FAILED
    return None


_CODES = {
    "NotFound": ExitCode.NOT_FOUND,
    "Unauthorized": ExitCode.NOT_AUTHORIZED,
    "Refused": ExitCode.NOT_AUTHORIZED,
    "Conflict": ExitCode.CONFLICT,
    "BadInput": ExitCode.USAGE,
}
