"""`proctor log`: what the manager, a dispatcher or a trial has printed."""

import json
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from proctor.manager.cli.columns import FOUND_LINES
from proctor.manager.cli.identifiers import experiment_argument, find_experiment, named_trial, trial_argument
from proctor.manager.cli.lazy import examples
from proctor.manager.cli.output import echo, output_option, print_list
from proctor.manager.cli.session import CliSession, with_session

if TYPE_CHECKING:
    from proctor.manager.cli.logs import GrowingLog

F = TypeVar("F", bound=Callable[..., Any])


def length_options(function: F) -> F:
    """Adds `--tail` and `--head`; nnictl's `-T` and `-H` work as well."""
    for option in (
        click.option("-H", "--head", type=click.IntRange(1), metavar="N", help="Only the first N lines."),
        click.option("-n", "--tail", type=click.IntRange(1), metavar="N", help="Only the last N lines."),
    ):
        function = option(function)
    return function


@click.group(epilog=examples("proctor log manager -n 50", "proctor log dispatcher k3x9 -f"))
def log() -> None:
    """Print the log of the manager, a dispatcher or a trial."""


@log.command(epilog=examples("proctor log manager -f", "proctor log manager -n 50"))
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines until Ctrl-C.")
@length_options
@with_session
def manager(session: CliSession, follow: bool, tail: int | None, head: int | None) -> None:
    """Print the manager's log, one JSON object per line. Also works while the manager is down."""
    _print(_manager_log(session), follow, tail, head)


@log.command(epilog=examples("proctor log dispatcher", "proctor log dispatcher k3x9 -f -n 20"))
@experiment_argument
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines until Ctrl-C.")
@length_options
@with_session
def dispatcher(session: CliSession, experiment: str | None, follow: bool, tail: int | None, head: int | None) -> None:
    """Print the output of an experiment's algorithms."""
    found = find_experiment(session.client, experiment, ended_too=True)
    _print(_dispatcher_log(session, found), follow, tail, head)


@log.command(
    short_help="Search the output of an experiment's trials.",
    epilog=examples('proctor log search "CUDA error"', "proctor log search nan k3x9 --ignore-case --limit 20"),
)
@click.argument("text", metavar="TEXT")
@experiment_argument
@click.option("--ignore-case", is_flag=True, help="Upper and lower case are alike.")
@click.option("--trial", metavar="NUMBER|ID", help="Only the output of this trial.")
@click.option("--limit", type=click.IntRange(1), default=100, show_default=True, metavar="N", help="At most N lines.")
@output_option
@with_session
def search(
    session: CliSession,
    text: str,
    experiment: str | None,
    ignore_case: bool,
    trial: str | None,
    limit: int,
    output: str,
) -> None:
    """Print the lines with this text in the output of an experiment's trials, both streams, the newest trial first.

    Only what is on the manager's machine is searched: what was left out is reported on stderr.
    """
    if trial is not None:
        found = named_trial(session.client, (), trial, experiment)
        of = {"trial_id": found["id"]}
    else:
        of = {"experiment_id": find_experiment(session.client, experiment, ended_too=True)["id"]}
    rows: list[dict[str, Any]] = []
    left_out, cursor = 0, None
    while len(rows) < limit:
        answer = session.client.search_logs(
            text, **of, ignore_case=ignore_case, cursor=cursor, limit=min(1000, limit - len(rows))
        )
        rows += answer["items"]
        left_out += answer["not_here_count"]
        cursor = answer["next_cursor"]
        if cursor is None:
            break
    print_list(rows, FOUND_LINES, output, empty="no line has this text")
    if left_out:
        jobs = "1 job" if left_out == 1 else f"{left_out} jobs"
        echo(f"the output of {jobs} is not on the manager's machine and was not searched", err=True)
    if cursor is not None:
        echo(f"there may be more: these are the first {len(rows)} lines; --limit {2 * limit} prints more", err=True)


def nnictl_options(function: F) -> F:
    """Adds the options of nnictl's `log stdout` and `log stderr`."""
    for option in (
        click.option("-H", "--head", type=click.IntRange(1), metavar="N", help="Only the first N lines."),
        click.option("-T", "-n", "--tail", type=click.IntRange(1), metavar="N", help="Only the last N lines."),
        click.option("--path", is_flag=True, help="Print the path of the file instead."),
    ):
        function = option(function)
    return function


