"""The connections of a keeper whose pod cannot reach the manager. The manager opens streams into the pod through the
API server (`pods/exec`), each of which carries one connection.

In the pod they end at the keeper's command `relay`, the same as over SSH (`trial_keeper/relay.py`).
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from proctor.training_services.errors import ServiceUnavailable
from proctor.training_services.kubernetes.client import Cluster, ExecStream
from proctor.training_services.kubernetes.manifests import SOCKET, relay_command
from proctor.training_services.kubernetes.pod_template import TRIAL_CONTAINER
from proctor.trial_keeper.linux.tasks import TaskGroup

__all__ = ["PodRelay"]

_CONNECTIONS = 3  # a keeper has three: commands, reports, answers
_START_SECONDS = 30.0
_READ_BYTES = 256 * 1024


@dataclass(frozen=True)
class PodRelay:
    """Carries connections from `SOCKET` in a pod to the manager's Unix socket.

    :param python: the image's Python.
    :param manager: the path of the manager's socket.
    """

    cluster: Cluster
    namespace: str
    pod: str
    python: str
    manager: str

    async def run(self) -> None:
        """Carry connections until the relay ends; that is always an error, ServiceUnavailable with a clause."""
        async with self._start(carry=False) as listening, TaskGroup() as group:
            for number in range(_CONNECTIONS):
                group.start(self._carry_connections(), f"relay of {self.pod}: connection {number}")
            group.start(listening.read(), f"relay of {self.pod}: its end", ends_group=True)
        raise ServiceUnavailable(f"the relay in pod {self.pod} has ended{_said(listening)}")

    @asynccontextmanager
    async def _start(self, *, carry: bool) -> AsyncIterator[ExecStream]:
        """Start a relay in the pod; its stream is open once it has confirmed the request."""
        async with self.cluster.exec(self.namespace, self.pod, TRIAL_CONTAINER, relay_command(self.python)) as stream:
            try:
                async with asyncio.timeout(_START_SECONDS):
                    await stream.write(json.dumps({"socket": SOCKET, "carry": carry, "whole": True}).encode() + b"\n")
                    answer = await stream.read_line()
            except TimeoutError:
                raise ServiceUnavailable(f"the relay in pod {self.pod} does not answer") from None
            if answer != json.dumps({"socket": SOCKET}).encode():
                why = answer.decode(errors="replace") or _said(stream).removeprefix(": ") or "it ended at once"
                raise ServiceUnavailable(f"the relay in pod {self.pod} cannot be started: {why}")
            yield stream

    async def _carry_connections(self) -> None:
        """Carry one connection after another, each over a stream that was opened in advance."""
        while True:
            async with self._start(carry=True) as stream:
                if await stream.read_line() != b'{"connection": true}':
                    raise ServiceUnavailable(f"the relay in pod {self.pod} has ended{_said(stream)}")
                await self._carry(stream)

    async def _carry(self, stream: ExecStream) -> None:
        """Carry a connection until either end closes it."""
        with suppress(OSError):  # the manager does not listen, or an end is gone; the keeper reconnects
            reader, writer = await asyncio.open_unix_connection(self.manager)
            try:
                async with TaskGroup() as group:
                    group.start(_to_pod(reader, stream), "relay: to the keeper", ends_group=True)
                    group.start(_to_manager(stream, writer), "relay: to the manager", ends_group=True)
            finally:
                writer.close()


async def _to_pod(reader: asyncio.StreamReader, stream: ExecStream) -> None:
    while data := await reader.read(_READ_BYTES):
        await stream.write(data)


async def _to_manager(stream: ExecStream, writer: asyncio.StreamWriter) -> None:
    while data := await stream.read():
        writer.write(data)
        await writer.drain()


def _said(stream: ExecStream) -> str:
    said = stream.stderr_tail.decode(errors="replace").strip() or stream.problem
    return f": {said}" if said else ""
