"""What was uploaded to a node: checked by its hash, then put in its place whole or not at all."""

import hashlib
import os
from pathlib import Path
from typing import Any

from proctor.sdk.unfinished import name_unfinished, remove_tree, remove_unfinished
from proctor.trial_keeper.command_input import CommandInput
from proctor.trial_keeper.errors import CommandRefused
from proctor.trial_keeper.files import remove_file
from proctor.trial_keeper.unpacking import unpack_archive

_BLOCK = 1024 * 1024


def unpack(given: CommandInput) -> dict[str, Any]:
    """The command `unpack`; see `commands.py`."""
    directory = given.directory()
    archive, target = given.path("archive", directory), given.path("target", directory)
    data = given.following("size")
    there_already = target.is_dir()
    files = size = 0
    if not there_already:
        if data:
            _write(archive, data)
        _check(archive, given.text("sha256"))
        files, size, there_already = _unpack_to(archive, target)
    remove_file(str(archive))
    return {"target": str(target), "there_already": there_already, "files": files, "bytes": size}


def _check(archive: Path, sha256: str) -> None:
    if not archive.exists():
        raise CommandRefused(f"the upload {archive} is not there; upload it again")
    found = hash_file(archive)
    if found != sha256:
        remove_file(str(archive))
        raise CommandRefused(
            f"the upload {archive} was damaged on its way (its SHA-256 is {found}, expected {sha256}); it was removed, "
            "upload it again"
        )


def _write(archive: Path, data: bytes) -> None:
    try:
        with open(os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
    except OSError as error:
        raise CommandRefused(f"{archive} cannot be written: {error.strerror or error}") from error


def hash_file(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal. Blocks; raises OSError."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            found.update(block)
    return found.hexdigest()


def _unpack_to(archive: Path, target: Path) -> tuple[int, int, bool]:
    """Number and bytes of the files, and whether somebody else was faster."""
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    remove_unfinished(str(target.parent))
    unfinished = name_unfinished(str(target.parent))
    try:
        files, size = unpack_archive(archive, Path(unfinished))
        os.rename(unfinished, target)
    except OSError as error:
        if target.is_dir():
            return 0, 0, True
        raise CommandRefused(f"{archive.name} cannot be unpacked to {target}: {error.strerror or error}") from error
    finally:
        remove_tree(unfinished)
    return files, size, False
