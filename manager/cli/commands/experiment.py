"""`proctor experiment`: list, show, status, failures, importance, scheduler, events, wait, tag, archive, delete,
export, import, save, load, view."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import click

from proctor.manager.cli.columns import (
    EVENTS,
    EXPERIMENT,
    EXPERIMENTS,
    FAILURES,
    IMPORTANCE,
    IN_FULL,
    TAGGED_EXPERIMENTS,
    counts,
    cpu_hours,
    gpu_hours,
    local_time,
    size_text,
)
from proctor.manager.cli.commands.view import view
from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.cli.identifiers import OneOf, experiment_argument, experiment_ids, find_experiment, is_running
from proctor.manager.cli.lazy import alias, examples, ignored_option, nnictl_option
from proctor.manager.cli.output import (
    Column,
    Format,
    confirm,
    echo,
    json_text,
    output_option,
    print_list,
    print_one,
    write_csv,
)
from proctor.manager.cli.scheduler_columns import scheduler_columns
from proctor.manager.cli.session import CliSession, with_session
from proctor.manager.lifecycle.states import ExperimentStatus

HTML = "html"
CURVE = ("intermediate", "intermediate_steps")
"""What an exported trial has only with `--intermediate`."""
PARQUET = "parquet"
STATUSES = tuple(status.value for status in ExperimentStatus)


@click.group(
    epilog=examples("proctor experiment list", "proctor experiment export k3x9 --type csv --filename results.csv")
)
def experiment() -> None:
    """Experiments: list, show, failures, events, importance, wait, tag, archive, delete, export, import, save, load."""


@experiment.command(
    "list",
    short_help="List experiments.",
    epilog=examples("proctor experiment list --running", "proctor experiment list -o json"),
)
@click.option(
    "-a", "--all", "every", is_flag=True, help="As it is; nnictl listed only running ones without it.", hidden=True
)
@click.option("--running", is_flag=True, help="Only experiments that are still active.")
@click.option("--status", type=OneOf(STATUSES, case_sensitive=False), metavar="STATUS", help="Filter by status.")
@click.option("--name", metavar="NAME", help="Filter by name.")
@click.option("--tag", "tags", metavar="TAG", multiple=True, help="Filter by tag; if repeated, those that have all.")
@click.option("--archived", is_flag=True, help="Only archived experiments, which are not listed otherwise.")
@output_option
@with_session
def list_(
    session: CliSession,
    every: bool,
    running: bool,
    status: str | None,
    name: str | None,
    tags: Sequence[str],
    archived: bool,
    output: str,
) -> None:
    """All experiments, without those that are archived and have ended."""
    found = session.client.experiments(status=status, name=name, tags=tags, archived=archived)
    rows = [row for row in found if not running or is_running(row)]
    columns = TAGGED_EXPERIMENTS if any(row.get("tags") for row in rows) else EXPERIMENTS
    if archived:
        empty = "no archived experiments"
    elif not rows and any(session.client.experiments(archived=True)):
        empty = "no experiments besides archived ones, which --archived lists"
    else:
        empty = "no experiments; `proctor create FILE` starts one"
    print_list(rows, columns, output, empty=empty)


@experiment.command(
    short_help="Show everything about an experiment.",
    epilog=examples("proctor experiment show", "proctor experiment show k3x9 -o yaml"),
)
@experiment_argument
@output_option
@with_session
def show(session: CliSession, experiment: str | None, output: str) -> None:
    """Everything about an experiment; in ERROR the traceback as well."""
    print_one(find_experiment(session.client, experiment, ended_too=True), EXPERIMENT, output)


@experiment.command(
    short_help="The status of an experiment, and why it is in it.", epilog=examples("proctor experiment status k3x9")
)
@experiment_argument
@output_option
@with_session
def status(session: CliSession, experiment: str | None, output: str) -> None:
    """The status of an experiment, why it is in it, and what its trials have used."""
    fields = (
        Column("status", lambda row: row["status"]),
        Column("reason", lambda row: row["reason"]),
        Column("failure", lambda row: row.get("failure") or ""),
        Column("error", lambda row: row["error"]),
        Column("GPU-hours", lambda row: gpu_hours(row, IN_FULL)),
        Column("CPU-hours", lambda row: cpu_hours(row, IN_FULL)),
    )
    print_one(find_experiment(session.client, experiment, ended_too=True), fields, output)


@experiment.command(
    short_help="What has happened in an experiment, the newest first.",
    epilog=examples(
        "proctor experiment events k3x9 -n 20", "proctor experiment events --kind trial.status --text FAILED"
    ),
)
@experiment_argument
@click.option("--kind", "kinds", metavar="KIND", multiple=True, help="Only this kind; may be repeated.")
@click.option("--text", default="", metavar="TEXT", help="Only events whose data contain this.")
@click.option(
    "-n", "--tail", type=click.IntRange(1), default=50, show_default=True, metavar="N", help="The newest N events."
)
@output_option
@with_session
def events(
    session: CliSession, experiment: str | None, kinds: Sequence[str], text: str, tail: int, output: str
) -> None:
    """What has happened in an experiment, the newest first. Events are kept for a while only."""
    found = find_experiment(session.client, experiment, ended_too=True)
    rows = session.client.past_events(found["id"], kinds=kinds, text=text, page_size=min(tail, 1000))
    print_list(islice(rows, tail), EVENTS, output, empty=f"experiment {found['id']} has no such event")


@experiment.command(
    short_help="Why trials of an experiment have failed.",
    epilog=examples("proctor experiment failures k3x9", "proctor experiment failures -o json"),
)
@experiment_argument
@output_option
@with_session
def failures(session: CliSession, experiment: str | None, output: str) -> None:
    """Why trials of an experiment have failed: each cause with the nodes on which it occurred and its newest trial.

    Failures are one cause when their jobs ended in the same way and the first lines of their reasons differ only in
    numbers and paths.
    """
    found = find_experiment(session.client, experiment, ended_too=True)
    answer = session.client.failures(found["id"])
    print_list(answer["causes"], FAILURES, output, empty=f"no trial of experiment {found['id']} has failed")
    if answer["counted"] < answer["failed"]:
        session.report(f"Counted are the newest {answer['counted']} of {answer['failed']} failed trials.")
    if len(answer["causes"]) < answer["cause_count"]:
        session.report(f"These are the most frequent of {answer['cause_count']} causes.")


@experiment.command(
    short_help="How much each parameter matters.",
    epilog=examples("proctor experiment importance k3x9", "proctor experiment importance --quantile 0.25 --key loss"),
)
@experiment_argument
@click.option("--key", metavar="KEY", help="A key of the final metric; its number if not given.")
@click.option(
    "--quantile",
    type=click.FloatRange(0, 1, min_open=True, max_open=True),
    default=0.1,
    show_default=True,
    help="The share of the trials that are the best.",
)
@click.option("--direction", type=OneOf(["minimize", "maximize"]), help="Of the values; the experiment's if not given.")
@output_option
@with_session
def importance(
    session: CliSession, experiment: str | None, key: str | None, quantile: float, direction: str | None, output: str
) -> None:
    """How much each parameter matters for being among the best trials, by PED-ANOVA; the sum is 100 %.

    Computing takes seconds for thousands of trials.
    """
    found = find_experiment(session.client, experiment, ended_too=True)
    answer = session.client.importance(found["id"], key=key, quantile=quantile, direction=direction)
    if output in (Format.JSON, Format.YAML):
        print_one(answer, (), output)
        return
    print_list(answer["parameters"], IMPORTANCE, output, empty=answer["reason"] or "not yet computed; try again")
    if answer["parameters"]:
        session.report(f"Of {answer['trials']} trials with a value, the best {answer['top']} against all.")
    if answer["outside"]:
        session.report(f"Left out {_numbered(answer['outside'], 'trial')} outside of the search space.")


@experiment.command(
    short_help="Rungs, brackets or population of the trial scheduler.",
    epilog=examples("proctor experiment scheduler", "proctor experiment scheduler k3x9 -o json"),
)
@experiment_argument
@output_option
@with_session
def scheduler(session: CliSession, experiment: str | None, output: str) -> None:
    """What the trial scheduler of an experiment shows: rungs, brackets, a population. Trials are named by number.

    `proctor trial show` says why a trial is paused and from whom it was cloned. With -o csv each row has the title of
    its table.
    """
    found = find_experiment(session.client, experiment, ended_too=True)
    answer = session.client.scheduler(found["id"])
    if output in (Format.JSON, Format.YAML):
        print_one(answer, (), output)
        return
    tables = answer["tables"]
    if output == Format.CSV:
        lines = [
            {"table": table["title"], **dict(zip(table["columns"], row, strict=True))}
            for table in tables
            for row in table["rows"]
        ]
        print_list(lines, (), output, empty="")
        return
    for table in tables:
        echo(f"{table['title']}:")
        rows = [{str(index): cell for index, cell in enumerate(row)} for row in table["rows"]]
        print_list(rows, scheduler_columns(table), output, empty="none")
        echo()
    if answer["name"] is None:
        session.report(f"Experiment {found['id']} has no trial scheduler.")
    elif not tables:
        session.report(f"{answer['name']} has shown nothing yet.")
    else:
        session.report(f"{answer['name']}, as of {local_time(answer['updated_at'])}.")


@experiment.command(
    short_help="Wait until an experiment ends.",
    epilog=examples(
        "proctor experiment wait",
        "proctor experiment wait k3x9 --timeout 2h",
    ),
)
@experiment_argument
@click.option("--timeout", metavar="DURATION", help="Wait no longer than 90s, 10m, 2h; then exit code 101.")
@with_session
def wait(session: CliSession, experiment: str | None, timeout: str | None) -> int:
    """Wait until an experiment ends, with its progress on stderr, then print its best trial.

    The exit code says how it ended: 0 with a result, 100 in ERROR or without one trial that succeeded, 103 stopped.
    Ctrl-C only stops waiting.
    """
    from proctor.manager.cli.watching import watch_to_the_end

    found = find_experiment(session.client, experiment, ended_too=True)
    return watch_to_the_end(session, found["id"], timeout=timeout)


@experiment.command(
    epilog=examples("proctor experiment tag k3x9 baseline paper", "proctor experiment tag k3x9 paper --remove")
)
@click.argument("experiment", metavar="ID", shell_complete=experiment_ids)
@click.argument("tags", metavar="TAG...", nargs=-1, required=True)
@click.option("--remove", is_flag=True, help="Remove these tags instead of adding them.")
@with_session
def tag(session: CliSession, experiment: str, tags: Sequence[str], remove: bool) -> None:
    """Add tags to an experiment, or remove them. `experiment list --tag TAG` finds it by them."""
    found = find_experiment(session.client, experiment)
    kept = [each for each in found["tags"] if each not in tags]
    changed = session.client.update_experiment(found["id"], {"tags": kept if remove else [*found["tags"], *tags]})
    session.report(f"Tags of {found['id']}: {', '.join(changed['tags']) or 'none'}.")


@experiment.command(epilog=examples("proctor experiment archive k3x9 p7Qa"))
@click.argument("experiments", metavar="ID...", nargs=-1, required=True, shell_complete=experiment_ids)
@with_session
def archive(session: CliSession, experiments: Sequence[str]) -> None:
    """Leave experiments out of lists once they have ended. Nothing of them is deleted."""
    for found in [find_experiment(session.client, text) for text in experiments]:
        changed = session.client.update_experiment(found["id"], {"archived": True})
        has_ended = ExperimentStatus(changed["status"]).has_ended
        listed = "" if has_ended else f"; it is {changed['status']}, and listed until it has ended"
        session.report(f"Archived experiment {found['id']}{listed}.")


@experiment.command(epilog=examples("proctor experiment unarchive k3x9"))
@click.argument("experiments", metavar="ID...", nargs=-1, required=True, shell_complete=experiment_ids)
@with_session
def unarchive(session: CliSession, experiments: Sequence[str]) -> None:
    """List archived experiments again."""
    for found in [find_experiment(session.client, text) for text in experiments]:
        session.client.update_experiment(found["id"], {"archived": False})
        session.report(f"Experiment {found['id']} is listed again.")


@experiment.command(
    short_help="Delete an experiment and its folder.",
    epilog=examples("proctor experiment delete k3x9", "proctor experiment delete --all -y"),
)
@experiment_argument
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option("-a", "--all", "every", is_flag=True, help="Delete all experiments that do not run.")
@click.option("--keep-checkpoints", is_flag=True, help="Leave what is in the experiment's checkpointStorage.")
@with_session
def delete(session: CliSession, experiment: str | None, yes: bool, every: bool, keep_checkpoints: bool) -> None:
    """Delete an experiment and its folder: metrics, logs, checkpoints, outputs. It must not be running.

    Checkpoints in a checkpointStorage are deleted, too: what lies below <location>/<id> and is marked as this
    experiment's own. What is not is left, and named."""
    if every == (experiment is not None):
        raise click.UsageError("give the ID to delete, or --all")
    found = [find_experiment(session.client, experiment)] if not every else list(session.client.experiments())
    doomed = [row for row in found if not every or not is_running(row)]
    for row in doomed:
        storage = "" if keep_checkpoints else storage_of(row)
        places = f"{row['directory']}, and its checkpoints in {storage}" if storage else row["directory"]
        if yes or confirm(f"Delete experiment {row['id']} ({row['name']}, {row['status']}) and {places}?"):
            _settle(session, row)
            left = session.client.delete_experiment(row["id"], keep_checkpoints=keep_checkpoints)
            session.report(f"Deleted experiment {row['id']}.")
            for sentence in left:
                session.report(f"Notice: {sentence}")


