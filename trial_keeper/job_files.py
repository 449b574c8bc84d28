"""Reading the files of a job's directory, and nothing outside it."""

import os
import stat

from proctor.trial_keeper.protocol import FileFacts


def read_file(directory: str, path: str, offset: int, limit: int) -> bytes:
    """At most `limit` bytes of a regular file from `offset`; a negative offset counts from the end.

    Raises FileNotFoundError for what is not there, is not a regular file, or lies outside the directory, also when it
    is reached by a link.
    """
    found = _inside(directory, path)
    try:
        # O_NONBLOCK: opening a pipe must not wait for its other end
        descriptor = os.open(found, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
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
    found = []
    for folder, _, names in os.walk(directory):
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
