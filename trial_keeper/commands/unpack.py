"""The command `unpack`: an uploaded .tar.gz becomes a folder (`files/archives.py`)."""

import os
from pathlib import Path
from typing import Any

from proctor.sdk.files import remove_file
from proctor.trial_keeper.commands.input import CommandInput
from proctor.trial_keeper.errors import CommandRefused
from proctor.trial_keeper.files.archives import place_archive


def unpack(given: CommandInput) -> dict[str, Any]:
    """The command `unpack`; see `commands/main.py`."""
    directory = given.directory()
    archive, target = given.path("archive", directory), given.path("target", directory)
    data = given.following("size")
    there_already = target.is_dir()
    files = size = 0
    if not there_already:
        if data:
            _write_archive(archive, data)
        files, size, there_already = place_archive(archive, given.text("sha256"), target)
    remove_file(str(archive))
    return {"target": str(target), "there_already": there_already, "files": files, "bytes": size}


def _write_archive(archive: Path, data: bytes) -> None:
    try:
        with open(os.open(archive, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(data)
    except OSError as error:
        raise CommandRefused(f"{archive} cannot be written: {error.strerror or error}") from error