@experiment.command(
    epilog=examples(
        "proctor experiment export --filename results.json",
        "proctor experiment export k3x9 --type csv --intermediate > results.csv",
        "proctor experiment export k3x9 --type html --filename results.html",
        "proctor experiment export k3x9 --type parquet --filename results.parquet",
    )
)
@experiment_argument
@nnictl_option(
    "--filename", nnictl=["-f"], type=click.Path(path_type=Path), help="Where to write; stdout if not given."
)
@click.option(
    "-t",
    "--type",
    "--format",
    "kind",
    type=OneOf(["json", "csv", PARQUET, "html"]),
    default="json",
    show_default=True,
    help="html: the pages of the experiment as one file, which a browser opens without a manager.",
)
@click.option("-o", "--output", "kind", type=OneOf(["json", "csv", PARQUET, "html"]), hidden=True)
@click.option(
    "-i",
    "--intermediate",
    is_flag=True,
    help="The intermediate metrics as well; in CSV a line for each, and no others.",
)
@click.option("--succeeded", is_flag=True, help="Only trials that succeeded, as nnictl gives them.")
@with_session
def export(
    session: CliSession, experiment: str | None, filename: Path | None, kind: str, intermediate: bool, succeeded: bool
) -> None:
    """Parameters, metrics and status of all trials that have ended. `import` takes the JSON form.

    In CSV each parameter is a column `parameter.NAME`, and each further key of a metric that is a dictionary a column
    `value.KEY`. Parquet has the columns of `trial list --columns` besides; it needs pyarrow where the manager runs.
    """
    found = find_experiment(session.client, experiment, ended_too=True)
    if kind == HTML:
        _export_page(session, found["id"], filename, has_choice=intermediate or succeeded)
        return
    if kind == PARQUET:
        _save_parquet(session, found, filename, intermediate=intermediate, succeeded=succeeded)
        return
    status = "SUCCEEDED" if succeeded else None
    rows = list(session.client.export(found["id"], status=status, intermediate=intermediate))
    lines = rows
    if kind == Format.CSV:
        lines = [line for row in rows for line in (_curve_lines(row) if intermediate else [_csv_line(row)])]
    if filename is None:
        _write_rows(lines, kind, sys.stdout)
    else:
        with filename.open("w", encoding="utf-8", newline="") as file:
            _write_rows(lines, kind, file)
        counted = counts({"trial_counts": Counter(row["status"] for row in rows)})
        metrics = f"{_numbered(len(lines), 'intermediate metric')} of " if lines is not rows and intermediate else ""
        written = f"Written to {filename}: {metrics}{_numbered(len(rows), 'trial')} of experiment {found['id']}"
        session.report(written + (f" ({counted})." if counted else "."))
    others = sum(found["trial_counts"].values()) - len(rows)
    if others > 0:
        why = "that did not succeed" if succeeded else "that " + ("has" if others == 1 else "have") + " not ended yet"
        session.report(f"Omitted {_numbered(others, 'trial')} of experiment {found['id']} {why}.")


