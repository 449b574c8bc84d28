"""Experiments as zip files.

proctor.json              {"format": 1, "experiment": resource}
trials.jsonl jobs.jsonl metrics.jsonl
experiment/…              its folder: logs, outputs, checkpoints; no databases, environment or secrets
code/…                    the code directory, when asked for
"""

import json
import os
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.cli.logins import find_logins, handed_over

if TYPE_CHECKING:
    from proctor.sdk.client.client import Client

FORMAT = 1
PRIVATE = frozenset({"environment.json", "secrets.json"})
NOT_CODE = frozenset({".git", ".venv", "venv", "__pycache__", "node_modules"})
CODE_ARCHIVES = "code-archives"  # what was made of the code for machines


def save_archive(client: "Client", experiment: dict[str, Any], target: Path, *, with_code: bool) -> None:
    """Write an experiment into a zip that is complete whenever it is there. Raises CommandError, OSError."""
    folder = Path(experiment["directory"])
    if not folder.is_dir():
        raise CommandError(f"{folder} is not on this machine; save the experiment where its manager runs")
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(draft, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive:
            _write_records(archive, client, experiment)
            _write_folder(archive, "experiment", folder, _is_kept)
            if with_code:
                _write_folder(archive, "code", Path(experiment["config"]["trial_code_directory"]), _is_code)
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)


def load_archive(
    client: "Client", path: Path, *, code_directory: Path | None, identifier: str | None
) -> dict[str, Any]:
    """Hand a saved experiment to the manager, which takes it in as STOPPED. Raises CommandError."""
    from proctor.sdk.client.handover import held_copy

    experiment = read_archive(path)
    if code_directory is not None:
        _unpack_code(path, code_directory)
    logins = find_logins(experiment["config"])
    with held_copy(client.home, path) as handed, handed_over(client, logins) as handover:
        return client.load_experiment(
            handed,
            experiment_id=identifier,
            code_directory=None if code_directory is None else str(code_directory.absolute()),
            handover=handover,
        )


def read_archive(path: Path) -> dict[str, Any]:
    """The experiment's resource in an archive. Raises CommandError where it is none, or of a newer kind."""
    try:
        with zipfile.ZipFile(path) as archive:
            head = json.loads(archive.read("proctor.json"))
    except FileNotFoundError as error:
        raise CommandError(f"{path}: there is no such file", ExitCode.USAGE) from error
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise CommandError(f"{path} is not an experiment saved by `proctor experiment save`", ExitCode.USAGE) from error
    if head.get("format") != FORMAT:
        found = head.get("format")
        raise CommandError(f"{path} has format {found}; this version reads format {FORMAT}", ExitCode.USAGE)
    experiment: dict[str, Any] = head["experiment"]
    return experiment


def _write_records(archive: zipfile.ZipFile, client: "Client", experiment: dict[str, Any]) -> None:
    trials = list(client.trials(experiment["id"], sort="sequence_id"))
    archive.writestr("proctor.json", json.dumps({"format": FORMAT, "experiment": experiment}, indent=1))
    archive.writestr("trials.jsonl", _lines(trials))
    archive.writestr("jobs.jsonl", _lines(job for trial in trials for job in client.jobs(trial["id"])))
    with archive.open("metrics.jsonl", "w") as file:
        for trial in trials:
            file.write(_lines(client.metrics(trial["id"])).encode())


def _lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def _write_folder(archive: zipfile.ZipFile, name: str, folder: Path, wanted: Any) -> None:
    for path in _files(folder):
        inside = path.relative_to(folder)
        if wanted(inside):
            archive.write(path, Path(name) / inside)


def _files(folder: Path) -> Iterator[Path]:
    """Regular files; links are not followed, sockets and pipes are left out."""
    for root, _, names in os.walk(folder):
        yield from (path for path in (Path(root, name) for name in sorted(names)) if path.is_file())


def _is_kept(inside: Path) -> bool:
    is_ours = inside.name in PRIVATE or inside.suffix in (".db", ".db-wal", ".db-shm")
    return not is_ours and inside.parts[0] != CODE_ARCHIVES


def _is_code(inside: Path) -> bool:
    return not NOT_CODE.intersection(inside.parts)


def _unpack_code(path: Path, target: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        names = [name for name in archive.namelist() if name.startswith("code/")]
        if not names:
            raise CommandError(f"{path} holds no code; it was saved without --code", ExitCode.USAGE)
        root = target.absolute()
        for name in names:
            inside = (root / name.removeprefix("code/")).resolve()
            if not inside.is_relative_to(root.resolve()):
                raise CommandError(f"{path} wants to write outside of {target}: {name}", ExitCode.USAGE)
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.write_bytes(archive.read(name))
