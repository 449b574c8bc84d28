"""Where a job begins: from its checkpoint, if that can be read on its machine or brought there, else from the start.

In this order: it lies on the job's own machine; the machine shares the home in which it was saved; it was collected and
is copied from here; it is fetched from the machine on which it was saved, which answers; it is out of reach.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from proctor.sdk.disk_errors import is_full
from proctor.training_services.base import TrialJobForm
from proctor.training_services.errors import ServiceUnavailable, SubmissionRefused, TrainingServiceError
from proctor.training_services.files.code import CodeArchive, CodeArchives
from proctor.training_services.nodes.pool import NodePool, until_present
from proctor.training_services.remote.files.collection import Collector
from proctor.training_services.remote.files.paths import ExperimentPaths
from proctor.training_services.remote.files.transfer import Copy, Progress, Tell, TransferQueue
from proctor.training_services.ssh.errors import NoRoom
from proctor.trial_keeper.protocol import FileFacts

__all__ = [
    "Beginning",
    "CheckpointLocator",
    "CodeCopier",
    "FolderCopier",
    "Lister",
    "NoRoomForJob",
    "PreparationFailed",
    "StagedJob",
    "Staging",
]


FolderCopier = Callable[[str, Path, str, Progress], Awaitable[None]]
"""Brings a local folder to a place relative to a node's keeper directory: (node, folder, place, progress)."""


class Lister(Protocol):
    """What lists files on nodes: `KeeperHub`."""

    async def list_files(self, node_id: str, folder: str, *, timeout_seconds: float = 30.0) -> list[FileFacts]:
        """The files below a folder. Raises FileNotFoundError, ServiceUnavailable, TrainingServiceError."""


@dataclass(frozen=True)
class Beginning:
    """Where a job begins. `resumed` and `reason` as in `StatusChange`."""

    path: str | None = None  # as the job's keeper understands it
    resumed: bool | None = None
    reason: str = ""


class CheckpointLocator:
    """Finds the checkpoints of one experiment's jobs.

    :param neighbour: where the keeper directory of another node lies, seen from a node's, should they share a home.
    """

    def __init__(
        self,
        lister: Lister,
        pool: NodePool,
        places: ExperimentPaths,
        *,
        collector: Collector,
        copies: TransferQueue,
        copy_folder: FolderCopier,
        neighbour: Callable[[str], str],
    ) -> None:
        self._lister = lister
        self._pool = pool
        self._places = places
        self._collector = collector
        self._copies = copies
        self._copy_folder = copy_folder
        self._neighbour = neighbour

    async def find(self, form: TrialJobForm, node_id: str, tell: Tell) -> Beginning:
        """Where the job begins on this node; copies what must be copied.

        Raises ServiceUnavailable, RemoteError and OSError: try again.
        """
        if form.resume_checkpoint is None:
            return Beginning()
        here, name = Path(form.resume_checkpoint), self._places.checkpoint_name(form.resume_checkpoint)
        there, saved_on = self._places.on_machine(form.resume_checkpoint), form.resume_node_id
        if there is not None and saved_on == node_id and await self._is_there(node_id, there):
            return Beginning(there, True, f"from {name}, which lies on this node")
        if there is not None and saved_on not in {None, node_id}:
            shared = f"{self._neighbour(str(saved_on))}/{there}"
            if await self._is_there(node_id, shared):
                return Beginning(shared, True, f"from {name} of node {saved_on}, whose home this node shares")
        source = "copied from the manager's machine"
        if not await asyncio.to_thread(self._collector.has_all, here):
            trouble = await self._fetch(there, saved_on, here, tell)
            if trouble:
                return Beginning(None, False, f"from the start: {name} {trouble}")
            source = f"fetched from node {saved_on}"
        return Beginning(await self._bring(here, node_id, tell), True, f"from {name}, {source}")

    async def _is_there(self, node_id: str, folder: str) -> bool:
        """Raises ServiceUnavailable while the node cannot say."""
        try:
            return bool(await self._lister.list_files(node_id, folder))
        except ServiceUnavailable:
            raise
        except (FileNotFoundError, TrainingServiceError):
            return False

    async def _fetch(self, there: str | None, saved_on: str | None, here: Path, tell: Tell) -> str:
        """Get it from the node on which it was saved. A clause if it is not to be had."""
        if there is None or saved_on is None:
            return "is gone"
        tell(f"{self._places.checkpoint_name(str(here))} is being fetched from {saved_on}")
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

    async def _bring(self, here: Path, node_id: str, tell: Tell) -> str:
        name = self._places.checkpoint_name(str(here))
        place = f"{self._places.checkpoints}/{here.relative_to(self._places.directory).as_posix()}"

        async def carry_out(progress: Progress) -> None:
            await self._copy_folder(node_id, here, place, progress)

        await self._copies.make(Copy((node_id, place), name, node_id, carry_out), tell)
        return place


