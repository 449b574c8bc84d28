"""The suite of training services, where each job's keeper is the command `pod` and reaches its manager over TLS."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from contract.test_job_keeper_service import KEY, JobKeeperHarness
from fakes.keeper_listeners import listening_over_tls
from fakes.process_platform import ProcessPlatform

from proctor.manager.process.sockets import listen_for_keepers
from proctor.manager.settings import Home, ListenAddress
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.testing import TrainingServiceContract

pytestmark = pytest.mark.slow

HOST = "127.0.0.1"


class PodHarness(JobKeeperHarness):
    def __init__(self, directory: Path, **settings: Any) -> None:
        super().__init__(directory, **settings)
        self.home = Home(directory / "home")
        self.home.prepare()
        self.platform = ProcessPlatform(directory / "pods", self.home.endpoint_pointer)
        self._port = 0

    async def open(self) -> None:
        """Open a manager's end, always on the same port with the same certificate."""
        self.pool = NodePool()
        self.hub = KeeperHub(self.pool, key=KEY, heartbeat_seconds=0.5, reattach_patience_seconds=30.0)
        self.service = self.make_service()
        listener = listen_for_keepers(self.home, ListenAddress(HOST, self._port))
        self._port = listener.endpoint.port
        await self._open.enter_async_context(listening_over_tls(self.hub, listener))


@pytest.fixture
async def harness(tmp_path: Path, anyio_backend: str) -> AsyncIterator[PodHarness]:
    made = PodHarness(tmp_path)
    await made.open()
    await made.reattached()
    try:
        yield made
    finally:
        await made.close()
        await asyncio.to_thread(made.platform.close)


class TestPods(TrainingServiceContract):
    """The suite, on the fixture above."""
