"""Files of experiments that released a machine before all of them were collected, because the machine was away or the
manager's disk full.

They are collected before the machine is cleaned; for an experiment that was deleted nothing is collected.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool, NodeStatus
from proctor.training_services.remote.bootstrap.node import Site
from proctor.training_services.remote.files.collection import collect_rest, name_files
from proctor.training_services.remote.files.paths import ExperimentPaths
from proctor.training_services.remote.machines.keeper_session import is_installed
from proctor.training_services.remote.machines.records import Claim, MachineRecord
from proctor.training_services.ssh.base import NodeConnection
from proctor.training_services.ssh.errors import RemoteError

__all__ = ["UncollectedFiles", "name_experiments"]

log = logging.getLogger(__name__)


class UncollectedFiles:
    """Of one machine, as its record says."""

    def __init__(self, node_id: str, record: MachineRecord, *, hub: KeeperHub, pool: NodePool) -> None:
        self._node_id = node_id
        self._record = record
        self._hub = hub
        self._pool = pool
        self._collecting = asyncio.Lock()

    async def exist(self, connection: NodeConnection, site: Site, *, now: Callable[[], float]) -> bool:
        """Whether there may be files to collect. Raises RemoteError."""
        self._record.drop_uncollected(*await _find_deleted(self._record.uncollected))
        if self._record.uncollected and not await is_installed(connection, site, now=now):
            self._record.drop_uncollected(*(claim.experiment_id for claim in self._record.uncollected))
        return bool(self._record.uncollected)

    async def collect(self) -> None:
        """Copy all of them to this host, through the machine's keeper. Raises ServiceUnavailable, CollectionFailed,
        OSError; RemoteError for files that can never be copied."""
        await self._pool.wait_connected(self._node_id)
        for claim in self._record.uncollected:
            clause = f"released; the files of {name_experiments([claim])} are being collected"
            self._pool.set_status(self._node_id, NodeStatus.CONNECTED, clause)
            extra = {"action": "files.collect", "node_id": self._node_id, "experiment_id": claim.experiment_id}
            log.info("node %s: %s", self._node_id, clause, extra=extra)
            async with self._collecting:
                await self._collect(claim)
            self._record.drop_uncollected(claim.experiment_id)

    async def wait_idle(self) -> None:
        """Wait until nothing is written to the folder of any experiment."""
        async with self._collecting:
            pass

    async def _collect(self, claim: Claim) -> None:
        """Every file is stored where it would be had it been collected in time."""
        paths = ExperimentPaths(claim.experiment_id, claim.experiment_directory)
        if left := await collect_rest(self._hub, self._node_id, paths):
            raise RemoteError(
                f"{name_files(left)} cannot be copied, see the manager's log; make them readable there, or abandon "
                f"them with proctor experiment delete {claim.experiment_id}"
            )


def name_experiments(claims: Iterable[Claim]) -> str:
    """For people: "experiment a, b"."""
    return "experiment " + ", ".join(claim.experiment_id for claim in claims)


async def _find_deleted(claims: Iterable[Claim]) -> frozenset[str]:
    """The experiments whose folders do not exist any more."""
    return frozenset(
        [claim.experiment_id for claim in claims if not await asyncio.to_thread(claim.experiment_directory.is_dir)]
    )
