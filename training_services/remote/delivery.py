"""Bringing files to a machine: the keeper's one file, once per version, then archives of code and checkpoints.

Nothing of ours is there when the keeper's file arrives, so it is received by a few lines that any Python there can run.
"""

import hashlib
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from proctor.training_services.remote.errors import CommandFailed, NoRoom
from proctor.training_services.remote.look import NodeFacts, Prober, verify
from proctor.training_services.remote.node_keeper import Commander, read_answer

__all__ = ["Archive", "Carrier", "Progress", "deliver_archive", "hash_file", "remove_folder"]

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with the bytes that are there and the bytes there will be."""

_ATTEMPTS = 2
_SECONDS = 120.0
_BLOCK = 1 << 20

_MAKE_FOLDER = """
import json, os, sys
path = json.load(sys.stdin)["path"]
for attempt in range(5):
    try:
        os.makedirs(path, mode=0o700, exist_ok=True)
        break
    except FileNotFoundError:  # another node that shares this home has just been left, and a parent with it
        pass
os.chmod(path, 0o700)
print(json.dumps({}))
"""


_REMOVE_FOLDER = """
import json, os, shutil, sys
path = json.load(sys.stdin)["path"]
shutil.rmtree(path, ignore_errors=True)
left = os.path.exists(path)
try:
    for folder in (os.path.dirname(path), os.path.dirname(os.path.dirname(path))):
        os.rmdir(folder)
except OSError:
    pass
print(json.dumps({"left": left}))
"""


class Archive(Protocol):
    """A file to bring: `keeper_archive.KeeperArchive`."""

    @property
    def path(self) -> Path:
        """Where it lies here."""

    @property
    def sha256(self) -> str:
        """The hash of its bytes."""

    @property
    def name(self) -> str:
        """Its name there."""


class Carrier(Prober, Commander, Protocol):
    """What brings files: a `connection.Connection`."""

    async def upload(self, source: Path | bytes, target: str, *, on_progress: Progress | None = None) -> None:
        """Write a file there; one that is partly there is continued. Raises ConnectionEnded, NoRoom, NotWritable."""


async def deliver_archive(
    connection: Carrier, facts: NodeFacts, archive: Archive, *, on_progress: Progress | None = None
) -> str:
    """Make sure that the keeper's one file lies in its directory there; returns its absolute path.

    It is checked by its hash before it gets its name. Raises CommandFailed, NoRoom, NotWritable, ConnectionEnded.
    """
    path = f"{facts.directory}/{archive.name}"
    if archive.name in facts.archives:
        return path
    if not facts.exists:
        await _make_folder(connection, facts)
    for _ in range(_ATTEMPTS):
        await connection.upload(archive.path, f"{path}.part", on_progress=on_progress)
        if await verify(connection, facts.python, path, sha256=archive.sha256):
            return path
        log.warning("%s has arrived damaged on %s", archive.name, facts.hostname, extra={"action": "node.deliver"})
    raise CommandFailed(
        f"{archive.name} has arrived damaged at {path} there, {_ATTEMPTS} times; check its disk and its network"
    )


def hash_file(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal. Blocks; raises OSError."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest()


async def remove_folder(connection: Prober, facts: NodeFacts) -> str:
    """Take the keeper's directory away where the keeper's file has not arrived whole: nothing can have run there. What
    is left, or "". Raises CommandFailed, ConnectionEnded."""
    request = json.dumps({"path": facts.directory}).encode()
    finished = await connection.python(facts.python, _REMOVE_FOLDER, input=request, timeout_seconds=_SECONDS)
    left = read_answer(finished, f"removing {facts.directory}")["left"]
    return f"{facts.directory} could not be removed" if left else ""


async def _make_folder(connection: Prober, facts: NodeFacts) -> None:
    request = json.dumps({"path": facts.directory}).encode()
    finished = await connection.python(facts.python, _MAKE_FOLDER, input=request, timeout_seconds=_SECONDS)
    try:
        read_answer(finished, f"making {facts.directory}")
    except CommandFailed as error:
        if "No space left" in str(error) or "Disk quota" in str(error):
            raise NoRoom(f"its disk is full, or the quota is: {error}") from error
        raise
