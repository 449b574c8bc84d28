"""The proof that a node stores checkpoints where the other machines find them.

A folder, or a URL such as file:///scratch, may be something else on each machine. So there is a mark in the storage of
each experiment, a file with a random name, and only nodes that find it there are used (decision 0075). It is made once:
by `create`, where the manager's machine has the location, else by the first node. Which one counts is noted in the
experiment's folder: a mark that is not noted (the manager was killed in between) proves nothing.
"""

import asyncio
import secrets
from pathlib import Path
from typing import NamedTuple

from proctor.sdk.checkpoints.ownership import SHARED_PREFIX
from proctor.sdk.files import replace_file
from proctor.sdk.protocol import is_url
from proctor.training_services.errors import TrainingServiceError
from proctor.training_services.keepers.file_requests import KeeperFiles
from proctor.trial_keeper.protocol import Launch

__all__ = ["NOTE_FILE", "MarkNote", "SharedStorage", "StorageProblem", "new_mark"]

NOTE_FILE = "storage-mark"
"""File in the experiment's folder about the mark that counts. An experiment of an earlier version, or from an archive,
has none: its nodes are not compared."""


class MarkNote(NamedTuple):
    """The content of NOTE_FILE: a line each. It is empty until the mark is made."""

    mark: str = ""
    """The name of the mark."""
    maker: str = ""
    """The machine that has made it, in words: "node gpu-3"."""

    @classmethod
    def read(cls, directory: Path) -> "MarkNote | None":
        """Return the note in an experiment's folder; None where there is none. Raises OSError."""
        try:
            lines = (directory / NOTE_FILE).read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return None
        return cls(*[*lines, "", ""][:2])

    def write(self, directory: Path) -> None:
        """Write it into an experiment's folder, durably. Raises OSError."""
        replace_file(directory / NOTE_FILE, "".join(f"{line}\n" for line in self if line).encode(), durable=True)


class StorageProblem(NamedTuple):
    """What keeps the trials of a node from storing checkpoints."""

    clause: str
    """It is empty if nothing does."""
    is_nodes: bool = True
    """Whether it is the node's. Otherwise it is that of the manager's machine, and other nodes would meet it, too."""


class SharedStorage:
    """The storage of one experiment's checkpoints, as its nodes see it.

    :param directory: the experiment's, on the manager's machine.
    :param hub: asks the keepers.
    """

    def __init__(self, directory: Path, hub: KeeperFiles) -> None:
        self._directory = directory
        self._hub = hub
        self._noting = asyncio.Lock()

    async def problem(self, keeper_id: str, node: str | None, place: str, launch: Launch) -> StorageProblem:
        """Return what keeps the trials of a node from storing checkpoints; nothing if its keeper cannot tell.

        :param node: what it is called in records, if that is known.
        :param place: the experiment's in the storage: a folder, or a URL.
        :param launch: of one of its jobs there.
        """
        try:
            return StorageProblem(await self._look(keeper_id, node, place, launch))
        except TrainingServiceError as error:
            return StorageProblem(str(error))
        except OSError as error:  # of the note
            return StorageProblem(f"the manager cannot use {error.filename}: {error.strerror}", is_nodes=False)

    async def _look(self, keeper_id: str, node: str | None, place: str, launch: Launch) -> str:
        while True:
            note = await asyncio.to_thread(MarkNote.read, self._directory)
            if note is None or (is_url(place) and not note.mark):
                return (await self._hub.probe_storage(keeper_id, place, launch)).problem
            mark = note.mark or new_mark()
            answer = await self._hub.probe_storage(keeper_id, place, launch, mark=mark, makes_mark=not note.mark)
            if answer.problem or answer.has_mark is None:
                return answer.problem
            if not answer.has_mark:
                return self._describe_other(place, note)
            if note.mark or await self._is_first(MarkNote(mark, f"node {node}" if node else "")):
                return ""

    async def _is_first(self, made: MarkNote) -> bool:
        """Note a mark that was made. Return whether it counts: another node may have been faster."""

        def note() -> bool:
            if MarkNote.read(self._directory) != MarkNote():
                return False
            made.write(self._directory)
            return True

        async with self._noting:
            return await asyncio.to_thread(note)

    def _describe_other(self, place: str, note: MarkNote) -> str:
        file = f"{self._directory / NOTE_FILE} on the manager's machine"
        if is_url(place):
            advice = f"have the URL of an object store as checkpointStorage, or, to use it as it is, remove {file}"
        else:
            advice = f"mount the folder that all machines share, or, to let another node decide, empty {file}"
        return (
            f"{place} is not the place in which the experiment stores checkpoints: {note.maker or 'another machine'}, "
            f"which was the first to write there, has another one, or it was emptied; {advice}"
        )


def new_mark() -> str:
    """Return the name of a mark that is not made yet."""
    return f"{SHARED_PREFIX}{secrets.token_hex(8)}"
