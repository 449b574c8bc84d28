"""Fail points that are armed one by one, while processes run: at each of them exactly one process dies."""

from pathlib import Path


class ArmedPlaces:
    """A folder whose files arm the places that they are named after.

    :param folder: is made.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self.environment = {"PROCTOR_FAILPOINT_FOLDER": str(folder)}
        """Of the processes that may die."""

    def arm(self, place: str) -> None:
        """Have the next process that comes to this place die there."""
        (self._folder / place).touch()

    def left(self) -> list[str]:
        """Return the places at which no process has died since they were armed."""
        return sorted(path.name for path in self._folder.iterdir())
