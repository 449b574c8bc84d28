"""`python -m proctor.sdk.pytorch.migrate SOURCE TARGET [--dry-run] [--allow module:Class ...]`

Makes the checkpoints of Helios 1.x and 2.x, or of an older version of this trainer, that lie in the folder SOURCE ones
that this version continues from, in the folder TARGET, which is to be `chkpt_root/run_name` of the run. SOURCE is only
read. Run again, it finds its work done and changes nothing.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from proctor.sdk.files import copy_file, hash_file
from proctor.sdk.pytorch.checkpoints.filesystem import store_file
from proctor.sdk.pytorch.checkpoints.folder import SUFFIX
from proctor.sdk.pytorch.checkpoints.formats import FORMAT, is_foreign, read_any, translate, upgrade
from proctor.sdk.pytorch.checkpoints.history import HISTORY_FILE, HistoryPosition
from proctor.sdk.pytorch.checkpoints.pointer import Entry, read_pointer, write_pointer
from proctor.sdk.pytorch.checkpoints.serialization import check_content, write_content
from proctor.sdk.pytorch.errors import TrainerError, UnreadableCheckpointError


@dataclass(frozen=True)
class Migrated:
    """What happened to one checkpoint, or would happen."""

    entry: Entry
    origin: str  # what wrote it
    is_new: bool  # whether the target did not have it yet
    note: str  # what could not be carried over; empty if nothing


def migrate_checkpoints(
    source: Path, target: Path, *, dry_run: bool = False, safe_types: "Sequence[type]" = ()
) -> "list[Migrated]":
    """Bring all checkpoints of a folder to the present format, in another folder; newest first.

    :param dry_run: read and translate everything, write nothing.
    :param safe_types: classes of the user that the checkpoints hold.
    :raises UnreadableCheckpointError: one cannot be read or translated. Nothing has been written then.
    :raises TrainerError: the folders are no source and target, or the target has other checkpoints of these names.
    """
    _check_folders(source, target)
    translated = {path.name: _translate(path, safe_types) for path in sorted(source.glob(f"*{SUFFIX}"))}
    if not translated:
        raise TrainerError(f"{source} has no checkpoints: expected files named *{SUFFIX}; found none.")
    done: list[Migrated] = []
    for name, (content, origin) in translated.items():
        check_content(content, "checkpoint", safe_types=frozenset(safe_types))
        entry = _describe(name, content)
        is_new = _is_new(target / name, entry)
        if is_new and not dry_run:
            target.mkdir(parents=True, exist_ok=True)
            store_file(target / name, partial(write_content, content), place="trainer.migration")
        done.append(Migrated(entry, origin, is_new, _limitation(origin, content)))
    done.sort(key=lambda item: (item.entry.epoch, item.entry.iteration, item.entry.name), reverse=True)
    if not dry_run:
        _finish(source, target, [item.entry for item in done])
    return done


def main(arguments: "Sequence[str] | None" = None) -> int:
    """The command; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m proctor.sdk.pytorch.migrate", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("source", type=Path, metavar="SOURCE", help="the folder with the checkpoints; only read")
    parser.add_argument("target", type=Path, metavar="TARGET", help="a new folder: chkpt_root/run_name of the run")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and write nothing")
    parser.add_argument(
        "--allow", action="append", default=[], metavar="MODULE:CLASS", help="a class of yours to accept"
    )
    options = parser.parse_args(arguments)
    try:
        types = [_import(name) for name in options.allow]
        done = migrate_checkpoints(options.source, options.target, dry_run=options.dry_run, safe_types=types)
    except (TrainerError, OSError) as problem:
        print(f"migrate: {problem}", file=sys.stderr)
        return 1
    for item in done:
        print(_report_line(item, dry_run=options.dry_run))
    return 0


def _check_folders(source: Path, target: Path) -> None:
    if not source.is_dir():
        raise TrainerError(f"the source must be a folder with checkpoints; found none at {source}.")
    if source.resolve() == target.resolve():
        raise TrainerError(
            f"the target must be another folder than the source, which stays as it is; found {target} twice."
        )


def _translate(path: Path, safe_types: "Sequence[type]") -> "tuple[dict[str, Any], str]":
    content = read_any(path, safe_types)
    origin = f"proctor {content.get('version')}, format {content.get('format')}"
    try:
        if is_foreign(content):
            content = translate(content)
            origin = str(content["version"])
        return upgrade(content, str(path)), origin
    except UnreadableCheckpointError as problem:
        raise UnreadableCheckpointError(f"{path} cannot be migrated: {problem}") from problem


def _describe(name: str, content: "dict[str, Any]") -> Entry:
    state = content["training_state"]
    digest, size = write_content(content)
    return Entry(
        name=name,
        sha256=digest,
        size=size,
        epoch=int(state["global_epoch"]),
        iteration=int(state["current_iteration"]),
        history_size=HistoryPosition.from_json(content.get("history")).size,
    )


def _is_new(path: Path, entry: Entry) -> bool:
    if not path.exists():
        return True
    if hash_file(path) == entry.sha256:
        return False
    raise TrainerError(
        f"{path} is there already and is another checkpoint; migrate into a folder of its own and move what you need."
    )


def _finish(source: Path, target: Path, entries: "list[Entry]") -> None:
    if (source / HISTORY_FILE).exists() and not (target / HISTORY_FILE).exists():
        copy_file(source / HISTORY_FILE, target / HISTORY_FILE)
    if read_pointer(target) is None:  # a run that has gone on from here has a pointer of its own by now
        write_pointer(target, target.name, entries)


def _limitation(origin: str, content: "dict[str, Any]") -> str:
    if not origin.startswith("helios"):
        return ""
    if content["training_state"]["batch"]:
        return "continues inside an epoch with this trainer's order of the samples: some come twice and some not at all"
    return "this trainer's order of the samples is another one, so the run goes on well but not bit for bit"


def _report_line(item: Migrated, *, dry_run: bool) -> str:
    done = "already there" if not item.is_new else "would be migrated" if dry_run else "migrated"
    note = f"; {item.note}" if item.note else ""
    return f"{item.entry.name}: {done} from {item.origin} to format {FORMAT}{note}"


def _import(name: str) -> type:
    module, _, attribute = name.partition(":")
    try:
        found: type = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as problem:
        raise TrainerError(
            f"--allow expects MODULE:CLASS that can be imported; found {name!r} ({problem})."
        ) from problem
    return found


if __name__ == "__main__":
    sys.exit(main())
