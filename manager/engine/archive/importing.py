"""A saved experiment as rows of this home, and what its tuner must receive of it."""

import asyncio
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from proctor.manager.config.experiment import ExperimentConfig
from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.algorithms.registry import read_search_space
from proctor.manager.engine import creation
from proctor.manager.engine.archive.format import ExperimentArchive, SavedExperiment, SavedJob, SavedTrial
from proctor.manager.engine.creation import new_seed
from proctor.manager.engine.loop.starts import message_payload
from proctor.manager.errors import BadRequest, Conflict, Unavailable
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.lifecycle.trial import PausedBy
from proctor.manager.settings import CONFIG_FILE, METRICS_FILE, UNFINISHED_FILE
from proctor.manager.store.database import Database
from proctor.manager.store.errors import RowNotFound
from proctor.manager.store.rows import ExperimentRow, MetricRow, SavedViewRow, SchedulerTablesRow, TrialJobRow, TrialRow
from proctor.manager.store.tables import (
    dispatcher_inputs,
    events,
    experiments,
    jobs,
    metrics,
    saved_views,
    scheduler_tables,
    trials,
)
from proctor.manager.store.tables.journals import metric_number
from proctor.sdk.disk_errors import explain
from proctor.sdk.failpoints import failpoint
from proctor.sdk.files import sync_tree
from proctor.sdk.space import SearchSpaceError
from proctor.training_services.base import EndReason, NodePlacement, TrialJobStatus

_CUT_OFF = "it had not ended when the experiment was saved"


@dataclass(frozen=True)
class ImportedExperiment:
    """A saved experiment as rows of this home."""

    experiment: ExperimentRow
    trials: Sequence[TrialRow]
    jobs: Sequence[TrialJobRow]
    inputs: Sequence[Any]
    views: Sequence[SavedViewRow] = ()
    scheduler: SchedulerTablesRow | None = None
    storage_clause: str = ""
    """What became of the place where its checkpoints were stored."""

    def insert(self, connection: sqlite3.Connection, *, time: float) -> None:
        """Write everything down. Raises Conflict for an experiment or trial that is here already."""
        _check_free(connection, self.experiment, self.trials)
        experiments.insert(connection, self.experiment)
        for trial in self.trials:
            trials.insert(connection, trial, time=time)
        for job in self.jobs:
            jobs.insert(connection, job)
        for message in self.inputs:
            dispatcher_inputs.append(
                connection,
                self.experiment.id,
                message.position,
                type(message).__name__,
                message_payload(message),
            )
        for view in self.views:
            saved_views.upsert(connection, view)
        if self.scheduler is not None:
            scheduler_tables.upsert(connection, self.scheduler)
        text = f"loaded from an archive, with {len(self.trials)} trials{self.storage_clause}"
        events.append(connection, time=time, kind=events.NOTICE, data={"text": text}, experiment_id=self.experiment.id)


def convert(
    saved: SavedExperiment,
    found: Sequence[SavedTrial],
    attempts: Sequence[SavedJob],
    *,
    config: ExperimentConfig,
    experiment_id: str,
    directory: Path,
    last_metric: int,
    now: float,
) -> ImportedExperiment:
    """The rows of a saved experiment with its trials and their jobs.

    Trials that had not ended wait to be run again, from their beginning; their jobs are over.
    :param config: from `read_config`.
    :param last_metric: the id of its last metric.
    """
    trial_rows = [_trial(trial, experiment_id) for trial in found]
    messages = _messages(saved, config, found, trial_rows)
    experiment = ExperimentRow(
        id=experiment_id,
        name=saved.name,
        status=ExperimentStatus.STOPPED,
        reason=f"loaded from an archive; it was {saved.status} when it was saved",
        config=config.canonical(),
        search_space=saved.search_space,
        directory=str(directory),
        seed=new_seed(config),
        created_at=saved.created_at.timestamp(),
        trial_concurrency=saved.trial_concurrency,
        max_trial_number=saved.max_trial_number,
        max_experiment_seconds=saved.max_experiment_duration_seconds,
        max_trial_seconds=saved.max_trial_duration_seconds,
        max_gpu_hours=saved.max_gpu_hours,
        priority=saved.priority,
        tags=saved.tags,
        next_sequence_id=1 + max((trial.sequence_id for trial in found), default=-1),
        next_parameter_id=1 + max((trial.parameter_id for trial in found), default=-1),
        next_position=1 + len(messages),
        metrics_told=last_metric,
        active_seconds=saved.active_seconds,
        started_at=_seconds(saved.started_at),
        ended_at=_seconds(saved.ended_at) or now,
    )
    job_rows = [_job(job, experiment_id, now) for job in attempts]
    views = [
        SavedViewRow(experiment_id, view.name, view.page, view.query, view.saved_at.timestamp()) for view in saved.views
    ]
    tables = [table.model_dump() for table in saved.scheduler_tables]
    scheduler = SchedulerTablesRow(experiment_id, tables, now) if tables else None
    return ImportedExperiment(
        experiment, trial_rows, job_rows, messages, views, scheduler, _storage_clause(saved, config)
    )


