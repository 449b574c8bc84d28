"""The options of a run: the keyword arguments of `Trainer`, what each may be, and the frozen settings made of them."""

import inspect
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import MISSING, dataclass, field, fields
from enum import Enum
from math import inf
from numbers import Integral
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.reproducibility.seeding import get_default_seed

_LARGEST_SEED = 2**64 - 1  # what torch takes
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]*")

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Rule = tuple[str, Callable[[Any], bool]]  # the words for an error, and the check


class TrainUnit(str, Enum):
    """What `total_steps` and the frequencies count."""

    EPOCH = "epoch"  # passes over the training data
    ITERATION = "iteration"  # optimizer steps, `accumulation_steps` batches each


class Phase(str, Enum):
    """What a batch is for."""

    TRAINING = "training"
    VALIDATION = "validation"
    TESTING = "testing"


class StopReason(str, Enum):
    """Why a run came back."""

    COMPLETED = "completed"  # total_steps are done
    EARLY_STOP = "early_stop"  # the metrics have not improved for early_stop_cycles validations
    MODEL = "model"  # should_training_stop() of the model or of a plug-in
    REQUESTED = "requested"  # the manager asked the trial to stop; to be continued


class TrainerOptions(TypedDict, total=False):
    """The keyword arguments of `Trainer`; `Settings` holds their defaults and checks them.

    :param train_unit: `TrainUnit` or "epoch"/"iteration": what the counts below are in.
    :param total_steps: epochs or iterations; `float("inf")` needs a rule that stops the run.
    :param valid_frequency: validate every so many units; None never.
    :param chkpt_frequency: save every so many units; None never. A run that stops always saves if it has a root.
    :param print_frequency: `should_log` is true every so many units (batches in the unit EPOCH).
    :param accumulation_steps: batches in one optimizer window.
    :param flush_at_epoch_end: in the unit ITERATION, end the window with the epoch instead of running on.
    :param enable_cudnn_benchmark: let cuDNN choose kernels by timing (never exact; off while validating).
    :param enable_deterministic: deterministic kernels everywhere; see `kernels`.
    :param early_stop_cycles: stop after so many validations in a row without an improvement.
    :param use_cpu: train on the CPU although there is a GPU.
    :param gpus: the ids of the GPUs to use; several start one process each.
    :param processes: with `use_cpu`, how many processes share the work (gloo).
    :param backend: the backend of the process group; None chooses NCCL for GPUs and gloo for the CPU.
    :param group_timeout_seconds: how long a rank waits for the others at one point; None leaves it to PyTorch.
    :param random_seed: the seed of everything; None is 6691.
    :param chkpt_root: the folder of the checkpoints; inside a trial it may be left out.
    :param log_path: the folder of the log files.
    :param run_path: the folder of the TensorBoard runs.
    :param enable_tensorboard: write metrics to TensorBoard under `run_path`.
    :param enable_file_logging: write a log file under `log_path`.
    :param enable_progress_bar: show progress on standard error, as bars on a terminal and as lines elsewhere; None: but
        not in a trial.
    :param train_exceptions: exception types that `fit` lets through as they are.
    :param test_exceptions: exception types that `test` lets through as they are.
    :param strict_resume: raise `NotExactError` instead of warning when a resume cannot be bit-exact.
    :param resume: continue from the latest checkpoint if there is one.
    :param keep_last: how many checkpoints to keep; None keeps all.
    :param keep_best: how many of the best ones to keep besides, judged by `best_metric`; one is also made after a
        validation that is among the best when no other is due.
    :param best_metric: the name of the metric that judges the run; inside a trial it is reported as `default`.
    :param best_mode: "max" or "min".
    :param background_writes: sync checkpoints to the disk in a thread while training goes on.
    """

    train_unit: "TrainUnit | str"
    total_steps: "int | float"
    valid_frequency: "int | None"
    chkpt_frequency: "int | None"
    print_frequency: "int | None"
    accumulation_steps: int
    flush_at_epoch_end: bool
    enable_cudnn_benchmark: bool
    enable_deterministic: bool
    early_stop_cycles: "int | None"
    use_cpu: bool
    gpus: "Sequence[int] | None"
    processes: int
    backend: "str | None"
    group_timeout_seconds: "float | None"
    random_seed: "int | None"
    chkpt_root: "str | os.PathLike[str] | None"
    log_path: "str | os.PathLike[str] | None"
    run_path: "str | os.PathLike[str] | None"
    enable_tensorboard: bool
    enable_file_logging: bool
    enable_progress_bar: "bool | None"
    train_exceptions: "Sequence[type[BaseException]]"
    test_exceptions: "Sequence[type[BaseException]]"
    strict_resume: bool
    resume: bool
    keep_last: "int | None"
    keep_best: int
    best_metric: "str | None"
    best_mode: str
    background_writes: bool


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
    "enable_progress_bar": ("True, False or None", lambda value: value is None or _is_flag(value)),
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


