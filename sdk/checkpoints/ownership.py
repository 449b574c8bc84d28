"""The owner of a place: of one in a checkpointStorage, or of the folder of an experiment outside the home.

All checkpoints of an experiment lie in `<location>/<experiment id>`. A name proves nothing: a folder of the same name
may be a stranger's. So a file in it, OWNER_FILE, names the experiment and the manager that store there, and nothing is
deleted from a place that names another owner, or none.

The manager asks about a URL by running this module (`python -m proctor.sdk.checkpoints.ownership`), as it does with
`storage`; trials have no use for it.
"""

import json
import os
from abc import ABC, abstractmethod
from contextlib import suppress
from hashlib import sha256
from typing import NamedTuple

from proctor.sdk.checkpoints.manifest import MANIFEST_FILE
from proctor.sdk.checkpoints.storage import MARK_CONTENT, answer_request, explaining, has_folders, open_url
from proctor.sdk.files import remove_file, replace_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence
    from typing import Any

OWNER_FILE = ".proctor-owner.json"
SHARED_PREFIX = ".proctor-shared-"
"""Beginning of the name of the mark: the file by which machines recognize that they share a place."""
_OURS = ".proctor-"
"""Beginning of the names of files that say nothing about the owner of a place: a probe may have left one."""


class CheckpointPlace(ABC):
    """The place of one experiment's checkpoints: a folder, or what lies under a URL."""

    @abstractmethod
    def read(self, name: str) -> "bytes | None":
        """Return the content of a file in it; None where there is none."""

    @abstractmethod
    def names(self) -> "Collection[str]":
        """Return the names in it, without what lies deeper; none where it does not exist."""

    @abstractmethod
    def write(self, name: str, data: bytes) -> None:
        """Write a file into it; it exists from then on."""

    @abstractmethod
    def remove(self, name: str) -> None:
        """Remove a file or a folder in it. What is not there is removed already."""

    @abstractmethod
    def remove_itself(self) -> None:
        """Remove it, empty as it is."""


class Owner(NamedTuple):
    """An experiment of a manager. It was created once: another one of the same id is another owner."""

    home: str
    """The id of the manager's control database."""
    experiment: str
    created_at: float
    """Seconds since the epoch."""

    def encode(self) -> bytes:
        """Return the content of OWNER_FILE."""
        return json.dumps({"written_by": "proctor", **self._asdict()}, indent=1).encode()

    @classmethod
    def decode(cls, data: bytes) -> "Owner | None":
        """Return the owner that a file names; None where it cannot be read."""
        try:
            found = json.loads(data)
            return cls(str(found["home"]), str(found["experiment"]), float(found["created_at"]))
        except (ValueError, KeyError, TypeError):
            return None


class StoredProof(NamedTuple):
    """A checkpoint that an experiment has registered, stored by a version that left no OWNER_FILE."""

    path: str
    """Path of its folder in the place."""
    manifest: str
    """The SHA-256 of its manifest."""


def claim(
    place: CheckpointPlace,
    owner: Owner,
    *,
    proofs: "Iterable[Sequence[str]]" = (),
    adopts: bool = False,
    mark: str = "",
) -> str:
    """Make a place an experiment's own; may be repeated. Returns why it cannot be, as a clause, else "".

    :param proofs: `StoredProof`s, one of which shows that what is there is the experiment's.
    :param adopts: someone has said so.
    :param mark: name of the mark that is made in it when it becomes the experiment's.
    """
    data = place.read(OWNER_FILE)
    is_empty = not _strangers(place)
    if data is None:
        if not (is_empty or adopts or any(_is_stored(place, *proof) for proof in proofs)):
            return "it holds something that this experiment has not stored there"
    elif (found := Owner.decode(data)) == owner:
        return ""
    elif not (is_empty and found is not None and found.home == owner.home):  # else a creation was cut off
        return describe_other(found, owner)
    if mark:
        place.write(mark, MARK_CONTENT)
    place.write(OWNER_FILE, owner.encode())
    return ""


def release(place: CheckpointPlace, owner: Owner) -> None:
    """Leave a place to the next one that claims it; its checkpoints stay. Does nothing where it has another owner."""
    data = place.read(OWNER_FILE)
    if data is not None and Owner.decode(data) == owner:
        for name in place.names():
            if name.startswith(SHARED_PREFIX):
                place.remove(name)
        place.remove(OWNER_FILE)
        if not place.names():
            place.remove_itself()


