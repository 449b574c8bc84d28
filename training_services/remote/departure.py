"""An experiment leaves its machines: what is still there is collected, then its folder is removed. A machine that is
away, or whose files cannot be stored now, owes them from then on: see `machine`."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Protocol

from proctor.training_services.errors import TrainingServiceError
from proctor.training_services.nodes import NodePool
from proctor.training_services.remote.collection import Collector, name_files
from proctor.training_services.remote.job_places import JobPlaces

__all__ = ["Departure", "FolderRemover"]

log = logging.getLogger(__name__)

ATTEMPTS = 5
RELEASE_PAUSE_SECONDS = 1.0


class FolderRemover(Protocol):
    """What removes folders of nodes: `KeeperHub`."""

    async def remove_folder(self, node_id: str, folder: str, *, timeout_seconds: float = 60.0) -> None:
        """Raises ServiceUnavailable, TrainingServiceError."""


class Departure:
    """Takes leave of the machines of one experiment, which has no jobs any more."""

    def __init__(
        self, remover: FolderRemover, pool: NodePool, places: JobPlaces, collector: Collector, *, experiment_id: str
    ) -> None:
        self._remover = remover
        self._pool = pool
        self._places = places
        self._collector = collector
        self._experiment_id = experiment_id

    async def leave(self, node_ids: Iterable[str]) -> frozenset[str]:
        """All machines at once. Returns those that still have files of the experiment; the log says why."""
        async with asyncio.TaskGroup() as group:
            leaving = {id: group.create_task(self._leave(id), name=f"leave node {id}") for id in node_ids}
        return frozenset(node_id for node_id, task in leaving.items() if not task.result())

    async def _leave(self, node_id: str) -> bool:
        """Whether everything was collected and removed."""
        if absence := self._pool.absence(node_id):
            self._warn(node_id, f"what was not collected yet is collected when that answers again: {absence}")
            return False
        try:
            left = await self._collector.collect_all(node_id)
            if left:
                self._warn(node_id, f"{name_files(left)} cannot be copied and stay there")
                return False
            await self._remove(node_id)
        except (TrainingServiceError, OSError) as error:
            self._warn(node_id, f"its files there are not all collected and removed: {error}")
            return False
        return True

    async def _remove(self, node_id: str) -> None:
        """A keeper may hold a job to be running for a moment longer than we do."""
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self._remover.remove_folder(node_id, self._places.folder)
                return
            except TrainingServiceError:
                if attempt == ATTEMPTS or self._pool.absence(node_id):
                    raise
                await asyncio.sleep(RELEASE_PAUSE_SECONDS)

    def _warn(self, node_id: str, clause: str) -> None:
        extra = {"action": "node.depart", "node_id": node_id, "experiment_id": self._experiment_id}
        log.warning("experiment %s leaves node %s: %s", self._experiment_id, node_id, clause, extra=extra)
