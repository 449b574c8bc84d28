"""Journals that grow are noticed, and only they."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from proctor.trial_keeper.jobs.job import Job
from proctor.trial_keeper.jobs.journal_watch import JournalWatcher
from proctor.trial_keeper.jobs.records import JobRecord
from proctor.trial_keeper.linux.inotify import IN_MODIFY, Inotify
from proctor.trial_keeper.protocol import Launch

pytestmark = pytest.mark.anyio


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """One whose directory is `job`."""
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "journal").touch()
    launch = Launch("T.1", "token", "E", "T", 0, str(tmp_path / "job"), "true", "/", "{}", None)
    job = Job(JobRecord(launch, "boot"))
    yield job
    job.close()
    job.close()


class Notices:
    """Counts what the watch says and can be waited for."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.event = asyncio.Event()

    def __call__(self, job: Job) -> None:
        self.jobs.append(job)
        self.event.set()

    async def wait(self) -> None:
        await asyncio.wait_for(self.event.wait(), 10)
        self.event.clear()


@pytest.fixture
async def notices() -> Notices:
    return Notices()


@pytest.fixture
async def watch(notices: Notices) -> Iterator[JournalWatcher]:
    watch = JournalWatcher(notices)
    watch.start()
    yield watch
    watch.close()


def append(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


async def test_an_appended_line_is_noticed(watch: JournalWatcher, notices: Notices, job: Job, tmp_path: Path) -> None:
    watch.add(job)
    append(tmp_path / "job" / "journal", b"1\n")
    await notices.wait()
    assert notices.jobs == [job]


async def test_a_member_that_appears_later_is_noticed_each_time(
    watch: JournalWatcher, notices: Notices, job: Job, tmp_path: Path
) -> None:
    watch.add(job)
    for _ in range(2):
        append(tmp_path / "job" / "journal.1", b"1\n")
        await notices.wait()
    assert list(job.tails) == ["0", "1"]


async def test_output_and_other_jobs_are_not_noticed(
    watch: JournalWatcher, notices: Notices, job: Job, tmp_path: Path
) -> None:
    (tmp_path / "gone").mkdir()
    gone = Job(JobRecord(replace(job.record.launch, job_id="U.1", directory=str(tmp_path / "gone")), "boot"))
    watch.add(gone)
    watch.remove(gone)
    watch.add(job)
    append(tmp_path / "gone" / "journal", b"1\n")
    append(tmp_path / "job" / "stdout", b"1\n")
    append(tmp_path / "job" / "journal", b"1\n")
    await notices.wait()
    assert notices.jobs == [job]


@pytest.mark.parametrize(("name", "members"), [("journal", ["0"]), ("journal.1", ["0", "1"])])
async def test_without_inotify_a_look_finds_what_has_grown(
    notices: Notices, job: Job, tmp_path: Path, name: str, members: list[str]
) -> None:
    watch = JournalWatcher(notices)  # never started: as on a machine that has no inotify instances left
    watch.add(job)
    watch.check()
    assert notices.jobs == []
    append(tmp_path / "job" / name, b"1\n")
    watch.check()
    assert notices.jobs == [job]
    assert list(job.tails) == members


def test_watching_what_is_not_there_names_it(tmp_path: Path) -> None:
    inotify = Inotify()
    with pytest.raises(FileNotFoundError, match="missing"):
        inotify.watch(str(tmp_path / "missing"), IN_MODIFY)
    inotify.close()
