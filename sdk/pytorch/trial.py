"""The run inside a trial: metrics are reported, checkpoints registered, and it stops when the manager wants that.

Outside an experiment nothing here does anything. Inside, a retried trial finds the checkpoint of the attempt before
through the SDK, wherever that attempt ran, and the trainer continues from it without a line of the user's code.

A trial hands its next attempt one folder, with a checkpoint of every run that the trial has made. The run that
registered the folder is at its top; those that the trial trained before or beside it are under `runs/<run name>`. A run
takes over only what bears its own name: the folds of a cross-validation never mix.

Registering makes a folder of links to the checkpoint's files, with the SDK's manifest, in the job's own folder. What
other trainers have saved is copied: they may write to it again. A run that saves all the time registers the newest one
every few seconds and when it ends. The manager removes what is superseded (`keepCheckpoints`); the more folders it
leaves, or cannot remove because it is away, the more seldom a run registers. An attempt on another machine continues
from such a folder; one on the same machine from what was saved last in the folder of the run.
"""

import os
import signal
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from proctor.sdk import trial as sdk
from proctor.sdk.checkpoints.saving import list_checkpoints, locked_folder
from proctor.sdk.errors import JobDirectoryError
from proctor.sdk.files import UNFINISHED_PREFIX
from proctor.sdk.protocol import CHECKPOINT_FOLDER, ENV_JOB_DIRECTORY, ENV_OUTPUT_DIRECTORY
from proctor.sdk.pytorch.checkpoints.folder import CheckpointFolder
from proctor.sdk.pytorch.checkpoints.pointer import POINTER_FILE, Entry, Origin, Pointer, read_pointer
from proctor.sdk.pytorch.config import Settings, check_name
from proctor.sdk.pytorch.errors import CheckpointWarning, UnreadableCheckpointError
from proctor.sdk.trial import is_in_trial

_DEFAULT_FOLDER = "trainer"  # in the trial's output folder; not `checkpoints`, which is the SDK's own
RUNS_FOLDER = "runs"
INTERVAL_SECONDS = 5.0
FREE_COUNT = 6
"""As many registered folders do not delay the next one: a manager leaves three, and those that it has yet to remove."""


def choose_root(settings: Settings) -> "Path | None":
    """The folder of the checkpoints: `chkpt_root`, in it one for each trial, or a folder of the trial's own."""
    if settings.chkpt_root is not None:
        return Path(settings.chkpt_root) / (sdk.get_trial_id() if is_in_trial() else "")
    if not is_in_trial():
        return None
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


def read_parameters() -> Any:
    """The parameters of this process's trial; None outside of one and where they cannot be read, which the user's code
    finds."""
    with suppress(JobDirectoryError):
        return sdk.get_next_parameter() if is_in_trial() else None
    return None


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
    if found is None and is_new and (refusal := find_refusal(run_name)) is not None:
        warnings.warn(CheckpointWarning(refusal), stacklevel=3)
    return found


def is_copy_from(registered: Path, folder: Path) -> bool:
    """Whether what `find_registered` returned was copied from a folder of this trial, which may have gone on since."""
    origin = find_origin(registered)
    return origin is not None and folder.exists() and origin.samefile(folder)


def adopt_checkpoint(storage: CheckpointFolder) -> None:
    """Take over the run's own checkpoint that the trial is to continue from, unless the folder has it already, and what
    the attempt before has saved since then on this machine."""
    found = find_registered(storage.run_name, is_new=storage.is_empty())
    if found is None:
        return
    is_own = is_copy_from(found, storage.path)
    storage.adopt(found, behind=is_own)
    if not is_own and (origin := find_origin(found)) is not None:
        storage.catch_up(origin)


# -- the checkpoints that a trial hands to its next attempt -----------------------------------------------------------


def list_registered_runs(folder: Path) -> "dict[str, Path]":
    """Return where in a registered folder each run's checkpoint is; nothing if the trainer did not make it."""
    found: dict[str, Path] = {}
    for place in [folder, *sorted(folder.glob(f"{RUNS_FOLDER}/*"))]:
        try:
            pointer = Pointer.read(place)
        except UnreadableCheckpointError as problem:
            warnings.warn(CheckpointWarning(f"passed over: {problem}"), stacklevel=3)
            continue
        if pointer.run:
            found.setdefault(pointer.run, place)
    return found


def find_registered_runs() -> "dict[str, Path]":
    """Return the newest checkpoint of each run of this trial: registered by this job, else handed to it.

    :raises CheckpointError: what it was handed is stored under a URL and cannot be downloaded, or is damaged.
    """
    found: dict[str, Path] = {}
    for folder in [*reversed(list_checkpoints(os.environ[ENV_JOB_DIRECTORY])), sdk.find_handed_checkpoint()]:
        if folder:
            found = {**list_registered_runs(Path(folder)), **found}
    return found


