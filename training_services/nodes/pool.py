"""The manager-wide pool of nodes: what they have, how they are, and which trial job has which share of which GPU.

Every experiment of the manager places its jobs against this one pool, so two of them never get the same GPU unless both
allow it. Nothing here reads a clock; changes are reported to callbacks and to the `wait_…` methods.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from proctor.training_services.base import NodePlacement
from proctor.training_services.capacity import (
    ForeignProcess,
    GpuCapacity,
    GpuDemand,
    Holding,
    NodeCapacity,
    Preemptible,
    SharingPolicy,
)
from proctor.training_services.errors import ReservationRefused, UnknownNode
from proctor.training_services.nodes.quarantine import Quarantine
from proctor.trial_keeper.protocol import Device, GpuSlot, Lease, SystemLoad

__all__ = [
    "LOCAL_KIND",
    "Node",
    "NodePool",
    "NodeStatus",
    "Reservation",
    "find_holdings",
    "foreign_leases",
    "gpu_capacity",
    "without_leases",
]

log = logging.getLogger(__name__)

LOCAL_KIND = "local"
"""The kind of the node that is the manager's own machine."""


@dataclass(frozen=True)
class Reservation:
    """A tokened claim of one trial job on a node and shares of its GPUs. `gpus` None: it does not manage GPUs."""

    job_id: str
    token: str
    holder: str
    node_id: str
    gpus: tuple[GpuSlot, ...] | None
    policy: SharingPolicy = field(default_factory=SharingPolicy)


def find_holdings(reservations: Iterable[Reservation], devices: Iterable[Device]) -> dict[str, list[Holding]]:
    """All holdings of a node by GPU UUID. The lease of a job that holds a reservation there is that reservation's; any
    other is foreign: another manager's, or that of an abandoned job that still runs."""
    holdings: dict[str, list[Holding]] = {}
    jobs = set()
    for reservation in reservations:
        jobs.add(reservation.job_id)
        for share in reservation.gpus or ():
            holding = Holding(reservation.job_id, share.slot, reservation.holder, reservation.policy)
            holdings.setdefault(share.uuid, []).append(holding)
    for device in devices:
        for lease in foreign_leases(device, jobs):
            holder = (lease.holder or "an unknown holder") + (f", since {lease.since}" if lease.since else "")
            holding = Holding(lease.job_id or "", lease.slot, holder, SharingPolicy(lease.max_trials_per_gpu))
            holdings.setdefault(device.uuid, []).append(holding)
    return holdings


def foreign_leases(device: Device, jobs: Collection[str]) -> list[Lease]:
    """The leases on a GPU that none of these jobs holds."""
    return [lease for lease in device.leases if lease.job_id not in jobs]


def without_leases(devices: tuple[Device, ...], job_id: str) -> tuple[Device, ...]:
    """The devices without the leases of a job that has ended; the same object if it had none."""
    if not any(lease.job_id == job_id for device in devices for lease in device.leases):
        return devices
    return tuple(replace(device, leases=foreign_leases(device, {job_id})) for device in devices)


def gpu_capacity(device: Device, holdings: Sequence[Holding]) -> GpuCapacity:
    """One GPU as placement sees it."""
    foreign = (ForeignProcess(each.pid, each.memory_mb) for each in device.processes if each.job_id is None)
    return GpuCapacity(device.index, device.uuid, device.name, tuple(holdings), tuple(foreign))


class NodeStatus(StrEnum):
    """How a node is, seen from the manager."""

    CONNECTING = "CONNECTING"  # its keeper is being started or has not registered yet
    CONNECTED = "CONNECTED"  # its keeper answers
    SILENT = "SILENT"  # some heartbeats of its keeper are missing; its jobs are assumed to run
    LOST = "LOST"  # silent for longer than its limit; its jobs were abandoned
    FAILED = "FAILED"  # its keeper cannot be started; the reason says what to do
    RELEASED = "RELEASED"  # no experiment uses it; files that were not collected are there, and no keeper or job runs


