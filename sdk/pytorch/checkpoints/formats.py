"""Checkpoints of older versions and of Helios 1.x and 2.x, brought to the present format.

Older versions are recognized by their format number and upgraded step by step. The number changes only when the
content's form does, so a checkpoint of a newer version with the same number is read, and one with a higher number is
refused with the reason.

Checkpoints of Helios are read without Helios and without running what they hold. Their files name classes of Helios and
of `pathlib`; here stand-ins take the places of these, and nothing else is accepted. What cannot be carried over is
reported: the order of the samples is another trainer's, and only rank 0's streams were saved.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PureWindowsPath
from typing import Any

from proctor.sdk.pytorch.checkpoints.serialization import load
from proctor.sdk.pytorch.errors import UnreadableCheckpointError

FORMAT = 1
COMMAND = "python -m proctor.sdk.pytorch.migrate"
Content = dict[str, Any]
# What turns a content of format n into one of format n + 1, by n.
STEPS: "dict[int, Callable[[Content], Content]]" = {}
_PARTS = ("training_state", "model", "rng")
_COUNTERS = ("current_iteration", "global_iteration", "global_epoch", "validation_cycles", "early_stop_count")
_OWN_KEYS = {"version", "training_state", "model", "rng", "loggers", "datamodule", "log_path", "run_path"}
_PATHS = ("pathlib", "pathlib._local")


def upgrade(content: Content, name: str) -> Content:
    """Return the content of a checkpoint in the present format; the argument is left as it is.

    :param name: the checkpoint, for the errors.
    :raises UnreadableCheckpointError: it is of a newer format, of another trainer, or incomplete.
    """
    number = content.get("format")
    if not isinstance(number, int):
        raise UnreadableCheckpointError(
            f"{name} was not written by this trainer (it has no format number). Checkpoints of Helios are continued "
            f"after `{COMMAND} SOURCE TARGET`."
        )
    if number > FORMAT:
        raise UnreadableCheckpointError(
            f"{name} was written by proctor {content.get('version', 'of an unknown version')} in format {number}; this "
            f"version reads up to format {FORMAT}. Upgrade proctor."
        )
    while number < FORMAT:
        if number not in STEPS:
            raise UnreadableCheckpointError(f"{name} has format {number}, which no version of proctor has written.")
        content = {**STEPS[number](content), "format": number + 1}
        number += 1
    if missing := [part for part in _PARTS if part not in content]:
        raise UnreadableCheckpointError(f"{name} is incomplete: it has no {', '.join(missing)}.")
    return content


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
    def posix(*parts: str) -> str:
        return "/".join(parts).replace("//", "/")

    def windows(*parts: str) -> str:
        return str(PureWindowsPath(*parts))

    def text(value: str) -> str:
        return value

    found = [
        _pose_as(type("TrainingState", (_State,), {}), "helios.trainer", "TrainingState"),
        _pose_as(_copy(text), "helios.trainer", "_CheckpointKeys"),
        _pose_as(_copy(text), "helios.model.model", "_InternalStateKeys"),
    ]
    for module in _PATHS:
        found += [_pose_as(_copy(posix), module, name) for name in ("PosixPath", "PurePosixPath")]
        found += [_pose_as(_copy(windows), module, name) for name in ("WindowsPath", "PureWindowsPath")]
    return found


def _copy(function: "Callable[..., str]") -> "Callable[..., str]":
    def stand_in(*arguments: str) -> str:
        return function(*arguments)

    return stand_in


def _pose_as(thing: Any, module: str, name: str) -> Any:
    """Give a class or function the name that the file asks for; the loader compares names."""
    thing.__module__, thing.__qualname__, thing.__name__ = module, name, name
    return thing
