"""The manager process, as the command line starts it, finds it and stops it."""

from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.settings import Home


def ensure_running(home: Home, *, port: int | None = None) -> None:
    """Start the home's manager in the background if none runs. Raises CommandError with what it said."""
    from proctor.manager.daemon import ensure_manager

    try:
        ensure_manager(home, port=port)
    except Exception as error:
        raise CommandError(f"the manager could not be started: {error}", ExitCode.UNREACHABLE) from error
