"""Journals that grow are noticed, and only they."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from proctor.trial_keeper.jobs.job import Job
from proctor.trial_keeper.jobs.journal_watch import JournalWatcher
from proctor.trial_keeper.jobs.records import JobRecord
from proctor.trial_keeper.linux.inotify import IN_MODIFY, Inotify
from proctor.trial_keeper.protocol import Launch

pytestmark = pytest.mark.anyio


def make_job(directory: Path) -> Job:
    directory.mkdir()
    (directory / "journal").touch()
    launch = Launch("T.1", "token", "E", "T", 0, str(directory), "true", "/", "{}", None)
    return Job(JobRecord(launch, "boot"))


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


async def test_an_appended_line_is_noticed(watch: JournalWatcher, notices: Notices, tmp_path: Path) -> None:
    job = make_job(tmp_path / "job")
    watch.add(job)
    append(tmp_path / "job" / "journal", b"1\n")
    await notices.wait()
    assert notices.jobs == [job]
    job.close()


async def test_a_member_that_appears_later_is_noticed_each_time(
    watch: JournalWatcher, notices: Notices, tmp_path: Path
) -> None:
    job = make_job(tmp_path / "job")
    watch.add(job)
    for _ in range(2):
        append(tmp_path / "job" / "journal.1", b"1\n")
        await notices.wait()
    assert list(job.tails) == ["0", "1"]
    job.close()


async def test_output_and_other_jobs_are_not_noticed(watch: JournalWatcher, notices: Notices, tmp_path: Path) -> None:
    job, gone = make_job(tmp_path / "job"), make_job(tmp_path / "gone")
    watch.add(gone)
    watch.remove(gone)
    watch.add(job)
    append(tmp_path / "gone" / "journal", b"1\n")
    append(tmp_path / "job" / "stdout", b"1\n")
    append(tmp_path / "job" / "journal", b"1\n")
    await notices.wait()
    assert notices.jobs == [job]
    job.close()


async def test_without_inotify_a_look_finds_what_has_grown(notices: Notices, tmp_path: Path) -> None:
    watch = JournalWatcher(notices)  # never started: as on a machine that has no inotify instances left
    job = make_job(tmp_path / "job")
    watch.add(job)
    watch.check()
    assert notices.jobs == []
    append(tmp_path / "job" / "journal", b"1\n")
    watch.check()
    assert notices.jobs == [job]
    job.close()


async def test_without_inotify_a_look_finds_the_journal_of_a_rank_that_reports_later(
    notices: Notices, tmp_path: Path
) -> None:
    watch = JournalWatcher(notices)
    job = make_job(tmp_path / "job")
    watch.add(job)
    append(tmp_path / "job" / "journal.1", b"1\n")
    watch.check()
    assert notices.jobs == [job]
    assert list(job.tails) == ["0", "1"]
    job.close()


def test_watching_what_is_not_there_names_it(tmp_path: Path) -> None:
    inotify = Inotify()
    with pytest.raises(FileNotFoundError, match="missing"):
        inotify.watch(str(tmp_path / "missing"), IN_MODIFY)
    inotify.close()