# ---- preparation ----------------------------------------------------------------------------------------------------
# What must be on a machine before a job can be launched there: the trial code, and the checkpoint to continue from.

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS = 1.0
LONGEST_PAUSE_SECONDS = 30.0
ATTEMPTS = 8
"""So often in a row a machine that answers may fail: then the job runs elsewhere."""

CodeCopier = Callable[[str, CodeArchive, Progress], Awaitable[None]]
"""Has code unpacked on a node; at once if it is there."""


class PreparationFailed(TrainingServiceError):
    """A machine answers and cannot be made ready for a job."""


class NoRoomForJob(TrainingServiceError):
    """A machine has no room for what a job needs. The text is a clause about its disk."""


@dataclass(frozen=True)
class StagedJob:
    """A machine is ready for a job. Paths as its keeper understands them."""

    code_directory: str
    beginning: Beginning


class Staging:
    """Makes machines ready for one experiment's jobs.

    :param code: a job's code here; None: it lies at `code_on_node` on every machine.
    :param codes: the names of the code that a node has.
    """

    def __init__(
        self,
        pool: NodePool,
        *,
        code: Callable[[TrialJobForm], CodeArchives | None],
        code_on_node: str | None,
        codes: Callable[[str], Collection[str]],
        copy_code: CodeCopier,
        copies: TransferQueue,
        checkpoints: CheckpointLocator,
    ) -> None:
        self._pool = pool
        self._code = code
        self._code_on_node = code_on_node
        self._codes = codes
        self._copy_code = copy_code
        self._copies = copies
        self._checkpoints = checkpoints
        self._in_use: Counter[str] = Counter()  # archives that are being copied, by name

    async def prepare(self, form: TrialJobForm, node_id: str, tell: Tell) -> StagedJob:
        """Make a node ready, however long it stays away; `tell` is called with clauses that say what is waited for.

        Raises SubmissionRefused for code that can never travel; NoRoomForJob; PreparationFailed when a node that
        answers has failed time and again. While the manager's own disk is full, it waits.
        """
        failures = pauses = 0
        while True:
            await until_present(self._pool, node_id)
            try:
                return StagedJob(
                    await self._bring_code(form, node_id, tell), await self._checkpoints.find(form, node_id, tell)
                )
            except SubmissionRefused:
                raise
            except (TrainingServiceError, OSError) as error:
                if self._pool.absence(node_id):
                    continue  # the pool says why, and when it is back
                if shortage := self._shortage(node_id, error):
                    raise NoRoomForJob(shortage) from error
                failures += not (is_full(error) or is_full(error.__cause__))  # our own disk is not the node's fault
                clause = f"node {node_id} cannot be made ready: {error}"
                if failures == ATTEMPTS:
                    raise PreparationFailed(clause) from error
                pause = min(FIRST_PAUSE_SECONDS * 2**pauses, LONGEST_PAUSE_SECONDS)
                pauses += 1
                log.info("%s", clause, extra={"action": "job.prepare", "job_id": form.job_id, "node_id": node_id})
                tell(f"{clause}; tried again in {pause:.0f} s")
                await asyncio.sleep(pause)

    def _shortage(self, node_id: str, error: Exception) -> str:
        """Why the node has no room, if that is what an error comes from."""
        return str(error) if isinstance(error, NoRoom) else self._pool.node(node_id).shortage()

    async def _bring_code(self, form: TrialJobForm, node_id: str, tell: Tell) -> str:
        """Where the code is on the node."""
        code = self._code(form)
        if code is None:
            assert self._code_on_node is not None
            return self._code_on_node
        archive = await code.newest()
        if archive.name not in self._codes(node_id):

            async def carry_out(progress: Progress) -> None:
                await self._copy_code(node_id, archive, progress)

            self._in_use[archive.name] += 1
            try:
                await self._copies.make(Copy((node_id, archive.name), "the code", node_id, carry_out), tell)
            finally:
                self._in_use[archive.name] -= 1
            await code.keep_only({name for name, jobs in self._in_use.items() if jobs})
        return f"code/{archive.name}"
