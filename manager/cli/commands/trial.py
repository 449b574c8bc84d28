"""`proctor trial`: list, show, pause, resume, clone, kill, retry, add, logs and files.

Files are read through the manager, wherever the trial runs or ran.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import click

from proctor.manager.cli.columns import CHECKPOINTS, JOBS, TRIAL, TRIALS, loss, trial_columns
from proctor.manager.cli.commands.log import trial_log
from proctor.manager.cli.commands.update import read_document_file
from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.cli.identifiers import (
    OneOf,
    experiment_argument,
    find_experiment,
    named_trial,
    trial_argument,
)
from proctor.manager.cli.lazy import alias, examples
from proctor.manager.cli.output import Column, Format, TableRow, echo, output_option, print_list, print_one, print_table
from proctor.manager.cli.scheduler_columns import DECISIONS
from proctor.manager.cli.session import CliSession, with_session
from proctor.manager.lifecycle.states import TrialStatus

if TYPE_CHECKING:
    from proctor.sdk.client.client import Client

STATUSES = tuple(status.value for status in TrialStatus)
MOST_LOSSES = 5
"""Of the reports that were lost, as many are shown."""
BY_METRIC = ("value", "-value", "best", "-best")
BY_NUMBER = ("no", "-no", "sequence_id", "-sequence_id")
FILES = (
    Column("FILE", lambda row: row["path"]),
    Column("BYTES", lambda row: f"{row['size_bytes']:,}", right=True),
)


@click.group(epilog=examples("proctor trial ls", "proctor trial log 7 -f"))
def trial() -> None:
    """Trials: list, show, pause, resume, clone, kill, retry, add; read logs and files."""


@trial.command(
    epilog=examples(
        "proctor trial ls",
        "proctor trial ls --sort best --head 5",
        "proctor trial ls k3x9 --filter 'status = SUCCEEDED and lr < 1e-3' --sort -time",
    )
)
@experiment_argument
@click.option("--status", type=OneOf(STATUSES, case_sensitive=False), metavar="STATUS", help="Only these.")
@click.option(
    "--filter",
    "condition",
    metavar="TEXT",
    help="Only those it lets through, as in 'lr < 1e-3 and value > 0.9'; the columns are those of --columns.",
)
@click.option(
    "--sort",
    metavar="COLUMN",
    help="By a column, such as no, value, time or lr (`-`: the largest first), or best (`-best`: the worst first).",
)
@click.option("--head", type=click.IntRange(1), metavar="N", help="The first N; without --sort, the best first.")
@click.option("--tail", type=click.IntRange(1), metavar="N", help="The last N; without --sort, the worst last.")
@click.option("--best", type=click.IntRange(1), metavar="N", help="The N best of those that have ended with a metric.")
@click.option("--wide", is_flag=True, help="Show everything in full, however wide the terminal is.")
@click.option(
    "--columns",
    "names",
    metavar="NAMES",
    help="Show these columns, as in id,value,node,parameter.lr,value.loss; an unknown name lists them all.",
)
@output_option
@with_session
def ls(
    session: CliSession,
    experiment: str | None,
    status: str | None,
    condition: str | None,
    sort: str | None,
    head: int | None,
    tail: int | None,
    best: int | None,
    wide: bool,
    names: str | None,
    output: str,
) -> None:
    """List the trials of an experiment. `~` marks an intermediate metric: there is no final one yet.

    Trials without a metric come last in every order by metric. -o json and -o csv have every field in full.
    """
    if sum(each is not None for each in (head, tail, best)) > 1:
        raise click.UsageError("give one of --head, --tail and --best")
    if best is not None and sort is not None:
        raise click.UsageError("--best has an order of its own; give --sort with --head")
    if output != Format.TABLE and (wide or names is not None):
        raise click.UsageError(f"--wide and --columns are for tables; -o {output} has every field in full")
    found = find_experiment(session.client, experiment, ended_too=True)
    chosen = Selection(status, condition)
    if best is None:
        rows = chosen.select(session.client, found["id"], sort=sort, head=head, tail=tail)
    else:
        rows = chosen.select_best(session.client, found["id"], best)
    try:
        columns = TRIALS if names is None else trial_columns([name.strip() for name in names.split(",")], rows)
    except ValueError as error:
        raise click.UsageError(f"--columns: {error}") from error
    print_list(rows, columns, output, empty=chosen.absence(found["id"]), wide=wide)


@dataclass(frozen=True)
class Selection:
    """Which trials of an experiment `ls` was asked for."""

    status: str | None = None
    condition: str | None = None
    """A text of the filter language."""

    def absence(self, experiment_id: str) -> str:
        """What to say where there are none."""
        kind = f"{self.status.lower()} ".replace("_", " ") if self.status else ""
        which = " that the filter lets through" if self.condition else ""
        return f"No {kind}trials in {experiment_id}{which}."

    def select(
        self, client: "Client", experiment_id: str, *, sort: str | None, head: int | None, tail: int | None
    ) -> list[dict[str, Any]]:
        """The trials; for a head or a tail only as many as needed are read."""
        count = head or tail
        if count is None:
            return list(self._read(client, experiment_id, sort))
        order = sort or "best"
        if head is not None:
            return list(islice(self._read(client, experiment_id, order, page_size=min(count, 500)), count))
        if order not in (*BY_METRIC, *BY_NUMBER):
            return list(self._read(client, experiment_id, order))[-count:]
        opposite = order[1:] if order.startswith("-") else f"-{order}"
        rows = list(islice(self._read(client, experiment_id, opposite, page_size=min(count, 500)), count))
        if order in BY_NUMBER:
            return rows[::-1]
        valued = [row for row in rows if row["final_value"] is not None]
        return valued[::-1] + rows[len(valued) :]

    def select_best(self, client: "Client", experiment_id: str, count: int) -> list[dict[str, Any]]:
        """The trials whose final metrics are the best, best first. Of those that did not run as they should none
        counts."""
        rows = self._read(client, experiment_id, "best", page_size=min(count, 500))
        valued = takewhile(lambda row: row["final_value"] is not None, rows)
        return list(islice((row for row in valued if TrialStatus(row["status"]).has_result), count))

    def _read(
        self, client: "Client", experiment_id: str, sort: str | None, *, page_size: int = 500
    ) -> Iterator[dict[str, Any]]:
        return client.trials(experiment_id, status=self.status, filter=self.condition, sort=sort, page_size=page_size)


@trial.command(epilog=examples("proctor trial show 7", "proctor trial show 7 -e k3x9 --metrics -o csv"))
@trial_argument
@click.option("--metrics", is_flag=True, help="Show everything it reported instead.")
@click.option(
    "--curve",
    is_flag=True,
    help="Show its learning curve instead: the intermediate metrics that count, over all attempts.",
)
@output_option
@with_session
def show(
    session: CliSession,
    words: Sequence[str],
    trial: str | None,
    experiment: str | None,
    metrics: bool,
    curve: bool,
    output: str,
) -> None:
    """Show one trial, its attempts, and why they began."""
    if metrics and curve:
        raise click.UsageError("give --metrics or --curve, not both")
    client = session.client
    found = named_trial(client, words, trial, experiment)
    if metrics or curve:
        from proctor.manager.cli.columns import metrics_columns

        rows = list(client.metrics(found["id"]) if metrics else client.trial_curve(found["id"]))
        print_list(rows, metrics_columns(rows), output, empty=f"trial {found['id']} has reported nothing yet")
        return
    found = client.trial(found["id"])
    print_one(found, TRIAL, output)
    if output == Format.TABLE and (decisions := found.get("decisions")):
        echo()
        print_table(decisions, DECISIONS)
    if output == Format.TABLE and found["jobs"]:
        echo()
        print_table(list(client.jobs(found["id"])), JOBS)
        for row in islice(client.metrics(found["id"], kind="lost"), MOST_LOSSES):
            echo(f"job {row['job']}: {loss(row)}")


def print_trial(found: TableRow, output: str, *, is_new: bool = False) -> None:
    """What a command that acts on a trial prints of it: all of it for programs, else the id of a new one."""
    if output != Format.TABLE:
        print_one(found, TRIAL, output)
    elif is_new:
        echo(found["id"])


@trial.command(epilog=examples("proctor trial kill 7"))
@trial_argument
@output_option
@with_session
def kill(session: CliSession, words: Sequence[str], trial: str | None, experiment: str | None, output: str) -> None:
    """End a trial: SIGTERM, some seconds to save its work, SIGKILL."""
    found = named_trial(session.client, words, trial, experiment)
    print_trial(session.client.kill_trial(found["id"]), output)
    session.report(f"Trial {found['sequence_id']} ({found['id']}) is being stopped.")


@trial.command(short_help="Stop a trial and keep it until it is resumed.", epilog=examples("proctor trial pause 7"))
@trial_argument
@output_option
@with_session
def pause(session: CliSession, words: Sequence[str], trial: str | None, experiment: str | None, output: str) -> None:
    """Stop a trial and keep it without a place or GPUs until it is resumed.

    A trial that can save may do so first (`saveSeconds`). It continues from its newest checkpoint, or from the start
    if it has registered none.
    """
    found = named_trial(session.client, words, trial, experiment)
    paused = session.client.pause_trial(found["id"])
    print_trial(paused, output)
    said = "is PAUSED" if paused["status"] == TrialStatus.PAUSED else "is being paused"
    again = f"`proctor trial resume {found['id']}` resumes it"
    session.report(f"Trial {found['sequence_id']} ({found['id']}) {said}; {again}.")


@trial.command(epilog=examples("proctor trial resume 7"))
@trial_argument
@output_option
@with_session
def resume(session: CliSession, words: Sequence[str], trial: str | None, experiment: str | None, output: str) -> None:
    """Resume a trial that a user has paused.

    It may have been paused alone or with its experiment, and continues on this or another machine. A trial that its
    trial scheduler has paused is refused: the scheduler resumes it.
    """
    found = named_trial(session.client, words, trial, experiment)
    resumed = session.client.resume_trial(found["id"])
    print_trial(resumed, output)
    why = f" ({resumed['reason']})" if resumed["reason"] else ""
    said = "is no longer paused by a user" if resumed["status"] == TrialStatus.PAUSED else "is resumed"
    session.report(f"Trial {found['sequence_id']} ({found['id']}) {said}{why}.")


@trial.command(
    short_help="Continue from a trial's checkpoint as a new trial.",
    epilog=examples("proctor trial clone 7 --set lr=0.01 --set momentum=0.9"),
)
@trial_argument
@click.option(
    "--set",
    "changes",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter that the clone changes, named as in tables (model.lr); may be repeated. VALUE is JSON, or else a "
    "text.",
)
@output_option
@with_session
def clone(
    session: CliSession,
    words: Sequence[str],
    trial: str | None,
    experiment: str | None,
    changes: Sequence[str],
    output: str,
) -> None:
    """Continue from a trial's newest checkpoint, as a new trial with other parameters. Its id goes to stdout.

    The trial itself is left as it is; it may be running.
    """
    found = named_trial(session.client, words, trial, experiment)
    made = session.client.clone_trial(found["id"], read_changes(changes))
    print_trial(made, output, is_new=True)
    session.report(f"Trial {made['sequence_id']} continues from the newest checkpoint of trial {found['sequence_id']}.")


def read_changes(changes: Iterable[str]) -> dict[str, Any]:
    """What `--set` was given, by name. Raises UsageError."""
    found: dict[str, Any] = {}
    for change in changes:
        name, sign, text = change.partition("=")
        if not name or not sign:
            raise click.UsageError(f"--set expects NAME=VALUE, as in lr=0.01; found {change!r}")
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


@trial.command(epilog=examples("proctor trial retry 7", "proctor trial retry 7 --from-checkpoint"))
@trial_argument
@click.option("--from-checkpoint", is_flag=True, help="Continue from its newest checkpoint, not from the start.")
@output_option
@with_session
def retry(
    session: CliSession,
    words: Sequence[str],
    trial: str | None,
    experiment: str | None,
    from_checkpoint: bool,
    output: str,
) -> None:
    """Run the parameters of an ended trial again, as a new trial. Its id goes to stdout."""
    found = named_trial(session.client, words, trial, experiment)
    made = session.client.retry_trial(found["id"], from_checkpoint=from_checkpoint)
    print_trial(made, output, is_new=True)
    where = ", from its newest checkpoint" if from_checkpoint else ""
    session.report(f"The parameters of trial {found['sequence_id']} run again as trial {made['sequence_id']}{where}.")


@trial.command(
    short_help="Run a trial with your own parameters.",
    epilog=examples(
        'proctor trial add --parameters \'{"lr": 0.01, "units": 64}\'',
        "proctor trial add k3x9 --filename parameters.json",
    ),
)
@experiment_argument
@click.option("--parameters", metavar="JSON", help='As in {"lr": 0.01, "units": 64}.')
@click.option("--filename", type=click.Path(path_type=Path), help="A JSON or YAML file with the parameters.")
@output_option
@with_session
def add(
    session: CliSession, experiment: str | None, parameters: str | None, filename: Path | None, output: str
) -> None:
    """Run a trial with your own parameters, which must be in the search space. Its id goes to stdout.

    Only a custom tuner accepts values outside of the search space.
    """
    if (parameters is None) == (filename is None):
        raise click.UsageError("give either --parameters JSON or --filename FILE")
    chosen = read_document_file(filename) if filename is not None else read_parameters(parameters or "")
    found = find_experiment(session.client, experiment)
    made = session.client.add_trial(found["id"], chosen)
    print_trial(made, output, is_new=True)
    session.report(f"Trial {made['sequence_id']} of experiment {found['id']} will run with these parameters.")


def read_parameters(text: str) -> Any:
    """Parameters typed as JSON; the manager knows which ones the tuner understands. Raises CommandError."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise CommandError(f"--parameters is not JSON: {error}", ExitCode.USAGE) from error


