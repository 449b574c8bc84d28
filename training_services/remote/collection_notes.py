"""What of a job's files was brought from its machine, written beside the copy: `jobs/<n>.collected.json`."""

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from proctor.trial_keeper.linux.files import make_folder, replace_file
from proctor.trial_keeper.protocol import FileFacts

SUFFIX = ".collected.json"


@dataclass(frozen=True)
class CollectionNote:
    """`left`: (path, size) of the files that are on the machine only; None: the job was not collected yet. `whole`:
    folders all of which are here, whatever `left` says. Paths are relative to the job's directory."""

    left: tuple[tuple[str, int], ...] | None = None
    whole: tuple[str, ...] = ()

    @classmethod
    def read(cls, directory: Path) -> "CollectionNote":
        """The note on a job's directory; where there is none, or none that can be read, nothing was collected."""
        try:
            body = json.loads(_place(directory).read_text(encoding="utf-8"))
            left = body["left"]
            return cls(
                None if left is None else tuple((str(path), int(size)) for path, size in left), tuple(body["whole"])
            )
        except (OSError, ValueError, KeyError, TypeError):
            return cls()

    def write(self, directory: Path) -> None:
        """Replace the note on a job's directory. Raises OSError."""
        make_folder(str(directory.parent), mode=0o777)
        body = json.dumps({"left": self.left, "whole": self.whole})
        replace_file(str(_place(directory)), body.encode(), durable=True)

    def with_left(self, left: Iterable[FileFacts]) -> "CollectionNote":
        """The job was collected but for these."""
        return replace(self, left=tuple((file.path, file.size) for file in left))

    def with_whole(self, folder: str) -> "CollectionNote":
        """All of a folder is here."""
        return self if folder in self.whole else replace(self, whole=(*self.whole, folder))

    def has(self, path: str) -> bool:
        """Whether a file of the job, if it was there when the job ended, is here."""
        if any(path.startswith(f"{folder}/") for folder in self.whole):
            return True
        return self.left is not None and all(path != name for name, _ in self.left)

    def has_all(self, folder: str) -> bool:
        """Whether everything that was in a folder is here."""
        if folder in self.whole:
            return True
        return self.left is not None and not any(name.startswith(f"{folder}/") for name, _ in self.left)


def _place(directory: Path) -> Path:
    return directory.parent / f"{directory.name}{SUFFIX}"
