"""The provider of remote nodes: which experiment has claimed which machine, and the machines' lives."""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

from proctor.training_services.errors import NodeInUse, UnknownNode
from proctor.training_services.providers import CheckStep, NodeProvider, ProviderContext
from proctor.training_services.remote.bootstrap import archive
from proctor.training_services.remote.bootstrap.node import Archive, NodeConnection
from proctor.training_services.remote.machines.checks import Wanted, clean_machines, inspect_machines
from proctor.training_services.remote.machines.machine import Connect, Machine, MachineContext
from proctor.training_services.remote.machines.records import (
    Claim,
    NodeDirectory,
    NodeRecord,
    choose_node_id,
    keeper_folder,
    read_claims,
    read_records,
)
from proctor.training_services.remote.settings import MachineSettings, RemoteSettings
from proctor.training_services.ssh.connection import open_connection
from proctor.training_services.ssh.host_keys import HostKeys
from proctor.training_services.ssh.route import RouteTrace

__all__ = ["RemoteProvider"]

log = logging.getLogger(__name__)

MOST_AT_ONCE = 16  # machines that are being connected and prepared
LEAVE_SECONDS = 5.0  # for machines that are just being left when the manager ends
SECRETS_FILE = "secrets.json"


class RemoteProvider(NodeProvider):
    """Keeps keepers running on machines that are reached over SSH. See `NodeProvider`.

    :param connect: how a machine is connected; for tests.
    """

    def __init__(self, context: ProviderContext, *, connect: Connect | None = None) -> None:
        self._context = context
        self._host_keys = HostKeys(context.nodes_directory / "known_hosts")
        self._means = MachineContext(
            provider=context,
            connect=connect or self._connect,
            gate=asyncio.Semaphore(MOST_AT_ONCE),
            archive=self._archive,
            now=time.time,
            doors=defaultdict(asyncio.Lock),
        )
        self._machines: dict[str, Machine] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._records: dict[str, NodeRecord] | None = None  # by address; read when they are first needed
        self._wanted: set[str] = set()  # the experiments that have claimed machines since this manager was started
        self._held: set[str] = set()  # those that are not loaded, with the claims that are on record
        self._group: asyncio.TaskGroup | None = None
        self._building = asyncio.Lock()
        self._built: Archive | None = None

    # ---- its life

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            self._group = group
            self._take_up_debts()
            for node_id in self._machines:
                self._start(node_id)
            group.create_task(self._sweep(), name="remote nodes nobody claims")
            try:
                await asyncio.Event().wait()
            finally:
                self._group = None
                await self._finish_leaving()
                for task in self._tasks.values():
                    task.cancel()

    def _take_up_debts(self) -> None:
        """Machines that were released and could not be left before the manager ended."""
        for record in self._known().values():
            if record.released and record.node_id not in self._machines:
                self._add(record).give_up()

    async def _sweep(self) -> None:
        """A manager that was killed may not have released what nobody needs any more: once every experiment has claimed
        its machines or is held, claims of others are released, and machines that none has claimed are left, with
        whatever files of theirs are found there."""
        await self._context.hub.until_ready()
        for record in self._known().values():
            if record.node_id not in self._machines and record.claims:
                self._add(record).give_up()
        for machine in list(self._machines.values()):
            for experiment_id in set(machine.experiments) - self._wanted - self._held:
                machine.release(experiment_id, owing=True)

    async def _finish_leaving(self) -> None:
        leaving = [self._tasks[id] for id, machine in self._machines.items() if machine.is_leaving]
        if leaving:
            await asyncio.wait(leaving, timeout=LEAVE_SECONDS)

    # ---- claims

    def node_ids_of(self, settings: Mapping[str, Any]) -> tuple[str, ...]:
        """See `NodeProvider.node_ids_of`. An address that is seen for the first time keeps the id it gets here."""
        return tuple(self._node_id(machine) for machine in RemoteSettings.read(settings).machines)

    def claim(
        self,
        experiment_id: str,
        settings: Mapping[str, Any],
        secrets: Mapping[str, str],
        *,
        secrets_file: Path | None = None,
    ) -> tuple[str, ...]:
        """See `NodeProvider.claim`. Raises OSError where the home cannot be written.

        :param secrets_file: where the experiment keeps its secrets, for a manager that still has to leave a machine
            after it was started again; None: in the experiment's folder of the home.
        """
        self._wanted.add(experiment_id)
        self._held.discard(experiment_id)
        home = self._context.nodes_directory.parent
        kept = secrets_file or home / "experiments" / experiment_id / SECRETS_FILE
        node_ids = self.node_ids_of(settings)
        claims = read_claims(experiment_id, settings, secrets, secrets_file=str(kept))
        for node_id, claim in zip(node_ids, claims, strict=True):
            found = self._machines.get(node_id) or Machine(self._known()[claim.machine.address], self._means)
            found.claim(claim)
            self._machines[node_id] = found
            self._start(node_id)
        return tuple(dict.fromkeys(node_ids))

    async def release(self, experiment_id: str, *, owing: Collection[str] = ()) -> None:
        """See `NodeProvider.release`.

        :param owing: the nodes that still have files of the experiment: before they are left, these are collected.
        """
        for node_id, machine in self._machines.items():
            machine.release(experiment_id, owing=node_id in owing)

    def hold(self, experiment_id: str) -> None:
        self._held.add(experiment_id)
        for record in self._known().values():
            claimed = not record.released and any(claim.experiment_id == experiment_id for claim in record.claims)
            if claimed and record.node_id not in self._machines:
                self._add(record)

    async def unhold(self, experiment_id: str) -> None:
        if experiment_id in self._held:
            self._held.discard(experiment_id)
            await self.release(experiment_id, owing=tuple(self._machines))

    async def forget(self, experiment_id: str) -> None:
        for machine in list(self._machines.values()):
            await machine.forget(experiment_id)

    # ---- machines

    def has(self, node_id: str) -> bool:
        return node_id in self._machines

    def machine(self, node_id: str) -> Machine:
        """A machine that is claimed, or being left. Raises UnknownNode."""
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
            raise NodeInUse(f"{used_by}; stop it first: proctor stop {machine.experiments[0]}")
        machine.drop()
        log.warning("node %s is given up", node_id, extra={"action": "node.abandon", "node_id": node_id})

    # ---- configurations

    async def inspect(
        self, settings: Mapping[str, Any], secrets: Mapping[str, str], *, trial_gpu_number: int | None = None
    ) -> Sequence[CheckStep]:
        claims = read_claims("", settings, secrets, secrets_file="")
        wanted = Wanted(RemoteSettings.read(settings).code_path_on_node, trial_gpu_number or 0)
        return await inspect_machines(claims, self._means, wanted)

    async def clean(self, settings: Mapping[str, Any], secrets: Mapping[str, str]) -> Sequence[CheckStep]:
        claims = read_claims("", settings, secrets, secrets_file="")
        node_ids = self.node_ids_of(settings)
        return await clean_machines(
            claims, node_ids, self._means, holders=self._experiments_on, forget=self._forget_node
        )

    # ---- parts

    def _known(self) -> dict[str, NodeRecord]:
        """Every address that was ever named to this manager process, or is on record."""
        if self._records is None:
            found = read_records(self._context.nodes_directory)
            self._records = {record.address: record for record in found}
        return self._records

    def _node_id(self, machine: MachineSettings) -> str:
        known = self._known()
        if machine.address not in known:
            node_id = choose_node_id(machine.host, (record.node_id for record in known.values()))
            known[machine.address] = NodeRecord(node_id, machine.address)
        return known[machine.address].node_id

    def _add(self, record: NodeRecord) -> Machine:
        machine = self._machines[record.node_id] = Machine(record, self._means)
        machine.announce()
        self._start(record.node_id)
        return machine

    def _start(self, node_id: str) -> None:
        """Begin a machine's life, if it has not begun and the provider runs."""
        if self._group is not None and node_id not in self._tasks:
            self._tasks[node_id] = self._group.create_task(self._live(node_id), name=f"node {node_id}")

    async def _live(self, node_id: str) -> None:
        machine = self._machines[node_id]
        await machine.run()
        del self._machines[node_id], self._tasks[node_id]
        self._known()[machine.address] = NodeRecord(node_id, machine.address)

    def _experiments_on(self, node_id: str) -> tuple[str, ...]:
        machine = self._machines.get(node_id)
        return () if machine is None else machine.experiments

    def _forget_node(self, node_id: str) -> None:
        """Nothing of ours is on it, and nobody claims it."""
        if node_id in self._machines:
            self._machines[node_id].drop()
        else:
            NodeDirectory(self._context.nodes_directory, node_id).remove()

    def _connect(self, claim: Claim, trace: RouteTrace | None, /) -> AbstractAsyncContextManager[NodeConnection]:
        return open_connection(
            claim.machine,
            claim.login,
            host_keys=self._host_keys,
            keep_alive_seconds=claim.probe_seconds,
            reach_seconds=claim.reach_seconds,
            trace=trace,
        )

    async def _archive(self) -> Archive:
        """The keeper's one file, made when it is first needed."""
        async with self._building:
            if self._built is None:
                folder = self._context.nodes_directory / ".keeper"
                self._built = await asyncio.to_thread(archive.build, folder)
            return self._built
