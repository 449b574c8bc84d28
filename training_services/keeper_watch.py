"""Whether keepers still speak: a node falls silent, and may be lost, by the count of heartbeats it has missed.

Ticks are counted rather than seconds: a manager that was suspended or blocked gets one late tick, so it does not hold
its own absence against a node.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from proctor.training_services.nodes import NodePool, NodeStatus
from proctor.trial_keeper.protocol import PROTOCOL_VERSION, Registration, ReportHeader

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Pulse:
    """One node's."""

    missed: int = 0  # heartbeats in a row without a word
    timer: asyncio.TimerHandle | None = None


class KeeperWatch:
    """Keeps the pool's view of every registered node up to date. Needs a running event loop from the first `connect`.

    :param on_lost: called with the node and a clause when a node was silent for `lost_after_seconds`.
    """

    def __init__(
        self,
        pool: NodePool,
        *,
        heartbeat_seconds: float,
        silent_after: int,
        now: Callable[[], float],
        on_lost: Callable[[str, str], None],
    ) -> None:
        self._pool = pool
        self._heartbeat_seconds = heartbeat_seconds
        self._silent_after = silent_after
        self._now = now
        self._on_lost = on_lost
        self._pulses: dict[str, _Pulse] = {}
        self._limits: dict[str, float | None] = {}

    def limit(self, node_id: str, lost_after_seconds: float | None) -> None:
        """How long this node may be silent before it is lost; None: for ever."""
        self._limits[node_id] = lost_after_seconds

    def connect(self, node_id: str, registration: Registration) -> None:
        """A node's keeper has registered."""
        if registration.protocol_version != PROTOCOL_VERSION:
            theirs = registration.protocol_version
            log.warning("node %s's keeper speaks protocol %s, this manager %s", node_id, theirs, PROTOCOL_VERSION)
        pulse = self._pulses.setdefault(node_id, _Pulse())
        pulse.missed = 0
        self._pool.connect(
            node_id,
            registration.devices,
            driver_note=registration.driver_note,
            hostname=registration.hostname,
            version=registration.version,
            seen_at=self._now(),
        )
        if pulse.timer is None:
            self._wait(node_id, pulse)

    def hear(self, node_id: str, header: ReportHeader) -> None:
        """A node's keeper has reported."""
        pulse = self._pulses.setdefault(node_id, _Pulse())
        if self._pool.obstacle(node_id):
            self._pool.set_status(node_id, NodeStatus.CONNECTED)
        pulse.missed = 0
        self._pool.hear(
            node_id,
            self._now(),
            devices=header.devices,
            disk_free_mb=header.disk_free_mb,
            notes=header.notes or None,
        )

    def stop(self, node_id: str) -> None:
        """Watch this node no more."""
        pulse = self._pulses.pop(node_id, None)
        if pulse is not None and pulse.timer is not None:
            pulse.timer.cancel()

    def close(self) -> None:
        """Watch no node any more."""
        for node_id in tuple(self._pulses):
            self.stop(node_id)

    def _wait(self, node_id: str, pulse: _Pulse) -> None:
        pulse.timer = asyncio.get_running_loop().call_later(self._heartbeat_seconds, self._tick, node_id, pulse)

    def _tick(self, node_id: str, pulse: _Pulse) -> None:
        pulse.missed += 1
        silence = pulse.missed * self._heartbeat_seconds
        clause = f"no word from its keeper for {silence:g} s"
        limit = self._limits.get(node_id)
        if limit is not None and silence >= limit:
            self.stop(node_id)
            self._pool.set_status(node_id, NodeStatus.LOST, f"{clause}; its trials were given up")
            self._on_lost(node_id, clause)
            return
        if pulse.missed == self._silent_after:
            self._pool.set_status(node_id, NodeStatus.SILENT, f"{clause}; its trials go on")
        self._wait(node_id, pulse)