def _export_page(session: CliSession, experiment_id: str, filename: Path | None, *, has_choice: bool) -> None:
    if has_choice:
        raise click.UsageError("--type html has all trials and their curves: leave --intermediate and --succeeded out")
    page = session.client.saved_page(experiment_id)
    if filename is None:
        sys.stdout.write(page)
        return
    filename.write_text(page, encoding="utf-8")
    session.report(f"Written to {filename}: the pages of experiment {experiment_id}. A browser opens the file.")


@experiment.command(
    "import",
    short_help="Import results from another experiment.",
    epilog=examples("proctor experiment import k3x9 --filename results.json"),
)
@experiment_argument
@nnictl_option(
    "--filename",
    nnictl=["-f"],
    required=True,
    type=click.Path(path_type=Path),
    help='JSON: [{"parameter", "value"}]',
)
@click.option("--skip-outside", is_flag=True, help="Skip rows outside the search space instead of refusing the file.")
@with_session
def import_(session: CliSession, experiment: str | None, filename: Path, skip_outside: bool) -> None:
    """Import results from another experiment into the tuner of a running one: a file written by `export` or nnictl.

    Rows without a value are skipped. If a row is outside the current search space, or its value is not a number, such
    rows are listed and nothing is imported.
    """
    rows = read_rows(filename)
    found = find_experiment(session.client, experiment)
    answer = session.client.import_data(found["id"], rows, skip_outside=skip_outside)
    skipped = f"; skipped {_numbered(answer['skipped'], 'row')} without a value" if answer["skipped"] else ""
    if answer.get("outside"):
        skipped += f"; skipped {_numbered(answer['outside'], 'row')} outside of the search space"
    session.report(f"Imported {_numbered(answer['imported'], 'result')} into {found['id']}{skipped}.")


