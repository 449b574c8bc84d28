"""`proctor nodes`."""

import click

from proctor.manager.cli.columns import NODES
from proctor.manager.cli.output import Format, output_option, print_list
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


def _describe(device: dict[str, object]) -> str:
    used, total = device.get("memory_used_mb"), device.get("memory_total_mb")
    holders = device.get("held_by") or device.get("holders") or "free"
    return f"{device.get('name', '?')}, {used} of {total} MiB used, {device.get('utilization', '?')} % busy; {holders}"
