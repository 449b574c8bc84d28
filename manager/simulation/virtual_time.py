"""An event loop whose time jumps to the next timer when there is nothing to do.

A wait of a day takes no time, and the order of everything is the same in every run. While work is pending outside the
loop (the databases' threads: see `pending`) the clock stands still and the loop really waits.
"""

import asyncio
import selectors
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

GUARD_SECONDS = 30.0
"""How long outside work may really take before the loop looks again."""


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for nothing but outside work: a timeout moves the clock instead."""

    def __init__(self, loop: "VirtualTimeLoop") -> None:
        super().__init__()
        self._owner = loop

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is not None and timeout <= 0:
            return super().select(0)
        ready = super().select(GUARD_SECONDS if self._owner.outside else 0)
        if ready or self._owner.outside:
            return ready
        if timeout is None:
            raise RuntimeError("the virtual-time loop has nothing left to wait for: every task waits forever")
        self._owner.jump(timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """The loop. `pending` is to be called with +1 and -1 around work outside of it."""

    def __init__(self) -> None:
        self._virtual_now = 0.0
        self.outside = 0
        super().__init__(_JumpingSelector(self))

    def time(self) -> float:
        return self._virtual_now

    def jump(self, seconds: float) -> None:
        """Let time pass."""
        self._virtual_now += seconds

    def pending(self, change: int) -> None:
        """Outside work begins (+1) or ends (-1)."""
        self.outside += change

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """As usual, and counted as outside work."""
        self.pending(1)
        future = super().run_in_executor(executor, func, *args)
        future.add_done_callback(lambda done: self.pending(-1))
        return future

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """As usual; the threads that end are outside work too."""
        self.pending(1)
        await super().shutdown_default_executor()
        self.pending(-1)


def run_virtual(main: Callable[[VirtualTimeLoop], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine under virtual time from its beginning to its end."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualTimeLoop)
        return runner.run(main(loop))
