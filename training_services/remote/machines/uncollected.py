"""What a machine owes: files of an experiment that has let it go before all of them were collected, because the machine
was away, or our disk full. They are collected before the machine is left; an experiment that is deleted wants none."""

import asyncio
import logging
from collections.abc import Callable, Iterable

from proctor.training_services.files.mirror import NodeFiles
from proctor.training_services.nodes.pool import NodePool, NodeStatus, until_present
from proctor.training_services.remote.bootstrap.node import NodeConnection, Site
from proctor.training_services.remote.files.collection import collect_rest, name_files
from proctor.training_services.remote.files.paths import ExperimentPaths
from proctor.training_services.remote.machines.keeper_session import is_there
from proctor.training_services.remote.machines.records import Claim, MachineRecord
from proctor.training_services.ssh.errors import RemoteError

__all__ = ["UncollectedFiles", "name_experiments"]

log = logging.getLogger(__name__)


class UncollectedFiles:
    """Of one machine, as its tenancy says."""

    def __init__(self, node_id: str, tenancy: MachineRecord, *, files: NodeFiles, pool: NodePool) -> None:
        self._node_id = node_id
        self._tenancy = tenancy
        self._files = files
        self._pool = pool
        self._collecting = asyncio.Lock()

    async def exist(self, connection: NodeConnection, site: Site, *, now: Callable[[], float]) -> bool:
        """Whether there may be files to collect. Raises RemoteError."""
        self._tenancy.settle_with(*await _find_void(self._tenancy.owed))
        if self._tenancy.owed and not await is_there(connection, site, now=now):
            self._tenancy.settle_with(*(claim.experiment_id for claim in self._tenancy.owed))
        return bool(self._tenancy.owed)

    async def collect(self) -> None:
        """Bring everything here that is owed, through the machine's keeper. Raises ServiceUnavailable,
        CollectionFailed, OSError; RemoteError for files that can never be copied."""
        await until_present(self._pool, self._node_id)
        for claim in self._tenancy.owed:
            clause = f"nobody needs it any more; the files of {name_experiments([claim])} are being collected"
            self._pool.set_status(self._node_id, NodeStatus.CONNECTED, clause)
            extra = {"action": "files.collect", "node_id": self._node_id, "experiment_id": claim.experiment_id}
            log.info("node %s: %s", self._node_id, clause, extra=extra)
            async with self._collecting:
                await self._collect(claim)
            self._tenancy.settle_with(claim.experiment_id)

    async def until_idle(self) -> None:
        """Wait until nothing is written to the folder of any experiment."""
        async with self._collecting:
            pass

    async def _collect(self, claim: Claim) -> None:
        """Everything of an experiment's jobs comes where it would lie had it been collected in time."""
        places = ExperimentPaths(claim.experiment_id, claim.experiment_directory)
        if left := await collect_rest(self._files, self._node_id, places):
            raise RemoteError(
                f"{name_files(left)} cannot be copied, the manager's log says why; help them there, or give them up "
                f"with proctor experiment delete {claim.experiment_id}"
            )


def name_experiments(owed: Iterable[Claim]) -> str:
    """For people: "experiment a, b"."""
    return "experiment " + ", ".join(claim.experiment_id for claim in owed)


async def _find_void(owed: Iterable[Claim]) -> frozenset[str]:
    """The experiments whose folders are gone: nothing is owed to them."""
    return frozenset(
        [claim.experiment_id for claim in owed if not await asyncio.to_thread(claim.experiment_directory.is_dir)]
    )
