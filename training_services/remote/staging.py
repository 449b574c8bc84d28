"""What must be on a machine before a job can be launched there: the trial code, and the checkpoint to resume from.

The first of these that applies says where a job resumes: the checkpoint is on the job's own machine; the machine shares
the home in which it was saved; it was collected and is copied from here; it is fetched from the machine on which it was
saved. Else the job starts from the beginning.

This module uses the machines of the provider, so it is above `machines`, and `files` below that.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from proctor.sdk.disk_errors import is_full
from proctor.training_services.base import TrialJobForm
from proctor.training_services.errors import ServiceUnavailable, SubmissionRefused, TrainingServiceError
from proctor.training_services.files.code import CodeArchives
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.remote.files.collection import Collector
from proctor.training_services.remote.files.paths import ExperimentPaths
from proctor.training_services.remote.files.transfer import Copy, Notify, TransferQueue
from proctor.training_services.ssh.errors import NoRoom
from proctor.trial_keeper.linux.backoff import growing_pause

if TYPE_CHECKING:  # it imports the SSH library
    from proctor.training_services.remote.machines.provider import RemoteProvider

__all__ = ["CheckpointLocator", "NoRoomForJob", "PreparationFailed", "ResumePoint", "StagedJob", "Staging"]

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
ATTEMPTS = 8
"""After so many failures in a row of a machine that answers, the job runs elsewhere."""


class PreparationFailed(TrainingServiceError):
    """A machine answers and cannot be made ready for a job."""


class NoRoomForJob(TrainingServiceError):
    """A machine has no room for what a job needs. The text is a clause about its disk."""


@dataclass(frozen=True)
class ResumePoint:
    """Where a job starts. `resumed` and `reason` as in `StatusChange`."""

    path: str | None = None  # of the checkpoint, for the job's keeper
    resumed: bool | None = None
    reason: str = ""


@dataclass(frozen=True)
class StagedJob:
    """A machine is ready for a job. Paths are for its keeper."""

    code_directory: str
    resume_point: ResumePoint


class CheckpointLocator:
    """Finds the checkpoints of one experiment's jobs, and copies them where necessary."""

    def __init__(
        self,
        hub: KeeperHub,
        pool: NodePool,
        paths: ExperimentPaths,
        *,
        provider: "RemoteProvider",
        collector: Collector,
        transfers: TransferQueue,
    ) -> None:
        self._hub = hub
        self._pool = pool
        self._paths = paths
        self._provider = provider
        self._collector = collector
        self._transfers = transfers
        self._copies: dict[str, set[str]] = {}  # by path on a machine: the nodes it was copied to

    async def delete(self, form: TrialJobForm, node_id: str, path: str) -> None:
        """Delete a checkpoint of a job that ran on this node: there, here, and where this manager has copied it to.
        Raises ServiceUnavailable: a node is away; OSError."""
        directory = Path(form.directory)
        await self._collector.delete(directory, path)
        target = self._target(directory / path)
        for copied_to in self._copies.pop(target, ()):
            with suppress(TrainingServiceError):  # it is away: the copy goes when the experiment leaves the machine
                await self._hub.remove_folder(copied_to, target)
        await self._hub.remove_checkpoint(node_id, f"{self._paths.job(form)}/{path}")
        await self._collector.delete(directory, path)  # again: it may just have been collected

    async def find(self, form: TrialJobForm, node_id: str, notify: Notify) -> ResumePoint:
        """Where the job starts on this node; copies the checkpoint there where necessary.

        Raises ServiceUnavailable, RemoteError and OSError: try again.
        """
        if form.resume_checkpoint is None:
            return ResumePoint()
        here, name = Path(form.resume_checkpoint), self._paths.checkpoint_name(form.resume_checkpoint)
        there, saved_on = self._paths.on_machine(form.resume_checkpoint), form.resume_node_id
        if there is not None and saved_on == node_id and await self._is_there(node_id, there):
            return ResumePoint(there, True, f"from {name}, which is on this node")
        if there is not None and saved_on not in {None, node_id}:
            shared = f"../{self._provider.keeper_folder(str(saved_on))}/{there}"
            if await self._is_there(node_id, shared):
                return ResumePoint(shared, True, f"from {name} of node {saved_on}, whose home this node shares")
        source = "copied from the manager's machine"
        if not await asyncio.to_thread(self._collector.has_all, here):
            problem = await self._fetch(there, saved_on, here, notify)
            if problem:
                return ResumePoint(None, False, f"from the start: {name} {problem}")
            source = f"fetched from node {saved_on}"
        return ResumePoint(await self._copy(here, node_id, notify), True, f"from {name}, {source}")

    async def _is_there(self, node_id: str, folder: str) -> bool:
        """Raises ServiceUnavailable while the node is disconnected."""
        try:
            return bool(await self._hub.list_files(node_id, folder))
        except ServiceUnavailable:
            raise
        except (FileNotFoundError, TrainingServiceError):
            return False

    async def _fetch(self, there: str | None, saved_on: str | None, here: Path, notify: Notify) -> str:
        """Collect it from the node on which it was saved. A clause that says why it is not available, or ""."""
        if there is None or saved_on is None:
            return "is gone"
        notify(f"{self._paths.checkpoint_name(str(here))} is being fetched from {saved_on}")
        try:
            if await self._collector.fetch(saved_on, there, here):
                return ""
        except FileNotFoundError:
            pass
        except ServiceUnavailable:
            if absence := self._pool.absence(saved_on):
                return f"was saved on a machine that cannot be read: {absence}"
            raise
        return f"is gone from node {saved_on}"

    async def _copy(self, here: Path, node_id: str, notify: Notify) -> str:
        name = self._paths.checkpoint_name(str(here))
        target = self._target(here)
        self._copies.setdefault(target, set()).add(node_id)
        machine = self._provider.machine(node_id)
        run = partial(machine.ensure_folder_copy, here, target)
        await self._transfers.make(Copy((node_id, target), name, node_id, run), notify)
        return target

    def _target(self, here: Path) -> str:
        """Where a copy of a checkpoint is put on a machine."""
        return f"{self._paths.checkpoints}/{here.relative_to(self._paths.directory).as_posix()}"


