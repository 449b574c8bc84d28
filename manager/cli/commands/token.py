"""`proctor token`: a token for each person or program that uses the manager, so that events say who did what."""

import json
from urllib.parse import quote

import click

from proctor.manager.cli.columns import local_time
from proctor.manager.cli.lazy import examples
from proctor.manager.cli.output import Column, Format, confirm, echo, output_option, print_list, print_one
from proctor.manager.cli.session import CliSession, with_session

_COLUMNS = (
    Column("NAME", lambda row: row["name"], gives_way=True),
    Column("ACCESS", lambda row: row["access"]),
    Column("MADE", lambda row: local_time(row["created_at"]), left_out=1),
    Column("BY", lambda row: row["created_by"], left_out=2),
    Column(
        "LAST USED", lambda row: "never" if row["last_used_at"] is None else local_time(row["last_used_at"])[:13] + "h"
    ),
)


@click.group(epilog=examples("proctor token add alice", "proctor token ls"))
def token() -> None:
    """Tokens of people and programs, beside the two in the manager's home.

    Each has a name, which is in every event that it causes.
    """


@token.command(
    short_help="Make a token.",
    epilog=examples("proctor token add alice", "proctor token add grafana --read-only"),
)
@click.argument("name")
@click.option("--read-only", is_flag=True, help="It can look at everything and change nothing.")
@output_option
@with_session
def add(session: CliSession, name: str, read_only: bool, output: str) -> None:
    """Make a token and print it, once: only its hash is stored.

    NAME has letters, digits, dots, underscores and hyphens.
    """
    made = session.client.add_token(name, access="read-only" if read_only else "full")
    if output != Format.TABLE:
        print_one(made, _COLUMNS, output)
        return
    session.report(f"Token {made['name']} ({made['access']}). It is shown this once; keep it to yourself.")
    echo(made["token"])
    session.report("For the command line and Python, set PROCTOR_TOKEN to it, and PROCTOR_URL.")
    session.report(f"Link to the page: {session.client.url}/?token={quote(made['token'])}")


@token.command(short_help="List the named tokens.", epilog=examples("proctor token ls"))
@output_option
@with_session
def ls(session: CliSession, output: str) -> None:
    """The named tokens, what they may do, and the hour of their last use."""
    print_list(list(session.client.tokens()), _COLUMNS, output, empty="there are no named tokens")


@token.command(short_help="Revoke a token.", epilog=examples("proctor token revoke alice"))
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@with_session
def revoke(session: CliSession, name: str, yes: bool) -> None:
    """Revoke a token: nothing can be done with it from now on, and pages that were opened with it stop."""
    if yes or confirm(f"Revoke token {json.dumps(name)}? Who uses it can no longer reach this manager."):
        session.client.revoke_token(name)
        session.report(f"Revoked token {name}.")
