"""Taking in a saved experiment: its folder, its metrics, then its rows. Nothing of a failed one stays.

The folder is marked until the rows are written, so that the next manager removes what a killed one has left.
"""

import asyncio
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from proctor.manager.config import ExperimentConfig
from proctor.manager.engine import creation
from proctor.manager.engine.archives import Archive, SavedExperiment, SavedJob, SavedTrial
from proctor.manager.engine.saved_rows import check_records, convert, read_config
from proctor.manager.errors import BadRequest, Conflict, Unavailable
from proctor.manager.store import saved_metrics
from proctor.manager.store.database import Database
from proctor.manager.store.rows import ExperimentRow, MetricRow
from proctor.sdk.disk_errors import explain
from proctor.sdk.failpoints import failpoint
from proctor.trial_keeper.linux.files import sync_tree

_NOT_UNPACKED = frozenset({creation.CONFIG_FILE, creation.UNFINISHED_FILE, creation.CHECKPOINT_FOLDER})
"""A tuner's saved state belongs to the old input log; the results are told to a new one."""


@dataclass(frozen=True)
class Loading:
    """One experiment on its way from an archive into a folder of the home.

    `code_directory` is where its code lies now; None: where it was.
    """

    archive: Archive
    saved: SavedExperiment
    experiment_id: str
    folder: Path
    code_directory: str | None
    handover: creation.Handover

    async def carry_out(self, control: Database, now: float, *, threads: bool) -> ExperimentRow:
        """Write everything down. Raises BadRequest, Conflict or Unavailable; then nothing is left."""
        config = read_config(self.saved, self.code_directory)
        found, attempts = await asyncio.to_thread(self._read_records)
        failpoint("manager.load.before")
        try:
            await asyncio.to_thread(creation.make_folder, self.folder, config)
        except FileExistsError:
            raise Conflict(f"the folder {self.folder} is there already; choose another id or remove it") from None
        try:
            row = await self._fill(control, config, found, attempts, now, threads=threads)
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
        config: ExperimentConfig,
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
            config=config,
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
        starts = {(job.trial_id, job.number): job.resumed_from_step or 0 for job in attempts}

        def write(connection: sqlite3.Connection) -> int:
            return saved_metrics.insert(connection, self._metrics(known), first_sequences=starts)

        path = str(self.folder / creation.METRICS_FILE)
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