def find_refusal(run_name: str) -> "str | None":
    """Return why nothing can be continued though the trial was handed a checkpoint; None if nothing is wrong.

    A retried trial may well have a run that its earlier attempts did not reach.
    """
    handed = sdk.find_handed_checkpoint()
    if not handed:
        return None
    runs = list_registered_runs(Path(handed))
    beginning = f"the trial was handed the checkpoint {handed} to continue from"
    if not runs:
        return (
            f"{beginning}, which neither the trainer nor a callback of it made; run {run_name!r} starts over. "
            "Load it in your own code."
        )
    if any(Pointer.read(place).trial == sdk.get_trial_id() for place in runs.values()):
        return None
    return (
        f"{beginning}, which is another trial's and holds the runs {sorted(runs)} and none named {run_name!r}; "
        "this one starts over. Give runs that continue each other the same run_name."
    )


def find_origin(registered: Path) -> "Path | None":
    """Return the folder from which a registered checkpoint was copied, which may have gone on since; None if it is not
    here, if it is another trial's, or if the trial was handed an older copy than it has registered.

    :param registered: from `find_registered_runs`.
    """
    pointer = Pointer.read(registered)
    if pointer.trial != sdk.get_trial_id() or pointer.origin is None:
        return None
    copy = registered.parent.parent if registered.parent.name == RUNS_FOLDER else registered
    numbers = [int(path.parent.name) for path in copy.parent.glob(f"*/{POINTER_FILE}") if path.parent.name.isdigit()]
    if copy.name.isdigit() and max(numbers, default=0) > int(copy.name):
        return None
    return pointer.origin.find()


def carry_others(target: Path, run_name: str) -> None:
    """Put what is known of the trial's other runs into a folder that is about to be registered, as links."""
    for name, place in find_registered_runs().items():
        if name == run_name:
            continue
        folder = target / RUNS_FOLDER / name
        folder.mkdir(parents=True)
        for path in place.iterdir():
            if path.name != RUNS_FOLDER:  # other runs', which stand for themselves
                os.symlink(path.resolve(), folder / path.name)


class Registrar:
    """Registers the checkpoints of one folder with the trial that this process belongs to.

    :param interval_seconds: how far apart two registrations are at least, the one at the end excepted, as long as few
        folders are registered; as many times that as there are folders beyond `FREE_COUNT`.
    """

    def __init__(
        self,
        *,
        interval_seconds: float = INTERVAL_SECONDS,
        clock: "Callable[[], float]" = monotonic,
    ) -> None:
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._due = clock()  # the first one at once
        self._is_behind = False

    def on_stored(self, storage: CheckpointFolder) -> None:
        """Called when a checkpoint has become the folder's newest."""
        self._is_behind = True
        if self._clock() >= self._due:
            self.register_newest(storage)

    def register_newest(self, storage: CheckpointFolder) -> None:
        """Register the newest checkpoint unless it is, with its history, the best, the pinned and the other runs'.

        :raises CheckpointError: it can no longer be read.
        """
        if self._is_behind:
            export = partial(storage.export, trial=sdk.get_trial_id())
            register(storage.run_name, export, place=storage.path, shares_files=True)
            self._is_behind = False
            excess = len(list_checkpoints(os.environ[ENV_JOB_DIRECTORY])) - FREE_COUNT
            self._due = self._clock() + self._interval_seconds * max(1, excess)


def register(
    run_name: str,
    export: "Callable[[Path], None]",
    *,
    place: Path,
    shares_files: bool = False,
) -> None:
    """Register a run's checkpoint as its trial's newest, beside the newest of the trial's other runs.

    :param export: makes an empty folder hold the checkpoint, links to it too, and a pointer that names run and trial.
    :param place: where that folder may be made.
    :param shares_files: the files are never written to again, so that links take the place of copies.
    :raises CheckpointError: the checkpoint can no longer be read.
    """
    job_directory = os.environ[ENV_JOB_DIRECTORY]
    with locked_folder(f"{job_directory}/{CHECKPOINT_FOLDER}"):  # so that the newest folder has the newest of all runs
        with tempfile.TemporaryDirectory(prefix=f"{UNFINISHED_PREFIX}export-", dir=place) as folder:
            export(Path(folder))
            carry_others(Path(folder), run_name)
            newest = read_pointer(Path(folder))[0]
            sdk.save_checkpoint(folder, step=newest.iteration, shares_files=shares_files)


def register_links(run_name: str, entry: Entry, paths: "Iterable[Path]", *, place: Path) -> None:
    """Register, in a trial, the files of a checkpoint that another trainer has written.

    :param entry: of the file that tells whether it is whole.
    :param place: the folder of the run's checkpoints, where a folder with links to the files may be made.
    """
    if not is_in_trial():
        return

    def export(target: Path) -> None:
        for path in paths:
            os.symlink(path.resolve(), target / path.name)
        Pointer(run_name, [entry], sdk.get_trial_id(), Origin.of(place)).write(target)

    register(run_name, export, place=place)
