"""A PyTorch trainer whose runs can be stopped anywhere and continued bit for bit; see docs/trainer.md.

The only part of the project that imports torch; install it with `pip install proctor[torch]`.

Entry: `trainer.Trainer`. Reading order: trainer, config (the options), model, state (the counters), loop (one fit from
beginning to end), run, snapshots (what a checkpoint holds), setup_options (what a clone's parameters change), trial
(the run inside a trial), errors; then the rooms: callbacks (plug-ins, logs, progress), checkpoints, data,
reproducibility, distributed; plain, lightning and huggingface are for loops that are not ours, and migrate is the
command of `proctor.sdk.compat.helios_checkpoints`.
"""

from proctor.sdk.pytorch.callbacks.base import Callback, Override, Plugin
from proctor.sdk.pytorch.callbacks.ema import EMA
from proctor.sdk.pytorch.checkpoints.folder import CheckpointFolder
from proctor.sdk.pytorch.checkpoints.history import read_history
from proctor.sdk.pytorch.config import Phase, StopReason, TrainerOptions, TrainingUnit, TrainUnit
from proctor.sdk.pytorch.data.loaders import DataLoaderParams
from proctor.sdk.pytorch.data.module import DataModule
from proctor.sdk.pytorch.distributed.processes import HandoverQueue
from proctor.sdk.pytorch.distributed.ranks import (
    all_reduce_tensors,
    barrier,
    gather_into_tensor,
    get_ranks,
    global_print,
    local_print,
    unwrap,
    wrap_for_ranks,
)
from proctor.sdk.pytorch.errors import (
    CheckpointNotStoredError,
    CheckpointWarning,
    ConfigurationError,
    LogWarning,
    MetricWarning,
    NotExactError,
    NotExactWarning,
    RankFailedError,
    TrainerError,
    UnreadableCheckpointError,
)
from proctor.sdk.pytorch.model import Model
from proctor.sdk.pytorch.reproducibility.seeding import (
    DefaultNumpyRNG,
    get_default_numpy_rng,
    get_default_seed,
    get_rng_state_dict,
    load_rng_state_dict,
    seed_rngs,
)
from proctor.sdk.pytorch.run import Outcome
from proctor.sdk.pytorch.state import TrainingState
from proctor.sdk.pytorch.trainer import Trainer

__all__ = [
    "EMA",
    "Callback",
    "CheckpointFolder",
    "CheckpointNotStoredError",
    "CheckpointWarning",
    "ConfigurationError",
    "DataLoaderParams",
    "DataModule",
    "DefaultNumpyRNG",
    "HandoverQueue",
    "LogWarning",
    "MetricWarning",
    "Model",
    "NotExactError",
    "NotExactWarning",
    "Outcome",
    "Override",
    "Phase",
    "Plugin",
    "RankFailedError",
    "StopReason",
    "TrainUnit",
    "Trainer",
    "TrainerError",
    "TrainerOptions",
    "TrainingState",
    "TrainingUnit",
    "UnreadableCheckpointError",
    "all_reduce_tensors",
    "barrier",
    "gather_into_tensor",
    "get_default_numpy_rng",
    "get_default_seed",
    "get_ranks",
    "get_rng_state_dict",
    "global_print",
    "load_rng_state_dict",
    "local_print",
    "read_history",
    "seed_rngs",
    "unwrap",
    "wrap_for_ranks",
]
