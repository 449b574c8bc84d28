"""`proctor resume`, `pause`, `view` and `stop`."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import click

from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.cli.identifiers import experiment_argument, find_experiment, is_running, machines_kept
from proctor.manager.cli.lazy import examples, ignored_option, nnictl_option
from proctor.manager.cli.output import echo
from proctor.manager.cli.session import CliSession, with_session
from proctor.manager.lifecycle.states import ExperimentStatus

if TYPE_CHECKING:
    from proctor.sdk.client.client import Client

F = TypeVar("F", bound=Callable[..., Any])


def folder_option(function: F) -> F:
    """Adds nnictl's `-e/--experiment_dir`; the function gets it as `folder`, for `_require_folder`."""
    names = ("-e", "--experiment_dir", "--experiment-dir", "folder")
    return click.option(*names, metavar="DIR", type=click.Path(path_type=Path), hidden=True)(function)


@click.command(
    epilog=examples(
        "proctor resume                  # the only one that can be resumed", "proctor resume k3x9 --foreground"
    )
)
@experiment_argument
@click.option("-p", "--port", type=click.IntRange(0, 65535), help="Port to use if a manager has to be started.")
@nnictl_option("--foreground", nnictl=["-f"], is_flag=True, help="Watch it until it ends.")
@click.option(
    "--trials", is_flag=True, help="Resume the trials that were paused with it, too; also of a running experiment."
)
@folder_option
@ignored_option("-d", "--debug", is_flag=True, because="an experiment keeps the logLevel that it was created with")
@with_session
def resume(
    session: CliSession,
    experiment: str | None,
    port: int | None,
    foreground: bool,
    trials: bool,
    folder: Path | None,
) -> int:
    """Resume a stopped, paused or failed experiment. Trials that still run are not started again.

    An experiment that is still being stopped is waited for.
    """
    client = session.ensure_client(port=port)
    found = (
        _find(client, experiment, folder)
        if experiment or folder
        else _only(client, {s for s in ExperimentStatus if s.is_resumable or (trials and s.is_working)}, "resumed")
    )
    _wait_while_stopping(session, client, found)
    client.resume_experiment(found["id"], trials=trials)
    session.report(f"Experiment {found['id']} resumed.")
    if not foreground:
        return ExitCode.OK
    from proctor.manager.cli.watching import watch_to_the_end

    return watch_to_the_end(session, found["id"])


@click.command(epilog=examples("proctor pause", "proctor pause k3x9 --trials"))
@experiment_argument
@click.option("--trials", is_flag=True, help="Pause its trials, too; those that can save may do so first.")
@with_session
def pause(session: CliSession, experiment: str | None, trials: bool) -> None:
    """Stop starting new trials; running trials finish. `proctor resume` resumes the experiment.

    With `--trials` its trials are paused, too, and `proctor resume --trials` resumes these.
    """
    found = find_experiment(session.client, experiment)
    session.client.pause_experiment(found["id"], trials=trials)
    what = "starts no new trials and its trials are being paused" if trials else "starts no new trials"
    again = f"proctor resume {found['id']}{' --trials' if trials else ''}"
    session.report(f"Experiment {found['id']} {what}; `{again}` resumes it.")


@click.command(epilog=examples("proctor view k3x9"))
@experiment_argument
@click.option("-p", "--port", type=click.IntRange(0, 65535), help="Port to use if a manager has to be started.")
@folder_option
@with_session
def view(session: CliSession, experiment: str | None, port: int | None, folder: Path | None) -> None:
    """Open an experiment for viewing: start the manager if necessary and print the URL of the page.

    The experiment itself is not started; a stopped one is VIEWED until it is resumed or stopped.
    """
    client = session.ensure_client(port=port)
    found = _wait_while_stopping(session, client, _find(client, experiment, folder))
    if found["status"] == "STOPPED":
        found = client.view_experiment(found["id"])
    session.report(f"Experiment {found['id']} is {found['status']}. Its page (the link holds your token):")
    echo(client.page_url(f"/experiments/{found['id']}"))


@click.command(
    epilog=examples(
        "proctor stop                    # the only one that runs", "proctor stop k3x9 --wait", "proctor stop --all"
    )
)
@experiment_argument
@click.option("-a", "--all", "every", is_flag=True, help="Stop all experiments.")
@click.option("--wait", is_flag=True, help="Wait until it is STOPPED, and report what it is waiting for.")
@click.option("--timeout", metavar="DURATION", help="Wait no longer than 90s, 10m, 2h; then exit code 101.")
@click.option("-p", "--port", type=int, hidden=True)
@with_session
def stop(
    session: CliSession, experiment: str | None, every: bool, wait: bool, timeout: str | None, port: int | None
) -> None:
    """Stop an experiment and its trials; it can be resumed. The manager keeps running.

    An ID that ends in `*` stops all experiments whose ids begin like that. Trials that can save may do so first
    (`saveSeconds`); stopping the experiment again ends them at once.
    """
    from proctor.manager.cli.watching import deadline_of, wait_until_stopped

    client, deadline = session.client, deadline_of(timeout)
    if port is not None and urlsplit(client.url).port != port:  # nnictl's: one experiment has the port there
        raise CommandError(
            f"no manager of this home listens on port {port}; the one at {client.url} serves all experiments of the "
            "home: stop one by its id (`proctor experiment list` shows all)",
            ExitCode.NOT_FOUND,
        )
    if every:
        if experiment is not None:
            raise click.UsageError("give an ID or --all, not both")
        stopping = [row["id"] for row in client.experiments() if is_running(row)]
        client.stop_all()
        session.report("All experiments are being stopped.")
    else:
        stopping = [_stop_one(session, found["id"]) for found in _to_stop(client, experiment)]
    if stopping and (wait or timeout is not None):
        wait_until_stopped(session, stopping, deadline)