def _storage_clause(saved: SavedExperiment, config: ExperimentConfig) -> str:
    if config.checkpoint_storage is not None:
        return f"; its checkpoints are stored in {config.checkpoint_storage.location}, as before"
    before = ExperimentConfig.from_canonical(saved.config).checkpoint_storage
    return "" if before is None else f"; its checkpoints are stored in its folder, no longer in {before.location}"


def read_config(saved: SavedExperiment, code_directory: str | None, *, keep_storage: bool) -> ExperimentConfig:
    """The configuration here: in the home, and with the code where it is now (None: where it was).

    :param keep_storage: checkpoints are stored where they were; else in the jobs' folders.

    Raises BadRequest.
    """
    try:
        config = ExperimentConfig.from_canonical(saved.config)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(step) for step in first["loc"])
        raise BadRequest(f"the saved configuration cannot be used by this version: {key}: {first['msg']}") from error
    _check_spaces(saved, config)
    body = config.canonical() | {"experiment_working_directory": None}
    if not keep_storage:
        body["checkpoint_storage"] = None
    if code_directory is not None:
        before, after = Path(config.trial_code_directory), Path(code_directory)
        if not (after.is_absolute() and after.is_dir()):
            raise BadRequest(f"code_directory: expected the absolute path of a folder, found {code_directory!r}")
        body["trial_code_directory"] = str(after)
        for algorithm in filter(None, (body["tuner"], body["assessor"], body["trial_scheduler"])):
            if algorithm["code_directory"] is not None:
                folder = Path(algorithm["code_directory"])
                if folder.is_relative_to(before):
                    algorithm["code_directory"] = str(after / folder.relative_to(before))
    return ExperimentConfig.from_canonical(body)


def _check_spaces(saved: SavedExperiment, config: ExperimentConfig) -> None:
    for what, space in (("search space", saved.search_space), ("configuration's search space", config.search_space)):
        try:
            read_search_space(config.canonical()["tuner"], space, is_new=False)
        except SearchSpaceError as error:
            raise BadRequest(f"the saved {what} cannot be used by this version: {error}") from error


def check_records(found: Sequence[SavedTrial], attempts: Sequence[SavedJob]) -> None:
    """Raise BadRequest for trials that are there twice and jobs of none."""
    for name in ("id", "sequence_id"):
        if len({getattr(trial, name) for trial in found}) != len(found):
            raise BadRequest(f"the archive cannot be loaded: two of its trials have the same {name}")
    known = {trial.id for trial in found}
    for job in attempts:
        if job.trial_id not in known:
            raise BadRequest(f"the archive cannot be loaded: its job of trial {job.trial_id} has no trial")


def _check_free(connection: sqlite3.Connection, experiment: ExperimentRow, rows: Iterable[TrialRow]) -> None:
    if experiment.id in experiments.ids(connection):
        raise Conflict(f"experiment {experiment.id} already exists; load it under another id or delete that one")
    for row in rows:
        try:
            owner = trials.get(connection, row.id).experiment_id
        except RowNotFound:
            continue
        raise Conflict(f"trial {row.id} already exists, in experiment {owner}; delete that experiment first")


