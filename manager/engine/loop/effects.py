"""What is done once a turn is committed: jobs submitted, changed and canceled, places given back.

A service may not be able to do what it is asked. A cancellation, a changed limit, and a submission that has failed
without being refused are retried with growing pauses as long as the job lives.
"""

import logging
from dataclasses import dataclass
from datetime import UTC, datetime

from proctor.manager.engine.loop import messages as m
from proctor.manager.engine.loop.context import LoopContext
from proctor.manager.engine.loop.messages import Inbox
from proctor.manager.engine.loop.state import ExperimentState, LiveTrial, Turn
from proctor.manager.engine.loop.stopping import soft_stop
from proctor.manager.engine.transient_errors import error_clause
from proctor.manager.lifecycle.retries import retry_delay
from proctor.manager.store.rows import TrialJobRow
from proctor.sdk.disk_errors import is_full
from proctor.sdk.failpoints import failpoint
from proctor.training_services.base import (
    EndReason,
    Exit,
    StatusChange,
    SupportsReattach,
    SupportsSoftStop,
    TrialJobForm,
    TrialJobStatus,
)
from proctor.training_services.errors import (
    SubmissionRefused,
    TrainingServiceError,
    UnknownTrialJob,
)

log = logging.getLogger(__name__)

_SUBMIT, _CANCEL, _UPDATE = "submit", "cancel", "update"
_PHRASES = {
    _SUBMIT: "rejected the trial for now",
    _CANCEL: "cannot stop it",
    _UPDATE: "rejected its new limits for now",
}
_REASONS = {_SUBMIT: "waiting: ", _CANCEL: "being stopped: "}
"""How the reason of a trial begins, where it is shown."""
_FIRST_REVISION = 1
"""Of an experiment whose limits were never changed."""


@dataclass
class _Pending:
    """Something that a service could not do."""

    early: bool = False  # of a cancellation: the trial is stopped early
    failures: int = 0
    due: float = 0.0  # monotonic
    clause: str = ""


