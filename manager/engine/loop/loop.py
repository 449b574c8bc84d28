"""One experiment's loop: take what has come, decide, commit once, act.

Everything that changes the experiment goes through here, so there is one order of events and no lock. Nothing leaves
the manager before the commit of the step that decided it.
"""

import asyncio
import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.client.client import (
    DispatcherClient,
    DispatcherGone,
    DispatcherRestarted,
    DispatcherSilent,
)
from proctor.manager.engine.feasibility import Outlook
from proctor.manager.engine.loop import messages as m
from proctor.manager.engine.loop import transitions, tuning, user_commands
from proctor.manager.engine.loop.context import LoopContext
from proctor.manager.engine.loop.effects import Effects
from proctor.manager.engine.loop.listeners import ServiceListener
from proctor.manager.engine.loop.messages import Envelope, Inbox
from proctor.manager.engine.loop.placing import place_waiting
from proctor.manager.engine.loop.recovery import InputLog, read_state
from proctor.manager.engine.loop.state import ExperimentState, Snapshot, Step
from proctor.manager.engine.passing_errors import error_clause, is_passing
from proctor.manager.errors import BadRequest, Conflict, ManagerError, Unavailable
from proctor.manager.lifecycle.experiment import EXPERIMENT, ExperimentEvent
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.store.errors import StoreError, ValueRefused
from proctor.manager.store.rows import ExperimentRow
from proctor.manager.store.tables import experiments, jobs, trials
from proctor.manager.store.tables import metrics as metric_store
from proctor.training_services.base import (
    EndReason,
    Exit,
    StatusChange,
    SupportsEvents,
    SupportsReattach,
    TrialJobStatus,
)

log = logging.getLogger(__name__)

_THINKING = {
    ExperimentStatus.INITIALIZED,
    ExperimentStatus.RUNNING,
    ExperimentStatus.PAUSED,
    ExperimentStatus.NO_MORE_TRIAL,
    ExperimentStatus.TUNER_NO_MORE_TRIAL,
}
"""The statuses in which an experiment needs a dispatcher. In others one that runs may be kept for a while."""

_LONGEST_ERROR = 100_000
"""Of an error that put the experiment into ERROR, in characters."""
FIRST_REVISION = 1
"""Of an experiment whose limits were never changed."""


