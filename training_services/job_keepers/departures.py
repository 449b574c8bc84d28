"""Collecting the files of jobs that have ended, from keepers that the platform is about to remove. After that nothing
of such a job is left (decision 0044).

Small files are collected first, then the checkpoints that have not been copied yet, the newest first. All of it has a
time limit, because the job's resources are not released before.
"""

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from proctor.sdk.checkpoints.manifest import MANIFEST_FILE
from proctor.sdk.failpoints import failpoint
from proctor.sdk.protocol import CHECKPOINT_FOLDER
from proctor.training_services.errors import (
    CollectionFailed,
    KeeperReplaced,
    ServiceUnavailable,
    TrainingServiceError,
)
from proctor.training_services.files.collection import Collector
from proctor.training_services.files.mirror import size_text
from proctor.training_services.files.paths import ExperimentPaths
from proctor.training_services.job_keepers.platform import JobKeeper, PlatformJob
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.keepers.presence import KeeperPresence
from proctor.training_services.keepers.sessions import job_keeper_id
from proctor.trial_keeper.protocol import FileFacts, Registration, ReportHeader

log = logging.getLogger(__name__)

CONNECT_SECONDS = 30.0
"""How long to wait for a disconnected keeper, as after a restart of the manager. It reconnects every 15 s."""
COLLECT_SECONDS = 60.0
"""The time limit of small files."""
CHECKPOINT_SECONDS = 600.0
"""The time limit of checkpoints, after that."""
PAUSE_SECONDS = 1.0
LIST_SECONDS = 30.0
"""How long a keeper may take to list its files."""


@dataclass
class _DepartingKeeper:
    """The keeper of a job that has ended."""

    folders: dict[str, Path] = field(default_factory=dict)
    """The job's folder on its machine, and the one to collect to; empty: not known yet."""
    instance: str = ""  # "": not known
    silence: str = ""
    has_large_checkpoints: bool = False  # too large to be collected with the small files
    connected: asyncio.Event = field(default_factory=asyncio.Event)
    small_collected: asyncio.Event = field(default_factory=asyncio.Event)
    collected: asyncio.Event = field(default_factory=asyncio.Event)
    limit: asyncio.Timeout | None = None  # of the collection under way

    def end_collection(self) -> None:
        """No more files will arrive."""
        self.small_collected.set()
        self.collected.set()