@trial.command(
    short_help="List the checkpoints of a trial.",
    epilog=examples("proctor trial checkpoints 7", "proctor trial checkpoints 7 --download 42 -d model"),
)
@trial_argument
@click.option("--download", "wanted", type=click.IntRange(1), metavar="ID", help="Save the one with this ID here.")
@click.option(
    "-d",
    "--directory",
    type=click.Path(path_type=Path),
    help="With --download: a folder to make; named after trial and checkpoint if not given.",
)
@click.option("--all", "with_deleted", is_flag=True, help="List the deleted ones, too.")
@output_option
@with_session
def checkpoints(
    session: CliSession,
    words: Sequence[str],
    trial: str | None,
    experiment: str | None,
    wanted: int | None,
    directory: Path | None,
    with_deleted: bool,
    output: str,
) -> None:
    """List the checkpoints of a trial; it continues from the newest one.

    KEPT says why one is kept (`keepCheckpoints`, `checkpointQuotaMb`), HERE whether it is on the manager's machine.
    --download fetches one wherever it is.
    """
    if directory is not None and wanted is None:
        raise click.UsageError("-d/--directory goes with --download ID")
    found = named_trial(session.client, words, trial, experiment)
    if wanted is not None:
        target = directory or Path(f"{found['id']}-checkpoint-{wanted}")
        try:
            count = session.client.download_checkpoint(found["id"], wanted, target)
        except OSError as error:
            raise CommandError(str(error), ExitCode.USAGE) from error
        session.report(f"Saved {count} {'file' if count == 1 else 'files'} in {target}.")
        return
    rows = list(session.client.checkpoints(found["id"]))
    shown = rows if with_deleted else [row for row in rows if row["deleted_at"] is None]
    print_list(shown, CHECKPOINTS, output, empty=f"Trial {found['id']} has no checkpoint.")
    if (deleted := len(rows) - len(shown)) > 0:
        them = (
            "1 more was deleted; --all lists it." if deleted == 1 else f"{deleted} more were deleted; --all lists them."
        )
        session.report(them)


