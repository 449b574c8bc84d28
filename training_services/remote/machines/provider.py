"""The provider of remote nodes: which experiment has claimed which machine, and the task of each machine."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from proctor.training_services.errors import NodeInUse, ServiceUnavailable, UnknownNode
from proctor.training_services.keepers.archive import ArchiveBuilder
from proctor.training_services.providers import (
    SECRETS_FILE,
    CheckStep,
    FileCollection,
    NodeProvider,
    ProviderContext,
    UncollectedFiles,
)
from proctor.training_services.remote.machines.checks import TrialNeeds, clean_machines, inspect_machines
from proctor.training_services.remote.machines.machine import Connect, Machine, MachineContext
from proctor.training_services.remote.machines.records import (
    NOT_COLLECTED,
    Claim,
    NodeDirectory,
    NodeRecord,
    choose_node_id,
    keeper_folder,
    read_claims,
    read_records,
)
from proctor.training_services.remote.settings import RemoteSettings
from proctor.training_services.ssh.base import NodeConnection
from proctor.training_services.ssh.connection import open_connection
from proctor.training_services.ssh.host_keys import HostKeys
from proctor.training_services.ssh.route import RouteTrace

__all__ = ["RemoteProvider"]

log = logging.getLogger(__name__)

MOST_AT_ONCE = 16  # machines that are being connected and prepared
CLEAN_SECONDS = 5.0  # for machines that are being cleaned when the manager ends


class RemoteProvider(NodeProvider):
    """Keeps keepers running on machines that are reached over SSH. See `NodeProvider`.

    :param connect: how a machine is connected; for tests.
    """

    def __init__(self, context: ProviderContext, *, connect: Connect | None = None) -> None:
        self._context = context
        self._host_keys = HostKeys(context.nodes_directory / "known_hosts")
        self._machine_context = MachineContext(
            provider=context,
            connect=connect or self._connect,
            gate=asyncio.Semaphore(MOST_AT_ONCE),
            archives=ArchiveBuilder(context.nodes_directory / ".keeper"),
            now=time.time,
            locks=defaultdict(asyncio.Lock),
        )
        self._machines: dict[str, Machine] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._records: dict[str, NodeRecord] | None = None  # by address; read when they are first needed
        self._claimed: set[str] = set()  # the experiments that have claimed machines since this manager was started
        self._held: set[str] = set()  # those that are not loaded, with the claims that are on record
        self._collections: dict[tuple[str, str], tuple[FileCollection, asyncio.Task[None]]] = {}  # node, experiment
        self._group: asyncio.TaskGroup | None = None

    # ---- run

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            for record in self._known().values():  # released, and not cleaned before the manager ended
                if record.claims and not record.experiments:
                    self._add(record).release()
            for node_id in self._machines:
                self._start(node_id)
            group.create_task(self._sweep(), name="unclaimed remote nodes")
            try:
                await asyncio.Event().wait()
            finally:
                self._group = None
                cleaning = [self._tasks[id] for id, machine in self._machines.items() if machine.is_cleaning]
                if cleaning:
                    await asyncio.wait(cleaning, timeout=CLEAN_SECONDS)
                for task in (*self._tasks.values(), *(task for _, task in self._collections.values())):
                    task.cancel()

    async def _sweep(self) -> None:
        """A manager that was killed may not have released every machine: once every experiment has claimed its machines
        or is held, all other claims are released, and machines without a claim are cleaned."""
        await self._context.hub.wait_until_reattached()
        for record in self._known().values():
            if record.node_id not in self._machines and record.claims:
                self._add(record).release(*record.experiments, uncollected=NOT_COLLECTED)
        for machine in list(self._machines.values()):
            collected = {experiment_id for _, experiment_id in self._collections}
            if unclaimed := set(machine.experiments) - self._claimed - self._held - collected:
                machine.release(*unclaimed, uncollected=NOT_COLLECTED)

    # ---- claims

    def node_ids_of(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """See `NodeProvider.node_ids_of`. An address that is seen for the first time keeps the id it gets here."""
        known = self._known()
        machines = RemoteSettings.read(settings).machines
        for machine in machines:
            if machine.address not in known:
                node_id = choose_node_id(machine.host, (record.node_id for record in known.values()))
                known[machine.address] = NodeRecord(node_id, machine.address)
        return tuple(known[machine.address].node_id for machine in machines)

    def claim(
        self,
        experiment_id: str,
        settings: Mapping[str, Any],
        secrets: Mapping[str, str],
        *,
        secrets_file: Path | None = None,
    ) -> tuple[str, ...]:
        """See `NodeProvider.claim`. Raises OSError where the home cannot be written.

        :param secrets_file: where the experiment keeps its secrets, for a manager that still has to clean a machine
            after a restart; None: in the experiment's folder of the home.
        """
        self._claimed.add(experiment_id)
        self._held.discard(experiment_id)
        home = self._context.nodes_directory.parent
        kept = secrets_file or home / "experiments" / experiment_id / SECRETS_FILE
        node_ids = self.node_ids_of(settings)
        claims = read_claims(experiment_id, settings, secrets, secrets_file=str(kept))
        for node_id, claim in zip(node_ids, claims, strict=True):
            found = self._machines.get(node_id) or Machine(self._known()[claim.machine.address], self._machine_context)
            found.claim(claim)
            self._machines[node_id] = found
            self._start(node_id)
        return tuple(dict.fromkeys(node_ids))

    async def release(self, experiment_id: str) -> None:
        machines = [machine for machine in self._machines.values() if experiment_id in machine.experiments]
        async with asyncio.TaskGroup() as group:
            for machine in machines:
                group.create_task(machine.leave(experiment_id), name=f"release of node {machine.node_id}")
        self._claimed.discard(experiment_id)
        self._held.discard(experiment_id)

    def hold(self, experiment_id: str) -> None:
        self._held.add(experiment_id)
        for record in self._known().values():
            if experiment_id in record.experiments and record.node_id not in self._machines:
                self._add(record)

    # ---- files that were not collected

    def uncollected(self) -> Sequence[UncollectedFiles]:
        found = []
        for node_id, machine in self._machines.items():
            place = f"on {machine.address} in ~/.proctor/nodes/{self.keeper_folder(node_id)}/experiments"
            found += [
                UncollectedFiles(claim.experiment_id, node_id, f"{place}/{claim.experiment_id}", claim.uncollected)
                for claim in machine.uncollected
            ]
        return found

    def collect(self, node_id: str, experiment_id: str) -> FileCollection:
        if (node_id, experiment_id) in self._collections:
            return self._collections[node_id, experiment_id][0]
        if self._group is None:
            raise ServiceUnavailable("the manager is shutting down")
        machine = self.machine(node_id)
        if all(claim.experiment_id != experiment_id for claim in machine.uncollected):
            raise UnknownNode(f"node {node_id} has no files of experiment {experiment_id} that were not collected")
        progress = FileCollection(experiment_id)

        def end(task: asyncio.Task[None]) -> None:
            del self._collections[node_id, experiment_id]
            if task.cancelled():
                progress.problem = "canceled: the experiment was resumed or deleted, or the manager is stopping"
            progress.ended.set()

        name = f"files of experiment {experiment_id} on node {node_id}"
        task = self._group.create_task(machine.collect(progress), name=name)
        self._collections[node_id, experiment_id] = progress, task
        task.add_done_callback(end)
        return progress

    async def end_collections(self, experiment_id: str) -> None:
        tasks = [task for (_, name), (_, task) in self._collections.items() if name == experiment_id]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def forget(self, experiment_id: str, *, keep: Collection[str] = ()) -> None:
        await self.end_collections(experiment_id)
        for node_id, machine in list(self._machines.items()):
            if node_id not in keep and machine.has_claim(experiment_id):
                machine.release(experiment_id)
                if machine.experiments:
                    await machine.remove_files(experiment_id)
        self._held.discard(experiment_id)

    # ---- machines

    def has(self, node_id: str) -> bool:
        return node_id in self._machines

    def machine(self, node_id: str) -> Machine:
        """A machine that is claimed, or released and not cleaned. Raises UnknownNode."""
        try:
            return self._machines[node_id]
        except KeyError:
            known = ", ".join(sorted(self._machines)) or "none"
            raise UnknownNode(f"there is no remote node {node_id}; known ones: {known}") from None

    def address(self, node_id: str) -> str:
        return self.machine(node_id).address

    def keeper_folder(self, node_id: str) -> str:
        """What a node's keeper directory is called, below ~/.proctor/nodes there."""
        return keeper_folder(self._context.manager_id, node_id)

    def check(self, node_id: str) -> None:
        self.machine(node_id).wake()

    def abandon(self, node_id: str) -> None:
        machine = self.machine(node_id)
        if machine.experiments:
            used_by = f"node {node_id} is used by experiment {', '.join(machine.experiments)}"
            if (node_id, machine.experiments[0]) in self._collections:
                raise NodeInUse(f"{used_by}, whose files are being collected; try again when that is done")
            raise NodeInUse(f"{used_by}; stop it first: proctor stop {machine.experiments[0]}")
        machine.drop()
        log.warning("node %s is abandoned", node_id, extra={"action": "node.abandon", "node_id": node_id})

    # ---- configurations

    async def inspect(
        self, settings: Mapping[str, Any], secrets: Mapping[str, str], *, trial_gpu_number: int | None = None
    ) -> Sequence[CheckStep]:
        claims = read_claims("", settings, secrets, secrets_file="")
        needs = TrialNeeds(RemoteSettings.read(settings).code_path_on_node, trial_gpu_number or 0)
        return await inspect_machines(claims, self._machine_context, needs)

    async def clean(self, settings: Mapping[str, Any], secrets: Mapping[str, str]) -> Sequence[CheckStep]:
        claims = read_claims("", settings, secrets, secrets_file="")
        node_ids = self.node_ids_of(settings)
        return await clean_machines(
            claims, node_ids, self._machine_context, holders=self._experiments_on, forget=self._forget_node
        )

    # ---- parts

    def _known(self) -> dict[str, NodeRecord]:
        """Every address that a configuration has named since this manager was started, or that is on record."""
        if self._records is None:
            found = read_records(self._context.nodes_directory)
            self._records = {record.address: record for record in found}
        return self._records

    def _add(self, record: NodeRecord) -> Machine:
        machine = self._machines[record.node_id] = Machine(record, self._machine_context)
        machine.announce(arriving=True)
        self._start(record.node_id)
        return machine

    def _start(self, node_id: str) -> None:
        """Start a machine's task, if it has none and the provider runs."""
        if self._group is not None and node_id not in self._tasks:
            self._tasks[node_id] = self._group.create_task(self._run_machine(node_id), name=f"node {node_id}")

    async def _run_machine(self, node_id: str) -> None:
        machine = self._machines[node_id]
        await machine.run()
        del self._machines[node_id], self._tasks[node_id]
        self._known()[machine.address] = NodeRecord(node_id, machine.address)

    def _experiments_on(self, node_id: str) -> tuple[str, ...]:
        machine = self._machines.get(node_id)
        return () if machine is None else machine.experiments

    def _forget_node(self, node_id: str) -> None:
        """Nothing of this manager is on it, and no experiment claims it."""
        if node_id in self._machines:
            self._machines[node_id].drop()
        else:
            NodeDirectory(self._context.nodes_directory, node_id).remove()

    def _connect(self, claim: Claim, trace: RouteTrace | None) -> AbstractAsyncContextManager[NodeConnection]:
        return open_connection(
            claim.machine,
            claim.login,
            host_keys=self._host_keys,
            keep_alive_seconds=claim.probe_seconds,
            reach_seconds=claim.reach_seconds,
            trace=trace,
        )
