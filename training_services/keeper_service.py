"""The base of training services whose jobs run on nodes of the pool, each node with a keeper; the platforms differ in
how a keeper gets to its node, in what can be launched there, and in how files are read."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from proctor.sdk.failpoints import failpoint
from proctor.sdk.protocol import ENV_CHECKPOINT_STORAGE, is_url
from proctor.training_services.base import (
    CheckpointOffer,
    EndReason,
    JobStart,
    SupportsNodes,
    TrialJobForm,
    TrialJobStatus,
    describe_start,
)
from proctor.training_services.capacity import GpuRules
from proctor.training_services.errors import (
    KeeperUnavailable,
    PreparationFailed,
    ServiceUnavailable,
    SubmissionRefused,
    TrainingServiceError,
    UnknownTrialJob,
)
from proctor.training_services.hub_service import HubTrainingService, Listeners
from proctor.training_services.keepers.launches import write_launch
from proctor.training_services.registry import ServiceContext
from proctor.training_services.stored_checkpoints import await_verified
from proctor.trial_keeper.linux.backoff import growing_pause
from proctor.trial_keeper.protocol import Launch

__all__ = ["KeeperTrainingService", "Listeners", "reporting_wait"]

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
FIRST_STORAGE_PAUSE_SECONDS = 1.0
LONGEST_STORAGE_PAUSE_SECONDS = 60.0
STORAGE_ATTEMPTS = 12
NOTICED_SECONDS = 1.0
"""What keeps a job waiting for less is not reported."""


@contextmanager
def reporting_wait(notify: Callable[[str], None], clause: str) -> Iterator[None]:
    """Report what is waited for, if that takes long."""
    report = asyncio.get_running_loop().call_later(NOTICED_SECONDS, notify, clause)
    try:
        yield
    finally:
        report.cancel()


class KeeperTrainingService(HubTrainingService, SupportsNodes):
    """One experiment's jobs on nodes with keepers.

    A job that needs something on its node first (a checkpoint to continue from, the code) is launched by a task of its
    own, in `_launch`; all others are sent at once.
    """

    def __init__(self, context: ServiceContext, **options: Any) -> None:
        super().__init__(context, **options)
        self._pool = context.pool
        self._obstacles: dict[str, str] = {}
        self._stop_watching: Callable[[], None] = lambda: None
        self._waiting: dict[str, bool] = {}  # jobs that are not sent yet; True: perhaps sent before a restart
        self._launching: dict[str, asyncio.Task[None]] = {}
        self._storing: set[str] = set()  # nodes whose trials can store checkpoints under the experiment's URL

    # ---- what a platform may add

    def must_prepare(self, form: TrialJobForm) -> bool:
        """Whether a job needs something on its node before it is launched."""
        return bool(form.checkpoints) or ENV_CHECKPOINT_STORAGE in form.environment

    async def prepare(self, form: TrialJobForm) -> JobStart | None:
        """Have on its node what a job needs, however long that is disconnected. Returns where the job begins, if its
        form offers checkpoints. Raises SubmissionRefused, PreparationFailed."""
        passed_over: list[tuple[CheckpointOffer, str]] = []
        for offer in form.checkpoints:
            damage = await self._verify(form, offer)
            if not damage:
                return describe_start(form.trial_id, offer, passed_over)
            passed_over.append((offer, damage))
        return describe_start(form.trial_id, None, passed_over) if passed_over else None

    def checkpoint_of(self, form: TrialJobForm) -> str | None:
        """The path of the checkpoint from which a job that was prepared continues."""
        start = self._starts.get(form.job_id)
        return None if start is None or start.checkpoint is None else start.checkpoint.path

    # ---- jobs and their nodes

    def keeper_of(self, form: TrialJobForm) -> str:
        return self._node_of(form)

    def place_of(self, form: TrialJobForm) -> str | None:
        return self._node_of(form)

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
            self._hub.resume_launch(self._node_of(form), self.launch(form))

    def obstacle(self, form: TrialJobForm) -> str:
        node_id = self._node_of(form)
        self._obstacles[node_id] = self._pool.absence(node_id)
        return self._obstacles[node_id]

    def begin_serving(self) -> None:
        self._stop_watching = self._pool.on_change(self._report_obstacles)
        for job_id in self._waiting:
            self._start_launching(job_id)

    def end_serving(self) -> None:
        self._stop_watching()

    # ---- launching

    def _send_new(self, form: TrialJobForm) -> None:
        self._hub.expect(form.job_id, form.token, form.experiment_id)
        try:
            self._hub.send(self._node_of(form), self.launch(form))
        except KeeperUnavailable as error:
            self._hub.forget(form.job_id)
            raise ServiceUnavailable(str(error)) from error

    def _await_launch(self, form: TrialJobForm, *, arrived: bool) -> None:
        self._hub.expect(form.job_id, form.token, form.experiment_id, node_id=self._node_of(form))
        if arrived:  # before a stop is repeated: a job that its keeper may have does not end as one that was never sent
            self._hub.reattach(self._node_of(form), form.job_id)
        self._waiting[form.job_id] = arrived
        self._start_launching(form.job_id)

    def _start_launching(self, job_id: str) -> None:
        if self._group is not None:
            self._launching[job_id] = self._start(self._launch(job_id), f"launch of {job_id}")

    async def _launch(self, job_id: str) -> None:
        """Make a job's node ready and send the job there. A permanent failure ends the job."""
        await asyncio.sleep(0)  # a job that is just being submitted is listed first
        form = self._jobs[job_id].form
        try:
            if not (self._waiting[job_id] and await self._was_launched(form)):
                await self._prepare_and_send(form)
        except SubmissionRefused as error:
            self._end_unsent(form, EndReason.UNPLACEABLE, str(error))
        except UnknownTrialJob:
            log.info("job %s has ended before it was sent", job_id, extra={"action": "job.launch", "job_id": job_id})
        except PreparationFailed as error:
            self._end_unsent(form, error.reason, str(error))
        except Exception as error:
            log.exception("job %s cannot be launched", job_id, extra={"action": "job.launch", "job_id": job_id})
            self._end_unsent(form, EndReason.INFRASTRUCTURE, f"it cannot be launched: {error!r}; see the manager's log")
        finally:
            self._waiting.pop(job_id, None)
            self._launching.pop(job_id, None)

    async def _was_launched(self, form: TrialJobForm) -> bool:
        """Whether the job was sent before a restart of the manager; waits until its keeper is connected."""
        node_id = self._node_of(form)
        while (found := self._hub.reattach(node_id, form.job_id)) is None:
            await self._pool.wait_changed()
        return found

    async def _prepare_and_send(self, form: TrialJobForm) -> None:
        storage = form.environment.get(ENV_CHECKPOINT_STORAGE)
        if storage is not None and not is_url(storage):  # before its checkpoints are looked for
            await self._await_storage(form, storage, write_launch(form, platform="", owner="", rules=GpuRules()))
        start = await self.prepare(form)
        if storage is not None and is_url(storage) and self._node_of(form) not in self._storing:
            await self._await_storage(form, storage, self.launch(form))
            self._storing.add(self._node_of(form))
        if start is not None:  # before the first metric: it decides where the job's curve continues
            self._starts[form.job_id] = start
            await self.deliver_change(self.submitted(form, start=start))
        if (job := self._jobs.get(form.job_id)) is not None:
            failpoint("manager.launch.before")
            self._hub.send(self._node_of(form), self.launch(job.form))
            failpoint("manager.launch.after")

    async def _await_storage(self, form: TrialJobForm, storage: str, launch: Launch) -> None:
        """Wait until the trials on a job's node can store checkpoints where the experiment has them stored, so that
        none trains for hours and then cannot. Raises PreparationFailed after `STORAGE_ATTEMPTS`: it runs elsewhere."""
        node_id, place = self._node_of(form), storage.removesuffix(f"/{form.trial_id}/{form.number}")
        problem = ""
        for failures in range(1, STORAGE_ATTEMPTS + 1):
            await self._pool.wait_connected(node_id)
            try:
                problem = await self._hub.probe_storage(node_id, place, launch)
            except TrainingServiceError as error:
                problem = str(error)
            if not problem:
                return
            log.warning("node %s: %s", node_id, problem, extra={"action": "storage.probe", "node_id": node_id})
            pause = growing_pause(failures, FIRST_STORAGE_PAUSE_SECONDS, LONGEST_STORAGE_PAUSE_SECONDS)
            clause = f"trials on node {node_id} cannot store checkpoints: {problem}"
            self.report_waiting(form, f"{clause}; tried again in {pause:.0f} s")
            await asyncio.sleep(pause)
        raise PreparationFailed(f"trials on node {node_id} cannot store checkpoints: {problem}")

    async def _verify(self, form: TrialJobForm, offer: CheckpointOffer) -> str:
        """What keeps a job from continuing from a checkpoint at its own path, as a clause; waits until its node is
        connected."""
        if is_url(offer.path):
            return await await_verified(offer, form.environment, partial(self.report_waiting, form))
        node_id = self._node_of(form)
        clause = f"{offer.name(form.trial_id)} is being verified"
        with reporting_wait(partial(self.report_waiting, form), clause):
            while True:
                await self._pool.wait_connected(node_id)
                try:
                    return await self._hub.verify_checkpoint(node_id, offer.path, offer.manifest)
                except ServiceUnavailable as error:
                    log.info("%s: %s", clause, error, extra={"action": "job.prepare", "job_id": form.job_id})
                    await asyncio.sleep(RETRY_SECONDS)
                except TrainingServiceError as error:
                    return f"it cannot be verified: {error}"

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

    def _drop(self, job_id: str) -> None:
        self._waiting.pop(job_id, None)
        if (task := self._launching.pop(job_id, None)) is not None:
            task.cancel()
        super()._drop(job_id)

    def _node_of(self, form: TrialJobForm) -> str:
        return form.placement.node_id if form.placement is not None else self.node_ids()[0]
