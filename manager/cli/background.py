"""The manager process, as the command line starts it."""

from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.settings import Home


def ensure_running(home: Home, *, port: int | None = None, accept_database: bool = False) -> str:
    """Start the home's manager in the background if none runs; its URL. Raises CommandError with what it said."""
    from proctor.manager.daemon import ensure_manager
    from proctor.manager.instance import StartError

    try:
        return ensure_manager(home, port=port, accept_database=accept_database).url
    except StartError as error:
        raise CommandError(f"the manager could not be started: {error}", ExitCode.UNREACHABLE) from error