def _stop_one(session: CliSession, identifier: str) -> str:
    stopping = session.client.stop_experiment(identifier)
    waits = f" ({stopping['reason']})" if stopping["status"] == "STOPPING" and stopping["reason"] else ""
    session.report(f"Experiment {identifier} is being stopped{waits}; `proctor resume {identifier}` resumes it.")
    return identifier


def _find(client: "Client", experiment: str | None, folder: Path | None) -> dict[str, Any]:
    """The experiment that is named. nnictl's folder of an experiment must be its own: it is not looked for there.

    Raises CommandError.
    """
    if folder is None:
        return find_experiment(client, experiment, ended_too=True)
    place = folder.expanduser().resolve()
    try:
        found = find_experiment(client, experiment or place.name, ended_too=True)
    except CommandError as error:
        if error.code is not ExitCode.NOT_FOUND:
            raise
        found = None
    if found is not None:
        own = Path(found["directory"]).resolve()
        if place in (own, own.parent):
            return found
    raise CommandError(
        f"no experiment of this home has its folder in {folder}. One that was saved is imported by `proctor experiment "
        "load`, one of another home is resumed by `proctor --home DIR`. An experiment of NNI cannot be resumed: create "
        "it again, and import what `nnictl experiment export` wrote by `proctor experiment import`",
        ExitCode.NOT_FOUND,
    )


def _wait_while_stopping(session: CliSession, client: "Client", experiment: dict[str, Any]) -> dict[str, Any]:
    """The experiment; one that is being stopped when it is STOPPED. Ctrl-C ends the waiting."""
    from proctor.sdk.client.experiment import wait_while_stopping

    def report(found: dict[str, Any]) -> None:
        why = f" ({found['reason']})" if found["reason"] else ""
        session.report(f"Experiment {found['id']} is still being stopped{why}; waiting. Ctrl-C ends the waiting.")

    return wait_while_stopping(client, experiment["id"], report)


def _to_stop(client: Any, experiment: str | None) -> list[dict[str, Any]]:
    if experiment is None:
        return [_only_running(client)]
    if not experiment.endswith("*"):
        try:
            return [find_experiment(client, experiment)]
        except CommandError as error:
            if experiment == "all" and error.code is ExitCode.NOT_FOUND:  # nnictl's
                raise CommandError(f"{error}; `proctor stop --all` stops all experiments", error.code) from error
            raise
    beginning = experiment.removesuffix("*")
    if not beginning:
        raise click.UsageError("expected the beginning of an id before '*'; `proctor stop --all` stops all experiments")
    found = [row for row in client.experiments() if row["id"].startswith(beginning) and is_running(row)]
    if not found:
        raise CommandError(f"no running experiment has an id that begins with {beginning!r}", ExitCode.NOT_FOUND)
    return found


def _only_running(client: Any) -> dict[str, Any]:
    """The only one that runs. Where none does, the error names those that have ended and keep machines."""
    try:
        return find_experiment(client, None)
    except CommandError as error:
        is_none = error.code is ExitCode.NOT_FOUND
        ended = {row["id"]: row for row in client.experiments(archived=None)} if is_none else {}
        kept = machines_kept(client, ended.keys()) if ended else {}
        if not kept:
            raise
        lines = [
            f"  proctor stop {identifier}    # {ended[identifier]['status']}, {', '.join(machines)}"
            for identifier, machines in kept.items()
        ]
        message = "no experiment is running; ended experiments keep their machines until they are stopped:"
        raise CommandError("\n".join([message, *lines]), ExitCode.NOT_FOUND) from error


def _only(client: Any, statuses: set[str], what: str) -> dict[str, Any]:
    found = [row for row in client.experiments() if row["status"] in statuses]
    if len(found) == 1:
        return dict(found[0])
    if not found:
        raise CommandError(f"no experiment can be {what}", ExitCode.NOT_FOUND)
    names = "\n".join(f"  {row['id']}  {row['status']:<10}  {row['name']}" for row in found[:10])
    raise CommandError(f"several experiments could be {what}; name one by its id:\n{names}", ExitCode.CONFLICT)