@experiment.command(
    short_help="Save an experiment as a zip.",
    epilog=examples("proctor experiment save k3x9", "proctor experiment save k3x9 --code --path /backup"),
)
@experiment_argument
@nnictl_option(
    "--path",
    nnictl=["-p"],
    type=click.Path(path_type=Path),
    default=Path(),
    help="A folder, or the file name of the zip.",
)
@nnictl_option("-s", "--code", nnictl=["--saveCodeDir"], is_flag=True, help="Include the code directory.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@with_session
def save(session: CliSession, experiment: str | None, path: Path, code: bool, yes: bool) -> None:
    """Save an experiment as a zip: its records, metrics, logs and outputs. Its name goes to stdout.

    Files of the code directory that match .proctorignore or .nniignore are not saved. Asks for confirmation above
    300 MB in total or 2,000 code files.
    """
    from proctor.manager.cli.archive import find_contents, require_replaceable, show_progress, write_archive

    found = find_experiment(session.client, experiment, ended_too=True)
    target = path / f"{found['id']}.zip" if path.is_dir() else path
    if target != path:
        require_replaceable(target, found)
    contents = find_contents(found, target, with_code=code)
    session.report(f"Saving {contents.describe()}.")
    for sentence in contents.left_out:
        session.report(sentence)
    if contents.is_large and not yes and not confirm(f"Save {size_text(contents.size)}, before compression?"):
        raise CommandError("nothing was saved; .proctorignore in the code directory leaves files out")
    with show_progress(contents.size) as saved:
        write_archive(session.client, found, contents, target, saved)
    echo(str(target))
    session.report(f"Saved experiment {found['id']} ({size_text(target.stat().st_size)}).")


@experiment.command(
    epilog=examples(
        "proctor experiment load --path k3x9.zip", "proctor experiment load --path k3x9.zip --code-directory project"
    )
)
@nnictl_option("--path", nnictl=["-p"], required=True, type=click.Path(path_type=Path), help="A zip created by `save`.")
@nnictl_option(
    "--code-directory",
    "code",
    nnictl=["-c", "--codeDir"],
    type=click.Path(path_type=Path),
    help="Where to unpack the saved code.",
)
@click.option("--id", "identifier", metavar="ID", help="Give it a different id.")
@click.option(
    "--keep-storage",
    is_flag=True,
    help="Adopt the checkpointStorage that the archive names, with what the experiment has stored there.",
)
@ignored_option("-l", "--logDir", metavar="DIR", because="a loaded experiment gets its folder in this home")
@ignored_option("-s", "--searchSpacePath", metavar="FILE", because="the search space is part of what was saved")
@with_session
def load(session: CliSession, path: Path, code: Path | None, identifier: str | None, keep_storage: bool) -> None:
    """Import a saved experiment; its status is STOPPED. Its id goes to stdout.

    Where it stored its checkpoints in a checkpointStorage, it stores new ones in its own folder, unless --keep-storage
    is given."""
    from proctor.manager.cli.archive import load_archive, read_archive

    saved = read_archive(path)  # no manager is started for a file that is none
    loaded = load_archive(
        session.ensure_client(), path, code_directory=code, identifier=identifier, keep_storage=keep_storage
    )
    echo(loaded["id"])
    session.report(f"Loaded experiment {loaded['id']} ({loaded['name']}); it is {loaded['status']}.")
    if (storage := storage_of(saved)) and not keep_storage:
        session.report(f"It stores checkpoints in its own folder from now on, no longer in {storage} (--keep-storage).")


def storage_of(experiment: Mapping[str, Any]) -> str:
    """Where an experiment stores checkpoints, if not in its folder, else ''."""
    storage = experiment["config"].get("checkpoint_storage")
    return f"{storage['location']}/{experiment['id']}" if isinstance(storage, dict) else ""


def _settle(session: CliSession, experiment: dict[str, Any]) -> None:
    """An experiment that is DONE or in ERROR still has a loop; stop it, so that it can be deleted."""
    if experiment["status"] in ("DONE", "ERROR"):
        from proctor.manager.cli.watching import STOP_SECONDS, wait_until_stopped

        session.client.stop_experiment(experiment["id"])
        wait_until_stopped(session, [experiment["id"]], time.monotonic() + STOP_SECONDS)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file for `import`. Raises CommandError."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"), parse_constant=str)  # NNI writes NaN as Python does
    except FileNotFoundError as error:
        raise CommandError(f"{path}: there is no such file", ExitCode.USAGE) from error
    except ValueError as error:
        raise CommandError(f"{path} is not JSON: {error}", ExitCode.USAGE) from error
    sound = isinstance(rows, list) and all(isinstance(row, dict) and {"parameter", "value"} <= set(row) for row in rows)
    if not sound:
        raise CommandError(f"{path}: expected a list of objects with `parameter` and `value`", ExitCode.USAGE)
    return list(rows)


