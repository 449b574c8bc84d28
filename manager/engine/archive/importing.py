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
from proctor.manager.dispatcher.algorithms.registry import kept_rules, read_search_space
from proctor.manager.engine import creation
from proctor.manager.engine.archive.format import (
    ExperimentArchive,
    SavedCheckpoint,
    SavedExperiment,
    SavedImport,
    SavedJob,
    SavedTrial,
)
from proctor.manager.engine.creation import new_seed
from proctor.manager.engine.loop.context import JobFormBuilder
from proctor.manager.engine.loop.starts import message_payload
from proctor.manager.errors import BadRequest, Conflict, Unavailable
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.lifecycle.trial import DecisionKind, PausedBy
from proctor.manager.settings import CONFIG_FILE, METRICS_FILE, UNFINISHED_FILE
from proctor.manager.store.database import Database
from proctor.manager.store.errors import RowNotFound
from proctor.manager.store.rows import (
    CheckpointRow,
    DecisionRow,
    ExperimentRow,
    MetricRow,
    SavedViewRow,
    SchedulerTablesRow,
    TrialJobRow,
    TrialRow,
)
from proctor.manager.store.statements import encode
from proctor.manager.store.tables import (
    checkpoints,
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
from proctor.manager.store.tables.metrics import JournalStart
from proctor.sdk.disk_errors import explain
from proctor.sdk.failpoints import failpoint
from proctor.sdk.files import sync_tree
from proctor.sdk.protocol import is_url
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
    """What became of the place where its checkpoints were stored, and of these."""
    decisions: Sequence[DecisionRow] = ()
    kept_rules: str = ""
    """What it decides otherwise than a new experiment would, as a sentence."""

    def insert(self, connection: sqlite3.Connection, *, time: float) -> None:
        """Write everything down. Raises Conflict for an experiment or trial that is here already."""
        _check_free(connection, self.experiment, self.trials)
        experiments.insert(connection, self.experiment)
        for trial in self.trials:
            trials.insert(connection, trial, time=time)
        for job in self.jobs:
            jobs.insert(connection, job)
        for decision in self.decisions:
            dispatcher_inputs.record(connection, decision)
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
        for each in filter(None, (text, self.kept_rules)):
            events.append(
                connection, time=time, kind=events.NOTICE, data={"text": each}, experiment_id=self.experiment.id
            )


def convert(
    saved: SavedExperiment,
    found: Sequence[SavedTrial],
    attempts: Sequence[SavedJob],
    imported: Sequence[SavedImport] = (),
    *,
    config: ExperimentConfig,
    experiment_id: str,
    directory: Path,
    last_metric: int,
    now: float,
    left_out: int = 0,
) -> ImportedExperiment:
    """The rows of a saved experiment with its trials and their jobs.

    Trials that had not ended wait to be run again; their jobs are over.
    :param config: from `read_config`.
    :param last_metric: the id of its last metric.
    :param left_out: how many of its checkpoints are not here.
    """
    moved = _Moved(saved.directory, str(directory))
    trial_rows = [_trial(trial, experiment_id, moved) for trial in found]
    messages = _messages(saved, config, found, trial_rows, imported)
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
        rules=saved.rules,
        next_sequence_id=1 + max((trial.sequence_id for trial in found), default=-1),
        next_parameter_id=1 + max((trial.parameter_id for trial in found), default=-1),
        next_position=1 + len(messages),
        metrics_told=last_metric,
        active_seconds=saved.active_seconds,
        started_at=_seconds(saved.started_at),
        ended_at=_seconds(saved.ended_at) or now,
    )
    job_rows = [_job(job, experiment_id, now, moved) for job in attempts]
    views = [
        SavedViewRow(experiment_id, view.name, view.page, view.query, view.saved_at.timestamp()) for view in saved.views
    ]
    tables = [table.model_dump() for table in saved.scheduler_tables]
    scheduler = SchedulerTablesRow(experiment_id, tables, now) if tables else None
    clause = _storage_clause(saved, config) + _left_out_clause(left_out)
    decisions = decisions_of(job_rows)
    kept = kept_rules(saved.rules, config.algorithms)
    return ImportedExperiment(experiment, trial_rows, job_rows, messages, views, scheduler, clause, decisions, kept)