class ExperimentLoop:
    """Runs one experiment until it is stopped or the manager leaves."""

    def __init__(self, state: ExperimentState, context: LoopContext) -> None:
        self.state = state
        self.context = context
        self.inbox = Inbox()
        self.attached = asyncio.Event()  # its jobs are reattached, or it has failed
        self._listener = ServiceListener(state, self.inbox, context.control, context.metrics)
        self._effects = Effects(state, context, self.inbox)
        self._policy = context.retry_policy
        self._sends_metrics = context.config.assessor is not None
        self._log = InputLog(context.control, context.metrics, state.row)
        self._dispatcher = DispatcherClient(
            _initialize(state.row, context), open_channel=context.open_dispatcher, read_inputs=self._log.read
        )
        self._dispatcher_task: asyncio.Task[None] | None = None
        self._counters: dict[str, Any] = {}
        self._unwatch: Callable[[], None] = lambda: None

    @property
    def problem(self) -> str:
        """Why no suggestions come at the moment, as a clause, or ''."""
        return self._dispatcher.problem

    @property
    def outlook(self) -> Outlook | None:
        """Which machines can be used now; None: the service places by itself."""
        return self.context.placer.outlook()

    # ---- life -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Serve until the experiment is STOPPED. Raises what the loop could not survive: what may pass by itself at
        once, anything else after writing it down. Whatever ends the loop, every message is answered."""
        service = self.context.service
        service.add_trial_job_metric_listener(self._listener.on_metrics)
        if isinstance(service, SupportsEvents):
            service.add_status_listener(self._listener.on_status)
        try:
            await self._attach()
            self.attached.set()
            async with asyncio.TaskGroup() as group:
                name = f"experiment {self.state.row.id}"
                serving = group.create_task(service.run(), name=f"{name} service")
                await self._loop(group)
                serving.cancel()
        except Exception as error:
            self._refuse_all(error_clause(error))
            await self._give_places_back()
            if not is_passing(error):
                await self._record_failure(error)
            raise
        finally:
            self.attached.set()
            self._refuse_all("its engine was ended")
            service.remove_trial_job_metric_listener(self._listener.on_metrics)
            if isinstance(service, SupportsEvents):
                service.remove_status_listener(self._listener.on_status)
            self._unwatch()
            self.context.placer.stop_waiting()

    async def _attach(self) -> None:
        """Reattach to the jobs that were there before the manager was started."""
        clock = self.context.clock
        if self.state.row.status.counts_time:
            self.state.active_since = clock.monotonic()
        transitions.restore_retry_times(self.state, self._policy, now=clock.now(), monotonic=clock.monotonic())
        for trial in self.state.by_job.values():
            assert trial.job is not None
            form = self.context.forms.form(self.state.row, trial.row, trial.job)
            if form.placement is not None:
                holder = f"trial {trial.row.sequence_id} of experiment {self.state.row.id}"
                self.context.placer.restore(trial.job.id, holder, form.placement)
        self._unwatch = self.context.placer.watch(self._wake_waiting)
        service = self.context.service
        if isinstance(service, SupportsReattach):
            await self._reattach(service)
        else:
            await self._abandon_jobs()
        await self._replay_metrics()

    async def _reattach(self, service: SupportsReattach) -> None:
        """Have the service find every job again, and repeat what may not have reached it before the restart."""
        trials = list(self.state.by_job.values())
        rows = [(trial.row, trial.job) for trial in trials]
        forms = [self.context.forms.form(self.state.row, row, job) for row, job in rows if job is not None]
        await service.reattach(forms, ())
        for trial in trials if self.state.row.revision > FIRST_REVISION else ():
            await self._effects.update(trial)  # a changed limit may not have reached it
        for trial in trials:
            if trial.job is not None and trial.job.stop_reason is not None:
                await self._effects.cancel(trial.job.id, trial.job.stop_reason is EndReason.EARLY_STOPPED)

    async def _abandon_jobs(self) -> None:
        """End every job that the service cannot find again. None is submitted a second time: its process may still
        run, and two processes must never write one journal. A trial that is retried gets a new job, whose directory
        and journal are its own."""
        platform = self.context.config.training_service.platform
        detail = (
            f"the job was submitted before the manager or the experiment was restarted, and platform {platform} "
            "cannot find its jobs again"
        )
        for job_id, trial in self.state.by_job.items():
            assert trial.job is not None
            await self._effects.cancel(job_id, False)
            ended_at, token = self.context.clock.now(), trial.job.token
            exit = Exit(EndReason.EXIT_UNKNOWN, None, None, 0.0, ended_at, detail)
            time = datetime.fromtimestamp(ended_at, UTC)
            change = StatusChange(job_id, token, TrialJobStatus.ENDED, time, detail=detail, exit=exit)
            self.inbox.post(m.JobsChanged((change,)))

    def _wake_waiting(self) -> None:
        if any(trial.job is None for trial in self.state.trials.values()):
            self.inbox.post(m.Wake())

    async def _replay_metrics(self) -> None:
        """Metrics that were stored, but neither applied nor sent to the dispatcher before the manager was killed."""
        step = self._new_step()
        await self._save_columns(step)
        last = await self.context.metrics.read(metric_store.last_id)
        first = self.state.row.metrics_told + 1
        if last >= first:
            step.add_event("metrics", {"first": first, "last": last})
            if self._sends_metrics:
                message = await self._log.metrics_between(self.state.take_position(), first, last)
                step.send_input(message, {"first": first, "last": last})
            self.state.row = replace(self.state.row, metrics_told=last)
            self.state.replayed_to = last
        if step.writes:
            await self._commit(step)

    async def _save_columns(self, step: Step) -> None:
        """Store what recovery has found for trials. A final metric that the store refuses is not a trial's result."""

        def update(trial_id: str, columns: Mapping[str, Any]) -> asyncio.Future[None]:
            return self.context.control.write(lambda c: trials.update(c, trial_id, **columns))

        unsaved = dict(self.state.unsaved_columns)
        self.state.unsaved_columns.clear()
        writings = [update(trial_id, columns) for trial_id, columns in unsaved.items()]  # in one commit
        for (trial_id, columns), outcome in zip(
            unsaved.items(), await asyncio.gather(*writings, return_exceptions=True), strict=True
        ):
            if isinstance(outcome, ValueRefused):
                trial = self.state.trials[trial_id]
                trial.row = replace(trial.row, final_data=None, final_value=None)
                await update(trial_id, {name: value for name, value in columns.items() if name[:6] != "final_"})
                why = f"its final metric cannot be stored: {error_clause(outcome)}"
                tuning.on_metrics_refused(self.state, step, m.MetricsRefused(f"{trial_id}.{trial.row.jobs}", why))
            elif outcome is not None:
                raise outcome

    def _refuse_all(self, clause: str) -> None:
        """The loop has ended: answer every caller that waits for it, or will. Idempotent."""
        row = self.state.row
        if row.status is ExperimentStatus.STOPPED:
            self.inbox.close(Conflict(f"experiment {row.id} is {row.status}"))
        else:
            text = f"experiment {row.id} could not do it: {clause}; its engine is started again soon, ask again then"
            self.inbox.close(Unavailable(text))

    async def _give_places_back(self) -> None:
        """After a failure: only jobs that the store knows to be live keep their places."""
        experiment_id = self.state.row.id
        try:  # by the writer, so that it sees what was being committed when the loop ended
            live = await self.context.control.write(lambda c: [job.id for job in jobs.live(c, experiment_id)])
        except StoreError:
            live = list(self.state.by_job)
        self.context.placer.keep_only(live)

    async def _record_failure(self, error: Exception) -> None:
        """Write down that the loop cannot go on, where the user looks."""
        log.exception("experiment %s failed", self.state.row.id, extra={"action": "experiment.fail"})
        row = await self.context.control.read(lambda c: experiments.get(c, self.state.row.id))
        if EXPERIMENT.allows(row.status, ExperimentEvent.FAIL):
            self.state.row = replace(self.state.row, status=row.status)
            step = self._new_step()
            trace = "".join(traceback.format_exception(error))
            self._fail(step, f"internal error: {error_clause(error)}"[:_LONGEST_ERROR], trace[-_LONGEST_ERROR:])
            await self._commit(step)

    # ---- the loop -------------------------------------------------------------------------------------------------

    async def _loop(self, group: asyncio.TaskGroup) -> None:
        self.inbox.post(m.Wake())
        try:
            while self.state.row.status is not ExperimentStatus.STOPPED:
                envelopes = await self.inbox.take(self._until_deadline())
                before = self.state.snapshot()
                try:
                    await self._turn(envelopes)
                except ValueRefused:
                    await self._roll_back(before)
                    await self._turn_apart(envelopes)
                self._ensure_dispatcher(group)
        finally:  # at once: what the loop has started may take long to end
            self._refuse_all("its engine has failed")

    async def _turn(self, envelopes: Sequence[Envelope]) -> None:
        """Handle messages in one step. Raises ValueRefused; then nothing of it is done or answered, but the state is to
        be taken back."""
        step = self._new_step()
        answered = [(envelope, self._answer(step, envelope)) for envelope in envelopes]
        await self._move_on(step)
        try:
            await self._commit(step)
        except ValueRefused:
            for trial in step.submit:
                if trial.job is not None:
                    self.context.placer.give_back(trial.job.id)
            raise
        for envelope, value in answered:
            envelope.resolve(value)
        self._dispatcher.send(step.inputs)
        await self._effects.carry_out(step)

    async def _turn_apart(self, envelopes: Sequence[Envelope]) -> None:
        """The store has refused a value: handle each part of the messages alone, so that only one suffers."""
        await self._turn([])  # what is refused here belongs to no message
        for envelope in envelopes:
            if m.is_request(envelope.message):
                await self._try_alone(envelope)
                continue
            for part in m.parts(envelope.message):
                await self._try_alone(Envelope(part))
            envelope.resolve(None)

    async def _try_alone(self, envelope: Envelope) -> None:
        before = self.state.snapshot()
        try:
            await self._turn([envelope])
        except ValueRefused as error:
            await self._roll_back(before)
            extra = {"action": "value.refuse", "experiment_id": self.state.row.id}
            name = type(envelope.message).__name__
            log.warning("experiment %s: the store refuses a %s: %s", self.state.row.id, name, error, extra=extra)
            if m.is_request(envelope.message):
                envelope.refuse(BadRequest(f"this cannot be stored: {error}"))
            else:
                why, now = error_clause(error), self.context.clock.now()
                await self._turn([Envelope(each) for each in m.substitutes(envelope.message, why, now)])

    async def _roll_back(self, before: Snapshot) -> None:
        """Discard what a step has changed in memory that was not committed."""
        experiment_id, clock = self.state.row.id, self.context.clock
        stored = await self.context.control.read(lambda c: read_state(c, experiment_id), time_limit_seconds=60.0)
        self.state.roll_back(before, stored)
        transitions.restore_retry_times(self.state, self._policy, now=clock.now(), monotonic=clock.monotonic())

    def _new_step(self) -> Step:
        return Step(self.state.row.id, self.context.clock.now(), self.context.clock.monotonic())

    def _answer(self, step: Step, envelope: Envelope) -> Any:
        """Handle one message; a command that cannot be carried out is answered at once."""
        try:
            return self._handle(step, envelope.message)
        except ManagerError as error:
            envelope.refuse(error)
            return None

    def _handle(self, step: Step, message: m.Message) -> Any:
        state, monotonic = self.state, self.context.clock.monotonic()
        match message:
            case m.JobsChanged(changes):
                for change in changes:
                    transitions.on_change(state, step, change, self._policy)
            case m.MetricsStored():
                tuning.on_stored(state, step, message, notify=self._sends_metrics)
            case protocol.NewTrial():
                tuning.on_new_trial(state, step, message)
            case protocol.NoMoreTrials():
                tuning.on_no_more(state, message)
            case protocol.KillTrial():
                tuning.on_kill(state, step, message)
            case protocol.Initialized():
                if state.row.status is ExperimentStatus.INITIALIZED:
                    tuning.move_experiment(state, step, ExperimentEvent.START, "", monotonic=monotonic)
            case protocol.Error(summary, trace):
                self._fail(step, summary, trace)
            case m.DispatcherFailed(summary):
                self._fail(step, summary, summary)
            case m.DispatcherLeft():
                self._dispatcher_task = None
            case DispatcherRestarted(exit_message):
                step.add_notice(f"the dispatcher was started again: {exit_message}")
            case DispatcherSilent(problem):
                step.add_notice(f"{problem}; suggestions come when it is done")
            case m.JobRefused():
                self._end_refused(step, message)
            case m.SuggestionRefused():
                tuning.on_suggestion_refused(state, step, message)
            case m.MetricsRefused():
                tuning.on_metrics_refused(state, step, message)
            case m.HeldUp():
                transitions.on_held_up(state, step, message)
            case m.NoticePosted(text):
                step.add_notice(text)
            case m.CancelTrial(trial_id):
                user_commands.cancel_trial(state, step, trial_id)
            case m.AddTrial():
                return user_commands.add_trial(state, step, message)
            case m.ImportRows():
                user_commands.import_rows(state, step, message)
            case m.ChangeLimits():
                user_commands.change_limits(state, step, message, monotonic)
            case m.Pause():
                user_commands.pause(state, step, monotonic)
            case m.Continue():
                user_commands.proceed(state, step, monotonic)
            case m.StopExperiment():
                user_commands.stop(state, step, monotonic, save_seconds=self.context.save_seconds)
        return None

    def _fail(self, step: Step, reason: str, error: str) -> None:
        if self.state.row.status is ExperimentStatus.STOPPING:
            step.add_notice(f"while the experiment was being stopped: {reason}")
        if EXPERIMENT.allows(self.state.row.status, ExperimentEvent.FAIL):
            monotonic = self.context.clock.monotonic()
            tuning.move_experiment(self.state, step, ExperimentEvent.FAIL, reason, monotonic=monotonic, error=error)

    def _end_refused(self, step: Step, message: m.JobRefused) -> None:
        trial = self.state.by_job.get(message.job_id)
        if trial is not None and trial.job is not None and trial.job.token == message.token:
            exit = Exit(message.reason, None, None, 0.0, step.now, message.detail)
            transitions.end_job(self.state, step, trial, exit, self._policy)

    async def _move_on(self, step: Step) -> None:
        """What follows from the messages: the experiment's own moves, requests, placements."""
        state, monotonic = self.state, self.context.clock.monotonic()
        transitions.end_waiting_with_final(state, step)
        tuning.advance(state, step, monotonic)
        tuning.request(state, step, monotonic)
        await place_waiting(state, step, self.context)
        if state.row.status is ExperimentStatus.STOPPING and not state.by_job and self._dispatcher_task is None:
            tuning.move_experiment(state, step, ExperimentEvent.FINISH_STOP, "stopped by the user", monotonic=monotonic)

    async def _commit(self, step: Step) -> None:
        experiment_id = self.state.row.id
        counters = self.state.counters()
        if not step.writes and counters == self._counters:
            return
        seconds = self.state.active_seconds(self.context.clock.monotonic())
        step.write(lambda c: experiments.set_counters(c, experiment_id, active_seconds=seconds, **counters))
        await self.context.control.write(step.apply)
        for level, text, ids in step.log_lines:
            log.log(level, text, extra=ids)
        self._counters = counters
        self.context.feed.notify()

    @property
    def active_seconds(self) -> float:
        """How long the experiment has run, up to now."""
        return self.state.active_seconds(self.context.clock.monotonic())

    def _until_deadline(self) -> float | None:
        """Seconds until something is due without a message; None: nothing is."""
        monotonic = self.context.clock.monotonic()
        retries = [trial.retry_at for trial in self.state.trials.values() if trial.retry_at is not None]
        due = [at - monotonic for at in retries if at > monotonic]  # the others wait for a place, which wakes the loop
        if self._effects.due is not None:
            due.append(self._effects.due - monotonic)
        limit = self.state.row.max_experiment_seconds
        if limit is not None and self.state.row.status is ExperimentStatus.RUNNING:
            due.append(limit - self.state.active_seconds(monotonic))
        return max(min(due), 0.0) if due else None

    # ---- the dispatcher -------------------------------------------------------------------------------------------

    def _ensure_dispatcher(self, group: asyncio.TaskGroup) -> None:
        """Start a dispatcher when there is something for it to do; let it leave in order when there is no more."""
        if self._dispatcher_task is None and self.state.row.status in _THINKING:
            name = f"experiment {self.state.row.id} dispatcher"
            self._dispatcher_task = group.create_task(self._run_dispatcher(), name=name)
        elif self._dispatcher_task is not None and not self._keeps_dispatcher():
            self._dispatcher.finish()

    def _keeps_dispatcher(self) -> bool:
        """Whether a dispatcher that runs is still needed. A DONE experiment's custom tuner is: in another process it
        may not be able to go on where a limit is raised (docs/decisions/0015-a-custom-tuner-outlives-done.md)."""
        match self.state.row.status:
            case ExperimentStatus.DONE:
                return self.context.config.has_own_algorithm
            case ExperimentStatus.STOPPING:
                return bool(self.state.by_job)  # the ends of trials are still sent to it
            case status:
                return status in _THINKING

    async def _run_dispatcher(self) -> None:
        try:
            await self._dispatcher.run(self.inbox.post)
        except (DispatcherGone, protocol.ProtocolError, OSError) as error:
            self.inbox.post(m.DispatcherFailed(str(error)))
        self.inbox.post(m.DispatcherLeft())


def _initialize(row: ExperimentRow, context: LoopContext) -> protocol.Initialize:
    config = context.config
    return protocol.Initialize(
        experiment_id=row.id,
        search_space=config.search_space,  # the first one; changes of it are in the log
        tuner=_spec(config.tuner),
        assessor=None if config.assessor is None else _spec(config.assessor),
        seed=row.seed,
        checkpoint_directory=context.checkpoint_directory,
        direction=config.objective.direction,
    )


def _spec(algorithm: Any) -> protocol.AlgorithmSpec:
    directory = algorithm.code_directory
    return protocol.AlgorithmSpec(
        name=algorithm.name,
        class_name=algorithm.class_name,
        code_directory=None if directory is None else str(directory),
        class_args=dict(algorithm.class_args),
    )