@dataclass(frozen=True)
class Settings:
    """What `TrainerOptions` describes, with the defaults; picklable, for other processes. Construction raises
    `ConfigurationError`."""

    run_name: str
    train_unit: TrainUnit = TrainUnit.EPOCH
    total_steps: float = 0
    valid_frequency: "int | None" = None
    chkpt_frequency: "int | None" = None
    print_frequency: "int | None" = None
    accumulation_steps: int = 1
    flush_at_epoch_end: bool = False
    enable_cudnn_benchmark: bool = False
    enable_deterministic: bool = False
    early_stop_cycles: "int | None" = None
    use_cpu: bool = False
    gpus: "tuple[int, ...] | None" = None
    processes: int = 1
    backend: "str | None" = None
    group_timeout_seconds: "float | None" = None
    random_seed: int = field(default_factory=get_default_seed)
    chkpt_root: "Path | None" = None
    log_path: "Path | None" = None
    run_path: "Path | None" = None
    enable_tensorboard: bool = False
    enable_file_logging: bool = False
    enable_progress_bar: "bool | None" = None
    train_exceptions: "tuple[type[BaseException], ...]" = ()
    test_exceptions: "tuple[type[BaseException], ...]" = ()
    strict_resume: bool = False
    resume: bool = True
    keep_last: "int | None" = 3
    keep_best: int = 0
    best_metric: "str | None" = None
    best_mode: str = "max"
    background_writes: bool = True

    @property
    def is_by_epoch(self) -> bool:
        """Whether the unit is EPOCH."""
        return self.train_unit is TrainUnit.EPOCH

    def __post_init__(self) -> None:
        check_name(self.run_name)
        check_ranges(vars(self))
        _check_contradictions(self)


def show_options(function: _Function, *, but: "Collection[str]" = ()) -> _Function:
    """Let a function that takes `**options` have each of them, with its default, in its signature.

    Type checkers read that from `TrainerOptions`; this is for `help` and for what asks `inspect`, as notebooks do.

    :param but: options that it does not take.
    """
    own = inspect.signature(function)
    parameters = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    for option in fields(Settings):
        kind = TrainerOptions.__annotations__.get(option.name)
        if kind is not None and option.name not in but:
            default = None if option.default is MISSING else option.default
            parameters.append(
                inspect.Parameter(
                    option.name,
                    inspect.Parameter.KEYWORD_ONLY,
                    default=default.value if isinstance(default, Enum) else default,
                    annotation=getattr(kind, "__forward_arg__", kind),
                )
            )
    function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


def make_settings(run_name: str, options: "dict[str, Any]") -> Settings:
    """Return the settings made of the arguments of `Trainer`.

    :raises ConfigurationError: an option is unknown, out of its range, or contradicts another.
    """
    known = {option.name for option in fields(Settings)} - {"run_name"}
    if unknown := sorted(set(options) - known):
        raise ConfigurationError(
            f"Trainer has no option {', '.join(unknown)}; its options are {', '.join(sorted(known))}."
        )
    values = {name: _to_integer(value) for name, value in options.items()}
    values["train_unit"] = _read_unit(values.get("train_unit", TrainUnit.EPOCH))
    check_ranges(values)
    if values.get("random_seed") is None:
        values["random_seed"] = get_default_seed()
    for name in ("chkpt_root", "log_path", "run_path"):
        if values.get(name) is not None:
            values[name] = Path(values[name]).absolute()
    for name in ("gpus", "train_exceptions", "test_exceptions"):
        if values.get(name) is not None:
            values[name] = tuple(values[name])
    return Settings(run_name, **values)


def _to_integer(value: Any) -> Any:
    """NumPy's integers, which a search may hand over, become plain ones; everything else stays."""
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    return int(value) if is_integer else value


def _read_unit(value: object) -> TrainUnit:
    try:
        return TrainUnit(value)
    except ValueError:
        raise ConfigurationError(f"train_unit must be TrainUnit, 'epoch' or 'iteration'; found {value!r}.") from None


def check_name(name: str) -> None:
    """Refuse a run's name that cannot be part of file names.

    :raises ConfigurationError: it cannot.
    """
    if not isinstance(name, str) or not _RUN_NAME.fullmatch(name):
        raise ConfigurationError(
            f"run_name becomes part of file names and must be letters, digits and ._+=- (first a letter or a digit); "
            f"found {name!r}."
        )


def _check_contradictions(settings: Settings) -> None:
    if settings.enable_cudnn_benchmark and settings.enable_deterministic:
        raise ConfigurationError(
            "enable_cudnn_benchmark chooses kernels by timing, enable_deterministic forbids that; set one of them."
        )
    if settings.use_cpu and settings.gpus is not None:
        raise ConfigurationError(f"use_cpu=True and gpus={list(settings.gpus)} contradict each other; set one of them.")
    if settings.early_stop_cycles is not None and settings.valid_frequency is None:
        raise ConfigurationError(
            "early_stop_cycles counts validations, and valid_frequency is None, so there are none; set valid_frequency."
        )
    if settings.keep_best and settings.best_metric is None:
        raise ConfigurationError("keep_best needs best_metric, the name of the metric that tells which one is best.")
    if settings.enable_file_logging and settings.log_path is None:
        raise ConfigurationError("enable_file_logging needs log_path, the folder of the log files.")
    if settings.enable_tensorboard and settings.run_path is None:
        raise ConfigurationError("enable_tensorboard needs run_path, the folder of the TensorBoard runs.")
