"""Heartbeats of keepers: a node is silent, and may be lost, after a number of missed ones.

One tick a heartbeat serves all nodes. Towards a node's loss a tick counts only

* while this manager is awake: a late tick, by the monotonic or the wall clock, means that it was suspended or
  blocked, and every node begins a new window;
* while the manager is otherwise connected: another node that is connected over a network has sent a message since
  the last tick. When all are silent it is more likely that our own network is down.

So a single machine is never lost: it is silent, and its trials keep running (docs/decisions/0007). Jobs that are being
stopped there are abandoned nevertheless once the node was silent for its limit.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from proctor.training_services.nodes.pool import NodePool, NodeStatus
from proctor.trial_keeper.protocol import PROTOCOL_VERSION, Registration, ReportHeader

log = logging.getLogger(__name__)

_LATE = 2.0  # a tick that took so many heartbeats is late
_REGISTRATION_SECONDS = 10.0  # how long a keeper may take to register, from the login to its machine
_LEAST_MISSED = 2  # missed heartbeats before a node can be lost: of one that is well, one may fall between two ticks


@dataclass(slots=True)
class _NodeHeartbeats:
    """What is known about the heartbeats of one node."""

    limit_seconds: float | None = None  # None: it is never lost
    was_seen: bool = False  # since the last tick
    missed: int = 0  # ticks in a row without a message
    away: int = 0  # those of them that count towards its loss
    connected: bool = False  # it has registered, and was not lost since
    lost: bool = False
    reached: bool = False  # its machine was reached in this silence


class HeartbeatMonitor:
    """Keeps the pool's view of every registered node up to date.

    :param on_lost: called with the node, a clause, and whether it is lost: it was silent for its limit. False: it was
        silent for so long, but that may be our own network; called at every tick. Returns whether any job was
        abandoned; a node without jobs is not set to lost.
    """

    def __init__(
        self,
        pool: NodePool,
        *,
        heartbeat_seconds: float,
        silent_after: int,
        now: Callable[[], float],
        on_lost: Callable[[str, str, bool], bool],
    ) -> None:
        self._pool = pool
        self._heartbeat_seconds = heartbeat_seconds
        self._silent_after = silent_after
        self._now = now
        self._on_lost = on_lost
        self._nodes: dict[str, _NodeHeartbeats] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._ticked_at = (0.0, 0.0)

    def limit(self, node_id: str, lost_after_seconds: float | None) -> None:
        """How long this node may be silent before it is lost, at least two heartbeats; None: forever. The window
        begins now, also of a node that was lost: it may have new jobs to lose. Needs a running event loop when there is
        a limit."""
        node = self._nodes.setdefault(node_id, _NodeHeartbeats())
        node.limit_seconds = None
        node.lost = False
        if lost_after_seconds is not None:
            node.limit_seconds = max(lost_after_seconds, _LEAST_MISSED * self._heartbeat_seconds)
            self._start()

    def connect(self, node_id: str, registration: Registration) -> None:
        """A node's keeper has registered."""
        if registration.protocol_version != PROTOCOL_VERSION:
            theirs = registration.protocol_version
            log.warning("node %s's keeper speaks protocol %s, this manager %s", node_id, theirs, PROTOCOL_VERSION)
        node = self._nodes.setdefault(node_id, _NodeHeartbeats())
        _record_message(node)
        node.connected, node.lost = True, False
        self._pool.connect(
            node_id,
            registration.devices,
            driver_note=registration.driver_note,
            hostname=registration.hostname,
            version=registration.version,
            seen_at=self._now(),
            full=registration.full,
        )
        self._start()

    def reach(self, node_id: str) -> None:
        """A node's machine has answered, though its keeper has not yet. It is not lost before the keeper had some
        seconds to register; this holds once in each silence."""
        node = self._nodes.get(node_id)
        if node is None or node.limit_seconds is None or node.reached:
            return
        node.reached = True
        left = math.ceil(_REGISTRATION_SECONDS / self._heartbeat_seconds)
        node.away = min(node.away, max(0, math.ceil(node.limit_seconds / self._heartbeat_seconds) - left))

    def record(self, node_id: str, header: ReportHeader) -> None:
        """A node's keeper has reported."""
        node = self._nodes.setdefault(node_id, _NodeHeartbeats())
        if self._pool.node(node_id).status is not NodeStatus.CONNECTED:
            self._pool.set_status(node_id, NodeStatus.CONNECTED)
        _record_message(node)
        self._pool.update(
            node_id,
            self._now(),
            devices=header.devices,
            disk_free_mb=header.disk_free_mb,
            notes=header.notes,
            full=header.full,
            suspended=header.stopped,
        )

    def stop(self, node_id: str) -> None:
        """Stop watching this node."""
        self._nodes.pop(node_id, None)

    def close(self) -> None:
        """Stop watching all nodes."""
        self._nodes.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ---- ticks

    def _start(self) -> None:
        if self._timer is None:
            self._wait()

    def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        self._ticked_at = (loop.time(), self._now())
        self._timer = loop.call_later(self._heartbeat_seconds, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if self._was_asleep():
            for node in self._nodes.values():
                node.missed = node.away = 0
        else:
            witnesses = {id for id, node in self._nodes.items() if node.was_seen and node.limit_seconds is not None}
            for node_id, node in list(self._nodes.items()):
                self._count_missed(node_id, node, is_witnessed=bool(witnesses - {node_id}))
        for node in self._nodes.values():
            node.was_seen = False
        if self._nodes:
            self._wait()

    def _was_asleep(self) -> bool:
        """Whether this manager was suspended or blocked since the last tick."""
        monotonic, wall = self._ticked_at
        elapsed = max(asyncio.get_running_loop().time() - monotonic, self._now() - wall)
        return elapsed > _LATE * self._heartbeat_seconds

    def _count_missed(self, node_id: str, node: _NodeHeartbeats, *, is_witnessed: bool) -> None:
        if node.was_seen or node.lost:
            return
        node.missed += 1
        node.away += is_witnessed
        limit = math.inf if node.limit_seconds is None else node.limit_seconds
        if node.away * self._heartbeat_seconds >= limit:
            self._lose(node_id, node)
            return
        is_silent = node.missed == self._silent_after and node.connected
        if is_silent and self._pool.node(node_id).status is NodeStatus.CONNECTED:  # else it is more specific already
            self._pool.set_status(node_id, NodeStatus.SILENT, f"{self._describe(node)}; its trials keep running")
        if node.missed * self._heartbeat_seconds >= limit:
            self._on_lost(node_id, self._describe(node), False)

    def _lose(self, node_id: str, node: _NodeHeartbeats) -> None:
        node.lost, node.connected, node.away = True, False, 0
        clause = self._describe(node)
        if self._on_lost(node_id, clause, True):
            self._pool.set_status(node_id, NodeStatus.LOST, f"{clause}; its trials were abandoned")

    def _describe(self, node: _NodeHeartbeats) -> str:
        return f"no report from its keeper for {node.missed * self._heartbeat_seconds:g} s"


def _record_message(node: _NodeHeartbeats) -> None:
    node.was_seen = True
    node.reached = False
    node.missed = node.away = 0
