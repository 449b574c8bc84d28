"""The options of a run, checked once, frozen, and picklable so that they can be handed to other processes."""

import re
from dataclasses import dataclass, field, fields
from numbers import Integral
from pathlib import Path
from typing import Any

from proctor.sdk.pytorch.errors import ConfigurationError
from proctor.sdk.pytorch.options import TrainUnit
from proctor.sdk.pytorch.ranges import check_ranges
from proctor.sdk.pytorch.seeding import get_default_seed

_RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=-]*")


@dataclass(frozen=True)
class Settings:
    """What `TrainerOptions` describes, with the defaults. Construction raises `ConfigurationError`."""

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
    enable_progress_bar: bool = False
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
