"""Heavy reads in a process of their own: the event loop of the manager does not share its interpreter with them.

`ReadProcess` is the manager's end. The process (`python -m proctor.manager.store.read_process`) carries out one read
after the other, each on a connection of its own: it holds no database open, so that those that rest or are deleted do
not notice it. It ends when its input does, which is also when the manager is killed.
"""

import asyncio
import errno
import os
import pickle
import sys
import threading
import traceback
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, closing, nullcontext, suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, BinaryIO, Self, TypeVar

from proctor.manager.store.connections import open_reader
from proctor.manager.store.errors import DatabaseUnusable, ReadTimeout
from proctor.manager.store.readers import read_once, translate

IDLE_SECONDS = 60.0
"""After how long without a read the process ends; the next one starts another."""
_GRACE_SECONDS = 30.0
"""What a read may take beyond its time limit, outside of SQLite; after that its process is killed."""
_CANCEL_SECONDS = 0.5
"""In which a canceled read has to end; after that its process is killed. SQLite ends at once, Python code does not."""
_END_SECONDS = 5.0
_PIPE_BYTES = 16 * 1024 * 1024
_NICENESS = 5
"""Trials and the manager come first."""
_LENGTH_BYTES = 8

T = TypeVar("T")


@dataclass(frozen=True)
class _Read:
    """A read to be carried out. What the manager sends besides is the number of one that is not wanted any more."""

    number: int
    path: str
    work: bytes
    """The function and its arguments."""
    time_limit_seconds: float


class ReadProcess:
    """At most one process, started for the first read. Belongs to one loop."""

    def __init__(self, idle_seconds: float) -> None:
        self._idle_seconds = idle_seconds
        self._turn = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._reads = 0
        self._current = 0  # the number of the read that is carried out; 0: of none
        self._unwanted: set[int] = set()  # reads whose callers were canceled
        self._limit: asyncio.Timeout | None = None  # of the read that is carried out
        self._timer: asyncio.TimerHandle | None = None
        self._group: asyncio.TaskGroup | None = None

    @classmethod
    @asynccontextmanager
    async def open(cls, *, idle_seconds: float = IDLE_SECONDS) -> AsyncIterator[Self]:
        """Ends its process when it is left."""
        reads = cls(idle_seconds)
        async with asyncio.TaskGroup() as group:
            reads._group = group
            try:
                yield reads
            finally:
                reads._group = None  # no other read begins
                async with reads._turn:
                    await asyncio.shield(reads._end())

    @property
    def pid(self) -> int | None:
        """Of the process; None while there is none."""
        return None if self._process is None else self._process.pid

    async def read(
        self,
        path: str,
        function: Callable[..., T],
        *arguments: Any,
        time_limit_seconds: float = 5.0,
        held: AbstractContextManager[None] | None = None,
    ) -> T:
        """The result of `function`, of a connection to the database and the arguments, on one consistent state of it.

        They are copied, and so is the result. Reads take turns. One whose caller is canceled is interrupted. Raises
        what the function raises, ReadTimeout, and DatabaseUnusable where the file cannot be read, or no process starts.

        :param held: entered now, and left when the process no longer reads: a canceled caller is gone before that.
        """
        if self._group is None:
            raise DatabaseUnusable(f"The database {path} cannot be read: the manager ends.")
        self._reads += 1
        read = _Read(self._reads, path, pickle.dumps((function, arguments)), time_limit_seconds)
        holding = ExitStack()
        holding.enter_context(held or nullcontext())
        # A task of its own: when the caller is canceled, the answer has to be received all the same.
        work = self._group.create_task(self._take_turn(read), name="heavy read")
        work.add_done_callback(lambda _: holding.close())
        try:
            result, error = await asyncio.shield(work)
        except asyncio.CancelledError:
            if not work.done():
                self._cancel(read.number)
            raise
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]

    def _cancel(self, number: int) -> None:
        """No one waits for this read any more."""
        self._unwanted.add(number)
        if self._current == number and self._limit is not None:
            assert self._process is not None
            assert self._process.stdin is not None
            _send(self._process.stdin, number)
            with suppress(RuntimeError):  # it is over just now
                self._limit.reschedule(asyncio.get_running_loop().time() + _CANCEL_SECONDS)

    async def _take_turn(self, read: _Read) -> tuple[Any, Exception | None]:
        """The result, or what is to be raised."""
        async with self._turn:
            self._stop_timer()
            self._current = read.number
            try:
                return await self._try_twice(read)
            except OSError as error:
                return None, DatabaseUnusable(f"The database {read.path} cannot be read now: no process: {error}.")
            finally:
                self._current = 0
                self._unwanted.discard(read.number)
                self._start_timer()

    async def _try_twice(self, read: _Read) -> tuple[Any, Exception | None]:
        """A process that has ended is replaced once: something may have killed it while it was idle."""
        for is_last in (False, True):
            if read.number in self._unwanted:
                break
            process = self._process or await self._start()
            if read.number in self._unwanted:  # while the process was being started
                break
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                async with asyncio.timeout(read.time_limit_seconds + _GRACE_SECONDS) as self._limit:
                    _send(process.stdin, read)
                    await process.stdin.drain()
                    size = await process.stdout.readexactly(_LENGTH_BYTES)
                    answer = await process.stdout.readexactly(int.from_bytes(size, "little"))
            except TimeoutError:
                await self._end()
                limit = f"{read.time_limit_seconds:g} s"
                return None, ReadTimeout(f"A read of {read.path} took longer than {limit}. Ask for less at a time.")
            except (OSError, asyncio.IncompleteReadError):
                await self._end()
                if is_last:
                    text = f"The database {read.path} cannot be read now: the process that reads it has ended."
                    return None, DatabaseUnusable(text)
            else:
                result, error, trace = pickle.loads(answer)
                if error is not None:
                    error.add_note(trace)
                return result, error
            finally:
                self._limit = None
        return None, None  # no one waits for it

    async def _start(self) -> asyncio.subprocess.Process:
        try:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", "proctor.manager.store.read_process"),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=_PIPE_BYTES,
                start_new_session=True,  # an interrupt at the terminal is for the manager
            )
        except RuntimeError as error:  # no thread can be started that waits for its end
            raise OSError(errno.EAGAIN, str(error)) from error
        return self._process

    def _start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._idle_seconds, self._rest)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rest(self) -> None:
        if self._group is not None and not self._turn.locked():
            self._group.create_task(self._end_in_turn(), name="end the process of heavy reads")

    async def _end_in_turn(self) -> None:
        async with self._turn:
            await self._end()

    async def _end(self) -> None:
        """Make the process leave, and wait for it."""
        self._stop_timer()
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        process.stdin.close()  # it ends
        try:
            async with asyncio.timeout(_END_SECONDS):
                await process.wait()
        except TimeoutError:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        self._process = None


