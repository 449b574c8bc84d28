"""Noticing that a trial has appended to a journal: by inotify, and by looking once a second where that fails (network
file systems, no watches left)."""

import asyncio
import contextlib
from collections.abc import Callable

from proctor.trial_keeper.jobs.job import Job
from proctor.trial_keeper.journal_tail import is_journal
from proctor.trial_keeper.linux.inotify import IN_CREATE, IN_IGNORED, IN_MODIFY, IN_MOVED_TO, Inotify

POLL_INTERVAL_SECONDS = 1.0


class JournalWatcher:
    """Calls `on_change` with every job whose journals may have grown.

    Journals are watched one by one, and the directory only for new ones: a trial that prints much must not wake the
    keeper with every line.
    """

    def __init__(self, on_change: Callable[[Job], None]) -> None:
        self._on_change = on_change
        self._jobs: dict[str, Job] = {}
        self._watches: dict[int, Job] = {}
        self._watched: dict[str, dict[str, int]] = {}  # job → member ("" for the directory) → watch
        self._inotify: Inotify | None = None

    def start(self) -> None:
        """Begin; without inotify only the look once a second remains."""
        with contextlib.suppress(OSError):
            self._inotify = Inotify()
            asyncio.get_running_loop().add_reader(self._inotify.descriptor, self._drain)

    def close(self) -> None:
        """Stop watching."""
        if self._inotify is not None:
            asyncio.get_running_loop().remove_reader(self._inotify.descriptor)
            self._inotify.close()
            self._inotify = None

    def add(self, job: Job) -> None:
        """Watch a job's journals, those included that do not exist yet."""
        self._jobs[job.job_id] = job
        self._watched[job.job_id] = {}
        self._watch(job, "", job.directory, IN_CREATE | IN_MOVED_TO)
        self._watch_journals(job)

    def remove(self, job: Job) -> None:
        """Stop watching a job."""
        self._jobs.pop(job.job_id, None)
        for number in self._watched.pop(job.job_id, {}).values():
            self._watches.pop(number, None)
            if self._inotify is not None:
                self._inotify.unwatch(number)

    def check(self) -> None:
        """Compare all sizes with what has been sent."""
        for job in list(self._jobs.values()):
            if "" not in self._watched[job.job_id]:
                job.find_journals()
            if any(tail.needs_report for tail in job.tails.values()):
                self._on_change(job)

    def _watch_journals(self, job: Job) -> None:
        job.open_journals()
        for member, tail in job.tails.items():
            self._watch(job, member, tail.path, IN_MODIFY)

    def _watch(self, job: Job, name: str, path: str, mask: int) -> None:
        watched = self._watched[job.job_id]
        if self._inotify is None or name in watched:
            return
        with contextlib.suppress(OSError):  # not there yet, or no watches left: the look once a second finds it
            watched[name] = self._inotify.watch(path, mask)
            self._watches[watched[name]] = job

    def _drain(self) -> None:
        assert self._inotify is not None
        events = set(self._inotify.read())
        changed = {}
        for number, mask, name in events:
            job = self._watches.get(number)
            if number == -1:
                changed.update(self._jobs)
            elif job is None or mask & IN_IGNORED:
                continue
            elif not name:
                changed[job.job_id] = job
            elif is_journal(name):
                changed[job.job_id] = job
                self._watch_journals(job)
        for job in changed.values():
            self._on_change(job)