@log.command(hidden=True)
@experiment_argument
@nnictl_options
@with_session
def stdout(session: CliSession, experiment: str | None, path: bool, tail: int | None, head: int | None) -> None:
    """Print the manager's log; with an ID, its lines about that experiment. The name is nnictl's."""
    if path:
        echo(str(session.home.manager_log))
    elif experiment is None:
        _print(_manager_log(session), False, tail, head)
    else:
        from proctor.manager.cli.logs import write

        identifier = find_experiment(session.client, experiment, ended_too=True)["id"]
        lines = islice(_lines_about(_manager_log(session), identifier), head)
        for line in lines if tail is None else deque(lines, tail):
            write(line)


@log.command(hidden=True)
@experiment_argument
@nnictl_options
@with_session
def stderr(session: CliSession, experiment: str | None, path: bool, tail: int | None, head: int | None) -> None:
    """Print the manager's log; with an ID, what that experiment's algorithms printed. The name is nnictl's."""
    found = None if experiment is None else find_experiment(session.client, experiment, ended_too=True)
    if path:
        echo(str(session.home.manager_log if found is None else Path(found["directory"]) / "log" / "dispatcher.log"))
    else:
        _print(_manager_log(session) if found is None else _dispatcher_log(session, found), False, tail, head)


@click.command(
    short_help="Print the output of a trial.",
    epilog=examples(
        "proctor trial log 7", "proctor trial log 7 -f --tail 20", "proctor trial log 7 --stderr > errors.txt"
    ),
)
@trial_argument
@click.option("-f", "--follow", is_flag=True, help="Follow until the trial ends.")
@click.option("--stdout", is_flag=True, help="Print stdout only.")
@click.option("--stderr", is_flag=True, help="Print stderr only.")
@click.option("-j", "--job", type=click.IntRange(1), metavar="N", help="Print the Nth attempt instead of the newest.")
@length_options
@with_session
def trial_log(
    session: CliSession,
    words: Sequence[str],
    trial: str | None,
    experiment: str | None,
    follow: bool,
    stdout: bool,
    stderr: bool,
    job: int | None,
    tail: int | None,
    head: int | None,
) -> None:
    """Print the output of a trial: stdout, then stderr under its name; with --follow both as they come.

    --tail and --head count the lines of each stream. The files have no times, so lines of an earlier moment cannot be
    interleaved.
    """
    from proctor.manager.cli import logs

    _refuse_both(follow, head)
    found = named_trial(session.client, words, trial, experiment)
    streams = [logs.STDOUT] * (stdout or not stderr) + [logs.STDERR] * (stderr or not stdout)
    if follow:
        logs.follow_trial(session, found, streams, job=job, tail=tail)
    else:
        logs.print_trial(session, found, streams, job=job, tail=tail, head=head)


def _print(growing: "GrowingLog", follow: bool, tail: int | None, head: int | None) -> None:
    from proctor.manager.cli import logs

    _refuse_both(follow, head)
    logs.print_log(growing, tail=tail, head=head)
    if follow:
        logs.follow(growing)


def _refuse_both(follow: bool, head: int | None) -> None:
    if follow and head:
        raise click.UsageError("give --follow or --head, not both")


def _lines_about(growing: "GrowingLog", experiment: str) -> Iterator[bytes]:
    """The lines of the manager's log that name an experiment."""
    for line in growing.lines():
        try:
            named = json.loads(line).get("experiment_id")
        except (ValueError, AttributeError):  # what was printed before the log was set up
            continue
        if named == experiment:
            yield line


def _dispatcher_log(session: CliSession, experiment: dict[str, Any]) -> "GrowingLog":
    from proctor.manager.cli.logs import GrowingLog

    client, identifier = session.client, experiment["id"]
    return GrowingLog(lambda start, limit: client.dispatcher_log(identifier, offset=start, limit=limit))


def _manager_log(session: CliSession) -> "GrowingLog":
    """From the manager itself where it is elsewhere, else from its file."""
    from proctor.manager.cli.logs import GrowingLog
    from proctor.sdk.client.logs import LogPiece

    path = session.home.manager_log
    if session.url is not None or not path.exists():
        return GrowingLog(lambda start, limit: session.client.manager_log(offset=start, limit=limit))

    def read(start: int, limit: int | None) -> LogPiece:
        with path.open("rb") as file:
            if start < 0:
                start = max(file.seek(0, os.SEEK_END) + start, 0)
            file.seek(start)
            data = file.read(limit or 1 << 20)
        return LogPiece(data, start + len(data))

    return GrowingLog(read)


log.add_command(trial_log, "trial")
