"""Growing pauses between attempts, with jitter: 1, 2, 4 ... 60 s unless the caller says otherwise."""

import random

FIRST_SECONDS = 1.0

LONGEST_SECONDS = 60.0


class BackOff:
    """The pauses of one thing that is tried again: longer after every failure, short again after a success."""

    def __init__(self, *, first_seconds: float = FIRST_SECONDS, longest_seconds: float = LONGEST_SECONDS) -> None:
        self._first = first_seconds
        self._longest = longest_seconds
        self._next = first_seconds

    def reset(self) -> None:
        """It works: the next failure is a first one."""
        self._next = self._first

    def take(self, longest_seconds: float = LONGEST_SECONDS) -> float:
        """The seconds to wait now: from three quarters of the step to the whole of it, so that machines that failed
        together are not tried together for ever.

        :param longest_seconds: the longest pause this time.
        """
        step, self._next = self._next, min(2 * self._next, self._longest)
        return min(step, longest_seconds) * (0.75 + random.random() / 4)
