"""Reading an experiment back from the stores, after a restart of the manager or of its dispatcher."""

import asyncio
import json
import sqlite3
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.client.client import InputSource
from proctor.manager.dispatcher.protocol import ToDispatcher
from proctor.manager.engine.loop import tuning
from proctor.manager.engine.loop.messages import MetricsRefused
from proctor.manager.engine.loop.state import ExperimentState, GpuTime, LiveTrial, Turn
from proctor.manager.engine.transient_errors import error_clause
from proctor.manager.lifecycle.states import TrialStatus
from proctor.manager.lifecycle.trial import PausedBy
from proctor.manager.store.database import Database
from proctor.manager.store.errors import ValueRefused
from proctor.manager.store.rows import CheckpointRow, ExperimentRow, InputRow, MetricRow, TrialRow
from proctor.manager.store.tables import checkpoints, dispatcher_inputs, experiments, jobs, trials
from proctor.manager.store.tables import metrics as metric_store
from proctor.manager.store.tables.journals import metric_number


async def load_state(control: Database, metrics: Database, experiment_id: str) -> ExperimentState:
    """The experiment as the stores have it. What the metrics database knows better is taken from there."""
    state = await control.read(lambda c: read_state(c, experiment_id), time_limit_seconds=60.0)
    state.unsaved_columns |= await _refresh(metrics, state.trials.values(), state.row.report_from)
    return state


async def bring_back(
    state: ExperimentState,
    turn: Turn,
    control: Database,
    metrics: Database,
    trial_ids: Collection[str],
    *,
    with_experiment: bool = False,
) -> list[LiveTrial]:
    """Bring PAUSED trials back into the state, with what the metrics database knows better.

    :param with_experiment: also all those that were paused together with their experiment.
    """

    def find(connection: sqlite3.Connection) -> list[TrialRow]:
        found = trials.paused(connection, state.row.id, trial_ids)
        if with_experiment:
            known = {row.id for row in found} | state.trials.keys()
            others = trials.paused_with_experiment(connection, state.row.id)
            found += [row for row in others if row.id not in known]
        return found

    return await _bring_back(state, turn, control, metrics, find)


async def bring_back_forgotten(
    state: ExperimentState, turn: Turn, control: Database, metrics: Database, limit: int
) -> list[LiveTrial]:
    """At most `limit` of the trials that their trial scheduler has paused; none while others are PAUSED, which the user
    may resume."""

    def find(connection: sqlite3.Connection) -> list[TrialRow]:
        if not state.is_ending_paused and trials.is_paused_otherwise(connection, state.row.id):
            return []
        return trials.paused_by_scheduler(connection, state.row.id, limit)

    return await _bring_back(state, turn, control, metrics, find)


async def _bring_back(
    state: ExperimentState,
    turn: Turn,
    control: Database,
    metrics: Database,
    find: Callable[[sqlite3.Connection], list[TrialRow]],
) -> list[LiveTrial]:
    def read(connection: sqlite3.Connection) -> list[LiveTrial]:
        rows = find(connection)
        ids = [row.id for row in rows]
        decisions, ran = dispatcher_inputs.pending(connection, ids), jobs.run_before(connection, ids)
        held = trials.held_by_scheduler(connection, ids)
        return [
            LiveTrial(row, decision=decisions.get(row.id), is_held=row.id in held, run_before=ran.get(row.id, 0.0))
            for row in rows
        ]

    found = await control.read(read)
    for trial in found:
        state.bring_back(trial)
    for trial_id, columns in (await _refresh(metrics, found, state.row.report_from)).items():
        turn.write(lambda c, key=trial_id, new=columns: trials.update(c, key, **new))  # type: ignore[misc]
    return found