def _trial(trial: SavedTrial, experiment_id: str) -> TrialRow:
    row = TrialRow(
        id=trial.id,
        experiment_id=experiment_id,
        sequence_id=trial.sequence_id,
        status=trial.status,
        reason=trial.reason,
        parameter_id=trial.parameter_id,
        parameters=trial.parameters,
        source=trial.source,
        jobs=trial.jobs,
        intermediate_count=trial.intermediate_count,
        latest_value=_number(trial.latest_value),
        final_value=_number(trial.final_value),
        final_data=trial.final_data,
        created_at=trial.created_at.timestamp(),
        started_at=_seconds(trial.started_at),
        ended_at=_seconds(trial.ended_at),
    )
    if trial.status.is_terminal:
        return row
    row = replace(row, source="customized")  # to the new dispatcher
    if trial.status is TrialStatus.PAUSED:
        return replace(row, **_pause(trial))
    return replace(row, status=TrialStatus.WAITING, reason=f"waiting: {_CUT_OFF}; resume runs it again")


def _pause(trial: SavedTrial) -> dict[str, Any]:
    """The columns that say who has paused a trial. The trial scheduler that has is not the one that is started here, so
    that only a user can resume it."""
    if trial.paused_by is not PausedBy.SCHEDULER:
        return {"paused_by": trial.paused_by or PausedBy.USER}
    reason = f"{trial.reason}; it is loaded from an archive: a user may resume it"
    return {"paused_by": PausedBy.USER, "reason": reason}


def _job(job: SavedJob, experiment_id: str, now: float) -> TrialJobRow:
    gpus = None if job.gpus is None else tuple(job.gpus)
    row = TrialJobRow(
        id=f"{job.trial_id}.{job.number}",
        trial_id=job.trial_id,
        experiment_id=experiment_id,
        number=job.number,
        token=secrets.token_hex(8),
        status=TrialJobStatus.ENDED,
        stop_reason=job.stop_reason,
        end_reason=job.end_reason,
        detail=job.detail,
        parameter_id=job.parameter_id,
        parameters=job.parameters,
        parent_job=job.parent_job,
        resumed_from_job=job.resumed_from_job,
        resumed_from_step=job.resumed_from_step,
        start_reason=job.start_reason,
        node_id=job.node_id,
        placement=None if job.node_id is None else NodePlacement(job.node_id, gpus).to_json(),
        pid=job.pid,
        exit_code=job.exit_code,
        signal=job.signal,
        code_fingerprint=job.code_fingerprint,
        submitted_at=_seconds(job.submitted_at),
        started_at=_seconds(job.started_at),
        ended_at=_seconds(job.ended_at),
        counted_gpus=len(gpus or ()) if job.counted_gpus is None else job.counted_gpus,
        cpu_seconds=job.cpu_seconds,
    )
    if job.status.is_terminal:
        return row
    cut_off = replace(row, end_reason=EndReason.EXPERIMENT_STOPPED, detail=_CUT_OFF, ended_at=now)
    return replace(cut_off, counted_gpus=0.0)  # how long it ran after that is not known


def _messages(
    saved: SavedExperiment, config: ExperimentConfig, found: Sequence[SavedTrial], rows: Sequence[TrialRow]
) -> list[Any]:
    """The first inputs of the new dispatcher: the results so far, the search space of now, the trials to come."""
    inputs: list[Any] = []
    results = [
        {"parameter": trial.parameters, "value": value}
        for trial in found
        if trial.status.is_terminal and (value := _outcome(trial, config)) is not None
    ]
    if results:
        inputs.append(protocol.ImportData(1, results))
    if saved.search_space != config.search_space:
        inputs.append(protocol.UpdateSearchSpace(len(inputs) + 1, saved.search_space))
    for row in rows:
        if not row.status.is_terminal:
            inputs.append(protocol.AddCustomizedTrial(len(inputs) + 1, row.parameter_id, row.parameters))
    return inputs


def _outcome(trial: SavedTrial, config: ExperimentConfig) -> Any:
    """The result of an ended trial for the tuner, as `trials.outcome` had it."""
    if trial.final_data is not None:
        return trial.final_data
    counts = config.tuner.counts_intermediate_results and trial.status is TrialStatus.EARLY_STOPPED
    return trial.latest_value if counts else None


