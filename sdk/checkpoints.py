"""Checkpoints of a job: folders `output/checkpoints/<n>` that appear whole or not at all.

A checkpoint is copied under a name beginning with a dot, synced to the disk, and renamed to the next free number; the
journal names it only after that. It is copied rather than moved or hard-linked, because a trial may continue writing to
the very files it has just handed over (the kernel shares the blocks where the file system can). A copy that a kill has
left half made keeps its dotted name; the next checkpoint of the job removes it, and the keeper when the job has ended.
"""

import errno
import os
from time import monotonic, sleep

from proctor.sdk.disk_errors import PASSING
from proctor.sdk.errors import CheckpointError, notice_once
from proctor.sdk.files import (
    name_unfinished,
    put_in_place,
    remove_tree,
    remove_unfinished,
    sync_file,
    sync_folder,
    write_all,
)
from proctor.sdk.journal import read_wait_seconds
from proctor.sdk.protocol import CHECKPOINT_FOLDER

_RETRY_SECONDS = 1.0
_NO_SHARED_BLOCKS = {errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM, errno.EBADF}
_BLOCK_BYTES = 1 << 22


def save_checkpoint(source: str, job_directory: str) -> "str | None":
    """Copy a folder to be the job's next checkpoint and return its path relative to the job's directory.

    None means that the disk had no room (or failed) for as long as a report may wait; standard error says so, and the
    trial continues with its earlier checkpoints.

    :raises CheckpointError: the folder is missing, unreadable, or holds what cannot be copied.
    """
    folder = f"{job_directory}/{CHECKPOINT_FOLDER}"
    _check(source, folder)
    deadline = monotonic() + read_wait_seconds()
    while True:
        try:
            return f"{CHECKPOINT_FOLDER}/{_save(source, folder)}"
        except OSError as problem:
            if problem.errno not in PASSING:
                raise CheckpointError(f"checkpoint {source} cannot be copied to {folder}: {problem}") from problem
            if monotonic() >= deadline:
                notice_once(
                    "checkpoint", f"a checkpoint could not be stored in {folder} ({problem}); the trial continues"
                )
                return None
            sleep(_RETRY_SECONDS)


def list_checkpoints(job_directory: str) -> "list[str]":
    """Return the absolute paths of the job's whole checkpoints, oldest first."""
    folder = f"{job_directory}/{CHECKPOINT_FOLDER}"
    return [f"{folder}/{number}" for number in sorted(_numbers(folder))]


def find_newest_checkpoint(job_directory: str) -> "str | None":
    """Return the absolute path of the job's newest whole checkpoint."""
    found = list_checkpoints(job_directory)
    return found[-1] if found else None


def _check(source: str, folder: str) -> None:
    if not os.path.isdir(source):
        found = "a file" if os.path.exists(source) else "nothing"
        raise CheckpointError(f"a checkpoint must be a folder; found {found} at {source}. Save into a folder first.")
    real_source, real_folder = os.path.realpath(source), os.path.realpath(folder)
    if os.path.commonpath([real_source, real_folder]) == real_source:
        raise CheckpointError(
            f"a checkpoint must not contain the folder of the checkpoints; found {source}, which contains "
            f"{folder}. Save into a folder of its own."
        )


def _save(source: str, folder: str) -> int:
    os.makedirs(folder, exist_ok=True)
    remove_unfinished(folder)
    unfinished = name_unfinished(folder)
    try:
        _copy_folder(source, unfinished)
        number = _rename_to_next(unfinished, folder)
    except BaseException:
        remove_tree(unfinished)
        raise
    sync_folder(folder)
    return number


def _rename_to_next(unfinished: str, folder: str) -> int:
    number = max(_numbers(folder), default=0)
    while True:
        number += 1
        try:
            put_in_place(unfinished, f"{folder}/{number}")
            return number
        except OSError as problem:  # another process of the trial may take the same number first
            if problem.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                raise


def _copy_folder(source: str, target: str) -> None:
    """Copy what the links in it point to, so that the copy needs nothing outside itself."""
    os.mkdir(target)
    with os.scandir(source) as entries:
        for entry in entries:
            path = f"{target}/{entry.name}"
            if entry.is_dir():
                _copy_folder(entry.path, path)
            elif entry.is_file():
                _copy_file(entry.path, path)
            else:
                raise OSError(errno.EINVAL, "neither a file nor a folder (or a link to nothing)", entry.path)
    sync_folder(target)


def _copy_file(source: str, target: str) -> None:
    reader = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        mode = os.fstat(reader).st_mode & 0o777
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode | 0o600)
        try:
            _copy_bytes(reader, writer)
            sync_file(writer)
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def _copy_bytes(reader: int, writer: int) -> None:
    try:
        while os.copy_file_range(reader, writer, 1 << 30):
            pass
    except OSError as problem:
        if problem.errno not in _NO_SHARED_BLOCKS:
            raise
    while block := os.read(reader, _BLOCK_BYTES):
        write_all(writer, block)


def _numbers(folder: str) -> "list[int]":
    try:
        return [int(name) for name in os.listdir(folder) if name.isdigit()]
    except FileNotFoundError:
        return []
