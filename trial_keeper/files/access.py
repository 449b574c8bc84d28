"""Which folders of this node the manager may read or remove, and reading files in them. This protects against
mistakes, not against the manager, which may run any command here.

Paths are judged after resolving links, so no link leads out.
"""

import os
import stat
from collections.abc import Sequence

from proctor.sdk.checkpoints.manifest import MANIFEST_FILE
from proctor.sdk.process_limits import is_short
from proctor.sdk.protocol import CHECKPOINT_FOLDER, PARAMETER_FILE
from proctor.trial_keeper.errors import AccessRefused
from proctor.trial_keeper.protocol import FileFacts
from proctor.trial_keeper.settings import BUNDLE_FOLDER, EXPERIMENTS_FOLDER, JOBS_FOLDER, SOCKET_FOLDER

_KEPT = (BUNDLE_FOLDER, JOBS_FOLDER, SOCKET_FOLDER)


class FileAccess:
    """The folders below a keeper's directory, and those of its jobs."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def readable(self, folder: str, jobs: Sequence[str]) -> str:
        """The real path of a folder that may be read: one below the keeper's directory, a job's directory or below it,
        or one of an experiment on another node that shares our home. Raises AccessRefused, FileNotFoundError.

        :param jobs: the directories of the jobs this keeper knows.
        """
        root, found = self._real(self._directory), self._real(folder)
        in_jobs = any(_is_within(found, self._real(job)) for job in jobs)
        if not (_is_below(found, root) or in_jobs or _is_of_neighbor(found, root)):
            raise AccessRefused(f"{folder} is neither in the keeper's directory {root} nor in that of one of its jobs")
        if not os.path.isdir(found):
            raise FileNotFoundError(
                f"{folder} is not there" if not os.path.exists(found) else f"{folder} is not a folder"
            )
        return found

    def removable(self, folder: str, busy: Sequence[tuple[str, str]]) -> str:
        """The path of a folder that may be removed: one below the keeper's directory that is not the keeper's own, and
        in which no job runs. It need not be there; a link is itself meant. Raises AccessRefused.

        :param busy: (job id, path) of what running jobs need.
        """
        found = self._ours(folder, "it was not removed")
        for job_id, path in busy:
            if _is_within(self._real(path), found):
                raise AccessRefused(f"job {job_id} is still running in {folder}; stop it before you remove its files")
        return found

    def unpackable(self, folder: str) -> str:
        """The path of a folder as which an archive may be unpacked: one below the keeper's directory that is not the
        keeper's own. It need not be there. Raises AccessRefused."""
        return self._ours(folder, "nothing is unpacked there")

    def checkpoint(self, folder: str, busy: Sequence[tuple[str, str]]) -> str:
        """The path of a checkpoint that may be deleted, which no running job continues from: output/checkpoints/<n> of
        a job's directory, wherever that is, or a folder <n> anywhere else that has the manifest of a checkpoint. It
        need not be there. Raises AccessRefused.

        :param busy: (job id, path) of what running jobs need.
        """
        self._real(folder)  # refuses what is no name
        named = os.path.normpath(os.path.join(self._directory, folder))
        parent, name = os.path.split(named)
        job = parent.removesuffix(f"{os.sep}{CHECKPOINT_FOLDER}")
        if not (name.isascii() and name.isdecimal()):
            raise AccessRefused(f"{folder} is no checkpoint {CHECKPOINT_FOLDER}/<n> of a job; it was not deleted")
        found = os.path.join(self._real(parent), name)
        if job == parent:  # in a storage
            if not os.path.isdir(parent):
                raise AccessRefused(f"{parent} is not there, perhaps not mounted on this node; {name} was not deleted")
            if os.path.lexists(found) and not os.path.isfile(os.path.join(found, MANIFEST_FILE)):
                raise AccessRefused(f"{folder} is no checkpoint, it has no {MANIFEST_FILE}; it was not deleted")
        elif os.path.join(self._real(job), CHECKPOINT_FOLDER, name) != found:
            raise AccessRefused(f"{parent} is reached by a link to another place; {folder} was not deleted")
        elif os.path.lexists(found) and not os.path.exists(os.path.join(job, PARAMETER_FILE)):
            raise AccessRefused(
                f"{job} is not the directory of a job, it has no {PARAMETER_FILE}; {folder} was not deleted"
            )
        for job_id, path in busy:
            if _is_within(self._real(path), found):
                raise AccessRefused(f"job {job_id} is running and continues from {folder}; it was not deleted")
        return found

    def _ours(self, folder: str, effect: str) -> str:
        root = self._real(self._directory)
        self._real(folder)  # refuses what is no name
        named = os.path.normpath(os.path.join(self._directory, folder))
        found = os.path.join(self._real(os.path.dirname(named)), os.path.basename(named))
        if not _is_below(found, root):
            raise AccessRefused(f"{folder} is not in the keeper's directory {root}; {effect}")
        if os.path.relpath(found, root).split(os.sep)[0] in _KEPT:
            raise AccessRefused(f"{folder} belongs to the keeper; {effect}")
        return found

    def _real(self, path: str) -> str:
        try:
            return os.path.realpath(os.path.join(self._directory, path))
        except ValueError:  # a zero byte
            raise AccessRefused(f"{path!r} is not the name of a folder") from None


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)


