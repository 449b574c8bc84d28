"""Nodes on which trials fail that succeed elsewhere.

A node gets no more jobs once so many different trials in a row have failed on it, while at least one has succeeded on
another node since the first of them. A trial that also fails elsewhere does not count: it is at fault itself.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from proctor.trial_keeper.protocol import EndReason

log = logging.getLogger(__name__)

FAILURES = frozenset(
    (
        EndReason.EXITED_ERROR,
        EndReason.OUT_OF_MEMORY,
        EndReason.SIGNALED,
        EndReason.LAUNCH_FAILED,
        EndReason.EXIT_UNKNOWN,
        EndReason.INFRASTRUCTURE,
    )
)
"""Ends that may be the node's fault. All others but EXITED_OK say nothing about it."""


@dataclass
class _Streak:
    """The trials that have failed on one node in a row, and whether any has succeeded elsewhere meanwhile."""

    trials: dict[str, None] = field(default_factory=dict)
    succeeded_elsewhere: bool = False


class Quarantine:
    """Counts failures by node for all experiments of a manager.

    :param hold: called with a node and the clause why it gets no more jobs.
    """

    def __init__(self, hold: Callable[[str, str], None]) -> None:
        self._hold = hold
        self._streaks: dict[str, _Streak] = {}

    def record(self, node_id: str, trial_id: str, reason: EndReason, *, after: int) -> None:
        """A job of this trial has ended there. `after`: hold the node at so many failures; 0: never."""
        if reason is EndReason.EXITED_OK:
            self._succeed(node_id, after)
        elif reason in FAILURES:
            self._fail(node_id, trial_id, after)

    def forget(self, node_id: str) -> None:
        """Forget the failures on a node."""
        self._streaks.pop(node_id, None)

    def _succeed(self, node_id: str, after: int) -> None:
        self.forget(node_id)
        for other, streak in list(self._streaks.items()):
            streak.succeeded_elsewhere = True
            self._judge(other, after)

    def _fail(self, node_id: str, trial_id: str, after: int) -> None:
        elsewhere = [
            streak for other, streak in self._streaks.items() if other != node_id and trial_id in streak.trials
        ]
        for streak in elsewhere:
            del streak.trials[trial_id]
        if not elsewhere:
            self._streaks.setdefault(node_id, _Streak()).trials[trial_id] = None
        self._judge(node_id, after)

    def _judge(self, node_id: str, after: int) -> None:
        streak = self._streaks.get(node_id)
        if streak is None or not after or len(streak.trials) < after or not streak.succeeded_elsewhere:
            return
        self.forget(node_id)
        number = len(streak.trials)
        clause = (
            f"quarantined: {number} trials in a row have failed here while others succeeded elsewhere; look at their "
            f"logs, then `proctor nodes resume {node_id}`"
        )
        log.warning("node %s is %s", node_id, clause, extra={"action": "node.quarantine", "node_id": node_id})
        self._hold(node_id, clause)
