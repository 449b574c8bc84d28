"""What keepers report while an experiment's database cannot be written is refused at once, stored later, and told."""

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from proctor.manager.engine.loop.listeners import ServiceListener
from proctor.manager.engine.loop.messages import Inbox, MetricsStored
from proctor.manager.engine.loop.state import ExperimentState, LiveTrial
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.store.database import HEALTHY, Database
from proctor.manager.store.rows import ExperimentRow, TrialJobRow, TrialRow
from proctor.training_services.base import JournalChunk, TrialJobStatus
from proctor.training_services.errors import ServiceUnavailable

pytestmark = pytest.mark.anyio

LINE = b'{"kind":"intermediate","value":1.0,"time":1.0}\n'
CHUNK = JournalChunk("t1.1", "token", 0, 0, LINE)


class Disk(sqlite3.Connection):
    """A connection to a file on a disk that may be full."""

    is_full = False

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        if Disk.is_full and sql.startswith("COMMIT"):
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_FULL, "SQLITE_FULL"
            raise error
        return super().execute(sql, *arguments)


def state() -> ExperimentState:
    row = ExperimentRow("e1", "e1", ExperimentStatus.RUNNING, {}, {}, "/", 1, 0.0, 1)
    trial = LiveTrial(TrialRow("t1", "e1", 0, TrialStatus.RUNNING, 0, {}, 0.0))
    trial.job = TrialJobRow("t1.1", "t1", "e1", 1, "token", TrialJobStatus.RUNNING, 0, {})
    return ExperimentState(row, trials={"t1": trial}, by_job={"t1.1": trial})


async def test_a_report_is_not_held_up_by_a_full_disk_and_the_loop_hears_of_what_is_stored_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inbox = Inbox()
    async with (
        await Database.open(str(tmp_path / "control.db"), "control") as control,
        await Database.open(str(tmp_path / "metrics.db"), "metrics", connection_class=Disk) as metrics,
    ):
        healthy = asyncio.Event()
        metrics.on_health_change(lambda health: healthy.set() if health == HEALTHY else None)
        listener = ServiceListener(state(), inbox, control, metrics)
        monkeypatch.setattr(Disk, "is_full", True)
        for _ in range(2):
            with pytest.raises(ServiceUnavailable, match="SQLITE_FULL"):
                await listener.on_metrics([CHUNK])
        assert metrics.pending == 1  # what is refused at once is not written later
        monkeypatch.setattr(Disk, "is_full", False)
        async with asyncio.timeout(60):
            await healthy.wait()
            (envelope,) = await inbox.take(None)
        assert isinstance(envelope.message, MetricsStored)
        assert [(job_id, stored.end_offset) for job_id, stored in envelope.message.chunks] == [("t1.1", len(LINE))]
        assert await listener.on_metrics([CHUNK]) == {("t1.1", 0): len(LINE)}
