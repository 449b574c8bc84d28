"""`proctor nodes`: the machines trials run on; tried again, drained, resumed, files collected from them, forgotten."""

import time
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from proctor.manager.cli.columns import DEVICES, JOBS_ON_NODE, NODE_LOAD, NODES, local_time, now
from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.cli.identifiers import find_experiment
from proctor.manager.cli.lazy import examples
from proctor.manager.cli.output import (
    Format,
    TableRow,
    confirm,
    echo,
    output_option,
    print_list,
    print_one,
    print_table,
)
from proctor.manager.cli.session import CliSession, with_session

if TYPE_CHECKING:
    from proctor.sdk.client.client import Client

CHECK_SECONDS = 45.0
"""How long `check` waits for the result."""
SETTLED = ("CONNECTED", "FAILED", "LOST", "RELEASED")
UNDER_WAY = "being tried"
"""In the reason of a node that cannot be used: the next attempt has no result yet."""

node_argument = click.argument("node", metavar="ID")


@click.group(invoke_without_command=True, epilog=examples("proctor nodes", "proctor nodes check gpu-1"))
@output_option
@click.pass_context
def nodes(context: click.Context, output: str) -> None:
    """The machines trials run on, their GPUs, and who holds them."""
    if context.invoked_subcommand is not None:
        return
    session = context.find_object(CliSession)
    assert session is not None, "the command line has no session"
    found = list(session.client.nodes())
    print_list(found, NODES, output, empty="no node has registered yet")
    if output != Format.TABLE:
        return
    devices = [{**device, "node": node["id"]} for node in found for device in node["facts"].get("devices") or ()]
    if devices:
        echo()
        print_table(devices, DEVICES)


@nodes.command(
    short_help="Show what a machine runs and has run.",
    epilog=examples("proctor nodes show gpu-1", "proctor nodes show gpu-1 --hours 24 -o json"),
)
@node_argument
@click.option("--hours", type=click.FloatRange(0.01), default=1.0, show_default=True, help="How far to look back.")
@output_option
@with_session
def show(session: CliSession, node: str, hours: float, output: str) -> None:
    """Show which jobs a machine runs and has run, on which GPUs, and how busy it is."""
    client = session.client
    found = find_node(client, node)
    since = (now() - timedelta(hours=hours)).isoformat()
    occupancy = client.occupancy(found["id"], since=since)
    if output != Format.TABLE:
        print_one(occupancy, (), output)
        return
    print_one(found, NODES, output)
    print_one(occupancy, NODE_LOAD, output)
    echo()
    indexes = {gpu["uuid"]: gpu["index"] for gpu in occupancy["gpus"]}
    held = [{**job, "indexes": [indexes.get(uuid) for uuid in job["gpus"] or ()]} for job in occupancy["jobs"]]
    print_list(held, JOBS_ON_NODE, output, empty=f"no job ran on it in the last {hours:g} hours")
    if occupancy["complete_since"]:
        session.report(
            f"There were more: those that ended before {local_time(occupancy['complete_since'])} are left out."
        )


@nodes.command(short_help="Try to reach a machine now.", epilog=examples("proctor nodes check gpu-1"))
@node_argument
@with_session
def check(session: CliSession, node: str) -> int:
    """Try to reach a machine now instead of at its next retry, and report the result.

    The exit code is 1 if it cannot be used.
    """
    client = session.client
    found = find_node(client, node)
    if found["status"] == "CONNECTED":
        client.check_node(found["id"])
    else:
        session.report(f"Node {found['id']} is {_state(found)}. Trying it now.")
        found = _check_and_wait(client, found["id"])
    session.report(f"Node {found['id']} is {_state(found)}.")
    return ExitCode.OK if found["status"] == "CONNECTED" else ExitCode.FAILED


@nodes.command(epilog=examples("proctor nodes drain gpu-1 --reason maintenance"))
@node_argument
@click.option("-r", "--reason", default="", help="Reason shown to other users.")
@with_session
def drain(session: CliSession, node: str, reason: str) -> None:
    """Give a machine no new jobs until it is resumed. Trials already running there continue."""
    found = session.client.drain_node(find_node(session.client, node)["id"], reason=reason)
    running = len(found["reservations"])
    rest = f"; {running} trial {'job keeps' if running == 1 else 'jobs keep'} running there" if running else ""
    session.report(
        f"Node {found['id']} gets no new jobs{rest}. `proctor nodes resume {found['id']}` gives it jobs again."
    )


