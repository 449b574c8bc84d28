"""What happens to a job between two steps of its table, and records that the disk does not let go."""

import errno
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import AsyncMock, Mock

import pytest
from fakes.descriptors import no_descriptors
from fakes.launches import make_launch

from proctor.sdk.protocol import WAITS_FILE, boot_id, boot_time
from proctor.trial_keeper.jobs.job import Job
from proctor.trial_keeper.jobs.outbox import Outbox, SettledReport
from proctor.trial_keeper.jobs.records import JobRecord, ProcessIdentity, ProcessRecord, RecordFolder, StopRecord
from proctor.trial_keeper.jobs.table import JobTable
from proctor.trial_keeper.linux.tasks import TaskGroup
from proctor.trial_keeper.protocol import EndReason, Exit

pytestmark = pytest.mark.anyio

END = Exit(EndReason.EXITED_OK, 0, None, 1.0, 2.0)


class ReadOnlyOnce(RecordFolder):
    """A folder on a disk that is read-only when a record is first removed."""

    is_read_only = True

    def remove(self, job_ids: list[str]) -> None:
        if self.is_read_only:
            self.is_read_only = False
            raise OSError(errno.EROFS, "Read-only file system")
        super().remove(job_ids)


class Scene:
    """A table with one job."""

    def __init__(self, folder: Path) -> None:
        (folder / "job").mkdir()
        self.records = ReadOnlyOnce(folder / "records")
        self.records.read_all()
        self.tasks = TaskGroup()
        self.table = JobTable(
            self.records, requests=Mock(), spawner=Mock(), outbox=Outbox(), tasks=self.tasks, disk=Mock()
        )
        self.job = Job(JobRecord(make_launch("T.1", "true", folder=folder / "job", code=folder), "boot"))
        self.records.write([self.job.record])


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.job.close()
    scene.table.watch.close()


async def test_a_job_is_not_stopped_at_its_limit_while_it_is_not_known_how_long_it_has_waited(scene: Scene) -> None:
    """It ran for 100 s, 80 of them for verdicts, and may run for 50."""
    job, this = scene.job, ProcessIdentity(os.getpid(), 0)
    job.process = ProcessRecord(this, this, boot_id(), 0.0, 0.0, started_boot=boot_time() - 100.0)
    job.record = replace(job.record, launch=replace(job.record.launch, max_duration_seconds=50.0))
    Path(job.directory, WAITS_FILE).write_text("80.0 0.0 0.0\n")
    stop = AsyncMock()
    scene.table.stop = stop  # type: ignore[method-assign]
    async with scene.tasks:
        with no_descriptors():
            scene.table._end_overdue(job)
        assert job.deadline is not None
        scene.table._end_overdue(job)
    stop.assert_not_called()


async def test_a_record_that_could_not_be_removed_goes_with_the_next_sweep(scene: Scene) -> None:
    scene.job.exit = END
    async with scene.tasks:
        scene.table.settle(SettledReport(stored=[scene.job]))
    assert Path(scene.records.record_file("T.1")).exists()
    await scene.table.sweep()
    assert not Path(scene.records.record_file("T.1")).exists()


async def test_a_job_that_ends_while_its_stop_is_written_down_is_not_told_of_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(records: list[JobRecord]) -> None:
        scene.job.exit = END

    monkeypatch.setattr(scene.records, "write", ends)
    await scene.table.stop(scene.job, StopRecord(EndReason.CANCELED.value, 5.0, "canceled"))
    assert not (Path(scene.job.directory) / "control.json").exists()