@dataclass(frozen=True)
class _Moved:
    """From the experiment's folder before to the one that it has now."""

    before: str
    after: str

    def path(self, path: str | None) -> str | None:
        """Where a checkpoint is now; one that was elsewhere is still there."""
        if path is None or not self.before or not path.startswith(f"{self.before}/"):
            return path
        return self.after + path.removeprefix(self.before)


def decisions_of(attempts: Sequence[TrialJobRow]) -> list[DecisionRow]:
    """What made trials continue from other trials' checkpoints: a later job must know that what its trial had saved
    before is no longer part of its curve. The requests that these answered are not in the new input log."""
    began_with = {job.trial_id: job.parameter_id for job in attempts if job.number == 1}
    found: dict[int, DecisionRow] = {}
    for job in sorted(attempts, key=lambda each: (each.trial_id, each.number)):
        donor, _, _ = (job.resumed_from_job or "").rpartition(".")
        is_undecided = job.parameter_id == began_with.get(job.trial_id)  # a clone that is decided has new parameters
        if is_undecided or donor in {"", job.trial_id} or job.parameter_id in found:
            continue
        found[job.parameter_id] = DecisionRow(
            experiment_id=job.experiment_id,
            parameter_id=job.parameter_id,
            position=0,
            kind=DecisionKind.CLONE,
            trial_id=job.trial_id,
            decided_at=job.submitted_at or 0.0,
            parameters=job.parameters,
            donor_trial=donor,
            donor_job=job.resumed_from_job,
            donor_checkpoint=job.resume_checkpoint,
            donor_node=job.resume_node_id,
            donor_sequence=job.resumed_from_step,
            job=job.number,
        )
    return list(found.values())


def _storage_clause(saved: SavedExperiment, config: ExperimentConfig) -> str:
    if config.checkpoint_storage is not None:
        return f"; its checkpoints are stored in {config.checkpoint_storage.location}, as before"
    before = ExperimentConfig.from_canonical(saved.config).checkpoint_storage
    return "" if before is None else f"; its checkpoints are stored in its folder, no longer in {before.location}"


def _left_out_clause(count: int) -> str:
    if not count:
        return ""
    return f"; {'1 checkpoint is' if count == 1 else f'{count} checkpoints are'} left out, whose files are not here"


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


def _trial(trial: SavedTrial, experiment_id: str, moved: _Moved) -> TrialRow:
    row = TrialRow(
        id=trial.id,
        experiment_id=experiment_id,
        sequence_id=trial.sequence_id,
        status=trial.status,
        reason=trial.reason,
        parameter_id=trial.parameter_id,
        parameters=trial.parameters,
        source=trial.source,
        origin_trial=trial.origin_trial_id,
        origin_job=trial.origin_job_id,
        origin_checkpoint=moved.path(trial.origin_checkpoint),
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


def _job(job: SavedJob, experiment_id: str, now: float, moved: _Moved) -> TrialJobRow:
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
        resume_checkpoint=moved.path(job.resume_checkpoint),
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
        run_seconds=job.run_seconds,
        verdict_seconds=job.verdict_seconds,
    )
    if job.status.is_terminal:
        return row
    cut_off = replace(row, end_reason=EndReason.EXPERIMENT_STOPPED, detail=_CUT_OFF, ended_at=now)
    return replace(cut_off, counted_gpus=0.0, run_seconds=0.0)  # how long it ran after that is not known


def _checkpoint(checkpoint: SavedCheckpoint) -> CheckpointRow:
    deleted_at = _seconds(checkpoint.deleted_at)
    return CheckpointRow(
        id=checkpoint.id,
        trial_id=checkpoint.trial_id,
        job=checkpoint.job,
        member=checkpoint.member,
        offset=checkpoint.id,  # its place in the journal is not kept
        step=checkpoint.step,
        path=checkpoint.path,
        sequence=checkpoint.sequence,
        time=checkpoint.time.timestamp(),
        with_metric=0,  # its sequence is complete
        bytes=checkpoint.size_bytes,
        manifest=checkpoint.manifest,
        value=_number(checkpoint.value),
        deleted_at=deleted_at,
        removed_at=deleted_at,
    )