@nodes.command(epilog=examples("proctor nodes resume gpu-1"))
@node_argument
@with_session
def resume(session: CliSession, node: str) -> None:
    """Give a drained or quarantined machine jobs again."""
    found = session.client.resume_node(find_node(session.client, node)["id"])
    session.report(f"Node {found['id']} gets jobs again; it is {_state(found)}.")


@nodes.command(
    short_help="Copy files left by stopped experiments.",
    epilog=examples("proctor nodes collect", "proctor nodes collect gpu-1 -e k3x9"),
)
@click.argument("node", metavar="[ID]", required=False)
@click.option("-e", "--experiment", metavar="ID", help="Only the files of this experiment.")
@with_session
def collect(session: CliSession, node: str | None, experiment: str | None) -> int:
    """Copy files left on machines by stopped experiments. Without ID: from all machines.

    A machine that was unreachable when its experiment was stopped keeps its files until they are collected. They are
    copied to the experiment's folder, then removed from the machine. The exit code is 1 if some could not be copied;
    the command can be repeated.
    """
    client = session.client
    only = None if experiment is None else find_experiment(client, experiment, ended_too=True)["id"]
    found = [find_node(client, node)] if node is not None else [each for each in client.nodes() if each["uncollected"]]
    last: dict[tuple[str, str], TableRow] = {}
    for each in found:
        for state in client.collect_node(each["id"], experiment_id=only):
            last[each["id"], state["experiment_id"]] = state
            session.report(f"Node {each['id']}, experiment {state['experiment_id']}: {_progress(state)}.")
    if not last:
        where = "No node has" if node is None else f"Node {found[0]['id']} has no"
        session.report(f"{where} files that were not collected.")
    is_complete = all(state["is_finished"] and not state["problem"] for state in last.values())
    return ExitCode.OK if is_complete else ExitCode.FAILED


@nodes.command(short_help="Forget a machine that will not come back.", epilog=examples("proctor nodes forget gpu-1"))
@node_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@with_session
def forget(session: CliSession, node: str, yes: bool) -> None:
    """Forget a machine that no experiment needs and that cannot be cleaned up because it will not come back.

    Its files are not removed, and those that were not collected are lost.
    """
    found = find_node(session.client, node)
    question = (
        f"Forget node {found['id']}, which is {_state(found)}? Its files are not removed, and those that were not "
        f"collected are lost."
    )
    if yes or confirm(question):
        session.client.forget_node(found["id"])
        session.report(f"Forgot node {found['id']}.")


def find_node(client: "Client", named: str) -> TableRow:
    """A node by its id, else by its address, else by the only beginning of an id. Raises CommandError."""
    known = list(client.nodes())
    found = (
        [node for node in known if node["id"] == named]
        or [node for node in known if named and node["address"] == named]
        or [node for node in known if named and node["id"].startswith(named)]
    )
    if len(found) == 1:
        return found[0]
    names = ", ".join(node["id"] for node in found or known) or "none"
    if found:
        raise CommandError(f"{named!r} matches several nodes: {names}; name one by its id", ExitCode.CONFLICT)
    raise CommandError(f"there is no node {named!r}; known nodes: {names}", ExitCode.NOT_FOUND)


def _check_and_wait(client: "Client", node_id: str) -> TableRow:
    """The node once an event says that it is reached or not, or as it is when the time is over."""
    from proctor.sdk.client.events import Watch

    deadline = time.monotonic() + CHECK_SECONDS
    with Watch(client.events()) as watch:
        watch.wait(CHECK_SECONDS)  # until the stream is open: no result is missed
        client.check_node(node_id)
        while (rest := deadline - time.monotonic()) > 0:
            events = watch.wait(rest)
            about = [event["data"] for event in events if event["data"].get("node_id") == node_id]
            changes = [data for data in about if "request" not in data]  # the event of our own request is no result
            if any(data["status"] in SETTLED and UNDER_WAY not in data["reason"] for data in changes):
                break
    return client.node(node_id)


def _progress(state: TableRow) -> str:
    copied = f"copied {state['files']} of {state['total_files']} files"
    if not state["is_finished"]:
        size = f"{state['bytes'] / 1e6:.1f} of {state['total_bytes'] / 1e6:.1f} MB"
        return f"{copied} ({size})" if state["total_files"] else "connecting"
    if state["problem"]:
        return f"{copied}; the others stay there: {state['problem']}"
    return f"done: {state['files']} file{'s' * (state['files'] != 1)}, {state['bytes'] / 1e6:.1f} MB"


def _state(node: TableRow) -> str:
    reasons = [node["reason"], f"it gets no new jobs: {node['hold']}" if node["hold"] else ""]
    return "; ".join([str(node["status"]), *filter(None, reasons)])