def read_state(connection: sqlite3.Connection, experiment_id: str) -> ExperimentState:
    """The experiment as the control database alone has it. Raises RowNotFound."""
    row = experiments.get(connection, experiment_id)
    counts = trials.counts(connection, experiment_id)
    state = ExperimentState(row, created=sum(counts.values()), paused=counts.get(TrialStatus.PAUSED, 0))
    state.paused_by_scheduler = trials.count_paused_by(connection, experiment_id, PausedBy.SCHEDULER)
    state.gpu_time = GpuTime(
        jobs.gpu_seconds_of_ended(connection, experiment_id), jobs.recent_gpu_jobs(connection, experiment_id)
    )
    for trial_row in trials.live(connection, experiment_id):
        state.add(LiveTrial(trial_row))
    for trial_id, seconds in jobs.run_before(connection, state.trials).items():
        state.trials[trial_id].run_before = seconds
    for job in jobs.live(connection, experiment_id):
        state.set_job(state.trials[job.trial_id], job)
    for trial_id, decision in dispatcher_inputs.pending(connection, state.trials).items():
        state.trials[trial_id].decision = decision
    state.requested = dispatcher_inputs.unanswered(connection, experiment_id)
    if (news := dispatcher_inputs.last_news(connection, experiment_id)) is not None:
        state.news_at = news.position
        if news.kind == protocol.TrialEnd.__name__ and news.payload.get("more_follow"):
            state.more_follow_at = news.position
    return state


@dataclass
class _Newest:
    """What the metrics database knows of a trial."""

    finals: list[MetricRow]
    latest: MetricRow | None
    has_progress: bool
    checkpoints: list[CheckpointRow]


async def _refresh(metrics: Database, found: Collection[LiveTrial], report_from: int) -> dict[str, dict[str, Any]]:
    """Metrics may have been stored that the trials' rows do not show yet; returns by trial id what the rows must be
    given."""
    if not found:
        return {}

    def newest(connection: sqlite3.Connection, trial: LiveTrial) -> _Newest:
        trial_id, job = trial.row.id, trial.job
        return _Newest(
            metric_store.finals(connection, trial_id),
            metric_store.latest_intermediate(connection, trial_id, member=report_from),
            job is not None and metric_store.has_progress(connection, trial_id, job.number),
            checkpoints.kept(connection, trial_id),
        )

    read = await metrics.read(lambda c: [newest(c, trial) for trial in found], time_limit_seconds=60.0)
    columns = {trial.row.id: _show(trial, known, report_from) for trial, known in zip(found, read, strict=True)}
    return {trial_id: changed for trial_id, changed in columns.items() if changed}


def _show(trial: LiveTrial, newest: _Newest, report_from: int) -> dict[str, Any]:
    """Have a trial show what the metrics database knows; returns the columns of its row that change."""
    trial.has_progress = newest.has_progress
    trial.has_checkpoints = bool(newest.checkpoints)
    trial.saved_at = max((row.time for row in newest.checkpoints), default=None)
    final = next((row for row in newest.finals if row.member == report_from), None)
    trial.other_final = next((row.member for row in newest.finals if row.member != report_from), None)
    columns: dict[str, Any] = {}
    if final is not None and not trial.has_final:
        columns |= {"final_data": final.reported, "final_value": metric_number(final.reported)}
    if (latest := newest.latest) is not None:
        if trial.job is not None and trial.job.number == latest.job:
            trial.reported_seconds = latest.seconds or 0.0
        trial.latest, trial.has_latest = latest.reported, True
        if metric_number(latest.reported) is not None:
            trial.latest_with_number = latest.reported
        columns |= {"intermediate_count": latest.sequence + 1, "latest_value": metric_number(latest.reported)}
    columns = {name: value for name, value in columns.items() if getattr(trial.row, name) != value}
    trial.row = replace(trial.row, **columns)
    return columns


async def save_columns(state: ExperimentState, turn: Turn, control: Database) -> None:
    """Store what `load_state` has found for trials. A final metric that the store refuses is not a trial's result."""

    def update(trial_id: str, columns: Mapping[str, Any]) -> asyncio.Future[None]:
        return control.write(lambda c: trials.update(c, trial_id, **columns))

    unsaved = dict(state.unsaved_columns)
    state.unsaved_columns.clear()
    writings = [update(trial_id, columns) for trial_id, columns in unsaved.items()]  # in one commit
    for (trial_id, columns), outcome in zip(
        unsaved.items(), await asyncio.gather(*writings, return_exceptions=True), strict=True
    ):
        if isinstance(outcome, ValueRefused):
            trial = state.trials[trial_id]
            trial.row = replace(trial.row, final_data=None, final_value=None)
            await update(trial_id, {name: value for name, value in columns.items() if name[:6] != "final_"})
            why = f"its final metric cannot be stored: {error_clause(outcome)}"
            tuning.on_metrics_refused(state, turn, MetricsRefused(f"{trial_id}.{trial.row.jobs}", why))
        elif outcome is not None:
            raise outcome


