"""The keeper's directory on a node, and the sockets behind which it finds the manager.

run/<random>.sock               one for each SSH connection, made by the SSH server or the relay, which has one more
                                beside it with a longer name
/tmp/proctor-<hash>-<random>/   0700, instead of run/ where the path would be too long for a socket or the file
                                system takes none; <hash> names the keeper's directory
socket                          the pointer: a file with the path of the socket that counts
"""

import glob
import hashlib
import os
import secrets
import shutil
import socket
import tempfile
from pathlib import Path
from typing import Any

from proctor.sdk.disk_errors import is_full
from proctor.sdk.files import UNFINISHED_PREFIX, remove_file, remove_unfinished, replace_file
from proctor.trial_keeper.commands.input import CommandInput
from proctor.trial_keeper.errors import CommandRefused
from proctor.trial_keeper.settings import JOBS_FOLDER, UPLOADS_FOLDER
from proctor.trial_keeper.start import read_facts

POINTER_FILE = "socket"
RUN_FOLDER = "run"
CODE_FOLDER = "code"

_LONGEST_SOCKET = 100  # bytes; the kernel takes 107, and sshd adds some while it binds
_FOLDERS = (RUN_FOLDER, CODE_FOLDER, UPLOADS_FOLDER, JOBS_FOLDER)
_TEMPORARY = "/tmp"
_MEBIBYTE = 1024 * 1024


def prepare(given: CommandInput) -> dict[str, Any]:
    """The command `prepare`; see `commands/main.py`."""
    directory = given.directory()
    make_folders(directory)
    remove_unfinished(str(directory / CODE_FOLDER))
    facts = read_facts(directory)
    room = os.statvfs(directory)
    return {
        "directory": str(directory),
        "socket": fresh_socket(directory),
        "codes": sorted(name for name in os.listdir(directory / CODE_FOLDER) if not name.startswith(UNFINISHED_PREFIX)),
        "keeper": facts and {"pid": facts.pid, "archive": facts.archive, "version": facts.version},
        "free_mb": room.f_bavail * room.f_frsize // _MEBIBYTE,
        "jobs": sum(name.endswith(".json") for name in os.listdir(directory / JOBS_FOLDER)),
    }


def point(given: CommandInput) -> dict[str, Any]:
    """The command `point`; see `commands/main.py`."""
    directory, path = given.directory(), given.text("socket")
    point_to(directory, path)
    return {"socket": path}


def point_to(directory: Path, path: str) -> None:
    """Swap the pointer to the socket at `path`, and remove the sockets of earlier connections. Raises OSError."""
    _write_pointer(str(directory / POINTER_FILE), path.encode())
    for name in os.listdir(directory / RUN_FOLDER):
        if not str(directory / RUN_FOLDER / name).startswith(path):
            remove_file(str(directory / RUN_FOLDER / name))
    remove_temporary_folders(directory, keep=os.path.dirname(path))


def fresh_socket(directory: Path) -> str:
    """A path at which a socket can be bound, and nothing is. Raises OSError."""
    path = str(directory / RUN_FOLDER / f"{secrets.token_hex(8)}.sock")
    if len(os.fsencode(path)) <= _LONGEST_SOCKET and _takes_sockets(path):
        return path
    return os.path.join(tempfile.mkdtemp(prefix=_temporary_prefix(directory), dir=_TEMPORARY), "sock")


def remove_temporary_folders(directory: Path, *, keep: str = "") -> list[str]:
    """Remove the temporary socket folders of this directory, except `keep`; returns those that are left, and why."""
    left = []
    for folder in glob.glob(os.path.join(_TEMPORARY, f"{_temporary_prefix(directory)}*")):
        if folder == keep or os.lstat(folder).st_uid != os.getuid():
            continue
        try:
            shutil.rmtree(folder)
        except OSError as error:
            left.append(f"{folder}: {error.strerror}")
    return left


def make_folders(directory: Path) -> None:
    """Make the keeper's directory and its folders, readable for the owner only. Raises CommandRefused."""
    for folder in (directory.parent.parent, directory.parent, directory, *(directory / name for name in _FOLDERS)):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except FileExistsError as error:
            raise CommandRefused(
                f"{folder} should be a folder of Proctor's, but something else is there; move it away"
            ) from error
        except OSError as error:
            raise CommandRefused(f"the folder {folder} cannot be made: {error.strerror}") from error
    facts = os.lstat(directory)
    if facts.st_uid != os.getuid() or directory.is_symlink():
        raise CommandRefused(f"{directory} should be a folder of user {os.getuid()}, found one of user {facts.st_uid}")
    directory.chmod(0o700)


def _write_pointer(pointer: str, data: bytes) -> None:
    """On a full disk the bytes that are there are overwritten: a keeper whose trials keep running must still be found.
    Paths of one directory are of one length, so that half of one is hardly ever read; the keeper would try again."""
    try:
        replace_file(pointer, data, durable=False)
    except OSError as error:
        if not is_full(error) or not os.path.exists(pointer):
            raise
        with open(pointer, "r+b") as file:
            file.write(data)
            file.truncate()


def _takes_sockets(path: str) -> bool:
    """Whether the file system takes a socket there; some network file systems do not."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as attempt:
        try:
            attempt.bind(path)
        except OSError:
            return False
    os.unlink(path)
    return True


def _temporary_prefix(directory: Path) -> str:
    digest = hashlib.sha256(f"{os.getuid()}\0{directory}".encode(errors="surrogateescape")).hexdigest()
    return f"proctor-{digest[:12]}-"