class Staging:
    """Makes machines ready for one experiment's jobs.

    :param code: a job's code here; None: it is at `code_on_node` on every machine.
    """

    def __init__(
        self,
        pool: NodePool,
        *,
        provider: "RemoteProvider",
        code: Callable[[TrialJobForm], CodeArchives | None],
        code_on_node: str | None,
        transfers: TransferQueue,
        checkpoints: CheckpointLocator,
    ) -> None:
        self._pool = pool
        self._provider = provider
        self._code = code
        self._code_on_node = code_on_node
        self._transfers = transfers
        self._checkpoints = checkpoints
        self._in_use: Counter[str] = Counter()  # archives that are being copied, by name

    async def prepare(self, form: TrialJobForm, node_id: str, notify: Notify) -> StagedJob:
        """Make a node ready, however long it is disconnected; `notify` is called with clauses on what it waits for.

        Raises SubmissionRefused for code that cannot be archived; NoRoomForJob; PreparationFailed when a node that
        answers has failed `ATTEMPTS` times. While the manager's own disk is full, it waits.
        """
        failures = pauses = 0
        while True:
            await self._pool.wait_connected(node_id)
            try:
                return StagedJob(
                    await self._copy_code(form, node_id, notify), await self._checkpoints.find(form, node_id, notify)
                )
            except SubmissionRefused:
                raise
            except (TrainingServiceError, OSError) as error:
                if self._pool.absence(node_id):
                    continue  # wait until it is connected again
                shortage = str(error) if isinstance(error, NoRoom) else self._pool.node(node_id).shortage()
                if shortage:
                    raise NoRoomForJob(shortage) from error
                is_own_disk = is_full(error) or is_full(error.__cause__)
                failures += not is_own_disk  # the node has not failed
                clause = f"node {node_id} cannot be made ready: {error}"
                if failures == ATTEMPTS:
                    raise PreparationFailed(clause) from error
                pauses += 1
                pause = growing_pause(pauses, FIRST_PAUSE_SECONDS, LONGEST_PAUSE_SECONDS)
                log.info("%s", clause, extra={"action": "job.prepare", "job_id": form.job_id, "node_id": node_id})
                notify(f"{clause}; tried again in {pause:.0f} s")
                await asyncio.sleep(pause)

    async def _copy_code(self, form: TrialJobForm, node_id: str, notify: Notify) -> str:
        """Where the code is on the node."""
        code = self._code(form)
        if code is None:
            assert self._code_on_node is not None
            return self._code_on_node
        archive = await code.newest()
        machine = self._provider.machine(node_id)
        if archive.name not in machine.codes:
            run = partial(machine.ensure_code, archive)
            self._in_use[archive.name] += 1
            try:
                await self._transfers.make(Copy((node_id, archive.name), "the code", node_id, run), notify)
            finally:
                self._in_use[archive.name] -= 1
            await code.keep_only({name for name, jobs in self._in_use.items() if jobs})
        return f"code/{archive.name}"