async def stop_where_damaged(state: ExperimentState, turn: Turn, metrics: Database) -> None:
    """Stop the jobs that have found to be damaged what they were to continue from, where that is not decided yet."""
    found = [trial for trial in state.by_job.values() if trial.job is not None and trial.job.stop_reason is None]
    read = await metrics.read(
        lambda c: [metric_store.damaged_checkpoints(c, trial.row.id, trial.row.jobs) for trial in found],
        time_limit_seconds=60.0,
    )
    for trial, paths in zip(found, read, strict=True):
        for path in paths:
            tuning.on_damaged_checkpoint(state, turn, trial, path)


class InputLog(InputSource):
    """The input log as messages, for a dispatcher that has just been started, and the state that it begins with."""

    def __init__(self, control: Database, metrics: Database, experiment: ExperimentRow) -> None:
        self._control = control
        self._metrics = metrics
        self._experiment_id = experiment.id
        self._report_from = experiment.report_from
        self._parameter_ids: dict[str, int] = {}  # by job id

    async def read_state(self) -> tuple[int, str | None]:
        """The newest state that a dispatcher has saved, and the position of the last input that is part of it."""
        return await self._control.read(
            lambda c: dispatcher_inputs.read_state(c, self._experiment_id), time_limit_seconds=60.0
        )

    async def read(self, after: int, limit: int) -> Sequence[ToDispatcher]:
        """The next inputs; requests carry the answers that are stored."""
        rows, answers = await self._control.read(lambda c: self._rows(c, after, limit))
        return [await self._message(row, answers.get(row.position, [])) for row in rows]

    def _rows(
        self, connection: sqlite3.Connection, after: int, limit: int
    ) -> tuple[list[InputRow], dict[int, list[protocol.Answer]]]:
        rows = dispatcher_inputs.after(connection, self._experiment_id, after, limit)
        requests = [row.position for row in rows if row.kind == "RequestTrialJobs"]
        return rows, {position: self._answers(connection, position) for position in requests}

    def _answers(self, connection: sqlite3.Connection, position: int) -> list[protocol.Answer]:
        suggested = dispatcher_inputs.suggestions(connection, self._experiment_id, position)
        decided = dispatcher_inputs.decisions(connection, self._experiment_id, position)
        answers = [protocol.Answer(*suggestion) for suggestion in suggested] + [
            protocol.Answer(row.parameter_id, row.parameters, row.state, str(row.kind), row.trial_id, row.donor_trial)
            for row in decided
        ]
        return sorted(answers, key=lambda answer: answer.parameter_id)

    async def _message(self, row: InputRow, answers: list[protocol.Answer]) -> ToDispatcher:
        if row.kind == "ReportMetrics":
            first, last = row.payload["first"], row.payload["last"]
            rows = await self.metrics_between(first, last, without=row.payload.get("ended", ()))
            return protocol.ReportMetrics(row.position, rows)
        body: dict[str, Any] = {"type": row.kind, "position": row.position, **row.payload}
        if row.kind == "RequestTrialJobs":
            body["answers"] = [vars(answer) for answer in answers]
        return protocol.decode(json.dumps(body).encode())  # type: ignore[return-value]

    async def metrics_between(
        self, first: int, last: int, *, without: Collection[str] = ()
    ) -> list[protocol.ReportedMetric]:
        """Intermediate metrics by their ids, as the dispatcher gets them.

        :param without: jobs whose metrics it did not get.
        """
        found = await self._metrics.read(
            lambda c: metric_store.intermediates_between(c, first, last, member=self._report_from),
            time_limit_seconds=60.0,
        )
        job_ids = [f"{row.trial_id}.{row.job}" for row, _ in found]
        if unknown := set(job_ids) - self._parameter_ids.keys():
            self._parameter_ids |= await self._control.read(lambda c: jobs.parameter_ids(c, unknown))
        return [
            protocol.ReportedMetric(
                self._parameter_ids[job_id], row.trial_id, row.job, row.sequence, row.reported, row.step, seconds
            )
            for job_id, (row, seconds) in zip(job_ids, found, strict=True)
            if job_id in self._parameter_ids and job_id not in without
        ]