def _is_within(path: str, folder: str) -> bool:
    return path == folder or _is_below(path, folder)


def _is_of_neighbor(path: str, root: str) -> bool:
    """Whether it belongs to an experiment of a keeper whose directory is beside ours."""
    parent = os.path.dirname(root)
    return _is_below(path, parent) and os.path.relpath(path, parent).split(os.sep)[1:2] == [EXPERIMENTS_FOLDER]


def read_file(directory: str, path: str, offset: int, limit: int) -> bytes:
    """At most `limit` bytes of a regular file from `offset`; a negative offset counts from the end.

    Raises FileNotFoundError for what is not there, is not a regular file, or is outside the directory, also when it
    is reached by a link; OSError where the machine has no descriptors left, as `list_files`.
    """
    found = _inside(directory, path)
    try:
        # O_NONBLOCK: opening a pipe must not wait for its other end
        descriptor = os.open(found, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if is_short(error):
            raise
        raise FileNotFoundError(f"{path} cannot be read in {directory}: {error.strerror}") from error
    try:
        facts = os.fstat(descriptor)
        if not stat.S_ISREG(facts.st_mode):
            raise FileNotFoundError(f"{path} in {directory} is not a regular file")
        start = max(0, facts.st_size + offset) if offset < 0 else offset
        return os.pread(descriptor, max(0, limit), start)
    finally:
        os.close(descriptor)


def list_files(directory: str) -> list[FileFacts]:
    """Every regular file with its size and modification time, by path; links are not followed, and what may not be
    read is left out. A directory that is not there has none."""

    def fail(error: OSError) -> None:
        if is_short(error):  # else a part of the files would be taken for all
            raise error

    found = []
    for folder, _, names in os.walk(directory, onerror=fail):
        for name in names:
            path = os.path.join(folder, name)
            try:
                facts = os.lstat(path)
            except OSError:
                continue  # removed meanwhile
            if stat.S_ISREG(facts.st_mode):
                found.append(FileFacts(os.path.relpath(path, directory), facts.st_size, facts.st_mtime))
    return sorted(found, key=lambda file: file.path)


def _inside(directory: str, path: str) -> str:
    try:
        root = os.path.realpath(directory)
        found = os.path.realpath(os.path.join(root, path))
    except ValueError:  # a zero byte
        raise FileNotFoundError(f"{path!r} is not the name of a file") from None
    if os.path.isabs(path) or not found.startswith(root + os.sep):
        raise FileNotFoundError(f"{path} is not a file inside the job's directory {directory}")
    return found
