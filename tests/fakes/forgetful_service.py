"""A training service that cannot find the jobs of an earlier instance again, for the engine under virtual time."""

from typing import Any

from fakes.small_experiments import Scene

from proctor.training_services.base import (
    MetricListener,
    StatusListener,
    SupportsEvents,
    TrainingService,
    TrialJobDetail,
    TrialJobForm,
)
from proctor.training_services.in_memory.service import InMemoryPlatform, InMemoryTrainingService
from proctor.training_services.registry import ServiceContext


class ForgetfulService(TrainingService, SupportsEvents):
    """An in-memory service without `SupportsReattach`: what an earlier instance has started runs on, unseen.

    `canceled` holds the ids of the jobs that it was asked to cancel; with `is_deaf` it does nothing about them.
    """

    def __init__(self, inner: InMemoryTrainingService) -> None:
        self._inner = inner
        self.canceled: list[str] = []
        self.is_deaf = False

    @property
    def is_multi_phase_job_supported(self) -> bool:
        return False

    async def list_trial_jobs(self) -> list[TrialJobDetail]:
        return await self._inner.list_trial_jobs()

    async def get_trial_job(self, job_id: str) -> TrialJobDetail:
        return await self._inner.get_trial_job(job_id)

    def add_trial_job_metric_listener(self, listener: MetricListener) -> None:
        self._inner.add_trial_job_metric_listener(listener)

    def remove_trial_job_metric_listener(self, listener: MetricListener) -> None:
        self._inner.remove_trial_job_metric_listener(listener)

    def add_status_listener(self, listener: StatusListener) -> None:
        self._inner.add_status_listener(listener)

    def remove_status_listener(self, listener: StatusListener) -> None:
        self._inner.remove_status_listener(listener)

    async def submit_trial_job(self, form: TrialJobForm) -> TrialJobDetail:
        return await self._inner.submit_trial_job(form)

    async def update_trial_job(self, job_id: str, form: TrialJobForm) -> TrialJobDetail:
        return await self._inner.update_trial_job(job_id, form)

    async def cancel_trial_job(self, job_id: str, is_early_stopped: bool = False) -> None:
        self.canceled.append(job_id)
        if not self.is_deaf:
            await self._inner.cancel_trial_job(job_id, is_early_stopped)

    async def set_cluster_metadata(self, key: str, value: Any) -> None:
        await self._inner.set_cluster_metadata(key, value)

    async def get_cluster_metadata(self, key: str) -> Any:
        return await self._inner.get_cluster_metadata(key)

    async def clean_up(self) -> None:
        await self._inner.clean_up()

    async def run(self) -> None:
        await self._inner.run()


class ForgetfulScene(Scene):
    """Every manager gets a `ForgetfulService` of its own, on a platform that knows nothing of earlier jobs."""

    services: list[ForgetfulService]

    def _create_service(self, platform: str, context: ServiceContext) -> TrainingService:
        if self.broken is not None:
            raise self.broken
        memory = InMemoryPlatform(self.clock.now)
        service = ForgetfulService(InMemoryTrainingService(self._play, platform=memory, now=self.clock.now))
        self.services = [*getattr(self, "services", []), service]
        return service
