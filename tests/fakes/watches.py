"""What happens where a run of the tests says that it is (`DigitsModel.watch`): nothing, a line in a file, or its death.

A place is one that the model names, or a fail point of the trainer. Where a run has several ranks, a place of another
rank than the main one is called after it: "batch of rank 1". Watches can be pickled, as ranks need it.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from proctor.sdk import failpoints
from proctor.sdk.pytorch.distributed.ranks import get_ranks

Kill = tuple[str, int]
Watch = Callable[[str, int], None]
FAIL_POINT_PREFIX = "trainer."


def make_watch(
    *,
    kill: "Kill | None" = None,
    kill_passage: "Kill | None" = None,
    kill_launcher: "Kill | None" = None,
    trace: "str | None" = None,
) -> Watch:
    """Return what the model is to call at its places, and arm the fail points if that is asked for.

    :param kill: where a process kills itself: a place and its number there, or a fail point and its passage.
    :param kill_passage: where a process kills itself: a place of either kind, and which passage through it.
    :param kill_launcher: where a rank kills the process that started it: a place of the model, and which passage.
    :param trace: a file that gets a line with the name of every place that is passed, in their order.
    """
    if trace is not None:
        failpoints._log_path, failpoints._armed = trace, True  # the fail points' names come between ours
        return Tracer(trace)
    if kill_launcher is not None:
        return KillAtPassage(*kill_launcher, launcher=True)
    target = kill or kill_passage
    if target is None:
        return pass_by
    if target[0].startswith(FAIL_POINT_PREFIX):
        failpoints._target_name, failpoints._target_count, failpoints._armed = *target, True
        return pass_by
    return KillFromNumber(*target) if kill else KillAtPassage(*target)


def pass_by(place: str, number: int) -> None:
    """Do nothing."""


@dataclass
class KillFromNumber:
    """Kills the process at a place, from the number that is named."""

    place: str
    number: int

    def __call__(self, place: str, number: int) -> None:
        if _name(place) == self.place and number >= self.number:
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class KillAtPassage:
    """Kills the process, or the one that started it, at the n-th passage through a place."""

    place: str
    left: int
    launcher: bool = False

    def __call__(self, place: str, number: int) -> None:
        self.left -= _name(place) == self.place
        if self.left == 0:
            os.kill(os.getppid() if self.launcher else os.getpid(), signal.SIGKILL)


@dataclass
class Tracer:
    """Writes down where the run comes to."""

    path: str

    def __call__(self, place: str, number: int) -> None:
        with open(self.path, "a") as file:
            file.write(f"{_name(place)}\n")


def _name(place: str) -> str:
    rank = get_ranks().rank
    return f"{place} of rank {rank}" if rank else place
