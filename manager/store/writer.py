"""The one thread that changes a database file, with group commit.

Everything that is queued when the thread is ready shares one transaction; each request runs in a savepoint of its
own, so one that raises takes only itself back. While the machine is in the way (full disk, I/O error) the batch is
kept and tried again; its callers wait. A thread that had nothing to do for a while closes the file and ends; the next
request starts another one, which opens it again.
"""

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from proctor.manager.store.connections import explain, machine_error, open_writer, primary_code, refusal_of
from proctor.manager.store.database_identity import Witness
from proctor.manager.store.errors import DatabaseUnusable, StoreError, ValueRefused
from proctor.manager.store.migrations import SchemaName
from proctor.sdk.failpoints import failpoint

HEALTHY = "healthy"

RETRY_DELAYS_SECONDS = (0.25, 0.5, 1.0, 2.0)
_BATCH_LIMIT = 1_000  # requests in one transaction, so that no commit waits for the whole of a flood
_CHECKPOINT_COMMITS = 250  # whichever comes first …
_CHECKPOINT_CHANGES = 10_000
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """A function to run in the writer thread, and who waits for it."""

    function: Callable[[sqlite3.Connection], Any]
    future: "asyncio.Future[Any]"


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """What became of a request: its result, or its error."""

    future: "asyncio.Future[Any]"
    result: Any
    error: Exception | None


@dataclass(frozen=True, slots=True)
class Committed:
    """What the thread tells the loop after each transaction."""

    outcomes: Sequence[WriteOutcome]
    checkpoint_due: bool


