"""What the API server asks of a node: the logs of a container, and to run a command in one."""

import asyncio
import json
import os
import ssl
from contextlib import suppress
from signal import SIGKILL
from typing import TYPE_CHECKING

from aiohttp import WSMsgType, web
from fakes.kubernetes.container import Container

if TYPE_CHECKING:
    from fakes.kubernetes.node_agent import NodeAgent

TLS_END_SECONDS = 0.05
"""Connections may take so long to close."""
_END_SECONDS = 5.0
_CHUNK_BYTES = 32 * 1024
_STDIN, _STDOUT, _STDERR, _ERROR, _RESIZE = range(5)
_CLOSE = 255
_PROTOCOLS = ("v5.channel.k8s.io", "v4.channel.k8s.io")


class KubeletServer:
    """The server of one node, at the same port each time."""

    def __init__(self, agent: "NodeAgent", tls: ssl.SSLContext) -> None:
        self._agent = agent
        self._tls = tls
        self._runner: web.AppRunner | None = None
        self._server: asyncio.Server
        self._commands: set[_Exec] = set()
        self.port = 0

    async def start(self) -> None:
        """Take requests."""
        if self._runner is not None:
            return
        application = web.Application()
        application.router.add_get("/containerLogs/{namespace}/{pod}/{container}", self._logs)
        application.router.add_route("*", "/exec/{namespace}/{pod}/{container}", self._exec)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        assert self._runner.server is not None
        self._server = await asyncio.get_running_loop().create_server(
            self._runner.server, "127.0.0.1", self.port, ssl=self._tls, ssl_shutdown_timeout=TLS_END_SECONDS
        )
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Refuse connections, and end those that there are."""
        if self._runner is not None:
            self._server.close()
            for command in list(self._commands):
                await command.end()
            await self._runner.cleanup()
            self._runner = None

    def _find(self, request: web.Request) -> Container:
        """The container that a request names."""
        names = request.match_info
        runner = self._agent.find(names["namespace"], names["pod"])
        if runner is None:
            raise web.HTTPNotFound(text=f'pod "{names["pod"]}" not found')
        container = runner.containers.get(names["container"])
        if container is None or not container.log.exists():
            said = f'container "{names["container"]}" in pod "{names["pod"]}" is not available'
            raise web.HTTPBadRequest(text=said)
        return container

    async def _logs(self, request: web.Request) -> web.StreamResponse:
        container = self._find(request)
        lines = container.log.read_bytes().splitlines(keepends=True)[-int(request.query.get("tailLines", "0")) :]
        limit = int(request.query.get("limitBytes", str(1 << 62)))
        return web.Response(body=b"".join(lines)[:limit], content_type="text/plain")

    async def _exec(self, request: web.Request) -> web.StreamResponse:
        container = self._find(request)
        if request.headers.get("Upgrade", "").lower() != "websocket":
            raise web.HTTPBadRequest(text="this node speaks WebSocket only")
        socket = web.WebSocketResponse(protocols=_PROTOCOLS, max_msg_size=0)
        await socket.prepare(request)
        command = _Exec(socket, container, request)
        self._commands.add(command)
        try:
            await command.run()
        finally:
            self._commands.discard(command)
        await socket.close()
        return socket


class _Exec:
    """One command that runs in a container for a client."""

    def __init__(self, socket: web.WebSocketResponse, container: Container, request: web.Request) -> None:
        self._socket = socket
        self._words = container.exec_words(request.query.getall("command", []))
        self._has_input = request.query.get("input") in ("1", "true")
        self._process: asyncio.subprocess.Process
        self._has_ended = asyncio.Event()

    async def end(self) -> None:
        """End it at once."""
        _kill(self._process)
        await self._has_ended.wait()

    async def run(self) -> None:
        """Run it to its end. Once the client is gone, its standard input ends, and it has some time to do so, too."""
        pipe = asyncio.subprocess.PIPE
        words = ["setpriv", "--pdeathsig", "KILL", "--", *self._words]
        process = self._process = await asyncio.create_subprocess_exec(
            *words, stdin=pipe, stdout=pipe, stderr=pipe, cwd="/", start_new_session=True
        )
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        if not self._has_input:
            process.stdin.close()
        try:
            async with asyncio.TaskGroup() as group:
                taking = group.create_task(self._take_input(process.stdin), name="input of exec")
                sending = [
                    group.create_task(self._send(process.stdout, _STDOUT), name="output of exec"),
                    group.create_task(self._send(process.stderr, _STDERR), name="errors of exec"),
                ]
                await asyncio.gather(*sending)
                code = await process.wait()
                with suppress(ConnectionError):
                    await self._socket.send_bytes(bytes([_ERROR]) + json.dumps(_status(code)).encode())
                taking.cancel()
        finally:
            _kill(process)
            await process.wait()
            self._has_ended.set()

    async def _send(self, stream: asyncio.StreamReader, channel: int) -> None:
        while data := await stream.read(_CHUNK_BYTES):
            with suppress(ConnectionError):
                await self._socket.send_bytes(bytes([channel]) + data)

    async def _take_input(self, stdin: asyncio.StreamWriter) -> None:
        """Pass on what the client sends, until it is gone."""
        async for message in self._socket:
            if message.type is not WSMsgType.BINARY or not message.data:
                continue
            with suppress(ConnectionError):
                if message.data[0] == _STDIN:
                    stdin.write(message.data[1:])
                    await stdin.drain()
                elif message.data[0] == _CLOSE:
                    stdin.close()
        stdin.close()
        await asyncio.sleep(_END_SECONDS)
        _kill(self._process)


def _kill(process: asyncio.subprocess.Process) -> None:
    """End a process; its own method may take the exit code away from the loop."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.kill(process.pid, SIGKILL)


def _status(code: int) -> dict[str, object]:
    """How a command's end is reported."""
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    causes = [{"reason": "ExitCode", "message": str(code)}]
    said = f"command terminated with non-zero exit code: exit status {code}"
    details = {"causes": causes}
    return {"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "message": said, "details": details}