def _numbered(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _csv_line(row: dict[str, Any]) -> dict[str, Any]:
    """A trial, with its final metric as a number and further keys."""
    from proctor.sdk.client.flattening import metric_fields

    others = {name: item for name, item in row.items() if name not in ("parameter", "value", *CURVE)}
    return {"parameter": row["parameter"], **metric_fields(row["value"]), **others}


def _curve_lines(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A trial's intermediate metrics, one after the other; none for a trial without one."""
    from proctor.sdk.client.flattening import metric_fields

    trial = {name: row[name] for name in ("sequence_id", "trial_id", "status", "parameter")}
    points = zip(*(row[name] or () for name in CURVE), strict=True)
    for sequence, (reported, step) in enumerate(points):
        yield {**trial, "sequence": sequence, "step": step, **metric_fields(reported)}


def _save_parquet(
    session: CliSession, found: Mapping[str, Any], filename: Path | None, *, intermediate: bool, succeeded: bool
) -> None:
    if intermediate:
        raise CommandError("--type parquet has no intermediate metrics; use --type csv", ExitCode.USAGE)
    if filename is None and sys.stdout.isatty():
        raise CommandError("a Parquet file is not for a terminal; name a file with --filename", ExitCode.USAGE)
    wanted = "status = SUCCEEDED" if succeeded else "status not in (WAITING, RUNNING, PAUSED)"
    data = session.client.table_file(found["id"], "parquet", filter=wanted, columns=["*", "time"])
    if filename is None:
        sys.stdout.buffer.write(data)
    else:
        filename.write_bytes(data)
        session.report(f"Written to {filename}: trials of experiment {found['id']}.")


def _write_rows(rows: list[dict[str, Any]], kind: str, file: Any) -> None:
    if kind == Format.CSV:
        write_csv(rows, file)
    else:
        file.write(json_text(rows) + "\n")


alias(experiment, "ls", list_)
experiment.add_command(view)