@dataclass(frozen=True)
class Node:
    """One machine that runs trials.

    `devices` is None until its keeper has registered once. `seen_at` is Unix time of its last message. `hold` is a
    clause that says why it gets no new jobs ("drained: its disk is replaced"), "" if it does; its jobs keep running,
    and it stays held until a user resumes it. `arriving`: it is being connected for the first time and nothing has
    gone wrong yet, so that jobs may wait for it. `full` says where on it no jobs can be started for lack of room, and
    why, as its keeper has reported (`ReportHeader.full`); `copy_obstacle` is a clause that says why something could
    not be copied to it for lack of room, "" if everything could, and `copy_free_mb` how much was free then.
    `suspended` says which jobs are stuck there because a process of its keeper is suspended (`ReportHeader.stopped`).
    `system` is None where its keeper does not say how busy it is.
    """

    id: str
    kind: str
    status: NodeStatus = NodeStatus.CONNECTING
    reason: str = ""
    devices: tuple[Device, ...] | None = None
    driver_note: str = ""
    hostname: str = ""
    version: str = ""
    seen_at: float | None = None
    disk_free_mb: int | None = None
    notes: tuple[str, ...] = ()
    hold: str = ""
    arriving: bool = False
    full: Mapping[str, str] = field(default_factory=dict)
    copy_obstacle: str = ""
    copy_free_mb: int = 0
    suspended: Mapping[str, str] = field(default_factory=dict)
    system: SystemLoad | None = None

    def shortage(self, folder: str = "") -> str:
        """Why it takes no new jobs (it has no room, or cannot start them), as a clause; "" if it does.

        :param folder: the absolute path of the folder there that holds the directories of the jobs; "" for one in its
            keeper's own directory.
        """
        found = [clause for place, clause in self.full.items() if not place or (folder and _overlap(place, folder))]
        return next(filter(None, (self.suspended.get("", ""), *found, self.copy_obstacle)), "")


def _overlap(first: str, second: str) -> bool:
    """Whether one of two folders is, or is inside, the other."""
    first, second = first.rstrip("/") + "/", second.rstrip("/") + "/"
    return first.startswith(second) or second.startswith(first)


