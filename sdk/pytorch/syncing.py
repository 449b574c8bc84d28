"""Storing in the background: training goes on while the disk confirms what it was given.

One piece of work is under way at a time. Whoever starts the next one, or needs the last one to be done, waits at the
barrier. A thread lives only as long as its work, so a process that forks loader workers between two saves has no thread
more than it had.
"""

import threading
import warnings
from collections.abc import Callable

from proctor.sdk.disk_errors import PASSING
from proctor.sdk.pytorch.errors import CheckpointNotStoredError, CheckpointWarning

PATIENCE_SECONDS = 3600.0


class BackgroundStorage:
    """Runs one piece of storing at a time beside the training.

    :param patience_seconds: how long the barrier waits for a disk that does not answer.
    """

    def __init__(self, *, patience_seconds: float = PATIENCE_SECONDS) -> None:
        self._patience_seconds = patience_seconds
        self._thread: threading.Thread | None = None
        self._problem: BaseException | None = None
        self._name = ""

    def start(self, name: str, work: Callable[[], None]) -> None:
        """Wait for the work before, then do this one in a thread of its own.

        A disk without room does not end a training run: if it made the work before fail, a warning says so and the run
        goes on with its earlier checkpoints.

        :param name: what is stored, for the errors.
        :raises CheckpointNotStoredError: the work before failed for another reason, or has not ended in time.
        """
        try:
            self.wait()
        except CheckpointNotStoredError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in PASSING:
                raise
            warnings.warn(
                f"{error} Training goes on and saves again at the next occasion.", CheckpointWarning, stacklevel=3
            )
        self._name = name
        self._thread = threading.Thread(target=self._run, args=(work,), name=f"proctor-store-{name}")
        self._thread.start()

    def wait(self) -> None:
        """Return when nothing is under way; the barrier.

        :raises CheckpointNotStoredError: the last work failed (told once), or has not ended in time.
        """
        thread = self._thread
        if thread is not None:
            thread.join(self._patience_seconds)
            if thread.is_alive():
                raise CheckpointNotStoredError(
                    f"checkpoint {self._name} was not on the disk after {self._patience_seconds:g} s; look at the disk "
                    "or the network file system of the checkpoint folder."
                )
        self._thread = None
        problem, self._problem = self._problem, None
        if problem is not None:
            raise CheckpointNotStoredError(
                f"checkpoint {self._name} could not be stored: {problem!r}. The checkpoints before it are whole; make "
                "room or give another chkpt_root, and start again to continue from them."
            ) from problem

    def settle(self) -> None:
        """Return when nothing is under way; a problem is left to be told by the next `start` or `wait`."""
        if self._thread is not None:
            self._thread.join(self._patience_seconds)

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as problem:
            self._problem = problem
