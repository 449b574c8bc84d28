"""`proctor manager`: the process behind everything else; `proctor version` and `proctor webui`, which ask it."""

from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as metadata_version
from typing import Any

import click

from proctor.manager.cli.exits import ExitCode
from proctor.manager.cli.identifiers import OneOf, experiment_argument, find_experiment
from proctor.manager.cli.lazy import examples
from proctor.manager.cli.output import Column, confirm, echo, output_option, print_one
from proctor.manager.cli.session import CliSession, ensure_running, with_session
from proctor.manager.settings import Home, HomeClaim

FIELDS = (
    Column("manager", lambda row: "running" if row["running"] else "not running"),
    Column("health", lambda row: " ".join(text for text in (row["health"], row["reason"]) if text)),
    Column("url", lambda row: row["url"] or ""),
    Column("keepers", lambda row: row["keeper_url"] or ""),
    Column("pid", lambda row: str(row["pid"] or "")),
    Column("version", lambda row: row["version"] or ""),
    Column("home", lambda row: row["home"]),
)


NO_ANSWER = "no answer"
KEEPERS_HELP = "Address for keepers on other networks, over TLS.  [default: none]"
ACCEPT_HELP = "Start with the current (or an empty) control database even though this home used a different one."


def claim_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options `--moved`, `--copy` and `-y` of a command; it gets a `claim`."""

    @click.option("--moved", is_flag=True, help="This home takes the place of the one that it was copied from.")
    @click.option("--copy", is_flag=True, help="This home is a copy: make it a home of its own.")
    @click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation of --moved.")
    @wraps(command)
    def with_claim(*args: Any, moved: bool, copy: bool, yes: bool, **options: Any) -> Any:
        if moved and copy:
            raise click.UsageError("--moved and --copy exclude each other")
        claim = HomeClaim.MOVED if moved else HomeClaim.COPY if copy else None
        return command(*args, claim=claim, is_confirmed=yes, **options)

    return with_claim


@click.group(epilog=examples("proctor manager status", "proctor manager start"))
def manager() -> None:
    """Run, start or stop the manager, or show its status."""


@manager.command(
    short_help="Run the manager in the foreground.",
    epilog=examples("proctor manager run", "proctor manager run --host 0.0.0.0 --allow-remote --port 8080"),
)
@click.option("--host", metavar="ADDRESS", help="Address to listen on.  [default: 127.0.0.1]")
@click.option("-p", "--port", metavar="PORT", help="auto: 8080 or the next free one (default); 0: any.")
@click.option("--allow-remote", is_flag=True, help="Allow a --host that other machines can reach.")
@click.option("--allowed-host", multiple=True, metavar="NAME", help="Another host name to accept requests for.")
@click.option("--url-prefix", metavar="PATH", help="Path prefix of all URLs behind a reverse proxy.")
@click.option("--keeper-listen", metavar="HOST:PORT", help=KEEPERS_HELP)
@click.option("--accept-database", is_flag=True, help=ACCEPT_HELP)
@claim_options
@click.option("--log-format", type=OneOf(["text", "json"]), help="Format of the log on stderr.")
@click.option("--log-level", type=OneOf(["DEBUG", "INFO", "WARNING", "ERROR"], case_sensitive=False))
@with_session
def run(
    session: CliSession,
    /,
    allow_remote: bool,
    accept_database: bool,
    allowed_host: tuple[str, ...],
    claim: HomeClaim | None,
    is_confirmed: bool,
    **options: str | None,
) -> int:
    """Run the manager in the foreground until it is stopped; for systemd and containers."""
    from proctor.manager.__main__ import main as run_manager

    if not (is_confirmed or _confirm_claim(session.home, claim)):
        return ExitCode.OK
    arguments = ["--home", str(session.home.path)]
    for name, value in options.items():
        if value is not None:
            arguments += [f"--{name.replace('_', '-')}", value]
    arguments += ["--allow-remote"] if allow_remote else []
    arguments += ["--accept-database"] if accept_database else []
    arguments += [] if claim is None else [f"--{claim}"]
    for name in allowed_host:
        arguments += ["--allowed-host", name]
    return run_manager(arguments)


@manager.command(
    short_help="Start the manager in the background.", epilog=examples("proctor manager start --port 8080")
)
@click.option(
    "-p", "--port", type=click.IntRange(0, 65535), help="Port to listen on.  [default: 8080 or the next free]"
)
@click.option("--url-prefix", metavar="PATH", help="Path prefix of all URLs behind a reverse proxy.")
@click.option("--keeper-listen", metavar="HOST:PORT", help=KEEPERS_HELP)
@click.option("--accept-database", is_flag=True, help=ACCEPT_HELP)
@claim_options
@with_session
def start(session: CliSession, /, claim: HomeClaim | None, is_confirmed: bool, **options: Any) -> None:
    """Start the manager in the background; does nothing if it is already running. Its URL goes to stdout."""
    if is_confirmed or _confirm_claim(session.home, claim):
        echo(ensure_running(session.home, claim=claim, **options))


def _confirm_claim(home: Home, claim: HomeClaim | None) -> bool:
    """Ask whether a home may take the place of another one."""
    if claim is not HomeClaim.MOVED:
        return True
    from proctor.manager.process.home_place import last_path

    before = last_path(home)
    if before in (None, str(home.path)):
        question = f"Is {home.path} the only home with these experiments?"
    else:
        question = f"Is the home {before} no longer used? {home.path} takes its place."
    return confirm(f"{question} It takes over running trials, and what is stored elsewhere.")


@manager.command(epilog=examples("proctor manager stop"))
@with_session
def stop(session: CliSession) -> None:
    """Stop the manager. Trials keep running under their keepers; the manager finds them again when it is started."""
    from proctor.manager.process.daemon import stop_manager
    from proctor.sdk.client.home import absence

    running = _running_trials(session)
    trials = {None: "running trials continue", 0: "no trial was running", 1: "1 running trial continues"}
    was_running = stop_manager(session.home, report=session.report)
    what = trials.get(running, f"{running} running trials continue")
    because = f": {why}" if (why := absence(session.home.path)) else ""
    session.report(f"Manager stopped; {what}." if was_running else f"No manager was running{because}.")


_WITH_TRIALS = ("RUNNING", "NO_MORE_TRIAL", "PAUSED", "STOPPING")
"""The statuses of experiments that may have running trials."""


def _running_trials(session: CliSession) -> int | None:
    """How many trials run under their keepers; None where the manager does not say."""
    from proctor.sdk.client.client import Client
    from proctor.sdk.client.errors import ClientError

    try:
        with Client(home=session.home.path, timeout_seconds=5.0) as client:
            rows = (row for status in _WITH_TRIALS for row in client.experiments(status=status, archived=None))
            return sum(int(row["trial_counts"].get("RUNNING", 0)) for row in rows)
    except ClientError:
        return None


@manager.command(epilog=examples("proctor manager status -o json"))
@output_option
@with_session
def status(session: CliSession, output: str) -> int:
    """Show whether the manager runs, and where. The exit code is 6 if it does not run or does not answer."""
    row = describe_manager(session)
    print_one(row, FIELDS, output)
    return ExitCode.OK if row["running"] and row["health"] != NO_ANSWER else ExitCode.UNREACHABLE


def describe_manager(session: CliSession) -> dict[str, Any]:
    """What is known of the home's manager."""
    from proctor.manager.process.daemon import manager_status
    from proctor.sdk.client.errors import ClientError

    address = manager_status(session.home)
    known = dict.fromkeys(("url", "keeper_url", "pid", "version")) if address is None else asdict(address)
    row = {
        "running": address is not None,
        **{name: known[name] for name in ("url", "keeper_url", "pid", "version")},
        "home": str(session.home.path),
        "health": "",
        "reason": "",
    }
    if address is not None:
        try:
            row.update({"health" if name == "status" else name: text for name, text in session.client.health().items()})
        except ClientError as error:
            row.update(health=NO_ANSWER, reason=str(error))
    return row


