"""The proof that a node stores checkpoints where the manager and the other nodes find them.

A folder, or a URL such as file:///scratch, may be something else on each machine. So there is a mark in the storage of
each experiment, an empty file with a random name, and only machines that find it there are used. The manager's
machine makes it where it has the location itself; otherwise the first node does. Which one counts is noted in the
experiment's folder: a mark that is not noted (the manager was killed in between) proves nothing.
"""

import asyncio
import os
import secrets
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from proctor.sdk.checkpoints.ownership import SHARED_PREFIX as MARK_PREFIX
from proctor.sdk.checkpoints.ownership import FolderPlace
from proctor.sdk.files import replace_file
from proctor.sdk.protocol import is_url
from proctor.training_services.errors import ServiceUnavailable
from proctor.training_services.keepers.file_requests import KeeperFiles
from proctor.training_services.stored_checkpoints import mark_storage
from proctor.trial_keeper.protocol import Launch

__all__ = ["MARK_PREFIX", "NOTE_FILE", "SharedStorage"]

T = TypeVar("T")
LOOK_SECONDS = 30.0
"""Maximum time for one look at a folder on the manager's machine."""
NOTE_FILE = "storage-mark"
"""File in the experiment's folder with the name of the mark that counts."""
_ADVICE = (
    "other machines would not find what is stored there: mount the folder that all nodes share, or have a URL of an "
    "object store as checkpointStorage"
)


class SharedStorage:
    """The storage of one experiment's checkpoints, as its nodes see it.

    :param directory: the experiment's, on the manager's machine.
    :param hub: asks the keepers.
    """

    def __init__(self, directory: Path, hub: KeeperFiles) -> None:
        self._note = directory / NOTE_FILE
        self._hub = hub
        self._noting = asyncio.Lock()
        self._looking = asyncio.Lock()
        self._look: asyncio.Future[Any] | None = None

    async def problem(self, keeper_id: str, place: str, launch: Launch, environment: Mapping[str, str]) -> str:
        """Return what keeps the trials of a node from storing checkpoints, as a clause; "" if nothing does, or if its
        keeper cannot tell. Raises as `KeeperFiles` does, and ServiceUnavailable where the manager's machine cannot use
        the storage.

        :param place: the experiment's in the storage: a folder, or a URL.
        :param launch: of one of its jobs there.
        :param environment: what must be in the environment of whoever reads or writes there.
        """
        while True:
            noted = await asyncio.to_thread(self._noted)
            if is_url(place) or await self._look_here(place, partial(_has_location, place)):
                noted = noted or await self._note_first(_new_mark())
                await self._mark_here(place, noted, environment)
            mark = noted or _new_mark()
            answer = await self._hub.probe_storage(keeper_id, place, launch, mark=mark, makes_mark=not noted)
            if answer.problem or answer.has_mark is None:
                return answer.problem
            if not answer.has_mark:
                return f"{place} is not the place in which the experiment stores checkpoints; {_ADVICE}"
            if await self._note_first(mark) == mark:
                return ""

    def _noted(self) -> str:
        try:
            return self._note.read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return ""
        except OSError as error:
            raise ServiceUnavailable(f"{self._note} cannot be read: {error.strerror}") from error

    async def _note_first(self, mark: str) -> str:
        """Return the mark that counts, which is this one where none was noted before."""

        def note() -> str:
            if not (noted := self._noted()):
                try:
                    replace_file(self._note, mark.encode(), durable=True)
                except OSError as error:
                    raise ServiceUnavailable(f"{self._note} cannot be written: {error.strerror}") from error
            return noted or mark

        async with self._noting:
            return await asyncio.to_thread(note)

    async def _mark_here(self, place: str, mark: str, environment: Mapping[str, str]) -> None:
        """Make the mark where the manager's machine finds the storage, unless it is there."""
        if is_url(place):
            if problem := await mark_storage(place, environment, mark):
                raise ServiceUnavailable(f"on the manager's machine, {problem}")
            return
        await self._look_here(place, partial(_mark_folder, FolderPlace(place), mark))

    async def _look_here(self, place: str, look: Callable[[], T]) -> T:
        """Return what a function finds that may hang, as a network's file system does. Then it is left alone, and no
        other one begins: the manager needs its other threads."""
        async with self._looking:
            if self._look is None or self._look.done():
                self._look = asyncio.get_running_loop().run_in_executor(None, look)
                self._look.add_done_callback(lambda done: done.cancelled() or done.exception())
                await asyncio.wait({self._look}, timeout=LOOK_SECONDS)
            if not self._look.done():
                raise ServiceUnavailable(f"{place} does not answer on the manager's machine")
            try:
                return cast(T, self._look.result())
            except OSError as error:
                text = f"{place} cannot be used on the manager's machine: {error.strerror}"
                raise ServiceUnavailable(text) from error


def _has_location(place: str) -> bool:
    return os.path.isdir(os.path.dirname(place))


def _mark_folder(folder: FolderPlace, mark: str) -> None:
    if folder.read(mark) is None:
        folder.write(mark, b"")


def _new_mark() -> str:
    return f"{MARK_PREFIX}{secrets.token_hex(8)}"
