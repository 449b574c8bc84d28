"""What one experiment's loop holds in memory, and what one turn of it changes.

`ExperimentState` is the row of the experiment and its trials that are WAITING or RUNNING. Those that have ended or are
PAUSED are in the store alone, so that a turn costs the same however many there are; a turn that is about a PAUSED one
brings it back. A `Turn` gathers what one turn commits, and what is done once it is committed.
"""

import logging
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any

from proctor.manager.actors import MANAGER, Actor
from proctor.manager.clock import Clock, SystemClock
from proctor.manager.dispatcher.protocol import ToDispatcher
from proctor.manager.lifecycle.experiment import ExperimentProgress
from proctor.manager.lifecycle.experiment_failures import count_end
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.lifecycle.trial import PausedBy
from proctor.manager.store.rows import (
    CheckpointRow,
    DecisionRow,
    ExperimentRow,
    TrialJobRow,
    TrialRow,
    trial_end_columns,
)
from proctor.manager.store.tables import dispatcher_inputs, events, jobs
from proctor.training_services.capacity import Standing

Write = Callable[[sqlite3.Connection], Any]


@dataclass
class LiveTrial:
    """A trial that has not ended, with its live job if it has one."""

    row: TrialRow
    job: TrialJobRow | None = None
    latest: Any = None  # last intermediate metric as it was reported
    has_latest: bool = False
    latest_with_number: Any = None  # of the intermediate metrics that have a number, the last one
    waiting_since: float | None = None  # steady time since when it has waited for a place, under this manager
    retry_at: float | None = None  # monotonic time before which it is not tried again
    has_progress: bool = False  # its newest job has reported an intermediate metric or registered a checkpoint
    has_checkpoints: bool = False  # of any of its jobs
    other_final: int | None = None  # a rank that has reported a final metric, and whose reports do not count
    saved_at: float | None = None  # Unix time of its newest checkpoint, where that is known
    preempted: str = ""  # by which experiment its last job was preempted, as a clause
    decision: DecisionRow | None = None  # what its next job is to carry out
    parameters_before: tuple[int, int] | None = None  # parameter id of the jobs before the one of this number
    run_before: float = 0.0  # how long its ended jobs ran, in seconds, without their waits for verdicts
    reported_seconds: float = 0.0  # how long its live job had run when it last reported an intermediate metric
    is_held: bool = False
    """Its trial scheduler has paused its newest job, whoever else has paused the trial."""
    milestone: int | None = None
    """The step at whose report it waits for a verdict; NO_MILESTONE: at none; None: not known, or no scheduler."""

    def parameter_id_of(self, job_number: int) -> int:
        """The parameter id of its newest job, or of the one before it."""
        if self.parameters_before is not None and job_number < self.parameters_before[1]:
            return self.parameters_before[0]
        return self.row.parameter_id

    @property
    def has_final(self) -> bool:
        """Whether a final metric is stored."""
        return self.row.final_data is not None


def seconds_since_start(job: TrialJobRow, now: float) -> float:
    """How long a job has run, as far as the clocks of its machine and of ours tell: not longer than it was submitted
    ago. What it has used is known when it has ended.

    :param now: Unix time.
    """
    if job.started_at is None:
        return 0.0
    latest = now - job.started_at if job.submitted_at is None else min(now - job.started_at, now - job.submitted_at)
    return max(latest, 0.0)


def seconds_so_far(job: TrialJobRow, clock: Clock) -> float:
    """How long a job that runs has run. Only where the machine was restarted since it began, or an earlier version has
    seen it begin, do the times tell."""
    known = None if job.start_moment is None else clock.seconds_since(job.start_moment)
    return seconds_since_start(job, clock.now()) if known is None else known


def start_columns(seconds: float, clock: Clock) -> dict[str, Any]:
    """The columns that say, however the clock is set, how long a job has run by now."""
    return {"start_moment": clock.moment(seconds), "runs_since": clock.steady() - seconds}


