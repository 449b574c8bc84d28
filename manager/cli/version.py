"""`proctor version`."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as metadata_version

import click

from proctor.manager.cli.output import Column, output_option, print_one
from proctor.manager.cli.session import Session, with_session


def installed_version() -> str:
    """The version of the installed package; 0 in a checkout that was not installed."""
    try:
        return metadata_version("proctor")
    except PackageNotFoundError:
        return "0"


@click.command()
@output_option
@with_session
def version(session: Session, output: str) -> None:
    """The version of the command line and, if it runs, of the manager."""
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
