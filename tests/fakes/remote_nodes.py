"""Machines for the remote service without SSH and without processes: keepers that speak with a hub in this process and
answer questions about files from real folders; a provider whose machines are these folders."""

import asyncio
import json
import shutil
import tarfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from proctor.training_services.errors import ServiceUnavailable, TrainingServiceError, UnknownNode
from proctor.training_services.files.code import CodeArchive
from proctor.training_services.files.paths import ExperimentPaths
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.providers import FileCollection
from proctor.training_services.remote.files.collection import collect_and_remove
from proctor.trial_keeper.files.server import FileAnswers, ReadablePaths
from proctor.trial_keeper.jobs.launching import absolute_launch
from proctor.trial_keeper.protocol import (
    COMMAND_TYPES,
    Cancel,
    CommandPoll,
    Device,
    End,
    EndReason,
    Exit,
    FileAnswer,
    JobReport,
    Launch,
    Registration,
    ReportHeader,
    Start,
    from_json,
)

Progress = Callable[[int, int], None]


class FakeKeeper:
    """One node's keeper. `serve` answers questions about files; jobs do what the test says."""

    def __init__(self, hub: KeeperHub, node_id: str, home: Path) -> None:
        self.hub = hub
        self.node_id = node_id
        self.directory = home / "nodes" / node_id
        self.directory.mkdir(parents=True, exist_ok=True)
        self.launches: dict[str, Launch] = {}
        self.cancels: list[str] = []
        self.ended: set[str] = set()
        self.session = ""
        self._news = asyncio.Condition()
        self._answers = FileAnswers(str(self.directory), self._places, lambda asked: "")

    async def serve(self, *jobs: JobReport, devices: list[Device] | None = None) -> None:
        """Register and take commands until canceled."""
        registration = Registration(
            "k", 1, "boot", self.node_id, "1", "3.11", devices or [], list(jobs), commands=list(COMMAND_TYPES)
        )
        self.session = (await self.hub.register(self.node_id, registration)).session
        cursor = 0
        async with asyncio.TaskGroup() as group:
            group.create_task(self._answer_files())
            group.create_task(self._answer(self._answers.next_verified))
            while True:
                batch = await self.hub.poll(self.node_id, CommandPoll(self.session, cursor, 60.0))
                for command in batch.commands:
                    cursor = command.number
                    await self._take(from_json(COMMAND_TYPES[command.type], command.order))

    async def launched(self, job_id: str) -> Launch:
        """Wait for a launch."""
        await self.until(lambda: job_id in self.launches)
        return self.launches[job_id]

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a command."""
        async with asyncio.timeout(60), self._news:
            await self._news.wait_for(condition)

    async def start(self, job_id: str) -> None:
        """The job runs."""
        token = self.launches[job_id].token
        await self.hub.report(self.node_id, ReportHeader(self.session, starts=[Start(job_id, token, 7, 10.0)]), b"")

    async def end(self, job_id: str, reason: EndReason = EndReason.EXITED_OK) -> None:
        """The job is over."""
        self.ended.add(job_id)
        end = End(job_id, self.launches[job_id].token, Exit(reason, 0, None, 10.0, 20.0))
        await self.hub.report(self.node_id, ReportHeader(self.session, ends=[end]), b"")

    def path(self, launch: Launch) -> Path:
        """A job's directory."""
        return Path(absolute_launch(launch, str(self.directory)).directory)

    async def _take(self, command: Any) -> None:
        match command:
            case Launch():
                self.launches[command.job_id] = command
                self.path(command).mkdir(parents=True, exist_ok=True)
            case Cancel():
                self.cancels.append(command.job_id)
                if command.job_id in self.launches and command.job_id not in self.ended:
                    await self.end(command.job_id, EndReason.CANCELED)
            case _:
                self._answers.take(command)
        async with self._news:
            self._news.notify_all()

    async def _answer_files(self) -> None:
        await self._answer(self._answers.next)

    async def _answer(self, wait_for_next: Callable[[str], Awaitable[bytes]]) -> None:
        while True:
            body = await wait_for_next(self.session)
            head, _, data = body.partition(b"\n")
            self.hub.answer(self.node_id, from_json(FileAnswer, json.loads(head)), data)

    def _places(self) -> ReadablePaths:
        running = [job_id for job_id in self.launches if job_id not in self.ended]
        return ReadablePaths(
            known=[str(self.path(launch)) for launch in self.launches.values()],
            busy=[(job_id, str(self.path(self.launches[job_id]))) for job_id in running],
        )


