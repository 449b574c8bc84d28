"""The live screens: one experiment in the foreground, and `top`."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from proctor.manager.cli import columns
from proctor.manager.cli.output import Column, TableRow
from proctor.manager.cli.screen import Listing
from proctor.manager.control_characters import clean

if TYPE_CHECKING:
    from proctor.manager.cli.watching import WatchedExperiment

RUNNING = (
    Column("NO.", lambda row: str(row["sequence_id"]), right=True),
    Column("TRIAL", lambda row: row["id"]),
    Column("LATEST", lambda row: columns.number(row["latest_value"]), right=True),
    Column("REPORTS", lambda row: str(row["intermediate_count"]), right=True, left_out=3),
    Column("TIME", lambda row: columns.duration(columns.elapsed(row)), right=True, left_out=1),
    Column("NODE", lambda row: row["node_id"] or "-", left_out=2),
    Column("PARAMETERS", columns.parameters, gives_way=True),
)
OF_SEVERAL = (*RUNNING[:2], Column("EXPERIMENT", lambda row: row["experiment_id"]), *RUNNING[2:])
"""Where trials of several experiments may be shown."""


def show_live(seen: "Iterator[WatchedExperiment]") -> "WatchedExperiment":
    """Show an experiment until it ends; what was seen last."""
    last: WatchedExperiment | None = None
    with Live(
        get_renderable=lambda: experiment_screen(last),
        console=Console(stderr=True),
        refresh_per_second=2,
        transient=True,
    ):
        for watched in seen:
            last = watched
    assert last is not None, "an experiment was looked at at least once"
    return last


def overview(experiments: list[TableRow], running: list[TableRow], hidden: int, note: str) -> RenderableType:
    """The screen of `top`: experiments, then running trials."""
    parts: list[RenderableType] = (
        [Listing(experiments, columns.EXPERIMENTS_IN_TOP)] if experiments else [Text("No experiments.")]
    )
    if running:
        parts += [Text(), Listing(running, RUNNING if len(experiments) == 1 else OF_SEVERAL)]
    if hidden:
        parts.append(Text(f"… and {hidden} more running trials", style="dim"))
    if note:
        parts += [Text(), Text(clean(note), style="dim")]
    return Group(*parts)


def experiment_screen(watched: "WatchedExperiment | None") -> RenderableType:
    """The screen of an experiment in the foreground; None: nothing was seen yet."""
    if watched is None:
        return Text("Waiting for the manager …")
    experiment = watched.experiment
    parts: list[RenderableType] = [_headline(watched), _bar(experiment)]
    best = experiment["best"]
    if best is not None:
        parameters = clean(columns.parameters(best))
        parts.append(Text.assemble("best ", (clean(columns.best(experiment)), "bold green"), f"  {parameters}"))
    if watched.running:
        parts += [Text(), Listing(watched.running_now, RUNNING)]
    if experiment.get("failure"):
        parts.append(Text(clean(experiment["failure"]), style="bold red"))
    if watched.why:
        parts.append(Text(clean(watched.why), style="dim"))
    parts.append(Text("Ctrl-C stops watching; the experiment keeps running.", style="dim"))
    return Group(*parts)


def _headline(watched: "WatchedExperiment") -> Text:
    experiment = watched.experiment
    status = experiment["status"]
    remaining = columns.eta(experiment, watched.active_seconds)
    return Text.assemble(
        (f"{clean(experiment['name'])} ", "bold"),
        f"{experiment['id']}  ",
        (status, columns.STYLES.get(status, "")),
        f"  {columns.duration(watched.active_seconds)}",
        f"  {remaining} remaining" if remaining != "-" else "",
    )


def _bar(experiment: dict[str, Any]) -> RenderableType:
    row = Table.grid(padding=(0, 1))
    limit = experiment["max_trial_number"]
    text = Text(f"{columns.progress(experiment)} trials  {columns.counts(experiment)}")
    if limit is None:
        row.add_row(text)
    else:
        ended = int(columns.progress(experiment).partition("/")[0])
        row.add_row(ProgressBar(total=limit, completed=ended, width=30), text)
    return row
