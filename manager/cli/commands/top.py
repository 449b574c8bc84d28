"""`proctor top`: experiments and running trials, once a second."""

import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from proctor.manager.cli.columns import EXPERIMENTS_IN_TOP
from proctor.manager.cli.exits import ExitCode
from proctor.manager.cli.identifiers import find_experiment, is_running
from proctor.manager.cli.lazy import examples, nnictl_option
from proctor.manager.cli.output import echo, print_table, shows_a_screen
from proctor.manager.cli.session import CliSession, with_session

if TYPE_CHECKING:
    from proctor.sdk.client.client import Client

MOST_EXPERIMENTS, MOST_TRIALS = 10, 30
QUIT = ("q", "Q")


@click.command(epilog=examples("proctor top", "proctor top k3x9 --time 5", "proctor top --once"))
@click.argument("experiment", metavar="[ID]", required=False)
@nnictl_option(
    "--time",
    "interval",
    nnictl=["-t"],
    type=click.FloatRange(0.25),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often to refresh.",
)
@click.option("--once", is_flag=True, help="Print once and exit.")
@with_session
def top(session: CliSession, experiment: str | None, interval: float, once: bool) -> int:
    """Watch experiments and running trials; q quits. With an ID only that experiment.

    ETA is when the experiment will end if trials keep ending as often as they have so far.
    """
    client = session.client
    named = None if experiment is None else find_experiment(client, experiment)["id"]
    if once or not shows_a_screen(sys.stdout):
        experiments, running, _ = gather(client, named)
        print_table(experiments, EXPERIMENTS_IN_TOP)
        if running:
            from proctor.manager.cli.columns import TRIALS

            echo()
            print_table(running, TRIALS)
        return ExitCode.OK
    return _live(client, named, interval)


def gather(client: "Client", experiment_id: str | None) -> tuple[list[Any], list[Any], int]:
    """The experiments to show (running ones first, then the newest), running trials, and how many are left out."""
    if experiment_id is not None:
        every = [client.experiment(experiment_id)]
    else:
        every = sorted(client.experiments(), key=lambda row: (is_running(row), row["created_at"]), reverse=True)
    shown = every[:MOST_EXPERIMENTS]
    running: list[Any] = []
    hidden = 0
    for row in shown:
        count = row["trial_counts"].get("RUNNING", 0)
        if count:
            room = MOST_TRIALS - len(running)
            trials = client.trials(row["id"], status="RUNNING", sort="-sequence_id", page_size=max(room, 1))
            running += islice(trials, room)
            hidden += max(count - room, 0)
    return shown, running, hidden


def _live(client: "Client", experiment_id: str | None, interval: float) -> int:
    from rich.live import Live

    from proctor.manager.cli.live import overview
    from proctor.sdk.client.errors import ManagerUnreachable

    experiments, running, hidden = gather(client, experiment_id)
    with suppress(KeyboardInterrupt), _keyboard() as pressed:
        note = usual = f"{'q quits' if pressed else 'Ctrl-C quits'}; everything keeps running."
        with Live(overview(experiments, running, hidden, note), screen=True, auto_refresh=False) as live:
            while True:
                live.update(overview(experiments, running, hidden, note), refresh=True)
                if pressed is None:
                    time.sleep(interval)
                elif pressed(interval) in QUIT:
                    break
                try:
                    experiments, running, hidden = gather(client, experiment_id)
                    note = usual
                except ManagerUnreachable as error:
                    note = f"{error}. Trials keep running without it; trying again …"
    return ExitCode.OK


@contextmanager
def _keyboard() -> Iterator[Callable[[float], str] | None]:
    """A function that waits until a key is pressed, at most so many seconds, and gives its character, or ""; None where
    stdin is no terminal. Meanwhile keys are not echoed, and none waits for Enter."""
    if not sys.stdin.isatty():
        yield None
        return
    fd = sys.stdin.fileno()

    def pressed(seconds: float) -> str:
        if not select.select([fd], [], [], seconds)[0]:
            return ""
        return os.read(fd, 1).decode(errors="replace") or QUIT[0]  # nothing to read: the terminal is closed

    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)
