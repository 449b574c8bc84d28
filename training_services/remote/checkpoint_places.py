"""Where a job begins: from its checkpoint, if that can be read on its machine or brought there, else from the start.

In this order: it lies on the job's own machine; the machine shares the home in which it was saved; it was collected and
is copied from here; it is fetched from the machine on which it was saved, which answers; it is out of reach.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from proctor.training_services.base import TrialJobForm
from proctor.training_services.errors import ServiceUnavailable, TrainingServiceError
from proctor.training_services.nodes import NodePool
from proctor.training_services.remote.collection import Collector
from proctor.training_services.remote.copies import Copies, Copy, Progress, Tell
from proctor.training_services.remote.job_places import JobPlaces
from proctor.trial_keeper.protocol import FileFacts

__all__ = ["Beginning", "CheckpointPlaces", "FolderCopier", "Lister"]

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


class CheckpointPlaces:
    """Finds the checkpoints of one experiment's jobs.

    :param neighbour: where the keeper directory of another node lies, seen from a node's, should they share a home.
    """

    def __init__(
        self,
        lister: Lister,
        pool: NodePool,
        places: JobPlaces,
        *,
        collector: Collector,
        copies: Copies,
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
