"""Starts a manager in the background when none is running."""

import os
import subprocess
import sys
from pathlib import Path

from proctor.sdk.client.client import Client
from proctor.sdk.client.errors import ManagerNotStarted, ManagerUnreachable
from proctor.sdk.client.home import ENV_HOME, ENV_URL

START_TIMEOUT_SECONDS = 60.0


def connect_or_start(home: Path, *, port: int | None = None) -> Client:
    """A client of the home's manager, which is started if it does not run.

    :param port: where a manager that must be started shall listen; one that runs stays where it is.
    Raises ManagerNotStarted with the manager's own words.
    """
    try:
        client = Client(home=home)
        client.health()
    except ManagerUnreachable:
        if os.environ.get(ENV_URL):
            raise
    else:
        return client
    start_manager(home, port=port)
    return Client(home=home)


def start_manager(home: Path, *, port: int | None = None) -> None:
    """Run `proctor manager start` with this interpreter and wait until the manager answers."""
    command = [sys.executable, "-P", "-m", "proctor.manager.cli.main", "manager", "start"]
    command += [] if port is None else ["--port", str(port)]
    try:
        done = subprocess.run(
            command,
            env={**os.environ, ENV_HOME: str(home)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ManagerNotStarted(
            f"the manager did not come up within {START_TIMEOUT_SECONDS:.0f} s; its log is in {home / 'log'}"
        ) from error
    if done.returncode:
        raise ManagerNotStarted(done.stderr.strip().removeprefix("Error: ") or f"exit code {done.returncode}")
