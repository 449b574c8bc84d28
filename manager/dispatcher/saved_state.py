"""What a user's own algorithm has saved, and how much of the input log is in it."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from proctor.trial_keeper.linux.files import make_folder, remove_file, replace_file, sync_folder, sync_tree


class SavedDecision(NamedTuple):
    """An assessor's decision to stop a job: the position of the report that was judged, and whose it was."""

    position: int
    trial_id: str
    job_number: int


@dataclass(frozen=True)
class Mark:
    """Written after an algorithm has saved itself."""

    position: int = 0
    """Inputs up to here are part of what was saved."""
    own_ids: tuple[int, ...] = ()
    """Parameter ids that the tuner had proposed and that had not ended."""
    decisions: tuple[SavedDecision, ...] = ()
    """What the assessor had decided about trials that had not ended."""


class SavedState:
    """The mark beside one algorithm's checkpoint."""

    def __init__(self, directory: str, kind: str, algorithm: Any, base: type[Any]) -> None:
        own = getattr(type(algorithm), "save_checkpoint", base.save_checkpoint)
        self.is_wanted = own is not base.save_checkpoint
        self._path = Path(directory or ".") / f"{kind}.mark.json"
        self._algorithm = algorithm

    def load(self) -> Mark:
        """Have the algorithm read what it saved; the empty mark if it never did."""
        if not self.is_wanted or not self._path.is_file():
            return Mark()
        found = json.loads(self._path.read_text())
        self._algorithm.load_checkpoint()
        decisions = tuple(SavedDecision(*decision) for decision in found.get("decisions", ()))
        return Mark(found["position"], tuple(found["own_ids"]), decisions)

    def save(self, mark: Mark) -> None:
        """Have the algorithm save itself, then write the mark. Does nothing for one that cannot.

        There is a mark only while what it stands for is whole and on the disk: an algorithm may write over what it
        saved before, and after a power cut in the middle of that it must be told everything again.
        """
        if not self.is_wanted:
            return
        folder = str(self._path.parent)
        make_folder(folder)
        remove_file(str(self._path))
        sync_folder(folder)
        self._algorithm.save_checkpoint()
        sync_tree(folder)
        replace_file(str(self._path), json.dumps(asdict(mark)).encode(), durable=True)
