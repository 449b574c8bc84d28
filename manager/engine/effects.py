"""What is done once a step is committed: jobs submitted, changed and cancelled, places given back."""

import logging

from proctor.manager.engine import messages as m
from proctor.manager.engine.inbox import Inbox
from proctor.manager.engine.state import ExperimentState, LiveTrial
from proctor.manager.engine.step import Step
from proctor.manager.engine.stopping import soft_stop
from proctor.manager.engine.surroundings import Surroundings
from proctor.sdk.disk_errors import is_full
from proctor.sdk.failpoints import failpoint
from proctor.training_services.base import EndReason, SupportsSoftStop
from proctor.training_services.errors import SubmissionRefused, TrainingServiceError, UnknownTrialJob

log = logging.getLogger(__name__)


class Effects:
    """Everything here may be done twice, because after a crash it is."""

    def __init__(self, state: ExperimentState, around: Surroundings, inbox: Inbox) -> None:
        self._state = state
        self._around = around
        self._inbox = inbox

    async def carry_out(self, step: Step) -> None:
        """Do what the committed step asks for."""
        for job_id in step.release:
            self._around.placer.give_back(job_id)
        for trial in step.submit:
            await self.submit(trial)
        for job_id, early in step.cancel:
            await self.cancel(job_id, early)
        for trial in step.update:
            await self.update(trial)

    async def submit(self, trial: LiveTrial) -> None:
        """Give a job to the service. What it refuses comes back through the inbox."""
        job = trial.job
        if job is None:
            return
        form = self._around.forms.form(self._state.row, trial.row, job)
        failpoint("manager.submit.before")
        try:
            await self._around.service.submit_trial_job(form)
        except SubmissionRefused as error:
            self._refused(job.id, job.token, EndReason.UNPLACEABLE, str(error))
        except TrainingServiceError as error:
            reason = EndReason.NO_ROOM if is_full(error.__cause__) else EndReason.INFRASTRUCTURE
            self._refused(job.id, job.token, reason, str(error))
        failpoint("manager.submit.after")

    def _refused(self, job_id: str, token: str, reason: EndReason, detail: str) -> None:
        log.warning("job %s was not taken: %s", job_id, detail, extra={"action": "job.refused", "job_id": job_id})
        self._inbox.post(m.JobRefused(job_id, token, reason, detail))

    async def cancel(self, job_id: str, early: bool) -> None:
        """Ask the service to stop a job, softly while it may still save."""
        failpoint("manager.cancel.before")
        service, trial, configured = (
            self._around.service,
            self._state.by_job.get(job_id),
            self._around.config.save_seconds,
        )
        stop = None if trial is None else soft_stop(trial, configured, self._around.clock.now())
        try:
            if stop is not None and isinstance(service, SupportsSoftStop):
                await service.cancel_softly(job_id, stop)
            else:
                await service.cancel_trial_job(job_id, is_early_stopped=early)
        except TrainingServiceError as error:
            log.warning("job %s: %s", job_id, error, extra={"action": "job.cancel", "job_id": job_id})
        failpoint("manager.cancel.after")

    async def update(self, trial: LiveTrial) -> None:
        """Tell the service of a job's new limits."""
        if trial.job is None:
            return
        form = self._around.forms.form(self._state.row, trial.row, trial.job)
        failpoint("manager.update.before")
        try:
            await self._around.service.update_trial_job(form.job_id, form)
        except UnknownTrialJob:
            log.info("job %s has ended already", form.job_id, extra={"action": "job.update"})
        failpoint("manager.update.after")
