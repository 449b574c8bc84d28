"""A .tar.gz that the manager has sent is checked by its hash, then unpacked to its folder completely or not at all.

Nothing of an archive is written, or links, outside its folder. The checks are as strict as `tarfile`'s filter "data",
which not every Python 3.10 has: only files, folders and links; no absolute names, no "..", no path through a link to
the outside; owners, set-id bits and write permission for others are dropped.
"""

import os
import shutil
import tarfile
from pathlib import Path

from proctor.sdk.files import (
    hash_file,
    link_file,
    name_unfinished,
    put_in_place,
    remove_file,
    remove_tree,
    remove_unfinished,
    sync_tree,
)
from proctor.sdk.process_limits import is_short
from proctor.trial_keeper.errors import CommandRefused

_FOLDER_MODE = 0o755
_MODES = 0o755
_OURS = 0o600
_BLOCK = 1024 * 1024


def unpack_archive(archive: Path, folder: Path) -> tuple[int, int]:
    """Unpack into a new folder and make it durable; returns the number of files and their bytes.

    :raises CommandRefused: it is no archive, or holds what it must not.
    :raises OSError: the disk.
    """
    root = os.path.realpath(folder)
    os.makedirs(root, mode=0o700)
    files = size = 0
    modes: list[tuple[str, int, float]] = []
    try:
        with tarfile.open(archive, "r|gz") as source:
            for member in source:
                path = _place(member, root)
                if member.isdir():
                    os.makedirs(path, exist_ok=True)
                    modes.append((path, member.mode & _MODES | 0o700, member.mtime))
                else:
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    _write(source, member, path=path, root=root)
                    files, size = files + 1, size + member.size
                source.members = []  # type: ignore[attr-defined] # it would remember them all
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise CommandRefused(f"{archive} is not a complete .tar.gz file: {error}") from error
    for path, mode, changed in reversed(modes):
        os.chmod(path, mode)
        os.utime(path, (changed, changed))
    sync_tree(root)  # before the folder gets its name
    return files, size


def _place(member: tarfile.TarInfo, root: str) -> str:
    """Where a member goes, with all links on the way there followed."""
    parts = member.name.split("/")
    if member.name.startswith("/") or ".." in parts:
        raise CommandRefused(
            f"the archive contains {member.name!r}, which points outside its folder; it was not unpacked"
        )
    path = os.path.normpath(os.path.join(root, member.name))
    if path != root:
        parent = os.path.realpath(os.path.dirname(path))
        path = os.path.join(parent, os.path.basename(path))
    if not _is_within(path, root) or (path == root and not member.isdir()):
        raise CommandRefused(
            f"the archive contains {member.name!r}, which points outside its folder; it was not unpacked"
        )
    return path


def _write(source: tarfile.TarFile, member: tarfile.TarInfo, *, path: str, root: str) -> None:
    if member.issym():
        _check_link(member, os.path.join(os.path.dirname(path), member.linkname), root)
        os.symlink(member.linkname, path)
    elif member.islnk():
        target = os.path.join(root, member.linkname)
        _check_link(member, target, root)
        link_file(os.path.realpath(target), path)
    elif member.isfile():
        content = source.extractfile(member)
        assert content is not None  # a file has one
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, _OURS)
        with open(descriptor, "wb") as file:
            shutil.copyfileobj(content, file, 1024 * 1024)
            os.fchmod(file.fileno(), member.mode & _MODES | _OURS)
        os.utime(path, (member.mtime, member.mtime))
    else:
        raise CommandRefused(f"the archive contains {member.name!r}, which is neither file nor folder nor link")


def _check_link(member: tarfile.TarInfo, target: str, root: str) -> None:
    if os.path.isabs(member.linkname) or not _is_within(os.path.realpath(target), root):
        raise CommandRefused(f"the archive's link {member.name!r} leads to {member.linkname!r}, outside its folder")


def _is_within(path: str, root: str) -> bool:
    return path == root or path.startswith(f"{root}{os.sep}")


def place_archive(archive: Path, sha256: str, target: Path) -> tuple[int, int, bool]:
    """Check an archive by its hash and unpack it as a folder, which appears whole or not at all. Returns the number and
    bytes of the files, and whether another process was faster. A damaged archive is removed.

    :raises CommandRefused: it is missing or damaged, or its files cannot be unpacked.
    """
    if not archive.exists():
        raise CommandRefused(f"the upload {archive} is not there; upload it again")
    found = hash_file(archive)
    if found != sha256:
        remove_file(str(archive))
        raise CommandRefused(
            f"the upload {archive} was damaged in transit (its SHA-256 is {found}, expected {sha256}); it was removed, "
            "upload it again"
        )
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    remove_unfinished(str(target.parent))
    unfinished = name_unfinished(str(target.parent))
    try:
        files, size = unpack_archive(archive, Path(unfinished))
        put_in_place(unfinished, target)
    except OSError as error:
        if target.is_dir():
            return 0, 0, True
        if is_short(error):
            raise
        raise CommandRefused(f"{archive.name} cannot be unpacked to {target}: {error.strerror or error}") from error
    finally:
        remove_tree(unfinished)
    return files, size, False
