"""From a training service's listeners into the stores and the loop: metrics are committed here, by the caller."""

import asyncio
import sqlite3
from collections.abc import Mapping, Sequence
from typing import Any

from proctor.manager.actors import MANAGER
from proctor.manager.engine.loop.messages import Inbox, JobsChanged, MetricsRefused, MetricsStored
from proctor.manager.engine.loop.state import ExperimentState
from proctor.manager.store.database import Database
from proctor.manager.store.errors import DatabaseUnusable, RowNotFound, ValueRefused
from proctor.manager.store.tables import jobs
from proctor.manager.store.tables import metrics as metric_store
from proctor.manager.store.tables.metrics import StoredChunk
from proctor.sdk.failpoints import failpoint
from proctor.training_services.base import JournalChunk, StatusChange
from proctor.training_services.errors import ServiceUnavailable

Offsets = dict[tuple[str, int], int]


class ServiceListener:
    """The two listeners of one experiment."""

    def __init__(self, state: ExperimentState, inbox: Inbox, control: Database, metrics: Database) -> None:
        self._state = state
        self._inbox = inbox
        self._control = control
        self._metrics = metrics

    async def on_metrics(self, chunks: Sequence[JournalChunk]) -> Mapping[tuple[str, int], int]:
        """Store chunks of journals; returns how far each journal is stored. A refused job is left out. Raises
        ServiceUnavailable while they cannot be written, at once: a report also speaks of other experiments."""
        live = [chunk for chunk in chunks if self._is_live(chunk)]
        offsets: Offsets = await self._settled([chunk for chunk in chunks if not self._is_live(chunk)])
        if live:
            failpoint("manager.metrics.before")
            stored = await self._store(live)
            failpoint("manager.metrics.after")
            for chunk, result in zip(live, stored, strict=True):
                offsets[chunk.job_id, chunk.member] = min(result.end_offset, chunk.end)
        return offsets

    async def _store(self, live: Sequence[JournalChunk]) -> Sequence[StoredChunk]:
        """Chunks that have to wait for room are stored after this has raised; then the loop is notified of them."""
        starts = {chunk.job_id: self._start_of(chunk) for chunk in live}
        try:
            self._metrics.require_writable()
            writing = self._metrics.write(lambda connection: _store(connection, live, starts))
            writing.add_done_callback(lambda done: self._post_stored(live, done))
            await self._metrics.until_done_or_unwritable(writing)
        except DatabaseUnusable as error:
            raise ServiceUnavailable(str(error)) from error
        try:
            return writing.result()
        except ValueRefused:
            return [await self._store_apart(chunk, starts[chunk.job_id]) for chunk in live]

    async def _store_apart(self, chunk: JournalChunk, start: dict[str, Any]) -> StoredChunk:
        """Store a chunk that may have a value which the store refuses; that ends its trial, and holds up no other."""
        stored, refused = await self._metrics.write(
            lambda connection: metric_store.store_lines(connection, **_arguments(chunk), **start)
        )
        self._inbox.post(MetricsStored([(chunk.job_id, stored)]))
        if refused:
            self._inbox.post(MetricsRefused(chunk.job_id, f"a metric cannot be stored: {refused}"))
        return stored

    def _post_stored(self, live: Sequence[JournalChunk], writing: "asyncio.Future[list[StoredChunk]]") -> None:
        if writing.cancelled() or writing.exception() is not None:
            return
        news = [(chunk.job_id, result) for chunk, result in zip(live, writing.result(), strict=True)]
        urgent = any(result.intermediates for _, result in news)
        self._inbox.post(MetricsStored(news), lazy=not urgent)

    async def on_status(self, changes: Sequence[StatusChange]) -> None:
        """Changes of jobs; returns when what they led to is committed."""
        await self._inbox.ask(JobsChanged(tuple(changes)), MANAGER)

    def _is_live(self, chunk: JournalChunk) -> bool:
        trial = self._state.by_job.get(chunk.job_id)
        return trial is not None and trial.job is not None and trial.job.token == chunk.token

    def _start_of(self, chunk: JournalChunk) -> dict[str, Any]:
        """When the job's process began, at which point of the trial's curve, and the job whose part it continues there
        (for one that began with another trial's checkpoint: the one before it)."""
        job = self._state.by_job[chunk.job_id].job
        assert job is not None
        start: dict[str, Any] = {"started_at": chunk.started_at or job.started_at}
        if job.resumed_from_job is None or not job.resumed_from_step:
            return start
        owner, _, number = job.resumed_from_job.rpartition(".")
        resumed_from = int(number) if owner == job.trial_id else job.number - 1
        return start | {"first_sequence": job.resumed_from_step, "resumed_from": resumed_from}

    async def _settled(self, chunks: Sequence[JournalChunk]) -> Offsets:
        """Of jobs whose end is stored everything is stored: say so again. Unknown tokens get no answer."""
        if not chunks:
            return {}

        def known(connection: sqlite3.Connection) -> Offsets:
            found: Offsets = {}
            for chunk in chunks:
                try:
                    job = jobs.get(connection, chunk.job_id)
                except RowNotFound:
                    continue
                if job.token == chunk.token and job.status.is_terminal:
                    found[chunk.job_id, chunk.member] = chunk.end
            return found

        return await self._control.read(known)


def _store(
    connection: sqlite3.Connection, chunks: Sequence[JournalChunk], starts: Mapping[str, dict[str, Any]]
) -> list[StoredChunk]:
    return [metric_store.store_chunk(connection, **_arguments(chunk), **starts[chunk.job_id]) for chunk in chunks]


def _arguments(chunk: JournalChunk) -> dict[str, Any]:
    """A chunk as arguments of the store."""
    trial_id, _, number = chunk.job_id.rpartition(".")
    return {
        "trial_id": trial_id,
        "job": int(number),
        "member": chunk.member,
        "offset": chunk.offset,
        "data": _end_last_line(chunk.data),
        "after_loss": chunk.after_loss,
    }


def _end_last_line(data: bytes) -> bytes:
    """Only the last chunk of a trial that was killed while it wrote ends within a line: that line is stored too, so
    that it is seen (as unreadable, most often) rather than silently dropped."""
    return data if data.endswith(b"\n") else data + b"\n"