class NodePool:
    """Nodes and reservations of all experiments."""

    def __init__(self) -> None:
        self._nodes: dict[str, Node] = {}
        self._reservations: dict[str, Reservation] = {}
        self._by_node: dict[str, dict[str, Reservation]] = {}
        self._holds: dict[str, str] = {}
        self._demands: dict[object, GpuDemand] = {}
        self._preemptible: dict[object, Mapping[str, Preemptible]] = {}
        self._leaving: set[str] = set()
        self._callbacks: list[Callable[[], None]] = []
        self.quarantine = Quarantine(self._hold_unless_held)

    # ---- nodes

    def add(self, node_id: str, kind: str, *, reason: str = "", arriving: bool = False) -> Node:
        """Make a node known; one that is known stays as it is.

        :param arriving: it may be there in a moment: jobs that are spread wait for it until it is connected, until it
            is known to have failed, or until `end_arrival`. Also for a node that is known, while it is CONNECTING.
        """
        known = self._nodes.get(node_id)
        if known is None:
            hold = self._holds.get(node_id, "")
            self._nodes[node_id] = Node(node_id, kind, reason=reason, hold=hold, arriving=arriving)
            self._by_node.setdefault(node_id, {})
            self._notify()
        elif arriving and known.status is NodeStatus.CONNECTING:
            self._replace(replace(known, arriving=True))
        return self._nodes[node_id]

    def end_arrival(self, node_id: str) -> None:
        """Let no job wait any longer for a node that is being connected. Does nothing for a node that is connected or
        unknown."""
        if node_id in self._nodes:
            self._replace(replace(self._nodes[node_id], arriving=False))

    def remove(self, node_id: str) -> None:
        """Forget a node. Its reservations stay until they are released."""
        if self._nodes.pop(node_id, None) is not None:
            self._notify()

    def node(self, node_id: str) -> Node:
        """One node. Raises UnknownNode."""
        try:
            return self._nodes[node_id]
        except KeyError:
            known = ", ".join(sorted(self._nodes)) or "none"
            raise UnknownNode(f"there is no node {node_id}; known nodes: {known}") from None

    def nodes(self) -> tuple[Node, ...]:
        """Every node, in the order they were added."""
        return tuple(self._nodes.values())

    def set_status(self, node_id: str, status: NodeStatus, reason: str = "") -> None:
        """A node's status or its reason has changed."""
        before = self.node(node_id)
        arriving = before.arriving and status is NodeStatus.CONNECTING
        self._replace(replace(before, status=status, reason=reason, arriving=arriving))

    def connect(
        self,
        node_id: str,
        devices: Iterable[Device],
        *,
        driver_note: str,
        hostname: str,
        version: str,
        seen_at: float,
        full: Mapping[str, str] | None = None,
    ) -> None:
        """A node's keeper has registered."""
        connected = replace(
            self.node(node_id),
            status=NodeStatus.CONNECTED,
            reason="",
            devices=tuple(devices),
            driver_note=driver_note,
            hostname=hostname,
            version=version,
            seen_at=seen_at,
            notes=(),
            full=full or {},
            suspended={},
            arriving=False,
        )
        self._replace(connected)

    def update(
        self,
        node_id: str,
        seen_at: float,
        *,
        devices: Iterable[Device] | None = None,
        disk_free_mb: int | None = None,
        notes: Sequence[str] | None = None,
        full: Mapping[str, str] | None = None,
        suspended: Mapping[str, str] | None = None,
        system: SystemLoad | None = None,
    ) -> None:
        """A node's keeper has sent a message. None: as before."""
        before = self.node(node_id)
        more_room = disk_free_mb is not None and disk_free_mb > before.copy_free_mb
        after = replace(
            before,
            devices=before.devices if devices is None else tuple(devices),
            disk_free_mb=before.disk_free_mb if disk_free_mb is None else disk_free_mb,
            notes=before.notes if notes is None else tuple(notes),
            full=before.full if full is None else full,
            suspended=before.suspended if suspended is None else suspended,
            system=before.system if system is None else system,
            copy_obstacle="" if more_room else before.copy_obstacle,
        )
        self._replace(replace(after, seen_at=seen_at))

    def hold(self, node_id: str, reason: str) -> None:
        """Give a node no new jobs until `unhold`, whatever becomes of its keeper; what runs there continues. It need
        not be known yet.

        :param reason: a clause: "drained: its disk is replaced".
        """
        self._holds[node_id] = reason
        if node_id in self._nodes:
            self._replace(replace(self._nodes[node_id], hold=reason))

    def unhold(self, node_id: str) -> None:
        """Give a node jobs again. Does nothing for a node that is not held or unknown."""
        self._holds.pop(node_id, None)
        if node_id in self._nodes:
            self._replace(replace(self._nodes[node_id], hold=""))

    def set_copy_obstacle(self, node_id: str, clause: str) -> None:
        """Something that a job needs could not be copied to a node for lack of room: it gets no new jobs until this is
        called with "", or its keeper reports more free space. Does nothing for an unknown node."""
        if node_id in self._nodes:
            node = self._nodes[node_id]
            self._replace(replace(node, copy_obstacle=clause, copy_free_mb=node.disk_free_mb or 0))

    def _hold_unless_held(self, node_id: str, reason: str) -> None:
        if node_id not in self._holds:
            self.hold(node_id, reason)

    def absence(self, node_id: str) -> str:
        """Why a node cannot be reached now, as a clause; "" if it can."""
        node = self._nodes.get(node_id)
        if node is None:
            return f"node {node_id} is not known to the manager"
        if node.status is NodeStatus.CONNECTED:
            return ""
        return f"node {node_id} is {node.status.lower()}" + (f": {node.reason}" if node.reason else "")

    def stop_of(self, node_id: str, job_id: str) -> str:
        """Why a job is stuck there, as a clause: a process of the node's keeper is suspended; "" if none is."""
        node = self._nodes.get(node_id)
        return "" if node is None else node.suspended.get(job_id, "")

    def obstacle(self, node_id: str, folder: str = "") -> str:
        """Why no job can be given to a node now, as a clause: its absence, its hold, or both, or that it has no room;
        "" if one can.

        :param folder: as in `Node.shortage`.
        """
        absence, hold = self.absence(node_id), self._holds.get(node_id, "")
        if absence and hold:
            return f"{absence}, and it is {hold}"
        if absence or hold:
            return f"node {node_id} is {hold}" if hold else absence
        shortage = self._nodes[node_id].shortage(folder)
        return f"node {node_id} takes no new jobs: {shortage}" if shortage else ""

    def shortage(self, node_ids: Sequence[str], folder: str = "") -> str:
        """Why none of these nodes has room for new jobs, as a clause; "" if one has, or is not known.

        :param folder: as in `Node.shortage`.
        """
        found = [self._nodes[node_id].shortage(folder) if node_id in self._nodes else "" for node_id in node_ids]
        named = (f"node {node_id} takes no new jobs: {clause}" for node_id, clause in zip(node_ids, found, strict=True))
        return "; ".join(named) if all(found) else ""

    # ---- reservations

    def capacity(self, node_ids: Sequence[str], folder: str = "") -> tuple[NodeCapacity, ...]:
        """What placement looks at, for these nodes, in their order. A node that is not known is not ready.

        :param folder: as in `Node.shortage`.
        """
        return tuple(self._capacity(node_id, folder) for node_id in node_ids)

    def reserve(
        self,
        job_id: str,
        token: str,
        holder: str,
        placement: NodePlacement,
        policy: SharingPolicy | None = None,
    ) -> Reservation:
        """Claim a placement for a job. Idempotent for the same token.

        Raises ReservationRefused when a share is taken, when the GPU's holders do not allow another one, or when the
        job holds a reservation with another token; UnknownNode for a node that is not here.
        """
        self.node(placement.node_id)
        wanted = Reservation(job_id, token, holder, placement.node_id, placement.gpus, policy or SharingPolicy())
        held = self._reservations.get(job_id)
        if held is not None:
            if held == wanted:
                return held
            raise ReservationRefused(
                f"trial job {job_id} already holds a reservation on node {held.node_id}; release it first"
            )
        self._check_free(wanted)
        self._keep(wanted)
        return wanted

    def restore(
        self,
        job_id: str,
        placement: NodePlacement,
        holder: str,
        policy: SharingPolicy | None = None,
        *,
        token: str = "",
    ) -> Reservation:
        """Claim again what a job held before the manager was restarted.

        It is not refused: the job runs there, whatever is on record. The node need not be known yet.
        """
        restored = Reservation(job_id, token, holder, placement.node_id, placement.gpus, policy or SharingPolicy())
        self._drop(job_id)
        self._keep(restored)
        return restored

    def release(self, job_id: str) -> None:
        """Give back what a job holds, if anything. An abandoned job that still runs continues holding its GPUs by its
        leases, as soon as its node has reported them again."""
        released = self._drop(job_id)
        if released is not None:
            if released.gpus:
                self._forget_leases(job_id)
            self._notify()

    def reservation(self, job_id: str) -> Reservation | None:
        """What a job holds."""
        return self._reservations.get(job_id)

    def reservations(self, node_id: str) -> tuple[Reservation, ...]:
        """All that is held on a node."""
        return tuple(self._by_node.get(node_id, {}).values())

    # ---- demands

    def demands(self) -> dict[object, GpuDemand]:
        """The trials that wait for GPUs, at most one for each owner."""
        return dict(self._demands)

    def set_demand(self, owner: object, demand: GpuDemand) -> None:
        """A trial of this owner (an experiment) waits for GPUs; it takes the place of the owner's earlier one."""
        before = self._demands.get(owner)
        self._demands[owner] = demand
        priority = demand.standing.priority
        is_news = before is None or (before.holder, before.standing.priority) != (demand.holder, priority)
        if is_news:  # for those of lower priorities: they wait for it now, or trials of theirs are stopped for it
            is_lower = (other.standing.priority < priority for other in self._demands.values())
            is_news = bool(self._preemptible) or any(is_lower)
        if before is not None and before.rules.keys() - demand.rules.keys():
            is_news = True  # what was held there is free
        if before is not None and any(before.order < other.order < demand.order for other in self._demands.values()):
            is_news = True  # others now go before it
        if is_news:
            self._notify()

    def set_held(self, nodes: Mapping[str, str]) -> None:
        """On which node GPUs are held for trials that wait, by holder. Unknown holders are ignored."""
        for owner, demand in self._demands.items():
            self._demands[owner] = replace(demand, node_id=nodes.get(demand.holder, demand.node_id))

    def withdraw_demand(self, owner: object) -> None:
        """Trials of this owner no longer wait for GPUs. Does nothing if none did."""
        if self._demands.pop(owner, None) is not None and self._demands:
            self._notify()  # others may take what was held for it

    # ---- preemption

    def set_preemptible(self, owner: object, jobs: Mapping[str, Preemptible] | None) -> None:
        """Which jobs of this owner (an experiment) may be stopped for a demand with a higher priority; None: none, from
        now on."""
        before = self._preemptible.get(owner)
        if jobs is None:
            self._preemptible.pop(owner, None)
        else:
            self._preemptible[owner] = dict(jobs)
        lowest = min((terms.priority for terms in (jobs or {}).values()), default=0)
        is_wanted = any(demand.standing.priority > lowest for demand in self._demands.values())
        if is_wanted and (before or {}) != (jobs or {}):
            self._notify()

    def set_leaving(self, job_id: str, leaving: bool = True) -> None:
        """A job is being stopped, so that what it holds becomes free by itself; or it is not after all."""
        if job_id not in self._reservations or leaving == (job_id in self._leaving):
            return
        (self._leaving.add if leaving else self._leaving.discard)(job_id)
        if self._preemptible:
            self._notify()

    # ---- changes

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` after capacity may have grown or a node has changed. Returns how to stop that.

        It is called synchronously and must not block; it may be called more often than necessary.
        """
        self._callbacks.append(callback)

        def stop() -> None:
            if callback in self._callbacks:
                self._callbacks.remove(callback)

        return stop

    async def wait_connected(self, node_id: str) -> None:
        """Until a node's keeper answers; returns at once if it does. A hold is no obstacle."""
        while self.absence(node_id):
            await self.wait_changed()

    async def wait_disconnected(self, node_id: str) -> None:
        """Until a node's keeper does not answer; returns at once if it does not. Raises UnknownNode once the node is
        removed."""
        while self.node(node_id).status is NodeStatus.CONNECTED:
            await self.wait_changed()

    async def wait_changed(self) -> None:
        """Until the next call of the `on_change` callbacks."""
        changed = asyncio.Event()
        stop = self.on_change(changed.set)
        try:
            await changed.wait()
        finally:
            stop()

    def _notify(self) -> None:
        for callback in tuple(self._callbacks):
            callback()

    def _replace(self, node: Node) -> None:
        before = self._nodes[node.id]
        self._nodes[node.id] = node
        if self._what_matters(before) != self._what_matters(node):
            self._notify()

    def _what_matters(self, node: Node) -> object:
        """What of a node is compared to detect a change: not its utilization, free disk or last message, nor the leases
        of jobs that are known to be there."""
        jobs = self._by_node.get(node.id, {})
        devices = [
            (
                device.uuid,
                device.index,
                [(process.pid, process.job_id) for process in device.processes],
                [(lease.slot, lease.job_id, lease.max_trials_per_gpu) for lease in foreign_leases(device, jobs)],
            )
            for device in node.devices or ()
        ]
        room = dict(node.full), node.copy_obstacle, dict(node.suspended)
        return node.status, node.reason, node.hold, node.arriving, node.notes, node.devices is None, room, devices

    def _capacity(self, node_id: str, folder: str) -> NodeCapacity:
        node = self._nodes.get(node_id)
        if node is None:
            return NodeCapacity(node_id, gpus=None, ready=False, reason=self.obstacle(node_id))
        obstacle = self.obstacle(node_id, folder)
        holdings = self._holdings(node_id) if node.devices else {}
        gpus = (gpu_capacity(device, holdings.get(device.uuid, ())) for device in node.devices or ())
        return NodeCapacity(
            node_id,
            gpus=None if node.devices is None else tuple(gpus),
            ready=not obstacle,
            reason=obstacle,
            jobs=len(self._by_node.get(node_id, ())),
            driver_note=node.driver_note,
            arriving=node.arriving and not node.hold,
        )

    def _holdings(self, node_id: str) -> dict[str, list[Holding]]:
        node = self._nodes.get(node_id)
        devices = node.devices if node is not None else None
        found = find_holdings(self._by_node.get(node_id, {}).values(), devices or ())
        if not self._leaving and not self._preemptible:
            return found
        preemptible = {job_id: terms for jobs in self._preemptible.values() for job_id, terms in jobs.items()}
        return {uuid: [self._described(each, preemptible) for each in holdings] for uuid, holdings in found.items()}

    def _described(self, holding: Holding, preemptible: Mapping[str, Preemptible]) -> Holding:
        """With what becomes of the job that holds it."""
        job_id = holding.job_id
        return replace(holding, leaving=job_id in self._leaving, preemptible=preemptible.get(job_id))

    def _check_free(self, wanted: Reservation) -> None:
        holdings = self._holdings(wanted.node_id)
        for share in wanted.gpus or ():
            held = holdings.get(share.uuid, [])
            limit = min(wanted.policy.max_trials_per_gpu, *(h.policy.max_trials_per_gpu for h in held), 1 << 30)
            if len(held) >= limit or any(h.slot == share.slot for h in held):
                holders = ", ".join(h.holder for h in held)
                raise ReservationRefused(
                    f"GPU {share.uuid} of node {wanted.node_id} cannot be reserved for {wanted.holder}: "
                    f"{f'it is held by {holders}' if holders else 'its limit of trials is 0'}"
                )

    def _keep(self, reservation: Reservation) -> None:
        self._reservations[reservation.job_id] = reservation
        self._by_node.setdefault(reservation.node_id, {})[reservation.job_id] = reservation

    def _drop(self, job_id: str) -> Reservation | None:
        reservation = self._reservations.pop(job_id, None)
        self._leaving.discard(job_id)
        if reservation is not None:
            self._by_node[reservation.node_id].pop(job_id, None)
        return reservation

    def _forget_leases(self, job_id: str) -> None:
        """A job that has ended no longer holds anything, even if its node (or another one of the same machine) reports
        it only later."""
        for node in tuple(self._nodes.values()):
            devices = without_leases(node.devices or (), job_id)
            if node.devices and devices is not node.devices:
                self._nodes[node.id] = replace(node, devices=devices)
