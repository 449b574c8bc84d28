"""Waits for an experiment to change: a thread reads the stream of changes, the caller waits with a deadline."""

import queue
import threading
import time
from types import TracebackType
from typing import Any, Self

from proctor.sdk.client.errors import ClientError
from proctor.sdk.client.stream import EventStream


class Watch:
    """The doorbell of one stream. Use it with `with`; the thread ends with the block."""

    def __init__(self, stream: EventStream, *, least_interval_seconds: float = 0.25) -> None:
        """:param least_interval_seconds: `wait` returns no more often than this, however much changes."""
        self._stream = stream
        self._interval = least_interval_seconds
        self._events: queue.SimpleQueue[dict[str, Any] | ClientError | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, name="watch changes", daemon=True)
        self._returned = float("-inf")

    def __enter__(self) -> Self:
        self._stream.on_open = lambda: self._events.put(None)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        self._thread.join(timeout=5.0)

    def wait(self, timeout_seconds: float) -> list[dict[str, Any]]:
        """All changes since the last call; waits for the first one, at most so long, and then returns none.

        It also returns when the stream has just been opened, so that what changed before is not waited for.
        Raises what has ended the stream.
        """
        rest = self._returned + self._interval - time.monotonic()
        if rest > 0:
            time.sleep(rest)
        events: list[dict[str, Any]] = []
        try:
            self._take(events, self._events.get(timeout=timeout_seconds))
            while True:
                self._take(events, self._events.get_nowait())
        except queue.Empty:
            self._returned = time.monotonic()
            return events

    @staticmethod
    def _take(events: list[dict[str, Any]], found: dict[str, Any] | ClientError | None) -> None:
        if isinstance(found, ClientError):
            raise found
        if found is not None:
            events.append(found)

    def _read(self) -> None:
        try:
            for event in self._stream:
                self._events.put(event)
        except ClientError as error:
            self._events.put(error)