def _number(value: float | str | None) -> float | None:
    """The number of a column; the words of the wire are no numbers."""
    return metric_number(value)


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


# ---- loading --------------------------------------------------------------------------------------------------------
# Taking in a saved experiment: its folder, its metrics, then its rows. Nothing of a failed one stays.
#
# The folder is marked until the rows are written, so that the next manager removes what a killed one has left.

_NOT_UNPACKED = frozenset({CONFIG_FILE, UNFINISHED_FILE, creation.CHECKPOINT_FOLDER})
"""A tuner's saved state belongs to the old input log; the results are sent to a new one."""


@dataclass(frozen=True)
class Loading:
    """One experiment on its way from an archive into a folder of the home.

    :param config: from `read_config`.
    """

    archive: ExperimentArchive
    saved: SavedExperiment
    experiment_id: str
    folder: Path
    config: ExperimentConfig
    handover: creation.CreationRequest

    async def carry_out(self, control: Database, now: float, *, threads: bool) -> ExperimentRow:
        """Write everything down. Raises BadRequest, Conflict or Unavailable; then nothing is left."""
        found, attempts = await asyncio.to_thread(self._read_records)
        failpoint("manager.load.before")
        try:
            await asyncio.to_thread(creation.make_folder, self.folder, self.config)
        except FileExistsError:
            raise Conflict(f"the folder {self.folder} already exists; choose another id or remove it") from None
        try:
            row = await self._fill(control, found, attempts, now, threads=threads)
        except OSError as error:
            await self._remove()
            why = explain(error, str(self.folder))
            raise Unavailable(f"cannot write the experiment's folder {self.folder}: {why}") from error
        except Exception:
            await self._remove()
            raise
        failpoint("manager.load.after")
        creation.finish_folder(self.folder)
        return row

    async def _fill(
        self,
        control: Database,
        found: list[SavedTrial],
        attempts: list[SavedJob],
        now: float,
        *,
        threads: bool,
    ) -> ExperimentRow:
        await asyncio.to_thread(self._unpack)
        last_metric = await self._store_metrics(found, attempts, threads=threads)
        loaded = convert(
            self.saved,
            found,
            attempts,
            config=self.config,
            experiment_id=self.experiment_id,
            directory=self.folder,
            last_metric=last_metric,
            now=now,
        )
        await control.write(lambda connection: loaded.insert(connection, time=now))
        return loaded.experiment

    def _read_records(self) -> tuple[list[SavedTrial], list[SavedJob]]:
        found, attempts = self.archive.trials(), self.archive.jobs()
        check_records(found, attempts)
        return found, attempts

    def _unpack(self) -> None:
        creation.write_handover(self.folder, self.handover)
        self.archive.unpack(self.folder, but=_NOT_UNPACKED)
        sync_tree(str(self.folder))

    async def _store_metrics(self, found: list[SavedTrial], attempts: list[SavedJob], *, threads: bool) -> int:
        """Write the metrics database; returns the id of the last metric."""
        known = {trial.id for trial in found}
        starts: dict[tuple[str, int], tuple[int, int | None]] = {}
        for job in attempts:
            owner, _, number = (job.resumed_from_job or "").rpartition(".")
            resumed_from = int(number) if owner == job.trial_id else None
            starts[job.trial_id, job.number] = (job.resumed_from_step or 0, resumed_from)

        def write(connection: sqlite3.Connection) -> int:
            return metrics.insert(connection, self._metrics(known), starts=starts)

        path = str(self.folder / METRICS_FILE)
        try:
            async with await Database.open(path, "metrics", threads=threads) as database:
                return await database.write(write)
        except sqlite3.IntegrityError as error:
            raise BadRequest(f"the archive cannot be loaded: two of its metrics have the same id ({error})") from error

    def _metrics(self, known: set[str]) -> Iterator[MetricRow]:
        for metric in self.archive.metrics():
            if metric.trial_id not in known:
                raise BadRequest(f"the archive cannot be loaded: its metric {metric.id} has no trial {metric.trial_id}")
            yield metric.row()

    async def _remove(self) -> None:
        await asyncio.to_thread(creation.remove_folder, self.folder)
