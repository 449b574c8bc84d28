"""A dispatcher as a process of its own, over a private socket pair."""

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.client.client import LineChannel
from proctor.manager.dispatcher.client.liveness import Patience, ProcessStats
from proctor.manager.file_descriptors import require_spare
from proctor.sdk.failpoints import failpoint
from proctor.sdk.files import last_lines, put_in_place

log = logging.getLogger(__name__)

SHUTDOWN_SECONDS = 3.0
KILL_SECONDS = 10.0
"""How long a killed process may stay: the kernel ends it when it comes back from a disk or a network file system."""
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
EXIT_MESSAGE_LINES = 20
LOG_BYTES = 16 * 1024 * 1024
"""What a dispatcher's log may grow to; then it is emptied, and its last so many bytes are the file beside it."""
_POLL_SECONDS = (0.25, 2.0)
_BLOCK_BYTES = 1024 * 1024


class ProcessChannel(LineChannel):
    """Lines to and from a running dispatcher process."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        log_path: Path,
        *,
        patience: Patience,
    ) -> None:
        self.process = process
        self.patience = patience
        self._reader = reader
        self._writer = writer
        self._log_path = log_path

    async def send(self, data: bytes) -> None:
        if self._writer.is_closing():  # uvloop raises RuntimeError for a write to it
            raise ConnectionResetError(f"dispatcher process {self.process.pid} has closed its channel")
        self._writer.write(data)
        await self._writer.drain()

    async def lines(self) -> AsyncIterator[bytes]:
        with suppress(ConnectionError):
            while (line := await self._reader.readline()).endswith(b"\n"):
                yield line

    def exit_message(self) -> str:
        code = self.process.returncode
        how = "ended" if code is None else f"was killed by signal {-code}" if code < 0 else f"exited with {code}"
        tail = _tail(self._log_path)
        return f"dispatcher process {self.process.pid} {how}" + (f"; its log ends with:\n{tail}" if tail else "")

    async def limit_log(self) -> None:
        """Looks the more often the faster the log grows: one that is printed to without a pause must not fill the
        disk, and never waits for us."""
        least, most = _POLL_SECONDS
        pause, before = least, 0
        while True:
            size = await asyncio.to_thread(cut_log, self._log_path)
            growth = max(size - before, 1) / pause
            before = size
            pause = min(max((LOG_BYTES - size) / growth, least), most)
            await asyncio.sleep(pause)

    def process_stats(self) -> ProcessStats:
        return _process_stats(self.process.pid)

    async def kill(self) -> None:
        """SIGKILL to the process and its group. Where something of it outlives that, the channel is cut."""
        failpoint("manager.dispatcher.kill.before")
        self._signal_group()
        failpoint("manager.dispatcher.kill.after")
        await asyncio.sleep(SHUTDOWN_SECONDS)
        self._writer.transport.abort()

    async def end(self) -> None:
        """Ask it to leave and wait; after that, make it leave."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SHUTDOWN_SECONDS):
                await self._request_shutdown()
                await self.process.wait()
        self._signal_group()
        try:
            async with asyncio.timeout(KILL_SECONDS):
                await self.process.wait()
        except TimeoutError:
            text = (
                "dispatcher process %d was killed but has not exited: it is waiting for a disk or a network file system"
            )
            log.warning(text, self.process.pid, extra={"action": "dispatcher.leave"})
        self._writer.close()

    async def _request_shutdown(self) -> None:
        with suppress(ConnectionError, OSError):
            await self.send(protocol.encode(protocol.Terminate()))
            if not self._writer.is_closing():
                self._writer.write_eof()

    def _signal_group(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def _process_stats(pid: int) -> ProcessStats:
    """From /proc; unknown where there is none."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return ProcessStats(processor_seconds=None)
    return ProcessStats((int(fields[11]) + int(fields[12])) / _TICKS_A_SECOND, suspended=fields[0] in ("T", "t"))


def cut_log(path: Path) -> int:
    """Make a log that is larger than LOG_BYTES empty, with its last LOG_BYTES in `earlier_log`; returns its size.

    The dispatcher has it open to append: it continues in the same file. On a full disk nothing is kept. Blocks.
    """
    try:
        size = path.stat().st_size
        if size <= LOG_BYTES:
            return size
        with suppress(OSError):
            _copy_end(path, size, earlier_log(path))
        os.truncate(path, 0)
        return 0
    except OSError:
        return 0


def earlier_log(path: Path) -> Path:
    """Where the end of a log is kept that was cut."""
    return path.with_name(f"{path.name}.1")


def _copy_end(path: Path, size: int, target: Path) -> None:
    draft = target.with_name(f"{target.name}.new")
    try:
        with path.open("rb") as source, draft.open("wb") as copy:
            source.seek(size - LOG_BYTES)
            left = LOG_BYTES
            while left > 0 and (block := source.read(min(left, _BLOCK_BYTES))):
                copy.write(block)
                left -= len(block)
        put_in_place(draft, target)
    finally:
        draft.unlink(missing_ok=True)


def _tail(path: Path) -> str:
    """The last lines of a log file, or '' when there is none."""
    lines: list[str] = []
    for log in (path, earlier_log(path)):
        with suppress(OSError), log.open("rb") as file:
            lines = last_lines(file.fileno(), EXIT_MESSAGE_LINES - len(lines)) + lines
        if len(lines) == EXIT_MESSAGE_LINES:
            break
    return "\n".join(lines)


@asynccontextmanager
async def open_process(
    *,
    log_path: Path,
    directory: Path,
    environment: Mapping[str, str] | None = None,
    executable: str = sys.executable,
    umask: int | None = None,
    patience: Patience = Patience(),  # noqa: B008 - frozen
    open_files: int | None = None,
) -> AsyncIterator[ProcessChannel]:
    """Start a dispatcher in `directory`, its output appended to `log_path`; end it on leaving.

    :param umask: the one that the user's algorithms find; ours if not given.
    :param open_files: its soft limit on open files; ours if not given.
    :raises OSError: it cannot be started, or would take one of the last descriptors.
    """
    require_spare()
    ours, theirs = socket.socketpair()
    failpoint("manager.dispatcher.start.before")
    try:
        with theirs, log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(executable, "-m", "proctor.manager.dispatcher", "--fd", str(theirs.fileno())),
                *(() if umask is None else ("--umask", f"{umask:o}")),
                *(() if open_files is None else ("--open-files", str(open_files))),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=directory if directory.is_dir() else None,
                env=None if environment is None else dict(environment),
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
    except RuntimeError as error:  # no thread can be started that waits for its end; without `ours` it leaves
        ours.close()
        raise OSError(errno.EAGAIN, str(error)) from error
    except BaseException:
        ours.close()
        raise
    failpoint("manager.dispatcher.start.after")
    try:
        reader, writer = await asyncio.open_connection(sock=ours, limit=protocol.MAX_LINE_BYTES)
    except BaseException:  # canceled: no one would wait for the process
        ours.close()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await asyncio.shield(process.wait())
        raise
    channel = ProcessChannel(process, reader, writer, log_path, patience=patience)
    try:
        yield channel
    finally:
        await asyncio.shield(channel.end())