class Effects:
    """Everything here may be done twice, because after a crash it is."""

    def __init__(self, state: ExperimentState, context: LoopContext, inbox: Inbox) -> None:
        self._state = state
        self._context = context
        self._inbox = inbox
        self._pending: dict[tuple[str, str], _Pending] = {}  # by what and job id

    @property
    def due(self) -> float | None:
        """The monotonic time at which something that is pending is tried again; None: nothing is pending."""
        return min((pending.due for pending in self._pending.values()), default=None)

    async def reattach(self) -> None:
        """After a restart: have the service find every job again, and repeat what may not have reached it before. The
        jobs of a service that cannot do that are ended."""
        service = self._context.service
        if not isinstance(service, SupportsReattach):
            await self._abandon_jobs()
            return
        trials = list(self._state.by_job.values())
        await service.reattach([self._form(trial, trial.job) for trial in trials if trial.job is not None], ())
        for trial in trials if self._state.row.revision > _FIRST_REVISION else ():
            await self.update(trial)  # a changed limit may not have reached it
        for trial in trials:
            if trial.job is not None and trial.job.stop_reason is not None:
                await self.cancel(trial.job.id, trial.job.stop_reason is EndReason.EARLY_STOPPED)

    async def _abandon_jobs(self) -> None:
        """End every job that the service cannot find again. None is submitted a second time: its process may still
        run, and two processes must never write one journal. A trial that is retried gets a new job, whose directory
        and journal are its own."""
        detail = (
            f"the job was submitted before the manager or the experiment was restarted, and platform {self._platform} "
            "cannot find its jobs again"
        )
        for job_id, trial in self._state.by_job.items():
            assert trial.job is not None
            await self.cancel(job_id, False)
            ended_at, token = self._context.clock.now(), trial.job.token
            exit = Exit(EndReason.EXIT_UNKNOWN, None, None, 0.0, ended_at, detail, run_seconds=0.0)
            time = datetime.fromtimestamp(ended_at, UTC)
            change = StatusChange(job_id, token, TrialJobStatus.ENDED, time, detail=detail, exit=exit)
            self._inbox.post(m.JobsChanged((change,)))

    async def carry_out(self, turn: Turn) -> None:
        """Do what the committed turn asks for, and what is pending and due."""
        for job_id in turn.release:
            self._context.placer.give_back(job_id)
        for trial in turn.submit:
            await self.submit(trial)
        for job_id, early in turn.cancel:
            await self.cancel(job_id, early)
        for trial in turn.update.values():
            await self.update(trial)
        if self._pending:
            await self._try_again()

    async def _try_again(self) -> None:
        now = self._context.clock.monotonic()
        for (what, job_id), pending in list(self._pending.items()):
            trial = self._state.by_job.get(job_id)
            if trial is None:
                self._pending.pop((what, job_id), None)
            elif pending.due > now or (what, job_id) not in self._pending:
                continue
            elif what == _SUBMIT:
                await self.submit(trial)
            elif what == _CANCEL:
                await self.cancel(job_id, pending.early)
            else:
                await self.update(trial)

    async def submit(self, trial: LiveTrial) -> None:
        """Give a job to the service. What it refuses comes back through the inbox."""
        job = trial.job
        if job is None:
            return
        failpoint("manager.submit.before")
        try:
            await self._context.service.submit_trial_job(self._form(trial, job))
        except SubmissionRefused as error:
            self._refused(job.id, job.token, EndReason.UNPLACEABLE, error_clause(error))
        except Exception as error:
            if is_full(error) or is_full(error.__cause__):
                self._refused(job.id, job.token, EndReason.NO_ROOM, error_clause(error))
            else:
                self._retry_later(_SUBMIT, trial, error)
        else:
            if self._pending.pop((_SUBMIT, job.id), None) is not None:
                taken = f"waiting: platform {self._platform} has accepted the trial"
                self._inbox.post(m.Delayed(job.id, job.token, taken))
        failpoint("manager.submit.after")

    def _refused(self, job_id: str, token: str, reason: EndReason, detail: str) -> None:
        self._pending.pop((_SUBMIT, job_id), None)
        extra = {"action": "job.refuse", "job_id": job_id}
        log.warning("job %s was rejected: %s", job_id, detail, extra=extra)
        self._inbox.post(m.JobRefused(job_id, token, reason, detail))

    async def cancel(self, job_id: str, early: bool) -> None:
        """Ask the service to stop a job, softly while it may still save. One that it has not taken yet is over."""
        failpoint("manager.cancel.before")
        trial = self._state.by_job.get(job_id)
        self._context.placer.set_leaving(job_id)
        error = await self._cancel(job_id, trial, early=early)
        if trial is not None and trial.job is not None:
            if (_SUBMIT, job_id) in self._pending:
                detail = "it was stopped before its platform had taken it"
                self._refused(job_id, trial.job.token, EndReason.CANCELED, detail)
            elif error is not None:
                self._retry_later(_CANCEL, trial, error, early=early)
        if error is None:
            self._pending.pop((_CANCEL, job_id), None)
        failpoint("manager.cancel.after")

    async def _cancel(self, job_id: str, trial: LiveTrial | None, *, early: bool) -> Exception | None:
        service, configured = self._context.service, self._context.config.save_seconds
        stop = None if trial is None else soft_stop(trial, configured, self._context.clock.now())
        try:
            if stop is not None and isinstance(service, SupportsSoftStop):
                await service.cancel_softly(job_id, stop)
            else:
                await service.cancel_trial_job(job_id, is_early_stopped=early)
        except Exception as error:
            log.warning("job %s: %s", job_id, error, extra={"action": "job.cancel", "job_id": job_id})
            return error
        return None

    async def update(self, trial: LiveTrial) -> None:
        """Give the service a job's new limits, and its milestone."""
        job = trial.job
        if job is None:
            return
        failpoint("manager.update.before")
        if (_SUBMIT, job.id) not in self._pending:  # it gets them with the submission
            try:
                await self._context.service.update_trial_job(job.id, self._form(trial, job))
            except UnknownTrialJob:
                log.info("job %s has ended already", job.id, extra={"action": "job.update"})
                self._pending.pop((_UPDATE, job.id), None)
            except SubmissionRefused as error:  # it would be refused each time; the job runs on with what it has
                self._pending.pop((_UPDATE, job.id), None)
                clause = f"platform {self._platform} rejected its new limits: {error_clause(error)}"
                log.warning("job %s: %s", job.id, clause, extra={"action": "job.update", "job_id": job.id})
                self._inbox.post(m.Delayed(job.id, job.token, "", f"trial {trial.row.sequence_id}: {clause}"))
            except Exception as error:
                self._retry_later(_UPDATE, trial, error)
            else:
                self._pending.pop((_UPDATE, job.id), None)
        failpoint("manager.update.after")

    def _form(self, trial: LiveTrial, job: TrialJobRow) -> TrialJobForm:
        return self._context.forms.form(
            self._state.row, trial.row, job, milestone=trial.milestone, run_before=trial.run_before
        )

    # ---- what is pending ---------------------------------------------------------------------------------------------

    @property
    def _platform(self) -> str:
        return self._context.config.training_service.platform

    def _retry_later(self, what: str, trial: LiveTrial, error: Exception, *, early: bool = False) -> None:
        """Try again after a pause, and say why where the user looks."""
        job = trial.job
        assert job is not None
        pending = self._pending.setdefault((what, job.id), _Pending())
        pending.early = early
        pending.failures += 1
        delay = retry_delay(pending.failures, self._context.retry_policy)
        pending.due = self._context.clock.monotonic() + delay
        clause = f"platform {self._platform} {_PHRASES[what]}: {error_clause(error)}"
        reason = f"{_REASONS[what]}{clause}; tried again in {delay:g} s" if what in _REASONS else ""
        is_news = what != _SUBMIT and clause != pending.clause  # that a job waits is in its reason
        notice = f"trial {trial.row.sequence_id}: {clause}; it is tried again" if is_news else ""
        if clause != pending.clause:
            fault = None if isinstance(error, TrainingServiceError) else error
            extra = {"action": f"job.{what}", "job_id": job.id}
            log.warning("job %s: %s", job.id, clause, extra=extra, exc_info=fault)
        pending.clause = clause
        self._inbox.post(m.Delayed(job.id, job.token, reason, notice))
