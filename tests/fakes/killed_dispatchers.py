"""Dispatchers in the manager's own process of which one can be killed at any one of their inputs."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from proctor.manager.config.experiment import ExperimentConfig
from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.client.client import Opener
from proctor.manager.dispatcher.client.in_process import InProcessChannel
from proctor.manager.store.rows import ExperimentRow


class KilledChannel(InProcessChannel):
    """A conversation with a dispatcher. `reports` is what it was sent of metrics."""

    def __init__(self, dispatchers: "KilledDispatchers") -> None:
        super().__init__()
        self.reports: list[protocol.ReportedMetric] = []
        self._dispatchers = dispatchers

    async def send(self, data: bytes) -> None:
        for line in data.splitlines(keepends=True):
            self._dispatchers.inputs += 1
            if self._dispatchers.inputs == self._dispatchers.killed_at:
                self._session.stop_asking()
                self.close()
                raise ConnectionError("the dispatcher was killed")
            message = protocol.decode(line)
            if isinstance(message, protocol.ReportMetrics):
                self.reports += message.rows
            await super().send(line)


class KilledDispatchers:
    """Every dispatcher of a simulation.

    :param killed_at: the one that gets this input, counted from 1 over all of them, dies of it.
    """

    def __init__(self, killed_at: int | None = None) -> None:
        self.killed_at = killed_at
        self.inputs = 0
        self.channels: list[KilledChannel] = []

    def __call__(self, row: ExperimentRow, config: ExperimentConfig) -> Opener:
        """How to start one."""

        @asynccontextmanager
        async def open_channel() -> AsyncIterator[KilledChannel]:
            channel = KilledChannel(self)
            self.channels.append(channel)
            try:
                yield channel
            finally:
                channel.close()

        return open_channel
