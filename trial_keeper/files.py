"""Replacing a file so that a reader sees the old text or the new one, never half of one.

Used by the reaper, so it imports as little as possible.
"""

import os
from contextlib import suppress

from proctor.sdk.failpoints import failpoint


def replace_file(path: str, data: bytes, *, durable: bool, mode: int = 0o600) -> None:
    """Write `data` beside `path` and rename it over `path`. Only one process at a time may replace a file.

    What a process that is killed here leaves beside it is overwritten by the next one that replaces the file.

    :param durable: also survive a power cut (`fsync` before the rename); the folder is synced by `sync_folder`.
    """
    temporary = f"{path}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        if durable:
            os.fsync(descriptor)
        failpoint("file.replace.before")
        os.rename(temporary, path)
        failpoint("file.replace.after")
    except BaseException:
        os.unlink(temporary)
        raise
    finally:
        os.close(descriptor)


def sync_folder(path: str) -> None:
    """Make renames within a folder survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def remove_file(path: str) -> None:
    """Remove a file; one that is not there is removed already."""
    with suppress(FileNotFoundError):
        os.unlink(path)
