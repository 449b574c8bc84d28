"""The options of a run: what `Trainer` takes, what each may be, and the default of each, in one dataclass."""

import inspect
import os
import re
from collections.abc import Callable, Collection, Sequence, Set
from dataclasses import KW_ONLY, dataclass, fields
from enum import Enum
from functools import partial
from math import inf
from numbers import Integral
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypedDict, TypeVar, cast

from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.reproducibility.seeding import get_default_seed

_PATH = "str | os.PathLike[str] | None"
_LARGEST_SEED = 2**64 - 1  # what torch takes
_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]*")

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Self = TypeVar("_Self")
_P = ParamSpec("_P")
TYPE_CHECKING = False


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


TrainingUnit = TrainUnit  # Helios 2's name for it


@dataclass(frozen=True)
class Settings:
    """The keyword arguments of `Trainer`, checked; picklable, for other processes.

    What an option may be follows from its type (`_BY_TYPE`), of a few from its name (`_BY_NAME`). Once made, paths are
    absolute, rows are tuples, and the seed is a number.

    :param train_unit: `TrainUnit` or "epoch"/"iteration": what the counts below are in.
    :param total_steps: epochs or iterations; `float("inf")` needs a rule that stops the run.
    :param valid_frequency: validate every so many units; None never.
    :param chkpt_frequency: save every so many units; None never. A run that stops always saves if it has a root.
    :param print_frequency: `should_log` is true every so many units (batches in the unit EPOCH).
    :param accumulation_steps: batches in one optimizer window.
    :param flush_at_epoch_end: in the unit ITERATION, end the window with the epoch instead of running on.
    :param enable_cudnn_benchmark: let cuDNN choose kernels by timing (never exact; off while validating).
    :param enable_deterministic: deterministic kernels everywhere; see `fingerprint`.
    :param early_stop_cycles: stop after so many validations in a row without an improvement.
    :param use_cpu: train on the CPU although there is a GPU.
    :param gpus: the ids of the GPUs to use; several start one process each.
    :param processes: with `use_cpu`, how many processes share the work (gloo).
    :param backend: the backend of the process group; None chooses NCCL for GPUs and gloo for the CPU.
    :param group_timeout_seconds: how long a rank waits for the others at one point; None leaves it to PyTorch, and
        adds `verdictTimeout` under a trial scheduler.
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
    :param background_writes: sync checkpoints to the disk in a thread while training continues.
    :param callbacks: what is called besides the model, see `Callback`.
    :raises ConfigurationError: an option is out of its range, or contradicts another.
    """

    run_name: str
    _: KW_ONLY
    train_unit: "TrainUnit | str" = TrainUnit.EPOCH
    total_steps: "int | float" = 0
    valid_frequency: "int | None" = None
    chkpt_frequency: "int | None" = None
    print_frequency: "int | None" = None
    accumulation_steps: int = 1
    flush_at_epoch_end: bool = False
    enable_cudnn_benchmark: bool = False
    enable_deterministic: bool = False
    early_stop_cycles: "int | None" = None
    use_cpu: bool = False
    gpus: "Sequence[int] | None" = None
    processes: int = 1
    backend: "str | None" = None
    group_timeout_seconds: "float | None" = None
    random_seed: "int | None" = None
    chkpt_root: "str | os.PathLike[str] | None" = None
    log_path: "str | os.PathLike[str] | None" = None
    run_path: "str | os.PathLike[str] | None" = None
    enable_tensorboard: bool = False
    enable_file_logging: bool = False
    enable_progress_bar: "bool | None" = None
    train_exceptions: "Sequence[type[BaseException]]" = ()
    test_exceptions: "Sequence[type[BaseException]]" = ()
    strict_resume: bool = False
    resume: bool = True
    keep_last: "int | None" = 3
    keep_best: int = 0
    best_metric: "str | None" = None
    best_mode: str = "max"
    background_writes: bool = True
    callbacks: "Sequence[Any]" = ()

    def __post_init__(self) -> None:
        check_name(self.run_name)
        for option in OPTIONS:
            value = getattr(self, option.name)
            if isinstance(value, Integral) and not isinstance(value, bool):
                value = int(value)  # of NumPy, as a search may hand it over
            kind = option.type if isinstance(option.type, str) else option.type.__name__
            expected, is_allowed = _BY_NAME.get(option.name) or _BY_TYPE[kind]
            if not ((value is None and expected.endswith("None")) or is_allowed(value)):
                raise ConfigurationError(f"{option.name} must be {expected}; found {value!r}.")
            object.__setattr__(self, option.name, _normalize(option.name, value))
        if (text := self._find_contradiction()) is not None:
            raise ConfigurationError(text)

    @property
    def is_by_epoch(self) -> bool:
        """Whether the unit is EPOCH."""
        return self.train_unit is TrainUnit.EPOCH

    @property
    def seed(self) -> int:
        """The seed of everything."""
        return get_default_seed() if self.random_seed is None else self.random_seed

    def _find_contradiction(self) -> "str | None":
        rules = (
            (
                self.enable_cudnn_benchmark and self.enable_deterministic,
                "enable_cudnn_benchmark chooses kernels by timing, enable_deterministic forbids that; set one.",
            ),
            (
                self.use_cpu and self.gpus is not None,
                f"use_cpu=True and gpus={list(self.gpus or ())} contradict each other; set one of them.",
            ),
            (
                self.early_stop_cycles is not None and self.valid_frequency is None,
                "early_stop_cycles counts validations, but valid_frequency is None, so there are none; set it.",
            ),
            (
                self.keep_best and self.best_metric is None,
                "keep_best needs best_metric, the name of the metric that tells which one is best.",
            ),
            (
                self.enable_file_logging and self.log_path is None,
                "enable_file_logging needs log_path, the folder of the log files.",
            ),
            (
                self.enable_tensorboard and self.run_path is None,
                "enable_tensorboard needs run_path, the folder of the TensorBoard runs.",
            ),
        )
        return next((text for is_broken, text in rules if is_broken), None)


