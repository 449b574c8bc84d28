"""What each option of a run may be, as a table: the words that an error says, and the rule."""

import os
from collections.abc import Callable, Mapping, Sequence, Set
from math import inf
from typing import Any

from proctor.sdk.pytorch.errors import ConfigurationError

_LARGEST_SEED = 2**64 - 1  # what torch takes
_Rule = tuple[str, Callable[[Any], bool]]


def check_ranges(options: "Mapping[str, Any]") -> None:
    """Check the options that are given.

    :raises ConfigurationError: one is not what it may be; the text has its name, what was expected and what was found.
    """
    for name, value in options.items():
        expected, is_allowed = _RULES.get(name, _ANYTHING)
        if not is_allowed(value):
            raise ConfigurationError(f"{name} must be {expected}; found {value!r}.")


def _is_integer(value: Any, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_total(value: Any) -> bool:
    return _is_integer(value) or (isinstance(value, float) and value == inf)


def _is_seconds(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < inf)


def _is_seed(value: Any) -> bool:
    return value is None or (_is_integer(value) and value <= _LARGEST_SEED)


def _is_folder(value: Any) -> bool:
    return value is None or isinstance(value, (str, os.PathLike))


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _are_gpus(value: Any) -> bool:
    return value is None or (_is_row(value) and all(_is_integer(gpu) for gpu in value))


def _are_exceptions(value: Any) -> bool:
    return _is_row(value) and all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in value)


def _is_row(value: Any) -> bool:
    return isinstance(value, (Sequence, Set)) and not isinstance(value, (str, bytes))


_ANYTHING: _Rule = ("anything", lambda value: True)
_FLAG: _Rule = ("True or False", _is_flag)
_COUNT: _Rule = ("an integer of at least 1", lambda value: _is_integer(value, 1))
_COUNT_OR_NONE: _Rule = (f"{_COUNT[0]} or None", lambda value: value is None or _is_integer(value, 1))
_FOLDER: _Rule = ("the path of a folder (a str or a Path), or None", _is_folder)
_TEXT: _Rule = ("a text or None", _is_text)
_EXCEPTIONS: _Rule = ("a list or tuple of exception types, such as [ValueError]", _are_exceptions)

_RULES: "dict[str, _Rule]" = {
    "total_steps": ("an integer that is not negative, or float('inf')", _is_total),
    "valid_frequency": _COUNT_OR_NONE,
    "chkpt_frequency": _COUNT_OR_NONE,
    "print_frequency": _COUNT_OR_NONE,
    "accumulation_steps": _COUNT,
    "flush_at_epoch_end": _FLAG,
    "enable_cudnn_benchmark": _FLAG,
    "enable_deterministic": _FLAG,
    "early_stop_cycles": _COUNT_OR_NONE,
    "use_cpu": _FLAG,
    "gpus": ("a list of the ids of GPUs, such as [0, 1], or None", _are_gpus),
    "processes": _COUNT,
    "backend": _TEXT,
    "group_timeout_seconds": ("a number of seconds above 0, or None", _is_seconds),
    "random_seed": (f"an integer from 0 to {_LARGEST_SEED}, or None", _is_seed),
    "chkpt_root": _FOLDER,
    "log_path": _FOLDER,
    "run_path": _FOLDER,
    "enable_tensorboard": _FLAG,
    "enable_file_logging": _FLAG,
    "enable_progress_bar": _FLAG,
    "train_exceptions": _EXCEPTIONS,
    "test_exceptions": _EXCEPTIONS,
    "strict_resume": _FLAG,
    "resume": _FLAG,
    "keep_last": _COUNT_OR_NONE,
    "keep_best": ("an integer of at least 0", _is_integer),
    "best_metric": _TEXT,
    "best_mode": ("'max' or 'min'", lambda value: isinstance(value, str) and value in ("max", "min")),
    "background_writes": _FLAG,
}
