"""The state of built-in algorithms, saved now and then, so that a restart costs the same however long an experiment has
run: a successor reads the newest state, and gets only the inputs after it.

A state is a shortcut, and never more: one that cannot be read, because an algorithm has changed or was configured in
another way, is passed over, and the whole input log is replayed. Both ways end the same.
"""

import json
import traceback
from collections.abc import Callable
from typing import Any

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.protocol import FromDispatcher, ToDispatcher

VERSION = 1
"""Of the form of a state; those of the algorithms are inside."""
LEAST_INPUTS = 2000
"""No state is saved after fewer inputs; each row of a report counts."""
BYTES_AN_INPUT = 1000
"""A state of so many bytes is worth an input more of waiting: writing it costs what handling an input does."""

StateDict = Callable[[], protocol.JsonObject | None]


class StateSaver:
    """Counts the inputs, and says when a state is due."""

    def __init__(self, initialize: protocol.Initialize) -> None:
        specs = (initialize.tuner, initialize.assessor, initialize.scheduler)
        made_of = [None if spec is None else vars(spec) for spec in specs]
        self._made_of = json.dumps([made_of, initialize.seed, initialize.direction], sort_keys=True, default=str)
        self._inputs = 0
        self._interval: float = LEAST_INPUTS
        self._is_possible = True

    def read(self, initialize: protocol.Initialize) -> protocol.JsonObject | None:
        """Return the state that an earlier dispatcher has saved, if it is one of the same algorithms."""
        if initialize.saved is None:
            return None
        saved: protocol.JsonObject = json.loads(initialize.saved)
        if saved.get("version") != VERSION or saved.get("made_of") != self._made_of:
            return None
        self._wait_for(initialize.saved)
        return saved

    def after(self, message: ToDispatcher | FromDispatcher, state_dict: StateDict) -> protocol.StateSaved | None:
        """Return what to send once an input is handled: a state, where it is due and possible."""
        position = getattr(message, "position", None)
        if position is None or not self._is_possible:
            return None
        self._inputs += max(len(message.rows), 1) if isinstance(message, protocol.ReportMetrics) else 1
        # After a request it would have to be known, too, whether that is to be repeated.
        if self._inputs < self._interval or not isinstance(message, protocol.ReportMetrics | protocol.TrialEnd):
            return None
        found = state_dict()
        if found is None:
            self._is_possible = False
            return None
        content = {"version": VERSION, "made_of": self._made_of, **found}
        state = json.dumps(content, separators=(",", ":"), allow_nan=False)
        self._inputs = 0
        self._wait_for(state)
        return protocol.StateSaved(position, state)

    def _wait_for(self, state: str) -> None:
        self._interval = max(LEAST_INPUTS, len(state) / BYTES_AN_INPUT)


def try_to_load(what: str, load_state_dict: Callable[[], Any]) -> bool:
    """Have a state loaded. Returns False, with the reason in the log, where it cannot be."""
    try:
        load_state_dict()
    except Exception:
        print(f"the saved state of {what} cannot be used; all inputs are replayed instead", flush=True)
        traceback.print_exc()
        return False
    return True
