"""Where on this node the manager's questions about files may lead. This protects against mistakes, not against the
manager, which may run any command here.

Everything is judged by where it really lies, so no link leads out.
"""

import os
from collections.abc import Sequence

from proctor.trial_keeper.errors import PlaceRefused
from proctor.trial_keeper.settings import BUNDLE_FOLDER, EXPERIMENTS_FOLDER, JOBS_FOLDER, SOCKET_FOLDER

_KEPT = (BUNDLE_FOLDER, JOBS_FOLDER, SOCKET_FOLDER)


class FilePlaces:
    """The folders below a keeper's directory, and those of its jobs."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def readable(self, folder: str, jobs: Sequence[str]) -> str:
        """The real path of a folder that may be read: one below the keeper's directory, a job's directory or below it,
        or one of an experiment on another node that shares our home. Raises PlaceRefused, FileNotFoundError.

        :param jobs: the directories of the jobs this keeper knows.
        """
        root, found = self._real(self._directory), self._real(folder)
        in_jobs = any(_is_within(found, self._real(job)) for job in jobs)
        if not (_is_below(found, root) or in_jobs or _is_of_neighbour(found, root)):
            raise PlaceRefused(f"{folder} lies neither below the keeper's directory {root} nor in one of its jobs")
        if not os.path.isdir(found):
            raise FileNotFoundError(f"{folder} is not there" if not os.path.exists(found) else f"{folder} is no folder")
        return found

    def removable(self, folder: str, busy: Sequence[tuple[str, str]]) -> str:
        """The path of a folder that may be removed: one below the keeper's directory that is not the keeper's own, and
        in which no job runs. It need not be there; a link is itself meant. Raises PlaceRefused.

        :param busy: (job id, path) of what running jobs need.
        """
        root = self._real(self._directory)
        self._real(folder)  # refuses what is no name
        named = os.path.normpath(os.path.join(self._directory, folder))
        found = os.path.join(self._real(os.path.dirname(named)), os.path.basename(named))
        if not _is_below(found, root):
            raise PlaceRefused(f"{folder} does not lie below the keeper's directory {root}; it is left")
        if os.path.relpath(found, root).split(os.sep)[0] in _KEPT:
            raise PlaceRefused(f"{folder} is the keeper's own; it is left")
        for job_id, path in busy:
            if _is_within(self._real(path), found):
                raise PlaceRefused(f"job {job_id} still runs in {folder}; stop it before its files are removed")
        return found

    def _real(self, path: str) -> str:
        try:
            return os.path.realpath(os.path.join(self._directory, path))
        except ValueError:  # a zero byte
            raise PlaceRefused(f"{path!r} is not the name of a folder") from None


def _is_below(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip(os.sep) + os.sep)


def _is_within(path: str, folder: str) -> bool:
    return path == folder or _is_below(path, folder)


def _is_of_neighbour(path: str, root: str) -> bool:
    """Whether it belongs to an experiment of a keeper whose directory lies beside ours."""
    parent = os.path.dirname(root)
    return _is_below(path, parent) and os.path.relpath(path, parent).split(os.sep)[1:2] == [EXPERIMENTS_FOLDER]
