"""The in-memory training service keeps the contract."""

from collections.abc import Iterator

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

    def __init__(self) -> None:
        self.platform = InMemoryPlatform()
        self.is_blocked = False
        self.service: TrainingService = self._make()

    def form(self, behavior: Behavior, name: str = "first") -> TrialJobForm:
        return make_form(behavior, name)

    def impossible_form(self) -> TrialJobForm:
        return make_form("fly to the moon", "first")

    async def restart(self) -> TrainingService:
        return self._make()

    async def block(self) -> TrainingService:
        self.is_blocked = True
        return self.service

    async def unblock(self) -> None:
        self.is_blocked = False

    async def processes(self) -> list[str]:
        return [job.id for job in self.platform.jobs.values() if not job.is_over]

    async def leftovers(self) -> list[str]:
        return [*self.platform.jobs, *self.platform.waiting]

    def _make(self) -> TrainingService:
        return InMemoryTrainingService(self._play, platform=self.platform, retry_seconds=0.001)

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


def make_form(command: str, name: str) -> TrialJobForm:
    return TrialJobForm(
        job_id=f"{name}.1",
        token=f"token of {name}",
        experiment_id="Ab3dE5f7",
        trial_id=name,
        sequence_id=0,
        number=1,
        parameter_id=0,
        parameter_file='{"parameters":{}}',
        command=command,
        code_directory="/",
        directory="/",
    )


class TestInMemoryTrainingService(TrainingServiceContract):
    @pytest.fixture
    def harness(self) -> ServiceHarness:
        return MemoryHarness()
