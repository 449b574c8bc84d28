"""The way of values from the processes of a run back to the one that called `fit`."""

import queue
from collections.abc import Callable
from typing import Any


class HandoverQueue:
    """What a model puts here is there for the caller of `fit`, whether the run has one process or several.

    In a process that the trainer has started, `put` sends the value (pickled) to the caller's process; it has arrived
    there when `fit` returns or raises. Under torchrun nobody called for all: each process has a queue of its own.
    """

    def __init__(self, send: "Callable[[Any], None] | None" = None) -> None:
        self._send = send
        self._values: queue.SimpleQueue[Any] = queue.SimpleQueue()

    def put(self, value: Any) -> None:
        """Hand a value over; from several processes they arrive in no particular order among each other."""
        if self._send is None:
            self._values.put(value)
        else:
            self._send(value)

    def get(self, timeout_seconds: float = 0.0) -> Any:
        """Return the oldest value that was handed over.

        :raises queue.Empty: there is none within the time.
        """
        return self._values.get(timeout=timeout_seconds) if timeout_seconds > 0 else self._values.get_nowait()

    def get_all(self) -> "list[Any]":
        """Return all values that have arrived, the oldest first."""
        values = []
        while not self._values.empty():
            values.append(self._values.get_nowait())
        return values

    def empty(self) -> bool:
        """Whether nothing is there."""
        return self._values.empty()

    def __reduce__(self) -> "tuple[type[HandoverQueue], tuple[()]]":
        """A copy for another process is empty; the trainer connects it there."""
        return HandoverQueue, ()