OPTIONS = fields(Settings)[1:]  # all but the name of the run
if TYPE_CHECKING:
    TrainerOptions = dict[str, Any]
else:
    TrainerOptions = TypedDict("TrainerOptions", {option.name: option.type for option in OPTIONS}, total=False)
    TrainerOptions.__doc__ = Settings.__doc__


def _normalize(name: str, value: Any) -> Any:
    if name == "train_unit":
        return TrainUnit(value)
    if name == "random_seed" and value is None:
        return get_default_seed()
    if name in ("chkpt_root", "log_path", "run_path") and value is not None:
        return Path(value).absolute()
    return tuple(value) if _is_row(value) else value


def _is_integer(value: Any, least: int = 0) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_row(value: Any) -> bool:
    return isinstance(value, (Sequence, Set)) and not isinstance(value, (str, bytes))


_ONE_OR_MORE = "an integer of at least 1"
_Rule = tuple[str, Callable[[Any], bool]]  # the words for an error, and the check; None may be what is called so
_BY_TYPE: "dict[str, _Rule]" = {
    "bool": ("True or False", lambda value: isinstance(value, bool)),
    "bool | None": ("True, False or None", lambda value: isinstance(value, bool)),
    "int": (_ONE_OR_MORE, partial(_is_integer, least=1)),
    "int | None": (f"{_ONE_OR_MORE} or None", partial(_is_integer, least=1)),
    "str | None": ("a text or None", lambda value: isinstance(value, str)),
    _PATH: ("the path of a folder (a str or a Path), or None", lambda value: isinstance(value, (str, os.PathLike))),
    "Sequence[type[BaseException]]": (
        "a list or tuple of exception types, such as [ValueError]",
        lambda value: _is_row(value) and all(isinstance(one, type) and issubclass(one, BaseException) for one in value),
    ),
    "Sequence[Any]": ("a list or tuple of callbacks", _is_row),
}
_BY_NAME: "dict[str, _Rule]" = {
    "train_unit": ("TrainUnit, 'epoch' or 'iteration'", lambda value: value in [unit.value for unit in TrainUnit]),
    "total_steps": (
        "an integer that is not negative, or float('inf')",
        lambda value: _is_integer(value) or (isinstance(value, float) and value == inf),
    ),
    "gpus": (
        "a list of the ids of GPUs, such as [0, 1], or None",
        lambda value: _is_row(value) and all(_is_integer(gpu) for gpu in value),
    ),
    "group_timeout_seconds": (
        "a number of seconds above 0, or None",
        lambda value: isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < inf,
    ),
    "random_seed": (
        f"an integer from 0 to {_LARGEST_SEED}, or None",
        lambda value: _is_integer(value) and value <= _LARGEST_SEED,
    ),
    "keep_best": ("an integer of at least 0", _is_integer),
    "best_mode": ("'max' or 'min'", lambda value: value in ["max", "min"]),
}


_OF_OTHERS = {  # options of Lightning, by what they are called here
    "max_epochs": "total_steps",
    "max_steps": "total_steps with train_unit='iteration'",
    "check_val_every_n_epoch": "valid_frequency",
    "val_check_interval": "valid_frequency with train_unit='iteration'",
    "log_every_n_steps": "print_frequency",
    "accumulate_grad_batches": "accumulation_steps",
    "devices": "gpus",
    "deterministic": "enable_deterministic",
    "benchmark": "enable_cudnn_benchmark",
    "default_root_dir": "chkpt_root",
}


def make_settings(run_name: str, options: "dict[str, Any]") -> Settings:
    """Return the settings made of the arguments of `Trainer`.

    :raises ConfigurationError: an option is unknown, out of its range, or contradicts another.
    """
    known = {option.name for option in OPTIONS}
    if unknown := sorted(set(options) - known):
        named = ", ".join(f"{name} (here {_OF_OTHERS[name]})" if name in _OF_OTHERS else name for name in unknown)
        raise ConfigurationError(f"Trainer has no option {named}; its options are {', '.join(sorted(known))}.")
    return Settings(run_name, **options)


def taking(
    settings: "Callable[_P, Settings]",
) -> "Callable[[Callable[[_Self, Settings], None]], Callable[Concatenate[_Self, _P], None]]":
    """Have a method that takes `Settings` take their arguments instead, as type checkers and `help` then show."""

    def decorate(method: "Callable[[_Self, Settings], None]") -> "Callable[Concatenate[_Self, _P], None]":
        def call(self: Any, run_name: str, **options: Any) -> None:
            method(self, make_settings(run_name, options))

        return cast("Callable[Concatenate[_Self, _P], None]", show_options(call))

    return decorate


def show_options(function: _Function, *, but: "Collection[str]" = ()) -> _Function:
    """Let a function that takes `**options` have each of them, with its default, in its signature.

    :param but: options that it does not take.
    """
    own = inspect.signature(function)
    parameters = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    for name, one in inspect.signature(Settings).parameters.items():
        if name != "run_name" and name not in but:
            default = one.default.value if isinstance(one.default, Enum) else one.default
            parameters.append(one.replace(default=default))
    function.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return function


def check_name(name: str) -> None:
    """Refuse a run's name that cannot be part of file names.

    :raises ConfigurationError: it cannot.
    """
    if not isinstance(name, str) or not _RUN_NAME.fullmatch(name):
        raise ConfigurationError(
            f"run_name becomes part of file names and must be letters, digits and ._+=- (first a letter or a digit); "
            f"found {name!r}."
        )
