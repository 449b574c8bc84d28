"""Reads the manager's stream of changes (server-sent events), and waits for an experiment to change.

The stream is resumed where it broke off. To wait with a deadline, a thread reads it.
"""

import json
import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from proctor.sdk.client.connections import HttpAnswer
from proctor.sdk.client.errors import ClientError, ManagerUnreachable
from proctor.sdk.client.transport import Transport

RECONNECT_SECONDS = (0.0, 0.25, 0.5, 1.0, 2.0, 5.0)
"""Waits before each new attempt; the last one repeats."""


@dataclass(frozen=True)
class ServerSentEvent:
    """One server-sent event as it stood on the wire."""

    id: str | None
    event: str
    data: str


def parse_messages(lines: Iterable[str]) -> Iterator[ServerSentEvent]:
    """The messages in lines of text without their ends; comments and a message cut short are dropped."""
    identifier: str | None = None
    event, data = "message", list[str]()
    for line in lines:
        if not line:
            if data:
                yield ServerSentEvent(identifier, event, "\n".join(data))
            event, data = "message", []
            continue
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "id":
            identifier = value
        elif name == "event":
            event = value
        elif name == "data":
            data.append(value)


class EventStream:
    """Iterates over changes, oldest first, as JSON objects with `id`, `kind`, `data` and the ids they are about.

    A broken connection is opened again with `Last-Event-ID`, so nothing is missed and nothing comes twice. It ends
    when it is closed, by any thread. Raises ManagerUnreachable when there was no answer for `patience_seconds`
    (None: waits forever), and the manager's error if it refuses.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        experiment_id: str | None = None,
        after: int | None = None,
        patience_seconds: float | None = 60.0,
        reconnect_seconds: Sequence[float] = RECONNECT_SECONDS,
    ) -> None:
        self._transport = transport
        self._query = {"experiment_id": experiment_id, "after": after}
        self._last_id: str | None = None
        self._patience = patience_seconds
        self._delays = reconnect_seconds
        self._closed = threading.Event()
        self._answer: HttpAnswer | None = None

    def close(self) -> None:
        """End the stream, also while another thread waits for its next change."""
        self._closed.set()
        answer = self._answer
        if answer is not None:
            answer.interrupt()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return self.read(lambda: None)

    def read(self, on_open: Callable[[], None]) -> Iterator[dict[str, Any]]:
        """The changes; `on_open` is called when a connection is open: what changes from now on is reported."""
        failures, silent_since = 0, time.monotonic()
        while not self._closed.is_set():
            try:
                for event in self._read_once(on_open):
                    failures = 0
                    yield event
                    silent_since = time.monotonic()
                failures, silent_since = min(failures, 1), time.monotonic()
            except ManagerUnreachable as error:
                if self._closed.is_set():
                    return
                if self._patience is not None and time.monotonic() - silent_since >= self._patience:
                    raise ManagerUnreachable(
                        f"the stream of changes ended and could not be reopened: {error}"
                    ) from error
            self._closed.wait(self._delays[min(failures, len(self._delays) - 1)])
            failures += 1

    def _read_once(self, on_open: Callable[[], None]) -> Iterator[dict[str, Any]]:
        headers = {"Accept": "text/event-stream"}
        if self._last_id is not None:
            headers["Last-Event-ID"] = self._last_id
        with self._transport.stream("/events", query=self._query, headers=headers) as answer:
            self._answer = answer
            if self._closed.is_set():  # closed while it was opened
                return
            try:
                for message in parse_messages(_announced(answer.lines(), on_open)):
                    if self._closed.is_set():
                        return
                    self._last_id = message.id if message.id is not None else self._last_id
                    yield {"kind": message.event, **json.loads(message.data)}
            finally:
                self._answer = None


def _announced(lines: Iterator[str], on_open: Callable[[], None]) -> Iterator[str]:
    """The lines; the first one says that the manager has taken its position in the stream."""
    for number, line in enumerate(lines):
        if number == 0:
            on_open()
        yield line


class Watch:
    """Waits for changes of one stream, which a thread reads. Use it with `with`; the thread ends with the block."""

    def __init__(self, stream: EventStream, *, least_interval_seconds: float = 0.25) -> None:
        """:param least_interval_seconds: `wait` returns no more often than this, however much changes."""
        self._stream = stream
        self._interval = least_interval_seconds
        self._events: queue.SimpleQueue[dict[str, Any] | ClientError | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._read, name="watch changes", daemon=True)
        self._returned = float("-inf")

    def __enter__(self) -> Self:
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
            for event in self._stream.read(lambda: self._events.put(None)):
                self._events.put(event)
        except ClientError as error:
            self._events.put(error)
