"""What the three lifecycles share: a transition table, and the error for a move that is not in it."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Generic, TypeVar

S = TypeVar("S", bound=StrEnum)
E = TypeVar("E", bound=StrEnum)


class InvalidTransition(Exception):
    """A lifecycle was asked for a move that does not exist."""

    def __init__(self, what: str, status: StrEnum, event: StrEnum, possible: Iterable[StrEnum]) -> None:
        events = ", ".join(sorted(possible)) or "none, it is terminal"
        super().__init__(f"{what} is {status} and cannot take {event}; possible events: {events}")
        self.status = status
        self.event = event


class Lifecycle(Generic[S, E]):
    """A named transition table. Pure: `after` says where an event leads and changes nothing."""

    def __init__(self, name: str, table: Mapping[E, Mapping[S, S]]) -> None:
        self.name = name
        self._table = {(status, event): to for event, moves in table.items() for status, to in moves.items()}

    def after(self, what: str, status: S, event: E) -> S:
        """The status after `event`. `what` names the thing in the error. Raises InvalidTransition."""
        try:
            return self._table[status, event]
        except KeyError:
            raise InvalidTransition(what, status, event, self.events_from(status)) from None

    def allows(self, status: S, event: E) -> bool:
        """Whether `after` would succeed."""
        return (status, event) in self._table

    def events_from(self, status: S) -> set[E]:
        """Every event that this status can take."""
        return {event for (origin, event) in self._table if origin == status}

    def sources(self, event: E) -> tuple[S, ...]:
        """The statuses from which `event` leads anywhere: the guard of its statement in the store."""
        return tuple(status for (status, candidate) in self._table if candidate == event)

    def diagram(self) -> str:
        """The table as a Mermaid state diagram; docs/lifecycle.md holds it and a test compares."""
        lines = sorted({f"    {origin} --> {to}: {event}" for (origin, event), to in self._table.items()})
        return "\n".join(["stateDiagram-v2", *lines])
