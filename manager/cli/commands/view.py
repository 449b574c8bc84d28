"""`proctor experiment view`: the saved views of an experiment, which its pages in the dashboard offer by name."""

import json

import click

from proctor.manager.cli.columns import local_time
from proctor.manager.cli.identifiers import OneOf, experiment_argument, experiment_ids, find_experiment
from proctor.manager.cli.lazy import alias, examples
from proctor.manager.cli.output import Column, Format, confirm, output_option, print_list, print_one
from proctor.manager.cli.session import CliSession, with_session

PAGES = ("trials", "curves", "relations")
_COLUMNS = (
    Column("NAME", lambda row: row["name"], gives_way=True),
    Column("PAGE", lambda row: row["page"]),
    Column("SAVED", lambda row: local_time(row["saved_at"]), left_out=2),
    Column("BY", lambda row: row["saved_by"] or "-", left_out=1),
    Column("QUERY", lambda row: row["query"] or "-", wraps=True),
)


@click.group(
    short_help="List, save and delete saved views of the dashboard.",
    epilog=examples("proctor experiment view list k3x9", "proctor experiment view delete k3x9 best"),
)
def view() -> None:
    """Saved views: pages of the dashboard with a filter, an order and columns, under a name."""


@view.command("list", epilog=examples("proctor experiment view list", "proctor experiment view list k3x9 -o json"))
@experiment_argument
@output_option
@with_session
def list_(session: CliSession, experiment: str | None, output: str) -> None:
    """The saved views of an experiment, by name."""
    found = find_experiment(session.client, experiment, ended_too=True)
    views = session.client.views(found["id"])
    print_list(views, _COLUMNS, output, empty=f"experiment {found['id']} has no saved views")


@view.command(
    epilog=examples(
        "proctor experiment view save k3x9 best --query 'filter=value+%3E+0.9&sort=-value'",
        'proctor experiment view save k3x9 "smooth curves" --page curves --query key=loss',
    )
)
@click.argument("experiment", metavar="ID", shell_complete=experiment_ids)
@click.argument("name")
@click.option("--page", type=OneOf(PAGES), default=PAGES[0], show_default=True, help="The page that it shows.")
@click.option("--query", default="", metavar="TEXT", help="What the page's address has after the question mark.")
@output_option
@with_session
def save(session: CliSession, experiment: str, name: str, page: str, query: str, output: str) -> None:
    """Save a view, in place of the one of this name."""
    found = find_experiment(session.client, experiment, ended_too=True)
    saved = session.client.save_view(found["id"], name, page=page, query=query)
    if output != Format.TABLE:
        print_one(saved, _COLUMNS, output)
        return
    session.report(f"Saved view {json.dumps(saved['name'], ensure_ascii=False)} of experiment {found['id']}.")


@view.command(epilog=examples("proctor experiment view delete k3x9 best"))
@click.argument("experiment", metavar="ID", shell_complete=experiment_ids)
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@with_session
def delete(session: CliSession, experiment: str, name: str, yes: bool) -> None:
    """Delete a saved view. The page that it shows stays."""
    found = find_experiment(session.client, experiment, ended_too=True)
    shown = json.dumps(name, ensure_ascii=False)
    if yes or confirm(f"Delete view {shown} of experiment {found['id']}?"):
        session.client.delete_view(found["id"], name)
        session.report(f"Deleted view {shown} of experiment {found['id']}.")


alias(view, "ls", list_)