def delete(place: CheckpointPlace, owner: Owner) -> str:
    """Delete a place and all in it; may be repeated when it was cut off. Returns why it is left as it is, as a clause,
    else ""."""
    data = place.read(OWNER_FILE)
    if data is None:
        if _strangers(place):
            return "nothing shows that this experiment has stored what is there"
    elif (found := Owner.decode(data)) != owner:
        return describe_other(found, owner)
    if names := place.names():  # else it is gone already
        for name in names:
            if name != OWNER_FILE:
                place.remove(name)
        place.remove(OWNER_FILE)
        place.remove_itself()
    return ""


class FolderPlace(CheckpointPlace):
    """A folder. Where it is made, all users who may write beside it may write in it: trials may run as other users."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def read(self, name: str) -> "bytes | None":
        try:
            with open(f"{self._folder}/{name}", "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self) -> "list[str]":
        try:
            return os.listdir(self._folder)
        except FileNotFoundError:
            return []

    def write(self, name: str, data: bytes) -> None:
        try:
            os.mkdir(self._folder)
        except FileExistsError:
            pass
        else:
            os.chmod(self._folder, os.stat(os.path.dirname(self._folder)).st_mode & 0o7777)
        replace_file(f"{self._folder}/{name}", data, mode=0o644, durable=True)

    def remove(self, name: str) -> None:
        path = f"{self._folder}/{name}"
        if os.path.isdir(path) and not os.path.islink(path):
            import shutil  # slow to import

            shutil.rmtree(path)
        else:
            remove_file(path)

    def remove_itself(self) -> None:
        os.rmdir(os.path.realpath(self._folder))
        if os.path.islink(self._folder):
            remove_file(self._folder)


class UrlPlace(CheckpointPlace):
    """What lies under a URL, as the place of one experiment. Whatever it raises is for `explaining`."""

    def __init__(self, url: str) -> None:
        self._system, self._root = open_url(url)

    def read(self, name: str) -> "bytes | None":
        try:
            return bytes(self._system.cat_file(f"{self._root}/{name}"))
        except (FileNotFoundError, IsADirectoryError):
            return None

    def names(self) -> "set[str]":
        try:
            found = self._system.ls(self._root, detail=False)
        except FileNotFoundError:
            return set()
        inside = [path.rstrip("/").rpartition(f"{self._root}/")[2] for path in found if path.rstrip("/") != self._root]
        return {name for name in inside if name}

    def write(self, name: str, data: bytes) -> None:
        if has_folders(self._root):
            self._system.makedirs(self._root, exist_ok=True)
        self._system.pipe_file(f"{self._root}/{name}", data)

    def remove(self, name: str) -> None:
        with suppress(FileNotFoundError):
            self._system.rm(f"{self._root}/{name}", recursive=True)

    def remove_itself(self) -> None:
        if has_folders(self._root):  # an object store forgets a folder with its last object
            self._system.rmdir(self._root)


def _strangers(place: CheckpointPlace) -> "list[str]":
    return [name for name in place.names() if not name.startswith(_OURS)]


def _is_stored(place: CheckpointPlace, path: str, manifest: str) -> bool:
    data = place.read(f"{path}/{MANIFEST_FILE}")
    return data is not None and sha256(data).hexdigest() == manifest


def describe_other(found: "Owner | None", owner: Owner) -> str:
    """Return why a place is not an owner's, as a clause.

    :param found: the owner that is named there; None where that cannot be read.
    """
    if found is None:
        return f"its {OWNER_FILE} cannot be read"
    if found.home != owner.home:
        return f"it belongs to experiment {found.experiment} of another manager"
    return f"it belongs to another experiment of the id {found.experiment}"


_FAILURES = {
    "claim": "{url} cannot be written",
    "release": "{url} cannot be written",
    "delete": "{url} cannot be deleted",
}


def _answer(request: "dict[str, Any]") -> str:
    url, do, owner = request["url"], request["do"], Owner(*request["owner"])
    with explaining(_FAILURES[do].format(url=url)):
        place = UrlPlace(url)
        if do == "claim":
            return claim(place, owner, proofs=request["proofs"], adopts=request["adopts"], mark=request["mark"])
        if do == "delete":
            return delete(place, owner)
        release(place, owner)
        return ""


if __name__ == "__main__":
    answer_request(_answer)
