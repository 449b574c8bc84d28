"""One SQLite file as the rest of the manager sees it: `await db.write(function)`, `await db.read(function)`."""

import asyncio
import sqlite3
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from proctor.manager.store.connections import open_writer
from proctor.manager.store.database_identity import Witness
from proctor.manager.store.errors import DatabaseUnusable
from proctor.manager.store.migrations import SchemaName
from proctor.manager.store.readers import ReaderPool, ReadRequest
from proctor.manager.store.writer import HEALTHY, Committed, Writer, WriteRequest

__all__ = ["HEALTHY", "Database"]

T = TypeVar("T")

_READERS = 2
_THREAD_RETRY_SECONDS = 1.0


class Database:
    """A database file with one writer thread and a few query-only readers. Made by `open`; belongs to one loop.

    While it is idle it may hold neither threads nor descriptors (`idle_seconds`, `rest`); its callers do not
    notice.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: str,
        schema: SchemaName,
        *,
        on_pending: Callable[[int], None],
        on_use: Callable[["Database"], None],
        threads: bool,
        idle_seconds: float | None,
    ) -> None:
        self.path = path
        self.schema = schema
        self.health = HEALTHY
        self.pending = 0
        self._on_pending = on_pending
        self._on_use = on_use
        self._loop = asyncio.get_running_loop()
        self._health_callbacks: list[Callable[[str], None]] = []
        self._impatient: set[asyncio.Future[None]] = set()
        self._unflushed: list[WriteRequest] = []
        self._closing: asyncio.Future[None] | None = None
        # The last connection to close moves the log into the file; two at once would each leave that to the other.
        closing_lock = threading.Lock()
        self._writer = Writer(
            connection,
            path,
            schema,
            idle_seconds=idle_seconds,
            closing_lock=closing_lock,
            deliver=lambda committed: self._call(self._take, committed),
            on_health=lambda health: self._call(self._heal, health),
        )
        self._readers = ReaderPool(
            path,
            size=_READERS,
            idle_seconds=idle_seconds,
            closing_lock=closing_lock,
            resolve=lambda *answer: self._call(self._resolve, *answer),
        )
        self._lacks_thread = False
        self._threads = threads
        self._outside = 0  # reads in another process
        self._is_free = asyncio.Event()  # set at the end of the last of them
        if threads:
            self._start_writer()

    @classmethod
    async def open(
        cls,
        path: str,
        schema: SchemaName,
        *,
        on_pending: Callable[[int], None] = lambda change: None,
        connection_class: type[sqlite3.Connection] = sqlite3.Connection,
        on_use: Callable[["Database"], None] = lambda database: None,
        threads: bool = True,
        create: bool = True,
        idle_seconds: float | None = None,
    ) -> Self:
        """Open the file, made and migrated as needed. Without `create` it must be there already.

        `on_pending` is called in the loop with +1 and -1 as work begins and ends outside of it (a virtual clock
        stands still meanwhile). Without `threads` everything is done in the loop, which it blocks, in the same order
        every time: what simulations need. Raises DatabaseUnusable or NewerDatabase with a sentence that says what to
        do.

        :param on_use: called in the loop before each request.
        :param idle_seconds: how long a thread keeps the file open for the next request; None: until `close`.
        """
        on_pending(1)
        open_file = partial(open_writer, path, schema, connection_class, create=create)
        opening = asyncio.get_running_loop().run_in_executor(None, open_file)
        try:
            connection = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unwanted)
            raise
        finally:
            on_pending(-1)
        return cls(
            connection, path, schema, on_pending=on_pending, on_use=on_use, threads=threads, idle_seconds=idle_seconds
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @property
    def commits(self) -> int:
        """How many transactions that changed something were committed since the file was opened."""
        return self._writer.commits

    @property
    def is_open(self) -> bool:
        """Whether it holds threads and descriptors."""
        return not self._threads or self._writer.is_serving or self._readers.is_serving

    def rest(self) -> None:
        """Close the file now rather than when it is idle, once what was asked is carried out. The next request opens it
        again."""
        if self._threads and self._closing is None:
            self._writer.rest()
            self._readers.rest()

    def write(self, function: Callable[[sqlite3.Connection], T]) -> "asyncio.Future[T]":
        """Run `function` in the writer thread and return its result once it is committed and synced.

        Writes take effect in the order of the calls; many share a commit. What `function` raises takes back what it
        did, and only that, and is raised here. It may be run more than once (after a full disk), so it must do
        nothing but use the connection, and never begin or end a transaction. A caller that is canceled stops waiting;
        the write continues.
        """
        future = self._start()
        if not self._unflushed:
            # All writes of one turn of the loop are handed over together.
            self._loop.call_soon(self._flush)
        self._unflushed.append(WriteRequest(function, future))
        return future

    async def keep_witness(self, path: Path) -> None:
        """Write down in a file, now and after every commit, which control database this is and its newest event. Raises
        OSError where the file cannot be written."""

        def begin(connection: sqlite3.Connection) -> None:
            self._writer.witness = Witness.open(path, connection)

        await self.write(begin)

    def require_writable(self) -> None:
        """Raise DatabaseUnusable, with `health`, while the file cannot be written."""
        if self.health != HEALTHY:
            raise DatabaseUnusable(self.health)

    async def until_done_or_unwritable(self, writing: "asyncio.Future[Any]") -> None:
        """Wait for a write, but not while the file cannot be written: then raises DatabaseUnusable. The write is
        carried out all the same, once that is possible."""
        waiter: asyncio.Future[None] = self._loop.create_future()

        def on_done(done: "asyncio.Future[Any]") -> None:
            if not waiter.done():
                waiter.set_result(None)

        writing.add_done_callback(on_done)
        self._impatient.add(waiter)
        try:
            await waiter
        finally:
            self._impatient.discard(waiter)

    def read(self, function: Callable[[sqlite3.Connection], T], time_limit_seconds: float = 5.0) -> Awaitable[T]:
        """Run `function` in a reader thread, on one consistent state of the database. It sees every write that was
        awaited before. A read whose caller is canceled is interrupted. Raises ReadTimeout, and DatabaseUnusable where
        the file cannot be read."""
        future = self._start()
        request = ReadRequest(function, future, time_limit_seconds)
        if not self._threads:
            self._loop.call_soon(self._readers.run, request)
            return future
        try:
            self._readers.put(request)
        except RuntimeError as error:  # no more threads
            self._resolve(future, None, DatabaseUnusable(f"The database {self.path} cannot be read now: {error}."))
        return future

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """While another process reads the file: `close` waits for the end of that. Raises DatabaseUnusable when it is
        closed."""
        if self._closing is not None:
            raise DatabaseUnusable(f"The database {self.path} is closed.")
        self._outside += 1
        try:
            yield
        finally:
            self._outside -= 1
            if self._outside == 0:
                self._is_free.set()
                self._is_free = asyncio.Event()

    @property
    def has_threads(self) -> bool:
        """Whether it is read and written in threads, rather than in the loop."""
        return self._threads

    def on_health_change(self, callback: Callable[[str], None]) -> None:
        """Call `callback` in the loop with `health` whenever it changes: HEALTHY, or a sentence that says why the file
        cannot be written. Writes wait meanwhile."""
        self._health_callbacks.append(callback)

    async def close(self) -> None:
        """Carry out everything that was asked, then close the file. May be called twice."""
        if self._closing is None:
            self._flush()
            self._change_pending(1)
            if self._threads:
                self._closing = self._loop.run_in_executor(None, self._close_files)
            else:
                self._closing = self._loop.create_future()
                self._loop.call_soon(self._close_in_loop, self._closing)
            self._closing.add_done_callback(lambda _: self._change_pending(-1))
        await asyncio.shield(self._closing)
        while self._outside:
            await self._is_free.wait()

    def _close_files(self) -> None:
        self._readers.close()
        self._writer.close()

    def _close_in_loop(self, closing: "asyncio.Future[None]") -> None:
        self._close_files()
        closing.set_result(None)

    def _start(self) -> "asyncio.Future[Any]":
        if self._closing is not None:
            raise DatabaseUnusable(f"The database {self.path} is closed.")
        self._on_use(self)
        self._change_pending(1)
        return self._loop.create_future()

    def _flush(self) -> None:
        requests, self._unflushed = self._unflushed, []
        if not requests:
            return
        if not self._threads:
            self._writer.run(requests)
            return
        self._writer.queue(requests)
        self._start_writer()

    def _start_writer(self) -> None:
        """Have a thread carry out what is queued; where none can be started, it is tried again."""
        try:
            self._writer.start()
        except RuntimeError as error:  # no more threads
            self._lacks_thread = True
            self._heal(f"The database {self.path} cannot be written: {error}. It is tried again until it works.")
            self._loop.call_later(_THREAD_RETRY_SECONDS, self._retry_start)
        else:
            if self._lacks_thread:
                self._lacks_thread = False
                self._heal(HEALTHY)

    def _retry_start(self) -> None:
        if self._closing is None and self._lacks_thread:
            self._start_writer()

    def _change_pending(self, change: int) -> None:
        self.pending += change
        self._on_pending(change)

    def _call(self, function: Callable[..., None], *arguments: Any) -> None:
        """From a thread: run `function` in the loop, if it still runs."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def _take(self, committed: Committed) -> None:
        for outcome in committed.outcomes:
            self._resolve(outcome.future, outcome.result, outcome.error)
        if committed.checkpoint_due and self._closing is None and self._threads:
            with suppress(RuntimeError):  # no more threads; a later commit asks again
                self._readers.checkpoint()

    def _resolve(self, future: "asyncio.Future[Any]", result: Any, error: Exception | None) -> None:
        self._change_pending(-1)
        if future.done():  # its caller was canceled
            return
        if error is None:
            future.set_result(result)
        else:
            future.set_exception(error)

    def _heal(self, health: str) -> None:
        self.health = health
        if health != HEALTHY:
            for waiter in self._impatient:
                if not waiter.done():
                    waiter.set_exception(DatabaseUnusable(health))
        for callback in self._health_callbacks:
            callback(health)


def _close_unwanted(opening: "asyncio.Future[sqlite3.Connection]") -> None:
    """The one who wanted it was canceled meanwhile."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