@dataclass(frozen=True)
class ReadProcesses:
    """One for the control database and one for those of metrics: a table does not wait for a chart of all curves, which
    may take seconds to count."""

    control: ReadProcess
    metrics: ReadProcess

    @classmethod
    @asynccontextmanager
    async def open(cls) -> AsyncIterator[Self]:
        """Ends them when it is left."""
        async with ReadProcess.open() as control, ReadProcess.open() as metrics:
            yield cls(control, metrics)


def _send(stdin: asyncio.StreamWriter, message: _Read | int) -> None:
    if not stdin.is_closing():  # uvloop raises RuntimeError for a write to it
        data = pickle.dumps(message)
        stdin.write(len(data).to_bytes(_LENGTH_BYTES, "little") + data)


# ---- in the process -------------------------------------------------------------------------------------------------


def main() -> None:
    """Carry out reads until the input ends."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what is printed is no answer
    with suppress(OSError):
        os.nice(_NICENESS)
    unwanted: set[int] = set()
    reads: SimpleQueue[_Read] = SimpleQueue()
    threading.Thread(target=_receive, args=(sys.stdin.buffer, reads, unwanted), daemon=True).start()
    while True:
        read = reads.get()
        answer = _answer(read, unwanted)
        unwanted.discard(read.number)
        with suppress(BrokenPipeError):  # the input ends, too
            answers.write(len(answer).to_bytes(_LENGTH_BYTES, "little"))
            answers.write(answer)
            answers.flush()


def _receive(stream: BinaryIO, reads: "SimpleQueue[_Read]", unwanted: set[int]) -> None:
    while len(size := stream.read(_LENGTH_BYTES)) == _LENGTH_BYTES:
        message = pickle.loads(stream.read(int.from_bytes(size, "little")))
        if isinstance(message, _Read):
            reads.put(message)
        else:
            unwanted.add(message)
    os._exit(0)


def _answer(read: _Read, unwanted: set[int]) -> bytes:
    """The result, the error, and where it was raised, of which one is None."""
    try:
        function, arguments = pickle.loads(read.work)
        with closing(open_reader(read.path)) as connection:
            result = read_once(
                connection,
                lambda connection: function(connection, *arguments),
                read.time_limit_seconds,
                lambda: read.number in unwanted,
            )
        return pickle.dumps((result, None, ""), protocol=pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        translated = translate(error, read.path, read.time_limit_seconds)
        try:
            answer = pickle.dumps((None, translated, traceback.format_exc()))
            pickle.loads(answer)  # here, as what fails in the manager ends it
            return answer
        except Exception:  # it cannot be copied
            return pickle.dumps(
                (None, RuntimeError(f"{type(translated).__name__}: {translated}"), traceback.format_exc())
            )


if __name__ == "__main__":
    # Not this module under the name of __main__: what is sent names its classes by their module.
    from proctor.manager.store import read_process

    read_process.main()