class Writer:
    """The writer thread of one file. `deliver` and `on_health` are called in that thread.

    :param idle_seconds: after how long without requests the thread closes the file and ends; None: at `close`.
    :param closing_lock: held while a connection closes, by the readers of the file, too.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        path: str,
        schema: SchemaName,
        *,
        idle_seconds: float | None,
        closing_lock: threading.Lock,
        deliver: Callable[[Committed], None],
        on_health: Callable[[str], None],
    ) -> None:
        self.commits = 0
        self.witness: Witness | None = None
        """Notified of every commit; set in the writer's thread."""
        self._connection: sqlite3.Connection | None = connection
        self._connection_class = type(connection)
        self._path = path
        self._schema = schema
        self._deliver = deliver
        self._on_health = on_health
        self._queue: SimpleQueue[Sequence[WriteRequest] | None] = SimpleQueue()
        self._closing = threading.Event()
        self._health = HEALTHY
        self._since_checkpoint = (0, 0)
        self._idle_seconds = idle_seconds
        self._closing_lock = closing_lock
        self._lock = threading.Lock()  # of the two below
        self._thread: threading.Thread | None = None  # the newest
        self.is_serving = False
        """Whether there is a thread that takes what is queued."""

    def start(self) -> None:
        """Start a thread, if none serves. Raises RuntimeError where none can be started."""
        with self._lock:
            if self.is_serving:
                return
            name = f"store writer {self._schema}"
            thread = threading.Thread(target=self._follow, args=(self._thread,), name=name, daemon=True)
            thread.start()
            self._thread, self.is_serving = thread, True

    def run(self, requests: Sequence[WriteRequest]) -> None:
        """Carry out requests in the calling thread; instead of `queue` and `start`."""
        self._carry_out(requests)

    def queue(self, requests: Sequence[WriteRequest]) -> None:
        """Queue requests; they are carried out in order, once there is a thread (`start`), at the latest by `close`."""
        self._queue.put(requests)

    def rest(self) -> None:
        """Have the thread close the file and end unless more requests are queued."""
        with self._lock:
            if self.is_serving:
                self._queue.put(())

    def close(self) -> None:
        """Carry out what is queued, close the connection, end the thread; waits for it. While the file cannot be
        written, what is queued fails with DatabaseUnusable."""
        self._closing.set()
        self._queue.put(None)
        with self._lock:
            thread, is_serving = self._thread, self.is_serving
        if thread is not None:
            thread.join()
        if not is_serving:
            self._serve()

    def _follow(self, previous: threading.Thread | None) -> None:
        """Serve once the thread before has closed the file."""
        if previous is not None:
            previous.join()
        self._serve()

    def _serve(self) -> None:
        open_for_more = True
        while open_for_more:
            batch, open_for_more = self._collect()
            if batch:
                self._carry_out(batch)
            elif open_for_more:
                open_for_more = not self._may_leave()
        if self.witness is not None:
            self.witness.close()
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with self._closing_lock:
                connection.close()

    def _may_leave(self) -> bool:
        """Nothing was queued: whether that is still so. What is queued from now on is for another thread."""
        with self._lock:
            self.is_serving = not self._queue.empty()
            return not self.is_serving

    def _collect(self) -> tuple[list[WriteRequest], bool]:
        """Wait for requests and take all that are there, none after a while; False as soon as the end was asked for."""
        batch: list[WriteRequest] = []
        try:
            requests = self._queue.get(timeout=self._idle_seconds)
        except Empty:
            return batch, True
        while requests is not None:
            batch += requests
            if len(batch) >= _BATCH_LIMIT:
                return batch, True
            try:
                requests = self._queue.get_nowait()
            except Empty:
                return batch, True
        return batch, False

    def _carry_out(self, batch: Sequence[WriteRequest]) -> None:
        try:
            outcomes = self._persist(batch)
        except Exception as error:
            self._roll_back()
            if len(batch) > 1:  # one of them broke the transaction: find out which
                for request in batch:
                    self._carry_out([request])
                return
            outcomes = [WriteOutcome(batch[0].future, None, self._translate(error))]
        self._deliver(Committed(outcomes, self._is_checkpoint_due()))

    def _persist(self, batch: Sequence[WriteRequest]) -> list[WriteOutcome]:
        """Run the batch's transaction until the machine lets it through."""
        attempt = 0
        while True:
            try:
                outcomes = self._run_transaction(batch)
            except Exception as error:
                failure = machine_error(error)
                if failure is None:
                    raise
                self._roll_back()
                self._set_health(explain(self._path, failure))
                if self._closing.wait(RETRY_DELAYS_SECONDS[min(attempt, len(RETRY_DELAYS_SECONDS) - 1)]):
                    raise DatabaseUnusable(f"{self._health} The database was closed meanwhile.") from failure
                attempt += 1
            else:
                self._set_health(HEALTHY)
                return outcomes

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = open_writer(self._path, self._schema, self._connection_class, create=False)
            self._since_checkpoint = (self.commits, 0)
        return self._connection

    def _run_transaction(self, batch: Sequence[WriteRequest]) -> list[WriteOutcome]:
        connection = self._open()
        before = connection.total_changes
        connection.execute("BEGIN IMMEDIATE")
        outcomes = [self._run(connection, request) for request in batch]
        if connection.total_changes == before:
            connection.execute("COMMIT")
            return outcomes
        failpoint(f"{self._schema}.commit.before")
        connection.execute("COMMIT")
        if self.witness is not None:
            self.witness.record(connection)
        failpoint(f"{self._schema}.commit.after")
        self.commits += 1
        return outcomes

    def _run(self, connection: sqlite3.Connection, request: WriteRequest) -> WriteOutcome:
        connection.execute("SAVEPOINT request")
        try:
            result = request.function(connection)
        except Exception as error:
            if machine_error(error) or not connection.in_transaction:
                raise
            connection.execute("ROLLBACK TO request")
            connection.execute("RELEASE request")
            return WriteOutcome(request.future, None, _as_refusal(error))
        connection.execute("RELEASE request")
        return WriteOutcome(request.future, result, None)

    def _roll_back(self) -> None:
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:  # the next BEGIN will say it
            return

    def _translate(self, error: Exception) -> Exception:
        if isinstance(error, sqlite3.Error) and primary_code(error) in _DAMAGED:
            self._set_health(f"The database {self._path} is damaged: {error}. Restore it from a copy.")
            damaged = DatabaseUnusable(self._health)
            damaged.__cause__ = error
            return damaged
        if self._connection is None and isinstance(error, StoreError):
            self._set_health(str(error))  # it can no longer be opened, and waiting does not help
        return error

    def _set_health(self, health: str) -> None:
        if health != self._health:
            self._health = health
            self._on_health(health)

    def _is_checkpoint_due(self) -> bool:
        if self._connection is None:
            return False
        commits, changes = self._since_checkpoint
        total = self._connection.total_changes
        if self.commits - commits < _CHECKPOINT_COMMITS and total - changes < _CHECKPOINT_CHANGES:
            return False
        self._since_checkpoint = (self.commits, total)
        return True


def _as_refusal(error: Exception) -> Exception:
    """The error of a request; ValueRefused where a value could not be stored."""
    clause = refusal_of(error)
    if not clause:
        return error
    refused = ValueRefused(clause)
    refused.__cause__ = error
    return refused
