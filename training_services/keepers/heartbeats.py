"""Whether keepers still speak: a node falls silent, and may be lost, by the count of heartbeats it has missed.

One tick a heartbeat serves all nodes. Towards a node's loss a tick counts only

* while this manager is awake: a tick that comes late, by the monotonic or the wall clock, means that it was suspended
  or blocked, and every node begins a fresh window;
* while the manager is otherwise connected: another node that is reached over a network has spoken since the last tick.
  When all are gone it is more likely that our own network is.

So a single machine is never lost: it is silent, and its trials go on (docs/decisions/0007). What somebody wants stopped
there is given up all the same once the node was silent for its limit.
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
_REGISTRATION_SECONDS = 10.0  # what a keeper is given to register, from the login to its machine
_FEWEST = 2  # missed heartbeats before a node can be lost: of one that is well, one may fall between two ticks


@dataclass(slots=True)
class _Pulse:
    """One node's."""

    limit_seconds: float | None = None  # None: it is never lost
    heard: bool = False  # since the last tick
    missed: int = 0  # ticks in a row without a word
    away: int = 0  # those of them that count towards its loss
    connected: bool = False  # it has registered, and was not lost since
    lost: bool = False
    reached: bool = False  # its machine was reached in this silence


class HeartbeatMonitor:
    """Keeps the pool's view of every registered node up to date.

    :param on_lost: called with the node, a clause, and whether it is lost: it stayed away for its limit. False: it was
        silent for so long, but that may be our own network; called at every tick. Returns whether anything was given
        up; a node that had nothing to lose is not called lost.
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
        self._pulses: dict[str, _Pulse] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._ticked_at = (0.0, 0.0)

    def limit(self, node_id: str, lost_after_seconds: float | None) -> None:
        """How long this node may stay away before it is lost, at least two heartbeats; None: for ever. The window
        begins now, also of a node that was lost: it may have new jobs to lose. Needs a running event loop when there is
        a limit."""
        pulse = self._pulses.setdefault(node_id, _Pulse())
        pulse.limit_seconds = None
        pulse.lost = False
        if lost_after_seconds is not None:
            pulse.limit_seconds = max(lost_after_seconds, _FEWEST * self._heartbeat_seconds)
            self._start()

    def connect(self, node_id: str, registration: Registration) -> None:
        """A node's keeper has registered."""
        if registration.protocol_version != PROTOCOL_VERSION:
            theirs = registration.protocol_version
            log.warning("node %s's keeper speaks protocol %s, this manager %s", node_id, theirs, PROTOCOL_VERSION)
        pulse = self._pulses.setdefault(node_id, _Pulse())
        _note_word(pulse)
        pulse.connected, pulse.lost = True, False
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
        pulse = self._pulses.get(node_id)
        if pulse is None or pulse.limit_seconds is None or pulse.reached:
            return
        pulse.reached = True
        left = math.ceil(_REGISTRATION_SECONDS / self._heartbeat_seconds)
        pulse.away = min(pulse.away, max(0, math.ceil(pulse.limit_seconds / self._heartbeat_seconds) - left))

    def hear(self, node_id: str, header: ReportHeader) -> None:
        """A node's keeper has reported."""
        pulse = self._pulses.setdefault(node_id, _Pulse())
        if self._pool.node(node_id).status is not NodeStatus.CONNECTED:
            self._pool.set_status(node_id, NodeStatus.CONNECTED)
        _note_word(pulse)
        self._pool.hear(
            node_id,
            self._now(),
            devices=header.devices,
            disk_free_mb=header.disk_free_mb,
            notes=header.notes,
            full=header.full,
            stopped=header.stopped,
        )

    def stop(self, node_id: str) -> None:
        """Watch this node no more."""
        self._pulses.pop(node_id, None)

    def close(self) -> None:
        """Watch no node any more."""
        self._pulses.clear()
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
            for pulse in self._pulses.values():
                pulse.missed = pulse.away = 0
        else:
            witnesses = {id for id, pulse in self._pulses.items() if pulse.heard and pulse.limit_seconds is not None}
            for node_id, pulse in list(self._pulses.items()):
                self._look_at(node_id, pulse, is_witnessed=bool(witnesses - {node_id}))
        for pulse in self._pulses.values():
            pulse.heard = False
        if self._pulses:
            self._wait()

    def _was_asleep(self) -> bool:
        monotonic, wall = self._ticked_at
        elapsed = max(asyncio.get_running_loop().time() - monotonic, self._now() - wall)
        return elapsed > _LATE * self._heartbeat_seconds

    def _look_at(self, node_id: str, pulse: _Pulse, *, is_witnessed: bool) -> None:
        if pulse.heard or pulse.lost:
            return
        pulse.missed += 1
        pulse.away += is_witnessed
        limit = math.inf if pulse.limit_seconds is None else pulse.limit_seconds
        if pulse.away * self._heartbeat_seconds >= limit:
            self._lose(node_id, pulse)
            return
        if pulse.missed == self._silent_after and pulse.connected:
            self._call_silent(node_id, pulse.missed * self._heartbeat_seconds)
        if pulse.missed * self._heartbeat_seconds >= limit:
            self._on_lost(node_id, self._describe(pulse), False)

    def _lose(self, node_id: str, pulse: _Pulse) -> None:
        pulse.lost, pulse.connected, pulse.away = True, False, 0
        clause = self._describe(pulse)
        if self._on_lost(node_id, clause, True):
            self._pool.set_status(node_id, NodeStatus.LOST, f"{clause}; its trials were abandoned")

    def _describe(self, pulse: _Pulse) -> str:
        return f"no word from its keeper for {pulse.missed * self._heartbeat_seconds:g} s"

    def _call_silent(self, node_id: str, silence: float) -> None:
        """Unless somebody has already said better what is the matter."""
        if self._pool.node(node_id).status is NodeStatus.CONNECTED:
            clause = f"no word from its keeper for {silence:g} s; its trials go on"
            self._pool.set_status(node_id, NodeStatus.SILENT, clause)


def _note_word(pulse: _Pulse) -> None:
    pulse.heard = True
    pulse.reached = False
    pulse.missed = pulse.away = 0
