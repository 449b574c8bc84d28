"""The base of training services whose jobs run on nodes of the pool, each node with a keeper; the platforms differ in
how a keeper gets to its node, in what can be launched there, and in how files are read."""

from collections.abc import Callable
from typing import Any

from proctor.training_services.base import EndReason, SupportsNodes, TrialJobForm, TrialJobStatus
from proctor.training_services.errors import KeeperUnavailable, ServiceUnavailable, SubmissionRefused
from proctor.training_services.hub_service import HubTrainingService, Listeners
from proctor.training_services.registry import ServiceContext

__all__ = ["KeeperTrainingService", "Listeners"]


class KeeperTrainingService(HubTrainingService, SupportsNodes):
    """One experiment's jobs on nodes with keepers. Those that need nothing on their node first are sent at once."""

    def __init__(self, context: ServiceContext, **options: Any) -> None:
        super().__init__(context, **options)
        self._pool = context.pool
        self._obstacles: dict[str, str] = {}
        self._stop_watching: Callable[[], None] = lambda: None

    def checkpoint_of(self, form: TrialJobForm) -> str | None:
        """The path of the checkpoint from which a job that was prepared continues."""
        start = self._starts.get(form.job_id)
        return None if start is None or start.checkpoint is None else start.checkpoint.path

    # ---- jobs and their nodes

    def keeper_of(self, form: TrialJobForm) -> str:
        return self._node_of(form)

    def place_of(self, form: TrialJobForm) -> str | None:
        return self._node_of(form)

    def where(self, form: TrialJobForm) -> str:
        return f"node {self._node_of(form)}"

    async def wait_changed(self, form: TrialJobForm) -> None:
        await self._pool.wait_changed()

    async def wait_connected(self, form: TrialJobForm) -> None:
        await self._pool.wait_connected(self._node_of(form))

    def begin(self, form: TrialJobForm) -> None:
        if self.must_prepare(form):
            self._await_launch(form, arrived=False)
        else:
            self._send_new(form)

    def resume(self, form: TrialJobForm) -> None:
        if self.must_prepare(form):
            self._await_launch(form, arrived=True)
        else:
            self._hub.expect(form.job_id, form.token, form.experiment_id)
            try:
                self._hub.resume_launch(self._node_of(form), self.launch(form))
            except SubmissionRefused as error:
                self._end_unsent(form, EndReason.UNPLACEABLE, str(error))

    def obstacle(self, form: TrialJobForm) -> str:
        node_id = self._node_of(form)
        self._obstacles[node_id] = self._pool.absence(node_id)
        return self._obstacles[node_id]

    def begin_serving(self) -> None:
        self._stop_watching = self._pool.on_change(self._report_obstacles)

    def end_serving(self) -> None:
        self._stop_watching()

    def _send_new(self, form: TrialJobForm) -> None:
        self._hub.expect(form.job_id, form.token, form.experiment_id)
        try:
            self._hub.send(self._node_of(form), self.launch(form))
        except KeeperUnavailable as error:
            self._hub.forget(form.job_id)
            raise ServiceUnavailable(str(error)) from error
        except SubmissionRefused:
            self._hub.forget(form.job_id)
            raise

    def _report_obstacles(self) -> None:
        """Report why jobs that do not run yet wait, where that has changed."""
        for node_id in self.node_ids():
            obstacle = self._pool.absence(node_id)
            if obstacle != self._obstacles.get(node_id, ""):
                self._obstacles[node_id] = obstacle
                if obstacle:
                    for job in self._jobs.values():
                        if job.status is TrialJobStatus.SUBMITTED and self._node_of(job.form) == node_id:
                            self.report_waiting(job.form, obstacle)

    def _node_of(self, form: TrialJobForm) -> str:
        return form.placement.node_id if form.placement is not None else self.node_ids()[0]
