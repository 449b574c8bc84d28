"""What a machine says at the first look: has it room, a right clock, a home that can be written?"""

from dataclasses import dataclass
from typing import Any

from proctor.training_services.remote.errors import NoPython, NoRoom, NotWritable, RemoteError, WrongClock

__all__ = [
    "NodeFacts",
    "require_clock",
    "require_home",
    "require_python_path",
    "require_room",
    "require_system",
    "require_usable",
]

LARGEST_CLOCK_DIFFERENCE_SECONDS = 300.0
LEAST_FREE_MB = 64
LEAST_FREE_INODES = 1000


@dataclass(frozen=True)
class NodeFacts:
    """What a machine says of itself, see `proctor.trial_keeper.probe`.

    clock_ahead_seconds: its clock less ours.
    archives: the keeper's one file, by name, as far as it lies there already.
    """

    python: str  # the interpreter to use there
    version: str  # its version
    home: str
    directory: str  # the keeper's, absolute
    exists: bool  # whether that is there
    archives: tuple[str, ...]
    clock_ahead_seconds: float
    why_not_writable: str
    free_mb: int | None
    free_inodes: int | None
    lacks: tuple[str, ...] = ()
    kills_at_logout: bool = False
    python_path_without: str = ""  # the machine's pythonPath, if no Python is in it
    user: str = ""
    hostname: str = ""

    @classmethod
    def read(cls, python: str, answer: dict[str, Any], now: float) -> "NodeFacts":
        """From the answer of an interpreter. Raises KeyError, TypeError.

        :param python: its name, in case that it does not know where it is.
        :param now: our clock, Unix time.
        """
        return cls(
            python=answer["executable"] or python,
            version=answer["python"],
            home=answer["home"],
            directory=answer["directory"],
            exists=answer["exists"],
            archives=tuple(answer["archives"]),
            clock_ahead_seconds=answer["time"] - now,
            why_not_writable=answer["why_not_writable"],
            free_mb=answer["free_mb"],
            free_inodes=answer["free_inodes"],
            lacks=tuple(answer["lacks"]),
            kills_at_logout=answer["kills_at_logout"],
            user=answer["user"],
            hostname=answer["hostname"],
            python_path_without=answer["python_path_without"],
        )


def require_usable(facts: NodeFacts) -> None:
    """Raises RemoteError, NoPython, WrongClock, NotWritable or NoRoom where a keeper or its trials could not work."""
    require_python_path(facts)
    require_system(facts)
    require_clock(facts)
    require_room(facts)
    require_home(facts)


def require_python_path(facts: NodeFacts) -> None:
    """Raises NoPython where trials would silently run another Python than that of `pythonPath`."""
    if facts.python_path_without:
        raise NoPython(
            f"pythonPath {facts.python_path_without} has no Python that can be executed, and its trials would run "
            f"another one, such as {facts.python}; give the absolute path of a directory that has one, or "
            "leave pythonPath out"
        )


def require_system(facts: NodeFacts) -> None:
    """Raises RemoteError where something is missing that a keeper needs besides Python."""
    if facts.lacks:
        raise RemoteError(f"it lacks what a keeper needs: {', '.join(facts.lacks)}; install it there")


def require_clock(facts: NodeFacts) -> None:
    """Raises WrongClock where times of trials would be far off."""
    ahead = facts.clock_ahead_seconds
    if abs(ahead) > LARGEST_CLOCK_DIFFERENCE_SECONDS:
        direction = "ahead of" if ahead > 0 else "behind"
        raise WrongClock(
            f"its clock is {abs(ahead):.0f} s {direction} the manager's, and times of trials would be wrong; set it "
            "(for example with chrony or systemd-timesyncd)"
        )


def require_room(facts: NodeFacts) -> None:
    """Raises NoRoom where its disk is full."""
    if facts.free_mb is not None and facts.free_mb < LEAST_FREE_MB:
        raise NoRoom(
            f"its disk is full: {facts.free_mb} MiB are free at {facts.home}, expected at least {LEAST_FREE_MB}; make "
            "room there"
        )
    if facts.free_inodes is not None and facts.free_inodes < LEAST_FREE_INODES:
        raise NoRoom(
            f"its disk is full: {facts.free_inodes} inodes are free at {facts.home}, expected at least "
            f"{LEAST_FREE_INODES}; remove files there"
        )


def require_home(facts: NodeFacts) -> None:
    """Raises NotWritable where the home directory does not take files."""
    if facts.why_not_writable:
        raise NotWritable(f"its home directory cannot be written: {facts.why_not_writable}")
