"""What a trial hands to its next attempt: one folder, with a checkpoint of every run that the trial has made.

The run that registered the folder is at its top, those that the trial trained before or beside it lie under
`runs/<run name>`. A run takes over only what bears its own name: the folds of a cross-validation never mix.
"""

import errno
import fcntl
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

from proctor.sdk.checkpoints import list_checkpoints
from proctor.sdk.protocol import CHECKPOINT_FOLDER, ENV_JOB_DIRECTORY, ENV_RESUME_CHECKPOINT
from proctor.sdk.pytorch.errors import CheckpointWarning, UnreadableCheckpointError
from proctor.sdk.pytorch.pointer import read_owner

RUNS_FOLDER = "runs"
_PATIENCE_SECONDS = 60.0
_RETRY_SECONDS = 0.25


def list_runs(folder: Path) -> "dict[str, Path]":
    """Return where in a registered folder each run's checkpoint lies; nothing if the trainer did not make it."""
    found: dict[str, Path] = {}
    for place in [folder, *sorted(folder.glob(f"{RUNS_FOLDER}/*"))]:
        try:
            owner = read_owner(place)
        except UnreadableCheckpointError as problem:
            warnings.warn(CheckpointWarning(f"passed over: {problem}"), stacklevel=3)
            continue
        if owner is not None:
            found.setdefault(owner.run, place)
    return found


def find_runs() -> "dict[str, Path]":
    """Return the newest checkpoint of each run of this trial: registered by this job, else handed to it."""
    found: dict[str, Path] = {}
    for folder in [*reversed(list_checkpoints(os.environ[ENV_JOB_DIRECTORY])), os.environ.get(ENV_RESUME_CHECKPOINT)]:
        if folder:
            found = {**list_runs(Path(folder)), **found}
    return found


def find_refusal(run_name: str, trial: str) -> "str | None":
    """Return why nothing can be continued though the trial was handed a checkpoint; None if that is as it should be.

    That a retried trial has a run which its earlier attempts had not come to is as it should be.
    """
    handed = os.environ.get(ENV_RESUME_CHECKPOINT)
    if not handed:
        return None
    runs = list_runs(Path(handed))
    beginning = f"the trial was handed the checkpoint {handed} to continue from"
    if not runs:
        return (
            f"{beginning}, which neither the trainer nor a callback of it made; run {run_name!r} begins anew. "
            "Load it in your own code."
        )
    owners = {owner.trial for place in runs.values() if (owner := read_owner(place)) is not None}
    if trial in owners:
        return None
    return (
        f"{beginning}, which is another trial's and holds the runs {sorted(runs)} and none named {run_name!r}; "
        "this one begins anew. Give runs that continue each other the same run_name."
    )


def carry_others(target: Path, run_name: str) -> None:
    """Put what is known of the trial's other runs into a folder that is about to be registered, as links."""
    for name, place in find_runs().items():
        if name == run_name:
            continue
        folder = target / RUNS_FOLDER / name
        folder.mkdir(parents=True)
        for path in place.iterdir():
            if path.name != RUNS_FOLDER:  # other runs', which stand for themselves
                os.symlink(path.resolve(), folder / path.name)


@contextmanager
def registering(job_directory: str) -> "Iterator[None]":
    """Let one run of the trial register at a time, so that the newest folder has the newest of all of them.

    After a minute, or where the file system knows no locks, it goes on without.
    """
    folder = f"{job_directory}/{CHECKPOINT_FOLDER}"
    os.makedirs(folder, exist_ok=True)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = monotonic() + _PATIENCE_SECONDS
        while not _try_lock(descriptor) and monotonic() < deadline:
            sleep(_RETRY_SECONDS)
        yield
    finally:
        with suppress(OSError):  # said aloud, because a worker that was forked meanwhile holds the folder open too
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as problem:
        return problem.errno not in {errno.EACCES, errno.EAGAIN}
    return True
