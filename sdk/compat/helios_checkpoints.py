"""`python -m proctor.sdk.pytorch.migrate SOURCE TARGET [--dry-run] [--allow module:Class ...]`

Makes the checkpoints of Helios 1.x and 2.x, or of an older version of this trainer, that are in the folder SOURCE ones
that this version continues from, in the folder TARGET, which is to be `chkpt_root/run_name` of the run. SOURCE is only
read. Run again, it finds its work done and changes nothing.

Checkpoints of Helios are read without Helios and without running what they hold. Their files name classes of Helios and
of `pathlib`; here stand-ins take the places of these, and nothing else is accepted. What cannot be carried over is
reported: the order of the samples is another trainer's, and only rank 0's streams were saved.

It is no part of the trainer, with which it would travel to every machine; there `migrate` is only a command's name.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path, PureWindowsPath
from typing import Any

from proctor.sdk.files import copy_file, hash_file
from proctor.sdk.pytorch.checkpoints.filesystem import store_file
from proctor.sdk.pytorch.checkpoints.folder import SUFFIX
from proctor.sdk.pytorch.checkpoints.history import HISTORY_FILE
from proctor.sdk.pytorch.checkpoints.pointer import POINTER_FILE, Entry, Pointer
from proctor.sdk.pytorch.checkpoints.serialization import FORMAT, check_content, load, upgrade, write_content
from proctor.sdk.pytorch.errors import TrainerError, UnreadableCheckpointError

_COUNTERS = ("current_iteration", "global_iteration", "global_epoch", "validation_cycles", "early_stop_count")
_OWN_KEYS = {"version", "training_state", "model", "rng", "loggers", "datamodule", "log_path", "run_path"}
_PATHS = ("pathlib", "pathlib._local")


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
        entry = Entry.of(name, write_content(content), content)
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
            f"the target must be a different folder from the source, which is not changed; found {target} twice."
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


def _is_new(path: Path, entry: Entry) -> bool:
    if not path.exists():
        return True
    if hash_file(path) == entry.sha256:
        return False
    raise TrainerError(
        f"{path} already exists and is a different checkpoint; migrate into a folder of its own and move what you need."
    )


def _finish(source: Path, target: Path, entries: "list[Entry]") -> None:
    if (source / HISTORY_FILE).exists() and not (target / HISTORY_FILE).exists():
        copy_file(source / HISTORY_FILE, target / HISTORY_FILE)
    if not (target / POINTER_FILE).exists():  # a run that has gone on from here has a pointer of its own by now
        Pointer(target.name, entries).write(target)


def _limitation(origin: str, content: "dict[str, Any]") -> str:
    if not origin.startswith("helios"):
        return ""
    if content["training_state"]["batch"]:
        return "continues inside an epoch with this trainer's order of the samples: some come twice and some not at all"
    return "this trainer orders the samples differently, so the run continues correctly but not bit for bit"


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


# -- checkpoints of Helios --------------------------------------------------------------------------------------------


class _State:
    """Stands for `helios.trainer.TrainingState`, whose fields become this object's attributes."""


def is_foreign(content: "Mapping[Any, Any]") -> bool:
    """Whether this is a checkpoint of Helios: one without a format number but with its parts."""
    return "format" not in content and {"training_state", "model", "rng"} <= set(content)


def read_any(path: Path, safe_types: "Sequence[type]" = ()) -> "dict[str, Any]":
    """Return the content of a checkpoint of Helios or of this trainer.

    :param safe_types: classes of the user that it may hold.
    :raises UnreadableCheckpointError: it is damaged, or holds other classes than those.
    :raises OSError: the file cannot be read.
    """
    return load(path, "cpu", [*safe_types, *_stand_ins()])


def translate(content: "Mapping[str, Any]") -> "dict[str, Any]":
    """Return the content of a checkpoint of Helios in the present format.

    :raises UnreadableCheckpointError: its counters are not those of Helios.
    """
    counters = _read_counters(content["training_state"])
    model = content["model"]
    is_second = isinstance(model, Mapping) and "user" in model and "loggers" in content
    translated = {
        "format": FORMAT,
        "version": f"helios {content.get('version', 'before 1.0')}",
        "training_state": _translate_counters(counters, content.get("datamodule") or {}),
        "model": dict(model["user"]) if is_second else model,
        "rng": [dict(content["rng"])],
        "metrics": {},
        "plugins": {str(name): state for name, state in content.items() if name not in _OWN_KEYS},
        "observers": {},
    }
    if is_second and "amp_scaler" in model:
        translated["amp_scaler"] = dict(model["amp_scaler"])
    translated.update(_translate_paths(content))
    return translated


def _translate_counters(found: "Mapping[str, int]", data: "Mapping[str, Any]") -> "dict[str, Any]":
    """Helios counts an epoch when it begins, and `dataset_iter` is 0 again when one has ended."""
    batch = found["dataset_iter"]
    state: dict[str, Any] = {name: found[name] for name in _COUNTERS}
    state.update(epoch=max(0, found["global_epoch"] - (1 if batch else 0)), batch=batch, window=0, stop_reason="")
    state["phase"] = int(data.get("phase", 0))
    return state


def _read_counters(state: Any) -> "dict[str, int]":
    values = state if isinstance(state, Mapping) else getattr(state, "__dict__", {})
    try:
        return {name: int(values[name]) for name in (*_COUNTERS, "dataset_iter")}
    except (KeyError, TypeError, ValueError) as problem:
        raise UnreadableCheckpointError(
            f"the training state is not that of Helios: expected {[*_COUNTERS, 'dataset_iter']}, found {sorted(values)}"
        ) from problem


def _translate_paths(content: "Mapping[str, Any]") -> "dict[str, str]":
    """1.x kept the two paths by themselves, 2.x under its loggers."""
    loggers = content.get("loggers") or {}
    found = {
        "log_path": content.get("log_path") or (loggers.get("root") or {}).get("log_file"),
        "run_path": content.get("run_path") or (loggers.get("tensorboard") or {}).get("run_path"),
    }
    return {name: str(path) for name, path in found.items() if path}


def _stand_ins() -> "list[Any]":
    found = [
        _pose_as(type("TrainingState", (_State,), {}), "helios.trainer", "TrainingState"),
        _pose_as(lambda value: value, "helios.trainer", "_CheckpointKeys"),
        _pose_as(lambda value: value, "helios.model.model", "_InternalStateKeys"),
    ]
    for module in _PATHS:
        for name in ("PosixPath", "PurePosixPath"):
            found.append(_pose_as(lambda *parts: "/".join(parts).replace("//", "/"), module, name))
        for name in ("WindowsPath", "PureWindowsPath"):
            found.append(_pose_as(lambda *parts: str(PureWindowsPath(*parts)), module, name))
    return found


def _pose_as(thing: Any, module: str, name: str) -> Any:
    """Give a class or function the name that the file asks for; the loader compares names."""
    thing.__module__, thing.__qualname__, thing.__name__ = module, name, name
    return thing


if __name__ == "__main__":
    sys.exit(main())
