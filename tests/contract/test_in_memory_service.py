"""The in-memory training service keeps the contract."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from proctor.training_services.base import EndReason, TrainingService, TrialJobForm
from proctor.training_services.errors import SubmissionRefused
from proctor.training_services.testing import (
    EXIT_CODE,
    FINAL_VALUE,
    VALUES,
    Behavior,
    Final,
    Hang,
    InMemoryPlatform,
    InMemoryTrainingService,
    ScriptedExit,
    ScriptedReport,
    ServiceHarness,
    Step,
    TrainingServiceContract,
    Wait,
)


class MemoryHarness(ServiceHarness):
    metadata = ("retry_seconds", 0.002)
    runs_commands = False
    code_directory = directory = Path("/")

    def __init__(self) -> None:
        self.platform = InMemoryPlatform()
        self.is_blocked = False

    async def open(self) -> None:
        self.service = InMemoryTrainingService(self._play, platform=self.platform, retry_seconds=0.001)

    def form(self, behavior: Behavior, name: str = "first") -> TrialJobForm:
        return self.form_of(behavior, name)

    def impossible_form(self) -> TrialJobForm:
        return self.form_of("fly to the moon")

    async def block(self) -> TrainingService:
        self.is_blocked = True
        return self.service

    async def unblock(self) -> None:
        self.is_blocked = False

    def find_processes(self) -> list[str]:
        return [job.id for job in self.platform.jobs.values() if not job.is_over]

    def find_leftovers(self) -> list[str]:
        return [*self.platform.jobs, *self.platform.waiting]

    def _play(self, form: TrialJobForm) -> Iterator[Step]:
        if form.command not in {Behavior.REPORT, Behavior.FAIL, Behavior.HANG}:
            raise SubmissionRefused(f"this platform knows no behavior {form.command!r}")
        while self.is_blocked:
            yield Wait(0.001, "waiting: the platform is blocked")
        match form.command:
            case Behavior.REPORT:
                for value in VALUES:
                    yield ScriptedReport(0.001, value)
                yield Final(0.001, FINAL_VALUE)
            case Behavior.FAIL:
                yield ScriptedExit(0.001, EndReason.EXITED_ERROR, code=EXIT_CODE)
            case Behavior.HANG:
                yield ScriptedReport(0.001, VALUES[0])
                yield Hang()


class TestInMemoryTrainingService(TrainingServiceContract):
    @pytest.fixture
    async def harness(self, anyio_backend: str) -> AsyncIterator[MemoryHarness]:
        async with MemoryHarness().opened() as harness:
            yield harness
