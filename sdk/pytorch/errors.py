"""The errors and warnings of the trainer, drawn as a tree.

    ProctorError
    └── TrainerError (RuntimeError)            what the trainer refuses
        ├── ConfigurationError (ValueError)    options that contradict each other, data that cannot be trained on,
        │                                      or a model that no checkpoint could hold
        ├── UnreadableCheckpointError          a checkpoint that is there and cannot be used
        ├── CheckpointNotStoredError           a checkpoint that the disk did not take
        ├── RankFailedError                    a process of the run died, or cannot hand over what it raised
        └── NotExactError                      a run whose resume is not bit-exact, with `strict_resume=True`

    UserWarning
    ├── NotExactWarning                        the same, without `strict_resume`: one warning for each reason
    ├── CheckpointWarning                      a damaged checkpoint was passed over for the one before it
    ├── LogWarning                             a log has to wait for the disk; training continues
    └── MetricWarning                          the metric that is to judge the run does not come

What a model, a data module or a plug-in raises is not here: `fit` and `test` let the types named in `train_exceptions`
and `test_exceptions` through and raise everything else as `RuntimeError` with its cause.
"""

from proctor.sdk.errors import ProctorError


class TrainerError(ProctorError, RuntimeError):
    """Something the trainer refuses; the text says what was expected, what was found and what to do."""


class ConfigurationError(TrainerError, ValueError):
    """Options that contradict each other or miss something, data that cannot be trained on, or a model that no
    checkpoint could hold."""


class UnreadableCheckpointError(TrainerError):
    """A checkpoint is there and cannot be used."""


class CheckpointNotStoredError(TrainerError):
    """A checkpoint could not be written; the ones before it are whole."""


class RankFailedError(TrainerError):
    """A process of the run died or could not hand over what it raised; the text names its rank and its signal."""


class NotExactError(TrainerError):
    """A resumed run would differ from an uninterrupted one, and `strict_resume=True` forbids that."""


class NotExactWarning(UserWarning):
    """A resumed run may differ from an uninterrupted one; the text names one reason."""


class CheckpointWarning(UserWarning):
    """A damaged checkpoint was passed over, or one could not be stored while training continues, or a tested one
    has the state of a callback that the test does not have."""


class LogWarning(UserWarning):
    """Lines for the log file or points for TensorBoard cannot be written to the disk; training continues."""


class MetricWarning(UserWarning):
    """The metric that is to judge the run was not logged, perhaps because `best_metric` is misspelt."""
