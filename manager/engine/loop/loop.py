"""One experiment's loop: take what has come, decide, commit once, act.

Everything that changes the experiment goes through here, so there is one order of events and no lock. Nothing leaves
the manager before the commit of the turn that decided it.
"""

import asyncio
import logging
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import inf
from typing import Any

from proctor.manager.actors import MANAGER, TRIAL_SCHEDULER
from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.algorithms.registry import kept_rules
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
from proctor.manager.engine.loop.copies import CheckpointCopies
from proctor.manager.engine.loop.effects import Effects
from proctor.manager.engine.loop.listeners import ServiceListener
from proctor.manager.engine.loop.messages import Envelope, Inbox
from proctor.manager.engine.loop.placing import find_start, offer_preemptible, place_waiting
from proctor.manager.engine.loop.recovery import (
    InputLog,
    bring_back,
    bring_back_forgotten,
    read_state,
    save_columns,
    stop_where_damaged,
)
from proctor.manager.engine.loop.retention import CheckpointRetention
from proctor.manager.engine.loop.state import ExperimentState, LiveTrial, Snapshot, Turn
from proctor.manager.engine.transient_errors import error_clause, is_transient
from proctor.manager.errors import BadRequest, Conflict, ManagerError, Unavailable
from proctor.manager.lifecycle.experiment import EXPERIMENT, ExperimentEvent, has_forgotten_trials, spent_limit
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.store.errors import RowNotFound, StoreError, ValueRefused
from proctor.manager.store.tables import events, experiments, jobs, trials
from proctor.manager.store.tables import metrics as metric_store
from proctor.training_services.base import CheckpointOffer, SupportsEvents

log = logging.getLogger(__name__)

_SHORTEST_WAIT_SECONDS = 0.001  # timers may fire a moment early: what they are for is not due then
FORGOTTEN_AT_ONCE = 250
"""How many of the trials that will not run again end in one turn."""
_LONGEST_ERROR = 100_000
"""Of an error that put the experiment into ERROR, in characters."""