@dataclass
class FakeMachine:
    """Code arrives when `gate` is open; `failures` are raised first."""

    keeper: FakeKeeper
    codes: set[str] = field(default_factory=set)
    failures: list[Exception] = field(default_factory=list)
    brought: list[str] = field(default_factory=list)
    gate: asyncio.Event = field(default_factory=asyncio.Event)
    progress: Progress | None = None

    def __post_init__(self) -> None:
        self.gate.set()

    async def ensure_code(self, archive: CodeArchive, on_progress: Progress | None = None) -> None:
        self.brought.append(archive.name)
        await self._bring(on_progress)
        with tarfile.open(archive.path) as packed:
            packed.extractall(self.keeper.directory / "code" / archive.name, filter="data")
        self.codes.add(archive.name)

    def forget_copies(self) -> None:
        self.codes.clear()

    async def ensure_folder_copy(self, folder: Path, target: str, on_progress: Progress | None = None) -> None:
        self.brought.append(target)
        await self._bring(on_progress)
        shutil.copytree(folder, self.keeper.directory / target)

    async def _bring(self, on_progress: Progress | None) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.progress = on_progress
        await self.gate.wait()


class FakeProvider:
    """Machines by the host of their configuration's entries."""

    def __init__(self, hub: KeeperHub, pool: NodePool) -> None:
        self.hub = hub
        self.pool = pool
        self.machines: dict[str, FakeMachine] = {}
        self.claims: list[str] = []
        self.secrets_files: list[Path | None] = []
        self.uncollected: dict[str, str] = {}  # which nodes still had files when they were released last, and why

    def add(self, node_id: str, home: Path) -> FakeKeeper:
        """Make a machine; it is known to pool and hub once it is claimed."""
        keeper = FakeKeeper(self.hub, node_id, home)
        self.machines[node_id] = FakeMachine(keeper)
        return keeper

    def node_ids_of(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(entry["host"] for entry in settings["machine_list"])

    def claim(
        self,
        experiment_id: str,
        settings: Mapping[str, Any],
        secrets: Mapping[str, str],
        *,
        secrets_file: Path | None = None,
    ) -> tuple[str, ...]:
        self.claims.append(experiment_id)
        self.secrets_files.append(secrets_file)
        if secrets_file is not None:
            self.directory = secrets_file.parent
        for node_id in self.node_ids_of(settings):
            self.pool.add(node_id, "remote", reason="it is being connected")
            self.hub.add_node(node_id, "secret", lost_after_seconds=600)
        return self.node_ids_of(settings)

    async def release(self, experiment_id: str) -> None:
        self.uncollected = {}
        if experiment_id in self.claims:
            self.claims.remove(experiment_id)
            for node_id in self.machines:
                paths = ExperimentPaths(experiment_id, self.directory)
                try:
                    await collect_and_remove(self.hub, node_id, paths, FileCollection())
                except TrainingServiceError as error:
                    self.uncollected[node_id] = str(error)

    def machine(self, node_id: str) -> FakeMachine:
        if node_id not in self.machines:
            raise UnknownNode(f"there is no remote node {node_id}")
        if self.pool.absence(node_id):
            raise ServiceUnavailable(self.pool.absence(node_id))
        return self.machines[node_id]

    def keeper_folder(self, node_id: str) -> str:
        return node_id
