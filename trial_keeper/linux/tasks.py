"""Tasks in a group, alike on Python 3.10 and later, without a third-party library; and the threads that they use.

Unlike `asyncio.TaskGroup` it raises the first failure itself, not an exception group, so callers catch it by its type.
"""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

_CANCEL_SECONDS = 0.25


class TaskGroup:
    """Named tasks that end together: when one fails, the others are canceled and its exception is raised.

    The body of `async with` starts tasks; leaving it waits for all of them, those started meanwhile included.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()
        self._changed = asyncio.Event()
        self._failure: BaseException | None = None
        self._ending = False

    def start(self, work: Coroutine[Any, Any, Any], name: str, *, ends_group: bool = False) -> None:
        """Run `work` as a task of this group; with `ends_group`, all others are canceled when it returns."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        if ends_group:
            task.add_done_callback(lambda _: self.cancel())

    def cancel(self) -> None:
        """Cancel all tasks; leaving the body then returns without an error."""
        self._ending = True
        self._changed.set()
        for task in self._tasks:
            task.cancel()

    async def __aenter__(self) -> "TaskGroup":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            while error is None and self._tasks and self._failure is None and not self._ending:
                self._changed.clear()
                await self._changed.wait()
        finally:
            while self._tasks:  # again and again: before Python 3.12 `asyncio.wait_for` loses a cancellation that
                self.cancel()  # comes with the result
                await asyncio.wait(self._tasks, timeout=_CANCEL_SECONDS)
        if error is None and self._failure is not None:
            raise self._failure

    def _done(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        failure = None if task.cancelled() else task.exception()  # asked for always, or asyncio complains of it later
        if self._failure is None:
            self._failure = failure
        self._changed.set()


async def until_first_ends(**works: Coroutine[Any, Any, Any]) -> None:
    """Run the works (by name) until one returns or fails; cancel the others; raise its failure."""
    async with TaskGroup() as group:
        for name, work in works.items():
            group.start(work, name, ends_group=True)


def start_threads(number: int, name: str) -> ThreadPoolExecutor:
    """So many threads that run already: what uses them works also when no process or thread can be started any more.
    Raises RuntimeError when that is so now."""
    threads = ThreadPoolExecutor(number, thread_name_prefix=name)
    all_run = threading.Barrier(number + 1)
    try:
        for _ in range(number):
            threads.submit(all_run.wait)
        all_run.wait()
    except RuntimeError:
        all_run.abort()
        threads.shutdown(wait=False)
        raise
    return threads