class ExperimentLoop:
    """Runs one experiment until it is stopped or the manager leaves."""

    def __init__(self, state: ExperimentState, context: LoopContext) -> None:
        self.state = state
        self.context = context
        self.inbox = Inbox()
        self.attached = asyncio.Event()  # its jobs are reattached, or it has failed
        self._listener = ServiceListener(state, self.inbox, context.control, context.metrics)
        self._effects = Effects(state, context, self.inbox)
        self._retention = CheckpointRetention(state, context, self.inbox)
        self._copies = CheckpointCopies(state, context, self.inbox, on_copied=self._retention.reconsider)
        self._policy = context.retry_policy
        self._sends_metrics = context.config.judges_trials
        self._log = InputLog(context.control, context.metrics, state.row)
        self._dispatcher = DispatcherClient(
            context.initialize(state.row),
            open_channel=context.open_dispatcher,
            inputs=self._log,
        )
        self._dispatcher_task: asyncio.Task[None] | None = None
        self._counters: dict[str, Any] = {}
        self._retry_due = 0.0  # monotonic time at which the next waiting trial may be tried again; inf: at none
        self._unwatch: Callable[[], None] = lambda: None

    @property
    def problem(self) -> str:
        """Why no suggestions come at the moment, as a clause, or ''."""
        return self._dispatcher.problem

    @property
    def outlook(self) -> Outlook | None:
        """Which machines can be used now; None: the service places by itself."""
        return self.context.placer.outlook()

    @property
    def active_seconds(self) -> float:
        """How long the experiment has run, up to now."""
        return self.state.active_seconds(self.context.clock.monotonic())

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
                deleting = group.create_task(self._retention.run(), name=f"{name} checkpoints")
                copying = group.create_task(self._copies.run(), name=f"{name} copies of checkpoints")
                await self._take_turns(group)
                copying.cancel()
                await self._retention.finish()
                deleting.cancel()
                serving.cancel()
        except Exception as error:
            self._refuse_all(error_clause(error))
            await self._settle_failure(error)
            raise
        finally:
            self.attached.set()
            self._refuse_all("its loop was ended")
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
        if writes := self.state.count_gpus(clock):
            await self.context.control.write(lambda c: [write(c) for write in writes])
        for trial in self.state.by_job.values():
            assert trial.job is not None
            form = self.context.forms.form(self.state.row, trial.row, trial.job)
            if form.placement is not None:
                holder = f"trial {trial.row.sequence_id} of experiment {self.state.row.id}"
                self.context.placer.restore(trial.job.id, holder, form.placement)
        self._unwatch = self.context.placer.watch(self._wake_waiting)
        await self._effects.reattach()
        await self._retention.start()
        await self._copies.start()
        await self._replay_metrics()
        await self._note_kept_rules()

    async def _note_kept_rules(self) -> None:
        """Say once that the experiment decides by earlier rules than a new one would."""
        row = self.state.row
        text = kept_rules(row.rules, self.context.config.algorithms)
        if text and text not in await self.context.control.read(
            lambda c: events.notices(c, row.id, limit=events.KEPT_NOTICES)
        ):
            self.inbox.post(m.NoticePosted(text))

    def _wake_waiting(self) -> None:
        if self.state.jobless or self.context.placer.is_wanted(self.state.row.priority):
            self.inbox.post(m.Wake())

    async def _replay_metrics(self) -> None:
        """Metrics that were stored, but neither applied nor sent to the dispatcher before the manager was killed."""
        turn = self._new_turn()
        await save_columns(self.state, turn, self.context.control)
        await stop_where_damaged(self.state, turn, self.context.metrics)
        last = await self.context.metrics.read(metric_store.last_id)
        first = self.state.row.metrics_told + 1
        rows = await self._log.metrics_between(first, last) if last >= first else []
        if rows:  # and not only final metrics
            turn.add_event("metrics", {"first": first, "last": last})
            if self._sends_metrics:
                message = protocol.ReportMetrics(self.state.take_position(), rows)
                turn.send_input(message, {"first": first, "last": last})
            self.state.row = replace(self.state.row, metrics_told=last)
            self.state.replayed_to = last
        if turn.writes:
            await self._commit(turn)

    # ---- the loop -------------------------------------------------------------------------------------------------

    async def _take_turns(self, group: asyncio.TaskGroup) -> None:
        self.inbox.post(m.Wake())
        try:
            while self.state.row.status is not ExperimentStatus.STOPPED:
                envelopes = await self.inbox.take(self._until_deadline())
                before = self.state.snapshot()
                try:
                    await self._take_turn(envelopes)
                except ValueRefused:
                    await self._roll_back(before)
                    await self._handle_apart(envelopes)
                self._ensure_dispatcher(group)
        finally:  # at once: what the loop has started may take long to end
            self._refuse_all("its loop has failed")

    async def _take_turn(self, envelopes: Sequence[Envelope]) -> None:
        """Handle messages in one turn. Raises ValueRefused; then nothing of it is done or answered, but the state is to
        be taken back."""
        turn = self._new_turn()
        brought_back = await self._bring_back(turn, envelopes)
        donors = await self._find_donors(envelopes)
        turn.deleted = await self._retention.find_deleted(m.named_checkpoints(each.message for each in envelopes))
        answers: list[tuple[Envelope, Any]] = []
        for envelope in envelopes:
            turn.actor = envelope.actor or m.actor_of(envelope.message)
            brought_back += self._recall(turn, envelope.message)
            try:
                answers.append((envelope, self._handle(turn, envelope.message, donors)))
            except ManagerError as error:  # a command that cannot be carried out
                envelope.refuse(error)
        turn.actor = MANAGER
        for trial in brought_back:
            if trial.row.status is TrialStatus.PAUSED and trial.row.id in self.state.trials:
                self.state.set_aside(trial)
        await self._move_on(turn, places_stay=self._are_reports_of_running_trials(turn, envelopes))
        try:
            await self._commit(turn)
        except ValueRefused:
            for trial in turn.submit:
                if trial.job is not None:
                    self.context.placer.give_back(trial.job.id)
            for job_id in turn.preempted:
                self.context.placer.set_leaving(job_id, False)
            self.state.place_notices += turn.place_notices
            raise
        for envelope, value in answers:
            envelope.resolve(value)
        self._dispatcher.send(turn.inputs)
        await self._effects.carry_out(turn)
        self._copies.add(turn.saved)
        for trial_id in turn.ended:
            self._copies.drop(trial_id)
        await self._retention.decide(turn.retain)

    async def _bring_back(self, turn: Turn, envelopes: Sequence[Envelope]) -> list[LiveTrial]:
        """The PAUSED trials that the messages are about."""
        concerned = [m.concerned_trials(envelope.message) for envelope in envelopes]
        wanted = {trial_id for ids in concerned for trial_id in ids or () if trial_id not in self.state.trials}
        with_experiment = None in concerned
        if not (wanted or with_experiment) or not self.state.paused:
            return []
        context = self.context
        return await bring_back(
            self.state, turn, context.control, context.metrics, wanted, with_experiment=with_experiment
        )

    def _recall(self, turn: Turn, message: m.LoopMessage) -> list[LiveTrial]:
        """Bring back the trials that a message is about and that this very turn has paused: the store does not know."""
        if not turn.paused:
            return []
        concerned = m.concerned_trials(message)
        ids = turn.paused if concerned is None else concerned & turn.paused.keys()
        found = [turn.paused[trial_id] for trial_id in ids if trial_id not in self.state.trials]
        for trial in found:
            self.state.bring_back(trial)
        return found

    async def _find_donors(self, envelopes: Sequence[Envelope]) -> dict[str, CheckpointOffer]:
        """Of the trials from which others are to continue, what these begin with; by trial id."""
        wanted: set[str] = set()
        for envelope in envelopes:
            match envelope.message:
                case protocol.CloneTrial(donor_trial=trial_id) | protocol.NewTrial(parent_trial=str(trial_id)):
                    wanted.add(trial_id)
        found: dict[str, CheckpointOffer] = {}
        for trial_id in wanted:
            with suppress(RowNotFound):
                row = await self.context.control.read(lambda c, key=trial_id: trials.get(c, key))  # type: ignore[misc]
                start = (await find_start(self.context, self.state, row)).start
                if start.checkpoint is not None and row.experiment_id == self.state.row.id:
                    found[trial_id] = start.checkpoint
        return found

    def _new_turn(self) -> Turn:
        clock = self.context.clock
        return Turn(self.state.row.id, clock.now(), clock.monotonic(), clock)

    def _handle(self, turn: Turn, message: m.LoopMessage, donors: Mapping[str, CheckpointOffer]) -> Any:
        state = self.state
        if isinstance(message, protocol.News):
            self._take_news(turn, message, donors)
            return None
        match message:
            case m.JobsChanged(changes):
                for change in changes:
                    transitions.on_change(state, turn, change, self._policy)
            case m.MetricsStored():
                tuning.on_stored(state, turn, message, notify=self._sends_metrics)
            case m.DispatcherFailed(summary):
                tuning.fail(state, turn, summary, summary)
            case m.DispatcherLeft():
                self._dispatcher_task = None
            case DispatcherRestarted(exit_message):
                turn.add_notice(f"the dispatcher was started again: {exit_message}")
            case DispatcherSilent(problem):
                turn.add_notice(f"{problem}; suggestions come when it is done")
            case m.JobRefused():
                transitions.on_refused(state, turn, message, self._policy)
            case m.SuggestionRefused():
                tuning.on_suggestion_refused(state, turn, message)
            case m.MetricsRefused():
                tuning.on_metrics_refused(state, turn, message)
            case m.Delayed():
                transitions.on_delayed(state, turn, message)
            case m.NoticePosted(text):
                turn.add_notice(text)
            case m.CancelTrial(trial_id):
                user_commands.cancel_trial(state, turn, trial_id)
            case m.PauseByUser(trial_id):
                user_commands.pause_trial(state, turn, trial_id, save_seconds=self.context.save_seconds)
            case m.ResumeByUser(trial_id):
                user_commands.resume_trial(state, turn, trial_id)
            case m.AddTrial():
                return user_commands.add_trial(state, turn, message)
            case m.ImportRows():
                user_commands.import_rows(state, turn, message)
            case m.ChangeLimits():
                user_commands.change_limits(state, turn, message)
            case m.Pause(with_trials):
                save_seconds = self.context.save_seconds if with_trials else None
                user_commands.pause(state, turn, trials_save_seconds=save_seconds)
            case m.Continue(with_trials):
                user_commands.proceed(state, turn, with_trials=with_trials)
            case m.StopExperiment():
                user_commands.stop(state, turn, save_seconds=self.context.save_seconds)
        return None

    def _take_news(self, turn: Turn, message: protocol.News, donors: Mapping[str, CheckpointOffer]) -> None:
        """What a dispatcher has decided."""
        state = self.state
        match message:
            case protocol.NewTrial():
                tuning.on_new_trial(state, turn, message, donors.get(message.parent_trial or ""))
            case protocol.NoMoreTrials():
                tuning.on_no_more(state, message)
            case protocol.ResumeTrial():
                tuning.on_decision(state, turn, message, None)
            case protocol.CloneTrial():
                tuning.on_decision(state, turn, message, donors.get(message.donor_trial))
            case protocol.PauseTrial():
                tuning.on_pause(state, turn, message, save_seconds=self.context.save_seconds)
            case protocol.KillTrial():
                tuning.on_kill(state, turn, message, save_seconds=self.context.save_seconds)
            case protocol.StateSaved():
                tuning.on_state_saved(turn, message)
            case protocol.Milestone():
                tuning.on_milestone(state, turn, message)
            case protocol.SchedulerTables():
                tuning.on_scheduler_tables(turn, message)
            case protocol.Initialized():
                if state.row.status is ExperimentStatus.INITIALIZED:
                    tuning.move_experiment(state, turn, ExperimentEvent.START, "")
            case protocol.Error(summary, trace):
                tuning.fail(state, turn, summary, trace)

    def _are_reports_of_running_trials(self, turn: Turn, envelopes: Sequence[Envelope]) -> bool:
        """Whether a turn has nothing else to handle, as most have, but what a dispatcher has to say of its own state.
        Then no trial that waits can be placed or ended. There may be thousands of them: the turn does not walk over
        them."""
        if not envelopes or turn.monotonic >= self._retry_due:
            return False
        return all(
            isinstance(envelope.message, protocol.SchedulerTables | protocol.Milestone | protocol.StateSaved)
            or (
                isinstance(envelope.message, m.MetricsStored)
                and all(job_id in self.state.by_job for job_id, _ in envelope.message.chunks)
            )
            for envelope in envelopes
        )

    async def _move_on(self, turn: Turn, *, places_stay: bool) -> None:
        """What follows from the messages: the experiment's own moves, requests, placements."""
        state = self.state
        if not places_stay:
            transitions.end_waiting_with_final(state, turn)
        tuning.advance(state, turn)
        tuning.request(state, turn)
        if state.paused and has_forgotten_trials(state.progress(turn.monotonic)):
            if turn.paused:
                self.inbox.post(m.Wake())  # once the store has them
            else:
                await self._end_paused(turn)
        offer_preemptible(state, self.context)
        if not places_stay:
            await place_waiting(state, turn, self.context)
            retries = (trial.retry_at for trial in state.jobless.values() if trial.retry_at is not None)
            # The others wait for a place, which wakes the loop.
            self._retry_due = min((at for at in retries if at > turn.monotonic), default=inf)
        if state.row.status is ExperimentStatus.STOPPING and not state.by_job and self._dispatcher_task is None:
            tuning.move_experiment(state, turn, ExperimentEvent.FINISH_STOP, state.row.reason)

    async def _end_paused(self, turn: Turn) -> None:
        """Nothing else is left: end the trials that the trial scheduler has paused and will not have run again. There
        may be a hundred thousand: each turn ends some, so that other experiments have their turns, too."""
        state = self.state
        control, metrics = self.context.control, self.context.metrics
        found = await bring_back_forgotten(state, turn, control, metrics, FORGOTTEN_AT_ONCE)
        if not found:
            return
        more_follow = state.paused > 0
        limit = spent_limit(state.progress(turn.monotonic))
        why = limit or "no other trial is left whose results could change that"
        turn.actor = TRIAL_SCHEDULER
        for trial in found:
            reason = f"its trial scheduler does not have it run again: {why}"
            transitions.end_trial(state, turn, trial, TrialStatus.EARLY_STOPPED, reason, more_follow=more_follow)
        turn.actor = MANAGER
        tuning.advance(state, turn)
        if more_follow:
            self.inbox.post(m.Wake())

    async def _commit(self, turn: Turn) -> None:
        experiment_id = self.state.row.id
        counters = self.state.counters()
        if not turn.writes and counters == self._counters:
            return
        seconds = self.state.active_seconds(self.context.clock.monotonic())
        turn.write(lambda c: experiments.set_counters(c, experiment_id, active_seconds=seconds, **counters))
        await self.context.control.write(turn.apply)
        for level, text, ids in turn.log_lines:
            log.log(level, text, extra=ids)
        self._counters = counters
        self.context.feed.notify()

    def _until_deadline(self) -> float | None:
        """Seconds until something is due without a message; None: nothing is."""
        monotonic = self.context.clock.monotonic()
        due = [] if self._retry_due == inf else [self._retry_due - monotonic]
        if self._effects.due is not None:
            due.append(self._effects.due - monotonic)
        row, gpus = self.state.row, self.state.gpu_time
        if row.max_experiment_seconds is not None and row.status is ExperimentStatus.RUNNING:
            due.append(row.max_experiment_seconds - self.state.active_seconds(monotonic))
        if row.max_gpu_hours is not None and gpus.rate and row.status is ExperimentStatus.RUNNING:
            due.append((row.max_gpu_hours * 3600 - gpus.seconds(monotonic)) / gpus.rate)
        return max(min(due), _SHORTEST_WAIT_SECONDS) if due else None

    # ---- the dispatcher -------------------------------------------------------------------------------------------

    def _ensure_dispatcher(self, group: asyncio.TaskGroup) -> None:
        """Start a dispatcher when there is something for it to do; let it leave in order when there is no more."""
        if self._dispatcher_task is None and self.state.row.status.is_working:
            name = f"experiment {self.state.row.id} dispatcher"
            self._dispatcher_task = group.create_task(self._run_dispatcher(), name=name)
        elif self._dispatcher_task is not None and not self._keeps_dispatcher():
            self._dispatcher.finish()

    def _keeps_dispatcher(self) -> bool:
        """Whether a dispatcher that runs is still needed. A DONE experiment's custom tuner is: in another process it
        may not be able to continue where a limit is raised (docs/decisions/0015-a-custom-tuner-outlives-done.md)."""
        match self.state.row.status:
            case ExperimentStatus.DONE:
                return self.context.config.has_own_algorithm
            case ExperimentStatus.STOPPING:
                return bool(self.state.by_job)  # the ends of trials are still sent to it
            case status:
                return status.is_working

    async def _run_dispatcher(self) -> None:
        try:
            await self._dispatcher.run(self.inbox.post)
        except (DispatcherGone, protocol.ProtocolError, OSError) as error:
            self.inbox.post(m.DispatcherFailed(str(error)))
        self.inbox.post(m.DispatcherLeft())

    # ---- values that the store refuses -------------------------------------------------------------------------------

    async def _handle_apart(self, envelopes: Sequence[Envelope]) -> None:
        """The store has refused a value: handle each part of the messages alone, so that only one suffers."""
        await self._take_turn([])  # what is refused here belongs to no message
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
            await self._take_turn([envelope])
        except ValueRefused as error:
            await self._roll_back(before)
            extra = {"action": "value.refuse", "experiment_id": self.state.row.id}
            name = type(envelope.message).__name__
            log.warning("experiment %s: the store refuses a %s: %s", self.state.row.id, name, error, extra=extra)
            if m.is_request(envelope.message):
                envelope.refuse(BadRequest(f"this cannot be stored: {error}"))
            else:
                why, now = error_clause(error), self.context.clock.now()
                await self._take_turn([Envelope(each) for each in m.substitutes(envelope.message, why, now)])

    async def _roll_back(self, before: Snapshot) -> None:
        """Discard what a turn has changed in memory that was not committed."""
        experiment_id, clock = self.state.row.id, self.context.clock
        stored = await self.context.control.read(lambda c: read_state(c, experiment_id), time_limit_seconds=60.0)
        self.state.roll_back(before, stored)
        transitions.restore_retry_times(self.state, self._policy, now=clock.now(), monotonic=clock.monotonic())
        self.state.count_gpus(clock)

    # ---- the end ----------------------------------------------------------------------------------------------------

    def _refuse_all(self, clause: str) -> None:
        """The loop has ended: answer every caller that waits for it, or will. Idempotent."""
        row = self.state.row
        if row.status is ExperimentStatus.STOPPED:
            self.inbox.close(Conflict(f"experiment {row.id} is {row.status}"))
        else:
            text = f"experiment {row.id} could not do it: {clause}; its loop will be restarted soon; try again then"
            self.inbox.close(Unavailable(text))

    async def _settle_failure(self, error: Exception) -> None:
        """Only jobs that the store knows to be live keep their places. What does not pass by itself is written down,
        where the user looks."""
        experiment_id = self.state.row.id
        try:  # by the writer, so that it sees what was being committed when the loop ended
            live = await self.context.control.write(lambda c: [job.id for job in jobs.live(c, experiment_id)])
        except StoreError:
            live = list(self.state.by_job)
        self.context.placer.keep_only(live)
        if is_transient(error):
            return
        log.exception("experiment %s failed", experiment_id, extra={"action": "experiment.fail"})
        row = await self.context.control.read(lambda c: experiments.get(c, experiment_id))
        if EXPERIMENT.allows(row.status, ExperimentEvent.FAIL):
            self.state.row = replace(self.state.row, status=row.status)
            turn = self._new_turn()
            reason = f"internal error: {error_clause(error)}"[:_LONGEST_ERROR]
            tuning.fail(self.state, turn, reason, "".join(traceback.format_exception(error))[-_LONGEST_ERROR:])
            await self._commit(turn)
