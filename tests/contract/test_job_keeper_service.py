"""A service with a keeper per job keeps the contract, on a platform whose pods are processes, with real keepers behind
the real routes.

tests/unit/training_services/test_job_keeper_service.py has what becomes of jobs whose keepers, platform or manager
fail; here are the examples of it with real keepers."""

import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from fakes.keeper_listeners import listening
from fakes.process_platform import ProcessPlatform, ProcessService

from proctor.training_services.base import EndReason, TrialJobForm, TrialJobStatus
from proctor.training_services.errors import ServiceUnavailable
from proctor.training_services.job_keepers import lifecycle
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.registry import ServiceContext
from proctor.training_services.testing import (
    Behavior,
    Recorder,
    ServiceHarness,
    TrainingServiceContract,
    serving,
)

pytestmark = pytest.mark.anyio

KEY = b"k" * 32
NO_GPUS = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu"


class JobKeeperHarness(ServiceHarness):
    metadata = ("pending_timeout_seconds", 600.0)
    shows_milestones = True

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.code_directory = directory / "code"
        self.code_directory.mkdir()
        self.trials_directory.mkdir(parents=True)
        self.settings = settings
        self.pointer = directory / "socket"
        self.platform = ProcessPlatform(directory / "pods", self.pointer, linger_seconds=3.0)
        self._open = AsyncExitStack()
        self._sockets = 0

    @property
    def trials_directory(self) -> Path:
        return self.directory / "home" / "experiments" / self.experiment_id / "trials"

    async def open(self) -> None:
        """Open a manager's end whose hub and service know nothing; the keepers find it by the pointer."""
        self.pool = NodePool()
        self.hub = KeeperHub(self.pool, key=KEY, heartbeat_seconds=0.5, reattach_patience_seconds=30.0)
        self.service: ProcessService = self.make_service()
        await self.listen()

    async def listen(self) -> None:
        """Let keepers reach the hub."""
        self._sockets += 1
        socket = self.directory / f"{self._sockets}.sock"
        await self._open.enter_async_context(listening(self.hub, socket))
        draft = self.directory / "pointer"
        draft.write_text(str(socket))
        draft.rename(self.pointer)

    def context(self) -> ServiceContext:
        """What the service is made from."""
        return ServiceContext(self.experiment_id, self.trials_directory.parent, self.pool, self.hub, self.settings)

    def make_service(self) -> ProcessService:
        """The service on this platform."""
        return ProcessService(self.context(), self.platform)

    async def close(self) -> None:
        await self._open.aclose()

    async def reattached(self) -> None:
        await self.hub.mark_reattached()

    async def block(self) -> ProcessService:
        self.platform.hold(NO_GPUS)
        return self.service

    async def unblock(self) -> None:
        self.platform.unhold()

    def find_leftovers(self) -> list[str]:
        return [*map(str, self.platform.folder.glob("*.pod")), *self.find_processes()]


@pytest.fixture
async def harness(tmp_path: Path, anyio_backend: str) -> AsyncIterator[JobKeeperHarness]:
    async with JobKeeperHarness(tmp_path).opened() as harness:
        yield harness
    harness.platform.close()


class TestJobKeeperService(TrainingServiceContract):
    """The suite, on the fixture above."""


async def _running(harness: JobKeeperHarness, recorder: Recorder) -> TrialJobForm:
    """A job that runs and has reported."""
    form = harness.form(Behavior.HANG)
    await harness.service.submit_trial_job(form)
    await recorder.start_of(form.job_id)
    await recorder.until(lambda: bool(recorder.journals.get(form.job_id)))
    return form


@pytest.mark.slow
async def test_a_job_runs_on_a_machine_of_its_platform_and_its_keeper_is_no_node(harness: JobKeeperHarness) -> None:
    recorder = Recorder()
    recorder.listen(harness.service)
    async with serving(harness.service):
        form = await _running(harness, recorder)
        assert harness.pool.nodes() == ()
        started = next(change for change in recorder.of(form.job_id) if change.status is TrialJobStatus.RUNNING)
        assert started.node_id in {None, "worker-1"}  # as soon as the platform has said it
        await harness.service.cancel_trial_job(form.job_id)
        assert (await recorder.end_of(form.job_id)).node_id == "worker-1"
        assert await harness.leftovers() == []


async def test_a_job_whose_keeper_does_not_answer_is_stopped_by_its_platform(
    harness: JobKeeperHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "STOP_SECONDS", 0.1)
    recorder = Recorder()
    recorder.listen(harness.service)
    async with serving(harness.service):
        form = await _running(harness, recorder)
        pid = harness.platform.keeper_pid(form.job_id)
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        silent = "no report from its keeper for 1.5 s"
        await recorder.until(lambda: any(change.detail == silent for change in recorder.of(form.job_id)))
        with pytest.raises(ServiceUnavailable, match=silent):
            await harness.hub.list_files(harness.service.keeper_of(form), form.directory)
        await harness.service.cancel_trial_job(form.job_id)
        end = await recorder.end_of(form.job_id)
        assert await harness.leftovers() == []
    assert end.exit is not None
    assert end.exit.reason is EndReason.CANCELED
    assert end.detail.startswith("stopped by its platform, because no report from its keeper for ")
