"""Growing pauses between attempts: 1, 2, 4 ... 60 s unless the caller says otherwise."""

FIRST_SECONDS = 1.0

LONGEST_SECONDS = 60.0

_MOST_DOUBLINGS = 16  # beyond any use, and far below what a float holds


def growing_pause(
    failures: int, first_seconds: float = FIRST_SECONDS, longest_seconds: float = LONGEST_SECONDS
) -> float:
    """The pause after so many failures in a row (at least 1): it doubles each time."""
    return min(first_seconds * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), longest_seconds)


class BackOff:
    """The pauses of one thing that is tried again, with jitter: longer after every failure, short again after a
    success."""

    def __init__(self, *, first_seconds: float = FIRST_SECONDS, longest_seconds: float = LONGEST_SECONDS) -> None:
        self._first = first_seconds
        self._longest = longest_seconds
        self._failures = 0

    def reset(self) -> None:
        """It works: the next failure is a first one."""
        self._failures = 0

    def take(self, longest_seconds: float = LONGEST_SECONDS) -> float:
        """The seconds to wait now: from three quarters of the step to the whole of it, so that machines that failed
        together are not tried together forever.

        :param longest_seconds: the longest pause this time.
        """
        import random  # not with the module: the reaper imports that

        self._failures += 1
        pause = growing_pause(self._failures, self._first, min(self._longest, longest_seconds))
        return pause * (0.75 + random.random() / 4)
