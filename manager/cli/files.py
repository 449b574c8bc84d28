"""`proctor trial files` and `proctor trial download`: what a trial has written, wherever it runs or ran."""

from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

import click

from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.cli.identifiers import named_trial, trial_argument
from proctor.manager.cli.output import Column, Row, output_option, print_list
from proctor.manager.cli.session import Session, with_session

FILES = (
    Column("FILE", lambda row: row["path"]),
    Column("BYTES", lambda row: f"{row['size_bytes']:,}", right=True),
)


@click.command("files")
@trial_argument
@output_option
@with_session
def trial_files(session: Session, words: Sequence[str], trial: str | None, experiment: str | None, output: str) -> None:
    """The files of a trial's newest attempt: its logs, and what it has written into its own folder."""
    found = named_trial(session.client, words, trial, experiment)
    print_list(session.client.files(found["id"]), FILES, output, empty=f"trial {found['id']} has no files yet")


@click.command("download")
@trial_argument
@click.option("-p", "--path", "paths", multiple=True, metavar="PATH", help="Only this file or folder; may be repeated.")
@click.option(
    "-d",
    "--directory",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where to; a folder named after the trial if not given.",
)
@with_session
def trial_download(
    session: Session,
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
    session.say(f"Saved {len(chosen)} {'file' if len(chosen) == 1 else 'files'} in {target}.")


def choose(files: Iterable[Row], wanted: Sequence[str]) -> list[str]:
    """The paths of these files, or of those of them that are or lie below what is wanted; none that leads elsewhere."""
    paths = [PurePosixPath(row["path"]) for row in files]
    ours = [path for path in paths if not path.is_absolute() and ".." not in path.parts]
    folders = [PurePosixPath(name) for name in wanted]
    return [str(path) for path in ours if not folders or any(path.is_relative_to(folder) for folder in folders)]
