"""A manager's clock whose wall-clock time can be set while time passes."""

from proctor.manager.clock import LoopClock


class SettableClock(LoopClock):
    """The event loop's time, and a wall clock that is wrong by so many seconds."""

    wrong_by = 0.0

    def now(self) -> float:
        return super().now() + self.wrong_by
