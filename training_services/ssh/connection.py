"""One SSH connection to one machine. The errors of asyncssh end here.

`open_connection` goes through the jump hosts of ~/.ssh/config, checks every host key and logs in; `Connection` is what
can be done then. Whatever goes wrong is one of ssh/errors.py, and no secret is in any of their texts.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import asyncssh

from proctor.training_services.ssh import uploads
from proctor.training_services.ssh.base import (
    TAIL_BYTES,
    CompletedCommand,
    NodeConnection,
    Process,
    ProgressCallback,
    SessionSlots,
)
from proctor.training_services.ssh.errors import (
    CommandFailed,
    ConnectionEnded,
    ForwardingRefused,
    NotWritable,
    SessionRefused,
)
from proctor.training_services.ssh.host_keys import HostKeys
from proctor.training_services.ssh.login import Limits, LoginClient
from proctor.training_services.ssh.route import Route, RouteTrace
from proctor.training_services.ssh.settings import Login, MachineSettings
from proctor.training_services.ssh.shell import ISOLATED, READ_SOURCE, marked, strip_startup_output, with_source

__all__ = ["Connection", "HostKeys", "RouteTrace", "open_connection"]

_SESSION_SECONDS = 30.0
_LAST_SESSION_PAUSES_SECONDS = (0.25,) * 8
_STDERR = 1  # the channel's data type
asyncssh.set_log_level(logging.WARNING)  # below that it logs every packet of every machine


class Connection(NodeConnection):
    """An open connection of asyncssh."""

    def __init__(self, ssh: Any, client: LoginClient, *, peer: str) -> None:
        self.peer = peer
        self._ssh = ssh
        self._client = client
        self._slots = SessionSlots()

    async def run(
        self, command: Sequence[str], *, input: bytes = b"", timeout_seconds: float = 60.0
    ) -> CompletedCommand:
        line, mark = marked(command)
        name = " ".join(command)[:200]
        try:
            async with asyncio.timeout(timeout_seconds), self._session(line) as process:
                stdout = await _converse(process, input)
        except TimeoutError as error:
            raise CommandFailed(f"`{name}` did not end within {timeout_seconds:g} s") from error
        code = process.exit_status
        if code is None:
            self._check()
            raise CommandFailed(f"`{name}` ended without an exit code")
        if process.exit_signal is not None:
            raise CommandFailed(f"`{name}` was ended by SIG{process.exit_signal[0]}")
        return strip_startup_output(mark, CompletedCommand(code, stdout, bytes(process.tail)))

    @asynccontextmanager
    async def start_process(self, command: Sequence[str], *, is_lasting: bool = False) -> AsyncIterator[Process]:
        line, mark = marked(command)
        async with self._session(line, is_lasting=is_lasting) as process:
            try:
                async with asyncio.timeout(_SESSION_SECONDS):
                    await process.stdout.readuntil(mark)
            except (asyncio.IncompleteReadError, TimeoutError) as error:
                self._check()
                said = CompletedCommand(
                    process.exit_status or 0, getattr(error, "partial", b""), bytes(process.tail)
                ).last_line
                raise CommandFailed(f"`{' '.join(command)[:200]}` could not be started; output: {said}") from error
            try:
                yield Process(process)
            except CommandFailed:
                self._check()  # the connection has ended, and the command with it
                raise

    @asynccontextmanager
    async def start_python(self, python: str, source: str) -> AsyncIterator[Process]:
        async with self.start_process([python, *ISOLATED, "-c", READ_SOURCE]) as process:
            with suppress(BrokenPipeError):
                process.stdin.write(with_source(source))
            yield process

    async def upload(
        self, source: Path | bytes, target: str, *, on_progress: ProgressCallback | None = None, resume: bool = True
    ) -> None:
        async with self._translated(), self._slots.take():
            async with self._sftp() as sftp:
                try:
                    await uploads.send(sftp, source, target, resume=resume, on_progress=on_progress)
                except asyncssh.SFTPError as error:
                    self._check()
                    free = await self._room(sftp, target)
                    raise uploads.failure(target, error.code, error.reason, free=free) from error

    async def forward(self, remote_socket: str, local_socket: str) -> None:
        try:
            async with self._translated(), asyncio.timeout(_SESSION_SECONDS):
                await self._ssh.forward_remote_path(remote_socket, local_socket)
        except asyncssh.ChannelListenError as error:
            raise ForwardingRefused(
                "its SSH server does not forward sockets (AllowStreamLocalForwarding or DisableForwarding), or "
                f"{remote_socket} cannot be made there"
            ) from error
        except TimeoutError as error:
            raise ForwardingRefused(f"its SSH server did not answer within {_SESSION_SECONDS:g} s") from error

    async def until_ended(self) -> str:
        await self._client.ended.wait()
        return self._client.why

    @asynccontextmanager
    async def _session(self, line: str, *, is_lasting: bool = False) -> AsyncIterator[Any]:
        async with self._translated(), nullcontext() if is_lasting else self._slots.take():
            _, process = await self._with_room(
                lambda: self._ssh.create_session(_TailedProcess, line, encoding=None, request_pty=False),
                has_slot=not is_lasting,
            )
            try:
                yield process
            finally:
                process.close()

    async def _with_room(self, open_one: Callable[[], Awaitable[Any]], *, has_slot: bool = True) -> Any:
        for pause in (*_LAST_SESSION_PAUSES_SECONDS, None):
            try:
                return await open_one()
            except asyncssh.ChannelOpenError as error:
                self._check()
                if has_slot and await self._slots.give_way():
                    continue
                if pause is None:
                    raise SessionRefused(
                        f"its SSH server opens no more sessions ({error.reason}); see MaxSessions"
                    ) from error
                await asyncio.sleep(pause)  # it may still be counting one that has just ended

    @asynccontextmanager
    async def _sftp(self) -> AsyncIterator[Any]:
        try:
            async with asyncio.timeout(_SESSION_SECONDS):
                sftp = await self._with_room(self._ssh.start_sftp_client)
        except (asyncssh.SFTPError, CommandFailed, TimeoutError) as error:
            self._check()
            raise NotWritable(
                f"SFTP does not work there ({str(error) or 'no answer'}); it needs `Subsystem sftp` in sshd_config "
                "and a login shell that prints nothing"
            ) from error
        async with sftp:
            yield sftp

    async def _room(self, sftp: Any, target: str) -> uploads.Room:
        try:
            return await uploads.room(sftp, target)
        except asyncssh.SFTPError:
            return uploads.Room()  # the server does not say

    def _check(self) -> None:
        if self._client.ended.is_set() or self._ssh.is_closed():
            raise ConnectionEnded(self._client.why)

    @asynccontextmanager
    async def _translated(self) -> AsyncIterator[None]:
        self._check()
        try:
            yield
        except (asyncssh.DisconnectError, asyncssh.ChannelOpenError, BrokenPipeError, ConnectionError) as error:
            self._check()
            if isinstance(error, BrokenPipeError):
                raise CommandFailed("the command ended before it had read its input") from error
            raise ConnectionEnded(str(error) or type(error).__name__) from error


async def _converse(process: Any, input: bytes) -> bytes:
    try:
        with suppress(BrokenPipeError):  # it may have ended already, and never wanted to know
            process.stdin.write(input)
            process.stdin.write_eof()
        stdout: bytes = await process.stdout.read()
        await process.wait_closed()
    except BaseException:
        with suppress(OSError):
            process.terminate()  # sshd counts it among the sessions as long as it lives
        raise
    return stdout


class _TailedProcess(asyncssh.SSHClientProcess):  # type: ignore[misc]
    """Keeps the end of stderr only, so that it need not be read."""

    def __init__(self) -> None:
        super().__init__()
        self.tail = b""

    def data_received(self, data: bytes, datatype: int | None) -> None:
        if datatype == _STDERR:
            self.tail = (self.tail + data)[-TAIL_BYTES:]
        else:
            super().data_received(data, datatype)


@asynccontextmanager
async def open_connection(
    machine: MachineSettings,
    login: Login,
    *,
    host_keys: HostKeys,
    keep_alive_seconds: float = 15.0,
    reach_seconds: float = 30.0,
    timeout_seconds: float = 30.0,
    trace: RouteTrace | None = None,
) -> AsyncIterator[Connection]:
    """Connect to a machine and log in; closes the connection at the end.

    Raises Unreachable, HostKeyRefused, LoginRefused, KeyUnusable.

    :param keep_alive_seconds: a silent connection is tested so often, and ends after three tests without an answer.
    :param reach_seconds: how long the port of each server on the way may take to answer.
    :param timeout_seconds: how long each server on the way may take to accept the login, that included.
    :param trace: records which steps were passed, and the error.
    """
    limits = Limits(keep_alive_seconds, reach_seconds, timeout_seconds)
    async with AsyncExitStack() as stack:
        route = Route(stack, machine, login, host_keys=host_keys, limits=limits)
        ssh, client = await route.follow(trace or RouteTrace(machine.host))
        yield Connection(ssh, client, peer=route.peer)