def _messages(
    saved: SavedExperiment,
    config: ExperimentConfig,
    found: Sequence[SavedTrial],
    rows: Sequence[TrialRow],
    imported: Sequence[SavedImport],
) -> list[Any]:
    """The first inputs of the new dispatcher: the results so far, those from elsewhere, the search space of now, the
    trials to come."""
    inputs: list[Any] = []
    results = [
        {"parameter": trial.parameters, "value": value}
        for trial in found
        if trial.status.is_terminal and (value := _outcome(trial, config)) is not None
    ]
    if results:
        inputs.append(protocol.ImportData(1, results))
    # Where the experiment was loaded before, the results of its own trials are among the imported ones.
    known = {encode(result) for result in results}
    others = [{"parameter": row.parameter, "value": row.value} for row in imported]
    if others := [result for result in others if encode(result) not in known]:
        inputs.append(protocol.ImportData(len(inputs) + 1, others))
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
        imported = await asyncio.to_thread(self.archive.imported)
        known, left_out = await asyncio.to_thread(self._read_checkpoints, found)
        last_metric = await self._store_metrics(found, attempts, known, threads=threads)
        loaded = convert(
            self.saved,
            found,
            attempts,
            imported,
            config=self.config,
            experiment_id=self.experiment_id,
            directory=self.folder,
            last_metric=last_metric,
            now=now,
            left_out=left_out,
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

    def _read_checkpoints(self, found: list[SavedTrial]) -> tuple[list[CheckpointRow], int]:
        """Those that a job may continue from, and that were deleted; and how many others there are, which are not here.

        Those in a checkpointStorage are here if that was adopted, and if they are in this experiment's place of it.
        """
        moved = _Moved(self.saved.directory, str(self.folder))
        rows = {trial.id: _trial(trial, self.experiment_id, moved) for trial in found}
        forms, here, left_out = JobFormBuilder(self.config, self.folder), list[CheckpointRow](), 0
        for checkpoint in self.archive.checkpoints():
            if (trial := rows.get(checkpoint.trial_id)) is None:
                name = f"its checkpoint {checkpoint.id} has no trial {checkpoint.trial_id}"
                raise BadRequest(f"the archive cannot be loaded: {name}")
            row = _checkpoint(checkpoint)
            place = forms.checkpoint_place(trial, row.job, row.path)
            is_ours = forms.is_checkpoint_path(trial, row.job, row.path)
            is_elsewhere = is_url(row.path) or row.path.startswith("/")
            if row.deleted_at is not None or (is_ours and (is_elsewhere or Path(place).is_dir())):
                here.append(row)
            else:
                left_out += 1
        return here, left_out

    async def _store_metrics(
        self, found: list[SavedTrial], attempts: list[SavedJob], stored: list[CheckpointRow], *, threads: bool
    ) -> int:
        """Write the metrics database; returns the id of the last metric."""
        known = {trial.id for trial in found}
        starts: dict[tuple[str, int], JournalStart] = {}
        for job in attempts:
            owner, _, number = (job.resumed_from_job or "").rpartition(".")
            resumed_from = int(number) if owner == job.trial_id else None
            started_at = _seconds(job.started_at)
            starts[job.trial_id, job.number] = JournalStart(job.resumed_from_step or 0, resumed_from, started_at)

        def write(connection: sqlite3.Connection) -> int:
            checkpoints.load(connection, stored)
            return metrics.insert(connection, self._metrics(known), starts=starts)

        path = str(self.folder / METRICS_FILE)
        try:
            async with await Database.open(path, "metrics", threads=threads) as database:
                return await database.write(write)
        except sqlite3.IntegrityError as error:
            which = "checkpoints" if "checkpoints." in str(error) else "metrics"
            raise BadRequest(f"the archive cannot be loaded: two of its {which} have the same id ({error})") from error

    def _metrics(self, known: set[str]) -> Iterator[MetricRow]:
        for metric in self.archive.metrics():
            if metric.trial_id not in known:
                raise BadRequest(f"the archive cannot be loaded: its metric {metric.id} has no trial {metric.trial_id}")
            yield metric.row()

    async def _remove(self) -> None:
        await asyncio.to_thread(creation.remove_folder, self.folder)