class Departures(KeeperPresence):
    """The keepers of an experiment's jobs that have ended.

    :param checkpoint_limit: larger checkpoints, in bytes, are not fetched.
    """

    def __init__(
        self, hub: KeeperHub, paths: ExperimentPaths, collector: Collector, *, checkpoint_limit: int, experiment_id: str
    ) -> None:
        self._hub = hub
        self._paths = paths
        self._collector = collector
        self._checkpoint_limit = checkpoint_limit
        self._extra = {"action": "files.collect", "experiment_id": experiment_id}
        self._keepers: dict[str, _DepartingKeeper] = {}
        self._has_ended = False  # collect nothing more
        self.are_known = asyncio.Event()
        """Set once the platform has been listed, and the jobs left by an earlier manager are known."""

    def __contains__(self, job_id: str) -> bool:
        return job_id in self._keepers

    def add(self, known: JobKeeper) -> None:
        """Add the keeper of a job that has ended, until `remove`. Idempotent."""
        form, is_connected = known.form, known.is_connected and not known.silence
        if form.job_id not in self._keepers:
            folders = {self._paths.job(form): Path(form.directory)}
            keeper = self._keepers[form.job_id] = _DepartingKeeper(folders, known.instance)
            if is_connected:
                keeper.connected.set()
            self._hub.add_job_keeper(form.job_id, form.token, self)

    def add_left(self, seen: PlatformJob) -> None:
        """Add one that only the platform knows. Idempotent."""
        if seen.job_id not in self._keepers:
            self._keepers[seen.job_id] = _DepartingKeeper(instance=next(iter(seen.instances), ""))
            self._hub.add_job_keeper(seen.job_id, seen.token, self)

    def remove(self, job_id: str) -> None:
        """Forget a keeper that has been removed. Idempotent."""
        if (keeper := self._keepers.pop(job_id, None)) is not None:
            keeper.end_collection()
            self._hub.remove_job_keeper(job_id)

    def jobs(self) -> list[str]:
        """The jobs whose keepers have not been removed."""
        return list(self._keepers)

    async def wait(self, job_id: str) -> None:
        """Wait until the files of a job are collected, if it has ended and they can still arrive."""
        await self.are_known.wait()
        if (keeper := self._keepers.get(job_id)) is not None:
            await keeper.collected.wait()

    async def wait_small(self, job_id: str) -> None:
        """Wait until the small files of a job that has ended are collected, or can no longer arrive."""
        if (keeper := self._keepers.get(job_id)) is not None:
            await keeper.small_collected.wait()

    def skip(self, job_id: str) -> None:
        """Collect no more files of a job."""
        self._keepers[job_id].end_collection()

    def end_collection(self) -> None:
        """As `SupportsCollection.end_collection`."""
        self._has_ended = True
        for keeper in self._keepers.values():
            if keeper.limit is not None and not keeper.limit.expired():
                keeper.limit.reschedule(asyncio.get_running_loop().time())

    async def collect(self, job_id: str) -> None:
        """Collect the files of a job, within the time limits. Raises nothing; files that are not collected are lost."""
        if self._has_ended:
            return
        keeper, keeper_id = self._keepers[job_id], job_keeper_id(job_id)
        failpoint("manager.job_keeper.collect.before")
        try:
            async with asyncio.timeout(None) as keeper.limit:
                if await self._attempt(job_id, keeper.connected.wait(), CONNECT_SECONDS):
                    has_all = await self._attempt(job_id, self._collect_small(keeper, keeper_id), COLLECT_SECONDS)
                    keeper.has_large_checkpoints = keeper.has_large_checkpoints or not has_all
                    keeper.small_collected.set()
                    await self._attempt(job_id, self._fetch_checkpoints(keeper, keeper_id), CHECKPOINT_SECONDS)
        except TimeoutError:
            log.info("the files of job %s are not collected: its experiment is deleted", job_id, extra=self._extra)
        finally:
            keeper.limit = None
            keeper.end_collection()
        failpoint("manager.job_keeper.collect.after")

    async def _attempt(self, job_id: str, work: Awaitable[object], seconds: float) -> bool:
        """Whether a part of the collection succeeded in time."""
        try:
            async with asyncio.timeout(seconds):
                await work
        except TimeoutError:
            text = "not all files of job %s were collected: they took longer than %g s"
            log.warning(text, job_id, seconds, extra=self._extra)
        except (TrainingServiceError, OSError) as error:
            log.warning("not all files of job %s were collected: %s", job_id, error, extra=self._extra)
        except Exception:
            log.exception("not all files of job %s were collected", job_id, extra=self._extra)
        else:
            return True
        return False

    async def _collect_small(self, keeper: _DepartingKeeper, keeper_id: str) -> None:
        while True:
            try:
                if not keeper.folders:
                    keeper.folders = await self._find_folders(keeper_id)
                for folder, directory in keeper.folders.items():
                    collection = await self._collector.collect(keeper_id, folder, directory, durable=True)
                    left = any(file.path.startswith(f"{CHECKPOINT_FOLDER}/") for file in collection.left)
                    keeper.has_large_checkpoints = keeper.has_large_checkpoints or left
                return
            except FileNotFoundError:  # it never had a job
                return
            except (ServiceUnavailable, CollectionFailed) as error:
                log.info("collecting files will be tried again: %s", error, extra=self._extra)
                await asyncio.sleep(PAUSE_SECONDS)

    async def _find_folders(self, keeper_id: str) -> dict[str, Path]:
        """The folders of the jobs that a keeper has had; there is one."""
        trials = self._paths.directory / "trials"
        files = await self._hub.list_files(keeper_id, self._paths.trials, timeout_seconds=LIST_SECONDS)
        found = {directory for file in files if (directory := self._paths.local_job(file.path)) is not None}
        return {f"{self._paths.trials}/{path.relative_to(trials).as_posix()}": path for path in found}

    async def _fetch_checkpoints(self, keeper: _DepartingKeeper, keeper_id: str) -> None:
        """Fetch the checkpoints that were too large to be collected, the newest first."""
        for folder, directory in keeper.folders.items() if keeper.has_large_checkpoints else ():
            files = await self._hub.list_files(keeper_id, folder, timeout_seconds=LIST_SECONDS)
            for number, size in _saved_checkpoints(files):
                path = f"{CHECKPOINT_FOLDER}/{number}"
                if await asyncio.to_thread(self._collector.has_all, directory / path):
                    continue
                if size > self._checkpoint_limit:
                    text = "%s of %s has %s, more than is fetched; it is lost"
                    log.warning(text, path, directory, size_text(size), extra=self._extra)
                    continue
                try:
                    await self._collector.copy(keeper_id, f"{folder}/{path}", directory / path)
                except (FileNotFoundError, CollectionFailed) as error:  # it may just have been deleted
                    log.warning("%s of %s is not fetched: %s", path, directory, error, extra=self._extra)

    # ---- presence of the keepers, reported by the hub

    def place(self, keeper_id: str) -> str:
        return f"trial job {_job_of(keeper_id)}"

    def admit(self, keeper_id: str, registration: Registration) -> None:
        keeper = self._keepers.get(_job_of(keeper_id))
        if keeper is None or keeper.instance not in ("", registration.instance):
            raise KeeperReplaced(f"{self.place(keeper_id)} is over and needs no keeper")

    def connected(self, keeper_id: str, registration: Registration, now: float) -> None:
        if (keeper := self._keepers.get(_job_of(keeper_id))) is not None:
            keeper.silence = ""
            keeper.connected.set()

    def heard(self, keeper_id: str, header: ReportHeader, now: float) -> None:
        if (keeper := self._keepers.get(_job_of(keeper_id))) is not None:
            keeper.silence = ""

    def silent(self, keeper_id: str, clause: str) -> None:
        if (keeper := self._keepers.get(_job_of(keeper_id))) is not None:
            keeper.silence = clause

    def absence(self, keeper_id: str) -> str:
        keeper = self._keepers.get(_job_of(keeper_id))
        if keeper is None:
            return f"{self.place(keeper_id)} is over"
        return keeper.silence or ("" if keeper.connected.is_set() else "its keeper has not connected yet")


def _job_of(keeper_id: str) -> str:
    return keeper_id.removeprefix(job_keeper_id(""))


def _saved_checkpoints(files: Sequence[FileFacts]) -> list[tuple[int, int]]:
    """The number and size of each completely saved checkpoint, the newest first."""
    sizes: dict[int, int] = {}
    complete = set()
    for file in files:
        number, _, name = file.path.removeprefix(f"{CHECKPOINT_FOLDER}/").partition("/")
        if name and number.isascii() and number.isdecimal() and file.path.startswith(f"{CHECKPOINT_FOLDER}/"):
            sizes[int(number)] = sizes.get(int(number), 0) + file.size
            if name == MANIFEST_FILE:
                complete.add(int(number))
    return sorted(((number, sizes[number]) for number in complete), reverse=True)
