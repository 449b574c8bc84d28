"""The run inside a trial: metrics are reported, checkpoints registered, and it stops when the manager wants that.

Outside an experiment nothing here does anything. Inside, a retried trial finds the checkpoint of the attempt before
through the SDK, wherever that attempt ran, and the trainer continues from it without a line of the user's code.
"""

import os
import signal
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from proctor.sdk import trial as sdk
from proctor.sdk.protocol import ENV_JOB_DIRECTORY, ENV_OUTPUT_DIRECTORY
from proctor.sdk.pytorch.checkpoints.folder import CheckpointFolder
from proctor.sdk.pytorch.checkpoints.registration import (
    find_origin,
    find_refusal,
    find_registered_runs,
)
from proctor.sdk.pytorch.config import Settings, check_name
from proctor.sdk.pytorch.errors import CheckpointWarning
from proctor.sdk.trial import is_in_trial

_DEFAULT_FOLDER = "trainer"  # in the trial's output folder; not `checkpoints`, which is the SDK's own


def choose_root(settings: Settings) -> "Path | None":
    """The folder of the checkpoints: `chkpt_root`, in it one for each trial, or a folder of the trial's own."""
    root = None if settings.chkpt_root is None else Path(settings.chkpt_root)
    if not is_in_trial():
        return root
    if root is not None:
        return root / sdk.get_trial_id()
    output = os.environ.get(ENV_OUTPUT_DIRECTORY) or f"{os.environ[ENV_JOB_DIRECTORY]}/output"
    return Path(output) / _DEFAULT_FOLDER


def choose_folder(root: "str | os.PathLike[str]", run_name: str) -> Path:
    """The folder of a run's checkpoints: in a trial not another trial's, and never another run's.

    :raises ConfigurationError: the name cannot be that of a folder.
    """
    check_name(run_name)
    return Path(root) / (sdk.get_trial_id() if is_in_trial() else "") / run_name


class _Termination:
    """Whether SIGTERM has come while it is deferred."""

    received = False


def should_stop() -> bool:
    """Whether the manager has asked the trial to stop, or SIGTERM has; cheap enough for every step."""
    return is_in_trial() and (sdk.should_stop() or _Termination.received)


def defer_termination() -> bool:
    """Defer SIGTERM from now on, so that `should_stop` is true and no save is cut off; SIGKILL follows after
    the keeper's grace. False: this is no trial, not the main thread, or the user's code handles SIGTERM."""
    is_default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if not is_in_trial() or not is_default or threading.current_thread() is not threading.main_thread():
        return False
    signal.signal(signal.SIGTERM, _record_termination)
    return True


@contextmanager
def deferring_termination() -> "Iterator[None]":
    """Have a SIGTERM that comes meanwhile end this process afterwards, with the checkpoint made. It still ends by the
    signal, because that is how a trial that was not asked to stop must appear."""
    if not defer_termination():
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        if _Termination.received:
            _Termination.received = False
            os.kill(os.getpid(), signal.SIGTERM)


def _record_termination(number: int, frame: Any) -> None:
    _Termination.received = True


def _forget_termination() -> None:
    """In a forked child: it has nothing to save, and what ends it by SIGTERM (a pool of workers) waits for its end."""
    if signal.getsignal(signal.SIGTERM) is _record_termination:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_forget_termination)


def report_values(values: "Mapping[str, float]", *, default: "str | None", step: int) -> None:
    """Report numbers as an intermediate metric.

    :param default: the one of them that becomes the `default`, unless one is called so.
    """
    if not is_in_trial():
        return
    metrics = dict(values)
    if default in metrics:
        metrics.setdefault("default", metrics[default])
    sdk.report(metrics, step=step)


def find_registered(run_name: str, *, is_new: bool) -> "Path | None":
    """Return the folder with the run's checkpoint that the trial is to continue from; None if there is none.

    Another run's is never returned, nor what the user's code has registered.

    :param is_new: whether the run has no other checkpoint, so that it starts over; if it does so although the trial was
        handed something, a `CheckpointWarning` says so.
    """
    if not is_in_trial():
        return None
    found = find_registered_runs().get(run_name)
    if found is None and is_new and (refusal := find_refusal(run_name, sdk.get_trial_id())) is not None:
        warnings.warn(CheckpointWarning(refusal), stacklevel=3)
    return found


def is_copy_from(registered: Path, folder: Path) -> bool:
    """Whether what `find_registered` returned was copied from a folder of this trial, which may have gone on since."""
    origin = find_origin(registered, sdk.get_trial_id())
    return origin is not None and folder.exists() and origin.samefile(folder)


def adopt_checkpoint(storage: CheckpointFolder) -> None:
    """Take over the run's own checkpoint that the trial is to continue from, unless the folder has it already, and what
    the attempt before has saved since then on this machine."""
    found = find_registered(storage.run_name, is_new=storage.is_empty())
    if found is None:
        return
    origin = find_origin(found, sdk.get_trial_id())
    is_own = origin is not None and storage.path.exists() and origin.samefile(storage.path)
    storage.adopt(found, behind=is_own)
    if origin is not None and not is_own:
        storage.catch_up(origin)
