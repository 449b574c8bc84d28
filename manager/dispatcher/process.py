"""A dispatcher as a process of its own, over a private socket pair."""

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.client import Channel
from proctor.sdk.failpoints import failpoint

GOODBYE_SECONDS = 3.0
EPITAPH_LINES = 20


class ProcessChannel(Channel):
    """Lines to and from a running dispatcher process."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        log_path: Path,
    ) -> None:
        self.process = process
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

    def epitaph(self) -> str:
        code = self.process.returncode
        how = "ended" if code is None else f"was killed by signal {-code}" if code < 0 else f"exited with {code}"
        tail = _tail(self._log_path)
        return f"dispatcher process {self.process.pid} {how}" + (f"; its log ends with:\n{tail}" if tail else "")

    async def say_goodbye(self) -> None:
        """Ask it to leave and wait; after that, make it leave."""
        with suppress(ConnectionError, OSError):
            await self.send(protocol.encode(protocol.Terminate()))
            if not self._writer.is_closing():
                self._writer.write_eof()
        with suppress(TimeoutError):
            async with asyncio.timeout(GOODBYE_SECONDS):
                await self.process.wait()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        await self.process.wait()
        self._writer.close()


def _tail(path: Path) -> str:
    """The last lines of a log file, or '' when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 8192))
            return "\n".join(file.read().decode(errors="replace").splitlines()[-EPITAPH_LINES:])
    except OSError:
        return ""


@asynccontextmanager
async def open_process(
    *,
    log_path: Path,
    directory: Path,
    environment: Mapping[str, str] | None = None,
    executable: str = sys.executable,
) -> AsyncIterator[ProcessChannel]:
    """Start a dispatcher in `directory`, its output appended to `log_path`; end it on leaving."""
    ours, theirs = socket.socketpair()
    failpoint("manager.dispatcher.start.before")
    with theirs, log_path.open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *(executable, "-m", "proctor.manager.dispatcher", "--fd", str(theirs.fileno())),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=directory if directory.is_dir() else None,
            env=None if environment is None else dict(environment),
            pass_fds=(theirs.fileno(),),
            start_new_session=True,
        )
    failpoint("manager.dispatcher.start.after")
    reader, writer = await asyncio.open_connection(sock=ours, limit=protocol.MAX_LINE_BYTES)
    channel = ProcessChannel(process, reader, writer, log_path)
    try:
        yield channel
    finally:
        await asyncio.shield(channel.say_goodbye())
