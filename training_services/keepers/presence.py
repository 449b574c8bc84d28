"""Where it is kept how keepers are: whether one is connected, when it was last heard, why it cannot be asked.

There are two kinds. The keeper of a node is shown with its node, in the pool. The keeper of one trial job is of no
interest but for this job: its training service keeps its presence, and it is never lost by silence (decision 0039).
"""

from abc import ABC, abstractmethod

from proctor.training_services.nodes.pool import NodePool, NodeStatus
from proctor.trial_keeper.protocol import Registration, ReportHeader


class KeeperPresence(ABC):
    """The presence of the keepers of one kind, kept up to date by the hub. Nothing may block. `now` is Unix time."""

    @abstractmethod
    def place(self, keeper_id: str) -> str:
        """What a keeper is called in messages, after "the keeper of": "node gpu-3", "trial job k3J9.1"."""

    def admit(self, keeper_id: str, registration: Registration) -> None:  # noqa: B027 - most have nothing to object
        """A keeper is about to register. Raises KeeperReplaced if it must not."""

    @abstractmethod
    def connected(self, keeper_id: str, registration: Registration, now: float) -> None:
        """A keeper has registered."""

    @abstractmethod
    def heard(self, keeper_id: str, header: ReportHeader, now: float) -> None:
        """A keeper has reported, perhaps nothing but that it is there."""

    @abstractmethod
    def silent(self, keeper_id: str, clause: str) -> None:
        """A keeper that was connected has missed some heartbeats."""

    def lost(self, keeper_id: str, clause: str) -> None:  # noqa: B027 - only what has a limit is lost
        """A keeper was silent for its limit, and its jobs were abandoned."""

    @abstractmethod
    def absence(self, keeper_id: str) -> str:
        """Why a keeper cannot be asked anything now, as a clause; "" if it can."""


class NodePresence(KeeperPresence):
    """The keepers of nodes: how they are is how their nodes are."""

    def __init__(self, pool: NodePool) -> None:
        self._pool = pool

    def place(self, keeper_id: str) -> str:
        return f"node {keeper_id}"

    def connected(self, keeper_id: str, registration: Registration, now: float) -> None:
        self._pool.connect(
            keeper_id,
            registration.devices,
            driver_note=registration.driver_note,
            hostname=registration.hostname,
            version=registration.version,
            seen_at=now,
            full=registration.full,
        )

    def heard(self, keeper_id: str, header: ReportHeader, now: float) -> None:
        if self._pool.node(keeper_id).status is not NodeStatus.CONNECTED:
            self._pool.set_status(keeper_id, NodeStatus.CONNECTED)
        self._pool.update(
            keeper_id,
            now,
            devices=header.devices,
            disk_free_mb=header.disk_free_mb,
            notes=header.notes,
            full=header.full,
            suspended=header.stopped,
            system=header.system,
        )

    def silent(self, keeper_id: str, clause: str) -> None:
        if self._pool.node(keeper_id).status is NodeStatus.CONNECTED:  # else it is more specific already
            self._pool.set_status(keeper_id, NodeStatus.SILENT, f"{clause}; its trials keep running")

    def lost(self, keeper_id: str, clause: str) -> None:
        self._pool.set_status(keeper_id, NodeStatus.LOST, f"{clause}; its trials were abandoned")

    def absence(self, keeper_id: str) -> str:
        return self._pool.absence(keeper_id)