class GpuTime:
    """The GPU-seconds of an experiment's jobs, at the same cost however many there are.

    Those of jobs that have ended are as in the store. A job that runs is counted by the monotonic clock: no limit is
    reached by setting the machine's clock.
    """

    def __init__(self, ended: float = 0.0, lately: Sequence[tuple[float, float, float]] = ()) -> None:
        """:param lately: (start, end, GPUs) of the jobs that have ended in the last hour, and maybe before, in Unix
        time; `count_lately` counts them."""
        self._ended = ended
        self._lately = lately
        self._minutes: dict[int, float] = {}  # GPU-seconds of jobs that have ended, by the minute they were used in
        self._running: dict[str, tuple[float, float]] = {}  # by job id: GPUs, and the monotonic time of its start
        self._rate = 0.0  # GPUs of all that run
        self._starts = 0.0  # the sum of GPUs × start

    @property
    def rate(self) -> float:
        """How many GPUs are counted now."""
        return self._rate

    def start(self, job: TrialJobRow, since: float) -> None:
        """A job runs, since this monotonic time."""
        if job.counted_gpus and job.id not in self._running:
            self._running[job.id] = (job.counted_gpus, since)
            self._rate += job.counted_gpus
            self._starts += job.counted_gpus * since

    def end(self, job: TrialJobRow, monotonic: float) -> None:
        """A job has ended, whether it had started or not."""
        self._ended += job.gpu_seconds
        if job.gpu_seconds:
            self._add(monotonic - job.gpu_seconds / job.counted_gpus, monotonic, job.counted_gpus)
        gpus, since = self._running.pop(job.id, (0.0, 0.0))
        self._rate -= gpus
        self._starts -= gpus * since
        if not self._running:
            self._rate = self._starts = 0.0  # what rounding has left

    def seconds(self, monotonic: float) -> float:
        """Up to now."""
        return self._ended + max(self._rate * monotonic - self._starts, 0.0)

    def in_last_hour(self, monotonic: float) -> float:
        """What was used in the hour before the last full minute. Within a minute the answer is the same, so that
        experiments that use as much do not change places all the time."""
        minute = int(monotonic // 60)
        end, begin = minute * 60.0, (minute - 60) * 60.0
        self._minutes = {at: used for at, used in self._minutes.items() if at >= minute - 60}
        running = sum(gpus * max(end - max(since, begin), 0.0) for gpus, since in self._running.values())
        return running + sum(used for at, used in self._minutes.items() if at < minute)

    def count_lately(self, *, now: float, monotonic: float) -> None:
        """After reading the state: count in the last hour what ended before it was read.

        :param now: Unix time.
        """
        for start, end, gpus in self._lately:
            ended = min(monotonic + end - now, monotonic)
            self._add(ended - max(end - start, 0.0), ended, gpus)
        self._lately = ()

    def _add(self, begin: float, end: float, gpus: float) -> None:
        begin = max(begin, end - 3660.0)
        for minute in range(int(begin // 60), int(end // 60) + 1):
            seconds = min(end, (minute + 1) * 60.0) - max(begin, minute * 60.0)
            self._minutes[minute] = self._minutes.get(minute, 0.0) + gpus * max(seconds, 0.0)


@dataclass
class ExperimentState:
    """The loop's memory. Every change to it is in the same turn's transaction."""

    row: ExperimentRow
    created: int = 0
    trials: dict[str, LiveTrial] = field(default_factory=dict)
    by_job: dict[str, LiveTrial] = field(default_factory=dict)  # those with a live job
    jobless: dict[str, LiveTrial] = field(default_factory=dict)  # the others, by their own ids
    paused: int = 0  # how many trials are PAUSED, and only in the store
    paused_by_scheduler: int = 0  # how many of these their trial scheduler has paused
    requested: set[int] = field(default_factory=set)  # parameter ids that the tuner owes
    declined: set[int] = field(default_factory=set)  # ids for which it had nothing; it may come back to them
    exhausted: bool = False
    idle_at: int = 0  # position of the last request that the trial scheduler could not answer for now
    news_at: int = 0  # position of the last input that was no request
    more_follow_at: int = -1  # position of the newest end of a trial with which others end that have not ended yet
    code_fingerprint: str | None = None  # of the code that the newest job runs; None before the first
    unsaved_columns: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # by trial id: columns its stored row lacks
    replayed_to: int = 0  # id of the last metric that was sent on at recovery, not when it arrived
    active_since: float | None = None  # monotonic time since when `row.active_seconds` runs
    gpu_time: GpuTime = field(default_factory=GpuTime)
    copying: set[int] = field(default_factory=set)  # checkpoints that are being copied to this machine
    hints: set[str] = field(default_factory=set)  # what was said of trials that a trial scheduler cannot handle
    place_notices: list[str] = field(default_factory=list)  # of turns that were discarded: the next one adds them
    deleting: set[int] = field(default_factory=set)  # checkpoints whose deletion is decided and perhaps not stored yet

    @cached_property
    def counts_intermediate_results(self) -> bool:
        """Whether the last intermediate metric of a trial that was stopped early is its result for the tuner."""
        from proctor.manager.config.experiment import TunerConfig

        return TunerConfig.model_validate(self.row.config["tuner"]).counts_intermediate_results

    @cached_property
    def has_scheduler(self) -> bool:
        """Whether there is a trial scheduler."""
        return self.row.config.get("trial_scheduler") is not None

    @cached_property
    def scheduler_arguments(self) -> dict[str, Any]:
        """The class arguments of the trial scheduler."""
        section = self.row.config.get("trial_scheduler") or {}
        return dict(section.get("class_args") or {})

    def snapshot(self) -> "Snapshot":
        """What `roll_back` needs besides the stored trials and jobs."""
        kept = (self.row, self.created, self.exhausted, self.active_since, self.replayed_to, self.code_fingerprint)
        waits = (self.idle_at, self.news_at, self.more_follow_at)
        held = (self.paused, self.paused_by_scheduler)
        return Snapshot(
            *kept, *held, frozenset(self.requested), frozenset(self.declined), *waits, frozenset(self.hints)
        )

    def roll_back(self, before: "Snapshot", stored: "ExperimentState") -> None:
        """Discard what a turn has changed that was not committed.

        :param before: from before the turn.
        :param stored: the experiment as the store has it. What only the loop knows of a trial stays.
        """
        self.row, self.created, self.exhausted = before.row, before.created, before.exhausted
        self.active_since, self.replayed_to = before.active_since, before.replayed_to
        self.code_fingerprint = before.code_fingerprint
        self.paused, self.paused_by_scheduler = before.paused, before.paused_by_scheduler
        self.requested, self.declined = set(before.requested), set(before.declined)
        self.idle_at, self.news_at, self.more_follow_at = before.idle_at, before.news_at, before.more_follow_at
        self.hints = set(before.hints)
        for trial_id, trial in stored.trials.items():
            if (known := self.trials.get(trial_id)) is not None:
                trial.latest, trial.has_latest = known.latest, known.has_latest
                trial.latest_with_number = known.latest_with_number
                trial.waiting_since, trial.other_final = known.waiting_since, known.other_final
                trial.has_progress, trial.has_checkpoints = known.has_progress, known.has_checkpoints
                trial.saved_at, trial.preempted = known.saved_at, known.preempted
                trial.milestone, trial.reported_seconds = known.milestone, known.reported_seconds
        self.trials, self.by_job, self.jobless = stored.trials, stored.by_job, stored.jobless
        self.gpu_time = stored.gpu_time

    def add(self, trial: LiveTrial) -> None:
        """One more trial; all of them have a job or wait for one."""
        self.trials[trial.row.id] = trial
        self.set_job(trial, trial.job)

    def set_job(self, trial: LiveTrial, job: TrialJobRow | None) -> None:
        """The trial's live job, or None when it has none any longer."""
        if trial.job is not None:
            self.by_job.pop(trial.job.id, None)
        trial.job, trial.reported_seconds = job, 0.0
        if job is None:
            self.jobless[trial.row.id] = trial
        else:
            self.jobless.pop(trial.row.id, None)
            self.by_job[job.id] = trial

    def end_job(self, trial: LiveTrial, job: TrialJobRow, monotonic: float) -> None:
        """The trial's live job has ended; `job` is its row from then on."""
        trial.run_before += max(job.seconds - job.verdict_seconds, 0.0)
        self.gpu_time.end(job, monotonic)
        self.set_job(trial, None)

    def remove(self, trial: LiveTrial) -> None:
        """A trial without a job has ended, or is PAUSED."""
        del self.trials[trial.row.id], self.jobless[trial.row.id]

    def bring_back(self, trial: LiveTrial) -> None:
        """A PAUSED trial that this turn is about; `set_aside` is the inverse."""
        self.add(trial)
        self.paused -= 1
        self.paused_by_scheduler -= trial.row.paused_by is PausedBy.SCHEDULER

    def set_aside(self, trial: LiveTrial) -> None:
        """The trial is PAUSED: from now on it is in the store alone."""
        self.remove(trial)
        self.paused += 1
        self.paused_by_scheduler += trial.row.paused_by is PausedBy.SCHEDULER

    def take_position(self, *, is_news: bool = True) -> int:
        """The next place in the dispatcher's input log.

        :param is_news: for anything but a request.
        """
        position = self.row.next_position
        if is_news:
            self.news_at = position
        self.row = replace(self.row, next_position=position + 1)
        return position

    def take_parameter_ids(self, count: int) -> list[int]:
        """Parameter ids that were never used."""
        first = self.row.next_parameter_id
        self.row = replace(self.row, next_parameter_id=first + count)
        return list(range(first, first + count))

    def take_sequence_id(self) -> int:
        """A trial number that was never used."""
        sequence_id = self.row.next_sequence_id
        self.row = replace(self.row, next_sequence_id=sequence_id + 1)
        return sequence_id

    def count_gpus(self, clock: Clock) -> list[Write]:
        """After reading the state: count the GPUs of the jobs that run, and of those that have ended lately. Returns
        what tells the store, for a manager that was just started, since when they run."""
        monotonic, writes = clock.monotonic(), list[Write]()
        self.gpu_time.count_lately(now=clock.now(), monotonic=monotonic)
        for trial in self.by_job.values():
            if (job := trial.job) is not None and job.started_at is not None:
                seconds = seconds_so_far(job, clock)
                self.gpu_time.start(job, monotonic - seconds)
                columns = start_columns(seconds, clock)
                trial.job = replace(job, **columns)
                writes.append(partial(jobs.update, job_id=job.id, token=job.token, **columns))
        return writes

    def take_answer(self, parameter_id: int) -> bool:
        """A request for this id is answered. False: it was not requested, or is answered already."""
        is_open = parameter_id in self.requested or parameter_id in self.declined
        self.requested.discard(parameter_id)
        self.declined.discard(parameter_id)
        return is_open

    def active_seconds(self, monotonic: float) -> float:
        """How long trials have been created or waited for, up to now."""
        running = 0.0 if self.active_since is None else monotonic - self.active_since
        return self.row.active_seconds + running

    def counters(self) -> dict[str, Any]:
        """The columns of the row that count."""
        return {
            "next_sequence_id": self.row.next_sequence_id,
            "next_parameter_id": self.row.next_parameter_id,
            "next_position": self.row.next_position,
            "metrics_told": self.row.metrics_told,
            **trial_end_columns(self.row.trial_ends),
        }

    def progress(self, monotonic: float) -> ExperimentProgress:
        """What the lifecycle's rules look at."""
        return ExperimentProgress(
            status=self.row.status,
            created=self.created,
            max_trials=self.row.max_trial_number,
            active_seconds=self.active_seconds(monotonic),
            max_seconds=self.row.max_experiment_seconds,
            live=len(self.trials),
            requested=len(self.requested),
            paused=self.paused,
            paused_by_scheduler=self.paused_by_scheduler,
            exhausted=self.exhausted,
            ends=self.row.trial_ends,
            max_failed=self.row.max_failed_trials,
            gpu_hours=self.gpu_time.seconds(monotonic) / 3600,
            max_gpu_hours=self.row.max_gpu_hours,
            has_scheduler=self.has_scheduler,
            idle=self.idle_at > self.news_at or self.is_ending_paused,
        )

    @property
    def is_ending_paused(self) -> bool:
        """Whether some of the trials have ended that the trial scheduler has paused and will not have run again; the
        others follow before it is asked for anything."""
        return self.more_follow_at == self.news_at

    def count_end(self, status: TrialStatus, cause: str, *, has_final: bool) -> None:
        """One more trial has ended. `cause`: why it has failed, if that counts; else ""."""
        ends = count_end(self.row.trial_ends, status, cause, has_final=has_final)
        self.row = replace(self.row, **trial_end_columns(ends))

    def standing(self, monotonic: float) -> Standing:
        """Against other experiments that wait for GPUs."""
        return Standing(self.row.id, self.row.priority, self.gpu_time.in_last_hour(monotonic))

    def waiting(self) -> Iterator[LiveTrial]:
        """Trials without a job that wait for a place, in the order of their numbers."""
        candidates = [trial for trial in self.jobless.values() if trial.row.status is TrialStatus.WAITING]
        return iter(sorted(candidates, key=lambda trial: trial.row.sequence_id))

    def placed(self) -> int:
        """How many places are taken."""
        return len(self.by_job)


@dataclass(frozen=True)
class Snapshot:
    """What an experiment's state was before a turn, but its trials and jobs: the store has these."""

    row: ExperimentRow
    created: int
    exhausted: bool
    active_since: float | None
    replayed_to: int
    code_fingerprint: str | None
    paused: int
    paused_by_scheduler: int
    requested: frozenset[int]
    declined: frozenset[int]
    idle_at: int
    news_at: int
    more_follow_at: int
    hints: frozenset[str]


@dataclass
class Turn:
    """Gathers writes and effects; `apply` is the transaction. `now` is Unix time, for records; waits are counted from
    `monotonic`, because the machine's clock may be set."""

    experiment_id: str
    now: float
    monotonic: float = 0.0
    clock: Clock = field(default_factory=SystemClock)
    actor: Actor = MANAGER
    """Who has caused what is being handled. What is written is bound to the one of its moment."""
    writes: list[Write] = field(default_factory=list)
    inputs: list[ToDispatcher] = field(default_factory=list)
    submit: list[LiveTrial] = field(default_factory=list)
    cancel: list[tuple[str, bool]] = field(default_factory=list)  # (job id, stopped early)
    release: list[str] = field(default_factory=list)  # job ids whose reservation goes
    update: dict[str, LiveTrial] = field(default_factory=dict)  # those whose jobs are to learn a changed limit
    retain: set[str] = field(default_factory=set)  # trials of whose checkpoints some may have become superfluous
    deleted: set[int] = field(default_factory=set)  # checkpoints that its messages name and that are deleted
    preempted: list[str] = field(default_factory=list)  # job ids that count as being stopped since the decision
    saved: list[CheckpointRow] = field(default_factory=list)  # checkpoints that were registered
    place_notices: list[str] = field(default_factory=list)  # what the placer says once, and was taken from it
    ended: list[str] = field(default_factory=list)  # trials
    paused: dict[str, LiveTrial] = field(default_factory=dict)  # those that the store does not know yet as PAUSED
    log_lines: list[tuple[int, str, dict[str, str | None]]] = field(default_factory=list)

    def write(self, action: Write) -> None:
        """Add a statement to the transaction."""
        self.writes.append(action)

    def send_input(self, message: ToDispatcher, payload: dict[str, Any]) -> None:
        """Add an input to the log, and send it to the dispatcher after the commit. `payload` is what the log keeps."""
        position, kind = message.position, type(message).__name__  # type: ignore[union-attr]
        self.inputs.append(message)
        self.write(lambda c: dispatcher_inputs.append(c, self.experiment_id, position, kind, payload))

    def add_event(self, kind: str, data: dict[str, Any], *, trial_id: str | None = None) -> None:
        """Add an event that is not a change of status."""
        actor, ids = self.actor, {"experiment_id": self.experiment_id, "trial_id": trial_id}
        self.write(lambda c: events.append(c, time=self.now, kind=kind, data=data, actor=actor, **ids))

    def add_notice(self, text: str, *, trial_id: str | None = None) -> None:
        """Add something that the user should know of the experiment, or of one of its trials."""
        self.add_event(events.NOTICE, {"text": text}, trial_id=trial_id)

    def log(self, text: str, *, action: str, level: int = logging.INFO, **ids: str | None) -> None:
        """A line for the manager's log, once the turn is committed."""
        self.log_lines.append((level, text, {"action": action, "experiment_id": self.experiment_id, **ids}))

    def apply(self, connection: sqlite3.Connection) -> None:
        """The transaction."""
        for action in self.writes:
            action(connection)
