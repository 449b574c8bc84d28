"""Reader threads of one database file: query-only connections, each read on one consistent state, with a time limit."""

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from proctor.manager.store.connections import describe, open_reader, primary_code
from proctor.manager.store.errors import DatabaseUnusable, ReadTimeout

_PROGRESS_STEPS = 10_000  # SQLite instructions between two looks at the clock: well under a millisecond

_UNREADABLE = {
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
}


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A function to run on a reader, who waits for it, and for how long it may run (seconds)."""

    function: Callable[[sqlite3.Connection], Any]
    future: "asyncio.Future[Any]"
    time_limit_seconds: float


class _WalCheckpoint:
    """Asks a reader thread to move the log's pages into the database file."""


class _Rest:
    """Asks a reader thread to close the file and end."""


Resolve = Callable[["asyncio.Future[Any]", Any, Exception | None], None]


class ReaderPool:
    """At most `size` threads, started as they are needed. `resolve` is called in them with each result.

    :param idle_seconds: after how long without requests a thread closes the file and ends; None: at `close`.
    :param closing_lock: held while a connection closes, by the writer of the file, too.
    """

    def __init__(
        self, path: str, *, size: int, idle_seconds: float | None, closing_lock: threading.Lock, resolve: Resolve
    ) -> None:
        self._path = path
        self._size = size
        self._idle_seconds = idle_seconds
        self._closing_lock = closing_lock
        self._resolve = resolve
        self._queue: SimpleQueue[ReadRequest | _WalCheckpoint | _Rest | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []  # that take what is queued
        self._ending: list[threading.Thread] = []  # that may not have closed the file yet
        self._own_connection: sqlite3.Connection | None = None  # of `run`
        self._busy = 0  # requests that are queued or being carried out
        self._lock = threading.Lock()  # of the three above, and of what is put into the queue

    @property
    def is_serving(self) -> bool:
        """Whether there are threads."""
        return bool(self._threads)

    def put(self, request: ReadRequest) -> None:
        """Queue a read. Raises RuntimeError where no thread can be started."""
        self._put(request)

    def run(self, request: ReadRequest) -> None:
        """Carry out a read in the calling thread; instead of `put`."""
        self._own_connection = self._carry_out(request, self._own_connection)

    def checkpoint(self) -> None:
        """Queue a passive checkpoint: it disturbs neither readers nor the writer. Raises RuntimeError as `put`."""
        self._put(_WalCheckpoint())

    def rest(self) -> None:
        """Have the threads close the file and end, those that are not needed for what is queued."""
        with self._lock:
            for _ in self._threads:
                self._queue.put(_Rest())

    def close(self) -> None:
        """Carry out what is queued, then end the threads; waits for them."""
        with self._lock:
            threads = [*self._threads, *self._ending]
            for _ in self._threads:
                self._queue.put(None)
        for thread in threads:
            thread.join()
        self._threads.clear()
        if self._own_connection is not None:
            self._own_connection.close()
            self._own_connection = None

    def _put(self, item: ReadRequest | _WalCheckpoint) -> None:
        with self._lock:
            if self._busy >= len(self._threads) and len(self._threads) < self._size:
                self._add_thread()
            self._busy += 1
            self._queue.put(item)

    def _add_thread(self) -> None:
        thread = threading.Thread(target=self._serve, name="store reader", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not self._threads:  # else fewer will do
                raise
        else:
            self._threads.append(thread)
            self._ending = [ending for ending in self._ending if ending.is_alive()]

    def _serve(self) -> None:
        connection: sqlite3.Connection | None = None
        while (item := self._take()) is not None:
            if isinstance(item, _Rest):
                if self._may_leave():
                    break
                continue
            connection = self._carry_out(item, connection)
            with self._lock:
                self._busy -= 1
        if connection is not None:
            with self._closing_lock:
                connection.close()

    def _take(self) -> ReadRequest | _WalCheckpoint | _Rest | None:
        try:
            return self._queue.get(timeout=self._idle_seconds)
        except Empty:
            return _Rest()

    def _may_leave(self) -> bool:
        """Whether the other threads are enough for what there is to do; then this one counts no more."""
        with self._lock:
            if self._busy >= len(self._threads):
                return False
            thread = threading.current_thread()
            self._threads.remove(thread)
            self._ending.append(thread)
            return True

    def _carry_out(
        self, item: ReadRequest | _WalCheckpoint, connection: sqlite3.Connection | None
    ) -> sqlite3.Connection | None:
        """Do one thing, on a connection that is opened if there is none yet; returns the connection."""
        try:
            connection = connection or open_reader(self._path)
            if isinstance(item, ReadRequest):
                self._answer(connection, item)
            else:
                connection.execute("PRAGMA wal_checkpoint(PASSIVE)")
        except Exception as error:
            if isinstance(item, ReadRequest):
                self._resolve(item.future, None, translate(error, self._path, item.time_limit_seconds))
        return connection

    def _answer(self, connection: sqlite3.Connection, request: ReadRequest) -> None:
        future = request.future
        if future.cancelled():  # while it was queued
            self._resolve(future, None, None)
            return
        result = read_once(connection, request.function, request.time_limit_seconds, future.cancelled)
        self._resolve(request.future, result, None)


def read_once(
    connection: sqlite3.Connection,
    function: Callable[[sqlite3.Connection], Any],
    time_limit_seconds: float,
    is_canceled: Callable[[], bool],
) -> Any:
    """Run `function` on one consistent state of the database; it is interrupted when its time is over."""
    deadline = monotonic() + time_limit_seconds
    connection.set_progress_handler(lambda: is_canceled() or monotonic() > deadline, _PROGRESS_STEPS)
    connection.execute("BEGIN")
    try:
        return function(connection)
    finally:
        connection.set_progress_handler(None, 0)
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def translate(error: Exception, path: str, time_limit_seconds: float) -> Exception:
    """What a read that has failed raises."""
    if not isinstance(error, sqlite3.Error):
        return error
    code = primary_code(error)
    if code == sqlite3.SQLITE_INTERRUPT:
        translated: Exception = ReadTimeout(
            f"A read of {path} took longer than {time_limit_seconds:g} s and was interrupted. Ask for less at a time."
        )
    elif code in _UNREADABLE:
        translated = DatabaseUnusable(f"The database {path} cannot be read: {describe(error)}.")
    else:
        return error
    translated.__cause__ = error
    return translated