@trial.command(
    "files", short_help="List the files of a trial's newest attempt.", epilog=examples("proctor trial files 7")
)
@trial_argument
@output_option
@with_session
def trial_files(
    session: CliSession, words: Sequence[str], trial: str | None, experiment: str | None, output: str
) -> None:
    """List the files of a trial's newest attempt: its logs, and whatever it wrote to its own folder."""
    found = named_trial(session.client, words, trial, experiment)
    print_list(session.client.files(found["id"]), FILES, output, empty=f"trial {found['id']} has no files yet")


@trial.command(
    "download", epilog=examples("proctor trial download 7", "proctor trial download 7 --path output/model.pt -d models")
)
@trial_argument
@click.option("--path", "paths", multiple=True, metavar="PATH", help="Only this file or folder; may be repeated.")
@click.option(
    "-d",
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to; a folder named after the trial if not given.",
)
@with_session
def trial_download(
    session: CliSession,
    words: Sequence[str],
    trial: str | None,
    experiment: str | None,
    paths: Sequence[str],
    directory: Path | None,
) -> None:
    """Save the files of a trial's newest attempt here. Files of the same name are replaced."""
    client = session.client
    found = named_trial(client, words, trial, experiment)
    chosen = choose(client.files(found["id"]), paths)
    if not chosen:
        wanted = " or ".join(paths) or "any file"
        raise CommandError(f"trial {found['id']} has no {wanted}; `proctor trial files` shows all", ExitCode.NOT_FOUND)
    target = directory or Path(found["id"])
    for path in chosen:
        client.download(found["id"], path, target / path)
    session.report(f"Saved {len(chosen)} {'file' if len(chosen) == 1 else 'files'} in {target}.")


def choose(files: Iterable[TableRow], wanted: Sequence[str]) -> list[str]:
    """The paths of these files, or of those that are, or are below, what is wanted; none that leads elsewhere."""
    paths = [PurePosixPath(row["path"]) for row in files]
    ours = [path for path in paths if not path.is_absolute() and ".." not in path.parts]
    folders = [PurePosixPath(name) for name in wanted]
    return [str(path) for path in ours if not folders or any(path.is_relative_to(folder) for folder in folders)]


trial.add_command(trial_log, "log")
alias(trial, "list", ls)
