"""One turn of an experiment's loop: what to commit, and what to do once it is committed."""

import logging
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from proctor.manager.dispatcher.protocol import ToDispatcher
from proctor.manager.engine.state import LiveTrial
from proctor.manager.store import events, inputs

Write = Callable[[sqlite3.Connection], Any]


@dataclass
class Step:
    """Gathers writes and effects; `apply` is the transaction. `now` is Unix time, for records; waits are counted from
    `monotonic`, because the machine's clock may be set."""

    experiment_id: str
    now: float
    monotonic: float = 0.0
    writes: list[Write] = field(default_factory=list)
    inputs: list[ToDispatcher] = field(default_factory=list)
    submit: list[LiveTrial] = field(default_factory=list)
    cancel: list[tuple[str, bool]] = field(default_factory=list)  # (job id, stopped early)
    release: list[str] = field(default_factory=list)  # job ids whose reservation goes
    update: list[LiveTrial] = field(default_factory=list)
    sayings: list[tuple[int, str, dict[str, str | None]]] = field(default_factory=list)

    def write(self, action: Write) -> None:
        """Add a statement to the transaction."""
        self.writes.append(action)

    def tell(self, message: ToDispatcher, payload: dict[str, Any]) -> None:
        """Add an input to the log, and tell it to the dispatcher after the commit. `payload` is what the log keeps."""
        position, kind = message.position, type(message).__name__  # type: ignore[union-attr]
        self.inputs.append(message)
        self.write(lambda c: inputs.append(c, self.experiment_id, position, kind, payload))

    def note(self, kind: str, data: dict[str, Any], *, trial_id: str | None = None) -> None:
        """Add an event that is not a change of status."""
        self.write(
            lambda c: events.append(
                c, time=self.now, kind=kind, data=data, experiment_id=self.experiment_id, trial_id=trial_id
            )
        )

    def say(self, text: str, *, action: str, level: int = logging.INFO, **ids: str | None) -> None:
        """A line for the manager's log, once the step is committed."""
        self.sayings.append((level, text, {"action": action, "experiment_id": self.experiment_id, **ids}))

    def apply(self, connection: sqlite3.Connection) -> None:
        """The transaction."""
        for action in self.writes:
            action(connection)
