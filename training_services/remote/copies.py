"""Copies to machines that are under way: each is made once, whoever waits for it, and all see how far it is."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Copies", "Copy", "Progress", "Start", "Tell", "size_text"]

Progress = Callable[[int, int], None]
"""Called with the bytes that are there and the bytes there will be."""
Tell = Callable[[str], None]
"""Called with a clause for people: "the code (120 MB) is being copied to gpu-3, 34 %"."""
Start = Callable[[Coroutine[Any, Any, None], str], object]
"""Runs something with a name in a task group. Raises nothing of what it runs."""

TELL_SECONDS = 1.0
"""How often at most it is told how far a copy is."""


@dataclass(frozen=True)
class Copy:
    """Something to bring to a node. Two with the same key are the same copy. `what` is a noun: "the code"."""

    key: tuple[str, str]
    what: str
    node_id: str
    carry_out: Callable[[Progress], Awaitable[None]]


@dataclass(eq=False)
class _Underway:
    copy: Copy
    done: asyncio.Future[None]
    listeners: list[Tell] = field(default_factory=list)
    clause: str = ""
    told_at: float = float("-inf")

    def note(self, present: int, total: int) -> None:
        """Tell all who wait, but not too often."""
        share = 100 * present // total if total else 100
        self.clause = f"{self.copy.what} ({size_text(total)}) is being copied to {self.copy.node_id}, {share} %"
        now = self.done.get_loop().time()
        if now - self.told_at >= TELL_SECONDS:
            self.told_at = now
            for tell in self.listeners:
                tell(self.clause)


class Copies:
    """The copies of one experiment.

    :param start: where copies are carried out, apart from the jobs that wait for them: one that is not wanted any more
        is finished for the next.
    """

    def __init__(self, start: Start) -> None:
        self._start = start
        self._underway: dict[tuple[str, str], _Underway] = {}

    async def make(self, copy: Copy, tell: Tell) -> None:
        """Have a copy made, or wait for it if it is under way. Raises what its `carry_out` raises."""
        underway = self._underway.get(copy.key)
        if underway is None:
            underway = _Underway(copy, asyncio.get_running_loop().create_future())
            self._underway[copy.key] = underway
            self._start(self._carry_out(underway), f"copy of {copy.what} to {copy.node_id}")
        underway.listeners.append(tell)
        if underway.clause:
            tell(underway.clause)
        try:
            await asyncio.shield(underway.done)
        finally:
            underway.listeners.remove(tell)

    async def _carry_out(self, underway: _Underway) -> None:
        try:
            await underway.copy.carry_out(underway.note)
        except Exception as error:
            underway.done.set_exception(error)
            underway.done.exception()  # looked at, for perhaps nobody waits any more
        except asyncio.CancelledError:
            underway.done.cancel()
            raise
        else:
            underway.done.set_result(None)
        finally:
            del self._underway[underway.copy.key]


def size_text(size: int) -> str:
    """A number of bytes for people: "120 MB"."""
    for unit, factor in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if size >= factor:
            value = size / factor
            return f"{value:.1f} {unit}" if value < 10 else f"{value:.0f} {unit}"
    return f"{size} bytes"
