"""Where the bytes of a journal stand in what the manager is told of it.

The manager counts on: what it has stored of a journal never becomes less. A journal that its trial has cut back,
written anew or replaced goes on behind that, after a mark which says what has happened.
"""

import json
import os
import time
from dataclasses import asdict, dataclass

from proctor.sdk.protocol import JOURNAL_FILE, KIND_LOST
from proctor.trial_keeper.files import read_regular_file, replace_file

_MOST_BYTES = 64 * 1024
_MOST_OFFSET = 2**53


@dataclass(frozen=True)
class Anchor:
    """Byte `position` of the file follows `mark`, one line or more, which stands at byte `offset` of what is told.
    `is_without_file`: there was no file any more."""

    offset: int = 0
    position: int = 0
    mark: str = ""
    is_without_file: bool = False

    @property
    def end(self) -> int:
        """The offset behind the mark."""
        return self.offset + len(self.mark)

    @property
    def shift(self) -> int:
        """From a position in the file to its offset."""
        return self.end - self.position


def read_anchor(directory: str, member: str) -> Anchor:
    """The anchor that was written down for a member's journal, else the one of a journal that only grows. It lies where
    the trial may write: one that no keeper has written is none."""
    try:
        found = Anchor(**json.loads(read_regular_file(_path(directory, member), _MOST_BYTES)))
        is_ours = all(type(place) is int and 0 <= place < _MOST_OFFSET for place in (found.offset, found.position))
        is_ours = is_ours and found.mark.isascii() and found.mark.endswith("\n")
    except (OSError, ValueError, TypeError, AttributeError, RecursionError):
        return Anchor()
    return found if is_ours else Anchor()


def write_anchor(directory: str, member: str, anchor: Anchor) -> None:
    """Write it down before anything behind it is told: the next keeper tells nothing twice. Raises OSError."""
    replace_file(_path(directory, member), json.dumps(asdict(anchor)).encode(), durable=True)


def write_mark(why: str) -> str:
    """The line that stands where a journal goes on: a record of unknown losses."""
    return json.dumps({"kind": KIND_LOST, "why": why, "time": time.time()}) + "\n"


def _path(directory: str, member: str) -> str:
    return os.path.join(directory, f"{JOURNAL_FILE}-anchor.{member}")
