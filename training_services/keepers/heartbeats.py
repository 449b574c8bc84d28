"""Heartbeats of keepers: one is silent, and a node may be lost, after a number of missed ones.

One tick a heartbeat serves all keepers. Towards a node's loss a tick counts only

* while this manager is awake: a late tick, by the monotonic or the wall clock, means that it was suspended or
  blocked, and every node begins a new window;
* while the manager is otherwise connected: another node that is connected over a network has sent a message since
  the last tick. When all are silent it is more likely that our own network is down.

So a single machine is never lost: it is silent, and its trials keep running (docs/decisions/0007). Jobs that are being
stopped there are abandoned nevertheless once the node was silent for its limit. The keeper of a single job has
no limit.
"""

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass

from proctor.training_services.keepers.presence import KeeperPresence, NodePresence
from proctor.training_services.nodes.pool import NodePool
from proctor.trial_keeper.protocol import PROTOCOL_VERSION, Registration, ReportHeader

log = logging.getLogger(__name__)

_LATE = 2.0  # a tick that took so many heartbeats is late
_REGISTRATION_SECONDS = 10.0  # how long a keeper may take to register, from the login to its machine
_LEAST_MISSED = 2  # missed heartbeats before a node can be lost: of one that is well, one may fall between two ticks


@dataclass(slots=True)
class _KeeperHeartbeats:
    """What is known about the heartbeats of one keeper."""

    presence: KeeperPresence
    limit_seconds: float | None = None  # None: it is never lost
    was_seen: bool = False  # since the last tick
    missed: int = 0  # ticks in a row without a message
    away: int = 0  # those of them that count towards its loss
    connected: bool = False  # it has registered, and was not lost since
    lost: bool = False
    reached: bool = False  # its machine was reached in this silence


class HeartbeatMonitor:
    """Keeps the presence of every registered keeper up to date.

    :param pool: has the presence of the keepers of nodes.
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
        self._node_presence = NodePresence(pool)
        self._heartbeat_seconds = heartbeat_seconds
        self._silent_after = silent_after
        self._now = now
        self._on_lost = on_lost
        self._keepers: dict[str, _KeeperHeartbeats] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._ticked_at = (0.0, 0.0)

    def limit(self, node_id: str, lost_after_seconds: float | None) -> None:
        """How long this node may be silent before it is lost, at least two heartbeats; None: forever. The window
        begins now, also of a node that was lost: it may have new jobs to lose. Needs a running event loop when there is
        a limit."""
        node = self._of(node_id)
        node.limit_seconds = None
        node.lost = False
        if lost_after_seconds is not None:
            node.limit_seconds = max(lost_after_seconds, _LEAST_MISSED * self._heartbeat_seconds)
            self._start()

    def watch(self, keeper_id: str, presence: KeeperPresence) -> None:
        """Watch a keeper that is not a node's; from now on its presence is kept there."""
        self._keepers.setdefault(keeper_id, _KeeperHeartbeats(presence)).presence = presence

    def connect(self, keeper_id: str, registration: Registration) -> None:
        """A keeper has registered."""
        keeper = self._of(keeper_id)
        if registration.protocol_version != PROTOCOL_VERSION:
            place, theirs = keeper.presence.place(keeper_id), registration.protocol_version
            log.warning("the keeper of %s speaks protocol %s, this manager %s", place, theirs, PROTOCOL_VERSION)
        _record_message(keeper)
        keeper.connected, keeper.lost = True, False
        keeper.presence.connected(keeper_id, registration, self._now())
        self._start()

    def reach(self, node_id: str) -> None:
        """A node's machine has answered, though its keeper has not yet. It is not lost before the keeper had some
        seconds to register; this holds once in each silence."""
        node = self._keepers.get(node_id)
        if node is None or node.limit_seconds is None or node.reached:
            return
        node.reached = True
        left = math.ceil(_REGISTRATION_SECONDS / self._heartbeat_seconds)
        node.away = min(node.away, max(0, math.ceil(node.limit_seconds / self._heartbeat_seconds) - left))

    def record(self, keeper_id: str, header: ReportHeader) -> None:
        """A keeper has reported."""
        keeper = self._of(keeper_id)
        _record_message(keeper)
        keeper.presence.heard(keeper_id, header, self._now())

    def stop(self, keeper_id: str) -> None:
        """Stop watching this keeper."""
        self._keepers.pop(keeper_id, None)

    def close(self) -> None:
        """Stop watching all keepers."""
        self._keepers.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _of(self, keeper_id: str) -> _KeeperHeartbeats:
        """What is known of a keeper; one that is not watched yet is a node's."""
        return self._keepers.setdefault(keeper_id, _KeeperHeartbeats(self._node_presence))

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
            for keeper in self._keepers.values():
                keeper.missed = keeper.away = 0
        else:
            witnesses = {id for id, each in self._keepers.items() if each.was_seen and each.limit_seconds is not None}
            for keeper_id, keeper in list(self._keepers.items()):
                self._count_missed(keeper_id, keeper, is_witnessed=bool(witnesses - {keeper_id}))
        for keeper in self._keepers.values():
            keeper.was_seen = False
        if self._keepers:
            self._wait()

    def _was_asleep(self) -> bool:
        """Whether this manager was suspended or blocked since the last tick."""
        monotonic, wall = self._ticked_at
        elapsed = max(asyncio.get_running_loop().time() - monotonic, self._now() - wall)
        return elapsed > _LATE * self._heartbeat_seconds

    def _count_missed(self, keeper_id: str, keeper: _KeeperHeartbeats, *, is_witnessed: bool) -> None:
        if keeper.was_seen or keeper.lost:
            return
        keeper.missed += 1
        keeper.away += is_witnessed
        limit = math.inf if keeper.limit_seconds is None else keeper.limit_seconds
        if keeper.away * self._heartbeat_seconds >= limit:
            self._lose(keeper_id, keeper)
            return
        if keeper.missed == self._silent_after and keeper.connected:
            keeper.presence.silent(keeper_id, self._describe(keeper))
        if keeper.missed * self._heartbeat_seconds >= limit:
            self._on_lost(keeper_id, self._describe(keeper), False)

    def _lose(self, keeper_id: str, keeper: _KeeperHeartbeats) -> None:
        keeper.lost, keeper.connected, keeper.away = True, False, 0
        clause = self._describe(keeper)
        if self._on_lost(keeper_id, clause, True):
            keeper.presence.lost(keeper_id, clause)

    def _describe(self, keeper: _KeeperHeartbeats) -> str:
        return f"no report from its keeper for {keeper.missed * self._heartbeat_seconds:g} s"


def _record_message(keeper: _KeeperHeartbeats) -> None:
    keeper.was_seen = True
    keeper.reached = False
    keeper.missed = keeper.away = 0
