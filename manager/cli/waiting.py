"""Waiting for an experiment's end without showing anything."""

import time
from typing import TYPE_CHECKING, Any

from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.cli.foreground import RECHECK_SECONDS
from proctor.manager.cli.identifiers import is_running

if TYPE_CHECKING:
    from proctor.sdk.client.client import Client

STOP_SECONDS = 60.0


def wait_for_end(client: "Client", experiment_id: str, timeout: str | None) -> dict[str, Any]:
    """The experiment when nothing happens in it any more, or when the time (`90s`, `10m`) is over."""
    from proctor.sdk.client.config import read_duration
    from proctor.sdk.client.events import Watch

    try:
        seconds = read_duration(timeout)
    except ValueError as error:
        raise CommandError(f"--timeout: {error}", ExitCode.USAGE) from error
    deadline = float("inf") if seconds is None else time.monotonic() + seconds
    with Watch(client.events(experiment_id=experiment_id)) as watch:
        while is_running(experiment := client.experiment(experiment_id)) and time.monotonic() < deadline:
            watch.wait(max(0.0, min(RECHECK_SECONDS, deadline - time.monotonic())))
    return experiment


def stop_and_wait(client: "Client", experiment_id: str) -> None:
    """Stop an experiment and wait until it is STOPPED. Raises CommandError after a minute."""
    from proctor.sdk.client.events import Watch

    deadline = time.monotonic() + STOP_SECONDS
    with Watch(client.events(experiment_id=experiment_id)) as watch:
        client.stop_experiment(experiment_id)
        while (experiment := client.experiment(experiment_id))["status"] != "STOPPED":
            if time.monotonic() >= deadline:
                why = f": {experiment['reason']}" if experiment["reason"] else ""
                raise CommandError(f"experiment {experiment_id} has not stopped within {STOP_SECONDS:.0f} s{why}")
            watch.wait(1.0)
