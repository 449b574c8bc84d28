"""`proctor nodes`."""

import click

from proctor.manager.cli.columns import NODES
from proctor.manager.cli.output import Format, Row, output_option, print_list
from proctor.manager.cli.session import Session, with_session


@click.command()
@output_option
@with_session
def nodes(session: Session, output: str) -> None:
    """The machines trials run on, their GPUs, and who holds them."""
    found = list(session.client.nodes())
    print_list(found, NODES, output, empty="no node has registered yet")
    if output != Format.TABLE:
        return
    for node in found:
        for device in node["facts"].get("devices") or ():
            click.echo(f"  {node['id']} GPU {device['index']}: {_describe(device)}")


def _describe(device: Row) -> str:
    used, total = device["memory_used_mb"], device["memory_total_mb"]
    held_by = ", ".join(device["held_by"])
    state = f"held by {held_by}" if held_by else "free"
    return f"{device['name']}, {used} of {total} MiB used, {device['utilization']} % busy; {state}"
