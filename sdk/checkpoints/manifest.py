"""The manifest of a checkpoint, `.proctor-manifest.json` in its folder:

    {"format": 1, "files": {path: [size in bytes, SHA-256]}}

The journal's record of a checkpoint has the SHA-256 of the manifest itself. Whoever is to continue from a checkpoint
verifies it first: disks lose data, folders are copied, and files are changed by hand. Checkpoints of earlier versions
have no manifest; they count as whole when their folder is there.
"""

import os
from stat import S_ISREG

from proctor.sdk.files import hash_file
from proctor.sdk.process_limits import is_short
from proctor.sdk.quick_json import loads, quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

MANIFEST_FILE = ".proctor-manifest.json"
_FORMAT = 1


def encode_manifest(files: "Mapping[str, tuple[int, str]]") -> bytes:
    """Return the manifest of a checkpoint with these files: by path their sizes in bytes and their SHA-256."""
    entries = ",".join(f'{quote(path)}:[{size},"{digest}"]' for path, (size, digest) in files.items())
    return f'{{"format":{_FORMAT},"files":{{{entries}}}}}'.encode("ascii")


def read_manifest(data: bytes) -> "dict[str, tuple[int, str]]":
    """Return the files that a manifest names: by path their sizes in bytes and their SHA-256.

    :raises ValueError: it is no manifest, or names a file outside of the checkpoint.
    """
    try:
        files = {str(path): (int(size), str(digest)) for path, (size, digest) in loads(data.decode())["files"].items()}
    except (KeyError, TypeError, AttributeError) as problem:
        raise ValueError(f"it is no manifest of a checkpoint: {problem!r}") from problem
    for path in files:
        if path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"it names {path!r}, which is outside of the checkpoint")
    return files


def verify_checkpoint(folder: str, manifest: "str | None", *, is_abandoned: "Callable[[], bool]" = bool) -> str:
    """Return why a trial must not continue from a checkpoint, as a clause; "" if it is whole. Reads all of it. Raises
    OSError where the machine has no descriptors or memory left: then it is not known.

    :param manifest: the SHA-256 of its manifest, as it was registered; None: by an earlier version, without one.
    :param is_abandoned: asked again and again; once it is true, no one needs the answer, which may be wrong.
    """
    if not os.path.isdir(folder):
        return "its folder is gone"
    if manifest is None:
        return ""
    from hashlib import sha256  # slow to import

    try:
        with open(f"{folder}/{MANIFEST_FILE}", "rb") as file:
            data = file.read()
    except OSError as problem:
        if is_short(problem):
            raise
        return f"its manifest cannot be read: {problem.strerror}"
    if sha256(data).hexdigest() != manifest:
        return "its manifest is not the one that was registered"
    files, path = read_manifest(data), ""
    try:
        for path, (size, _) in files.items():  # sizes first: they cost nothing
            found = os.stat(f"{folder}/{path}")
            if not S_ISREG(found.st_mode):  # opening a pipe would wait for its other end
                return f"{_printable(path)} is no longer a file"
            if found.st_size != size:
                return f"{_printable(path)} has {found.st_size:,} bytes, {size:,} expected"
        for path, (_, digest) in files.items():
            if hash_file(f"{folder}/{path}", is_abandoned=is_abandoned) != digest:
                return f"{_printable(path)} is damaged: its content is not what was saved"
    except (FileNotFoundError, NotADirectoryError):
        return f"{_printable(path)} is missing"
    except OSError as problem:
        if is_short(problem):
            raise
        return f"{_printable(path)} cannot be read: {problem.strerror}"
    return ""


def _printable(path: str) -> str:
    return path if path.isprintable() else ascii(path)
