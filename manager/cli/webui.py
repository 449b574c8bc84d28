"""`proctor webui`."""

import click

from proctor.manager.cli.identifiers import experiment_argument, find_experiment
from proctor.manager.cli.output import echo
from proctor.manager.cli.session import Session, with_session


@click.group()
def webui() -> None:
    """The page in the browser."""


@webui.command()
@experiment_argument
@with_session
def url(session: Session, experiment: str | None) -> None:
    """Print the URL of the page, with the token: whoever has it may do everything."""
    session.client.health()
    path = "/" if experiment is None else f"/experiments/{find_experiment(session.client, experiment)['id']}"
    echo(session.client.page_url(path))
