"""The words of a training run: its units, its phases, and every keyword argument of `Trainer`."""

from enum import Enum
from typing import TypedDict

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Sequence


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
    :param enable_progress_bar: show bars on a terminal.
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
    enable_progress_bar: bool
    train_exceptions: "Sequence[type[BaseException]]"
    test_exceptions: "Sequence[type[BaseException]]"
    strict_resume: bool
    resume: bool
    keep_last: "int | None"
    keep_best: int
    best_metric: "str | None"
    best_mode: str
    background_writes: bool
