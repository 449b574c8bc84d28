"""Where the methods of a user's own algorithm are called: one after the other, on a thread."""

import queue
import threading
import time
from collections.abc import Callable

Job = Callable[[], None]
"""Something to be done on a lane. It handles its own errors."""


class ThreadLane:
    """Does jobs in the order they are put, on a thread of its own, which ends with the process."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, job: Job) -> None:
        """Do `job` after everything put before it; returns at once."""
        self._jobs.put(job)

    def finish(self, seconds: float) -> bool:
        """Wait until everything that was put is done; False where that takes longer."""
        done = threading.Event()
        self.put(done.set)
        return done.wait(seconds)

    def is_idle(self) -> bool:
        """Say whether nothing waits behind the job that is being done."""
        return self._jobs.empty()

    def cpu_seconds(self) -> float:
        """Return the processor time that the thread has used so far."""
        ident = self._thread.ident
        assert ident is not None, "a lane's thread runs from its beginning"
        return time.clock_gettime(time.pthread_getcpuclockid(ident))

    def _work(self) -> None:
        while True:
            self._jobs.get()()