def installed_version() -> str:
    """The version of the installed package; 0 in a checkout that was not installed."""
    try:
        return metadata_version("proctor")
    except PackageNotFoundError:
        return "0"


@click.command(epilog=examples("proctor version"))
@output_option
@with_session
def version(session: CliSession, output: str) -> None:
    """Print the version of the command line and, if it runs, of the manager."""
    from proctor.sdk.client.errors import ClientError

    try:
        running = session.client.version()
    except ClientError:
        running = None
    row = {"version": installed_version(), "manager": running}
    fields = (
        Column("proctor", lambda row: row["version"]),
        Column("manager", lambda row: row["manager"]["version"] if row["manager"] else "not running"),
        Column("home", lambda row: row["manager"]["home"] if row["manager"] else ""),
    )
    print_one(row, fields, output)


@click.group(epilog=examples("proctor webui url"))
def webui() -> None:
    """The web UI."""


@webui.command(epilog=examples("proctor webui url", "proctor webui url k3x9"))
@experiment_argument
@with_session
def url(session: CliSession, experiment: str | None) -> None:
    """Print the URL of the page, with the token, which allows everything."""
    session.client.health()
    path = "/" if experiment is None else f"/experiments/{find_experiment(session.client, experiment)['id']}"
    echo(session.client.page_url(path))
