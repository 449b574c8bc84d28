"""The folder that makes `import proctor` and `import nni` work in a trial, whatever interpreter runs it.

It holds the trial side of this package (standard library only, Python 3.10 or newer), the base classes that custom
tuners need, the PyTorch trainer (for trials that have torch), and the `nni` stand-in. Its name is a hash of its
content, so that different versions are side by side and trials that run are never disturbed. Trials and
custom tuners are started with it first on PYTHONPATH.
"""

import errno
import hashlib
import os
from zipfile import ZipFile

import proctor
from proctor.sdk.files import discard, name_unfinished, put_in_place, remove_tree, remove_unfinished, sync_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

MODULES = (
    "__init__.py",
    "py.typed",
    "sdk/__init__.py",
    "sdk/assessor.py",
    "sdk/channel.py",
    "sdk/checkpoints/__init__.py",
    "sdk/checkpoints/manifest.py",
    "sdk/checkpoints/saving.py",
    "sdk/checkpoints/storage.py",
    "sdk/compat/__init__.py",
    "sdk/compat/nni_channel.py",
    "sdk/disk_errors.py",
    "sdk/disk_reserve.py",
    "sdk/errors.py",
    "sdk/failpoints.py",
    "sdk/files.py",
    "sdk/journal.py",
    "sdk/metrics.py",
    "sdk/process_limits.py",
    "sdk/protocol.py",
    "sdk/quick_json.py",
    "sdk/trial.py",
    "sdk/tuner.py",
)
PACKAGES = {"sdk/space": "proctor/sdk/space", "sdk/pytorch": "proctor/sdk/pytorch", "sdk/compat/nni": "nni"}
_NOT_COMPILED = "/sdk/pytorch"  # importing it imports torch, which takes a thousand times as long

_HASH_LENGTH = 20


def build_bundle(root: str, *, is_compiled: bool = True) -> str:
    """Make sure that `root` holds the bundle of this version, and return its path.

    It may be called again at any time and by several processes at once; a folder that is damaged is replaced.

    :param is_compiled: whether it is compiled now, and not by the first trial, as far as that imports it.
    :raises OSError: the folder cannot be written.
    """
    content = bundle_files()
    path = f"{root}/{_name(content)}"
    if _is_whole(path, content):
        return path
    os.makedirs(root, exist_ok=True)
    remove_unfinished(root)
    unfinished = name_unfinished(root)
    try:
        _write(unfinished, content)
        if is_compiled:
            _compile(unfinished)
            _sync(unfinished)
        _put_in_place(unfinished, path, content)
    finally:
        remove_tree(unfinished)
    return path


def bundle_files() -> "dict[str, bytes]":
    """Return the bundle's files by relative path, read from wherever this package is (a zip archive included)."""
    package = os.path.dirname(proctor.__file__)
    root = os.path.dirname(package)
    if os.path.isfile(root):
        with ZipFile(root) as archive:
            return _select(archive.namelist(), archive.read)
    names = [f"proctor/{name}" for name in MODULES if os.path.isfile(f"{package}/{name}")]
    for source in PACKAGES:
        for folder, _, files in os.walk(f"{package}/{source}"):
            names += [f"{folder[len(root) + 1 :]}/{name}" for name in files]
    return _select(names, lambda name: _read_file(f"{root}/{name}"))


def _select(names: "list[str]", read: "Callable[[str], bytes]") -> "dict[str, bytes]":
    modules = {f"proctor/{name}" for name in MODULES}
    content = {name: read(name) for name in names if name in modules}
    for source, target in PACKAGES.items():
        folder = f"proctor/{source}/"
        found = [name for name in names if name.startswith(folder) and name.endswith(".py")]
        content.update({f"{target}/{name[len(folder) :]}": read(name) for name in found})
    return content


def _read_file(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _name(content: "dict[str, bytes]") -> str:
    digest = hashlib.sha256()
    for name, data in sorted(content.items()):
        digest.update(f"{name}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()[:_HASH_LENGTH]


def _is_whole(path: str, content: "dict[str, bytes]") -> bool:
    try:
        return all(_read_file(f"{path}/{name}") == data for name, data in content.items())
    except OSError:
        return False


def _write(path: str, content: "dict[str, bytes]") -> None:
    for folder in {os.path.dirname(name) for name in content}:
        os.makedirs(f"{path}/{folder}", exist_ok=True)
    for name, data in content.items():
        with open(f"{path}/{name}", "wb") as file:
            file.write(data)


def _compile(path: str) -> None:
    """Spare trials of this Python version the compiling (5 of 7 ms where PYTHONDONTWRITEBYTECODE is set)."""
    import re
    from compileall import compile_dir
    from py_compile import PycInvalidationMode

    rest = re.compile(_NOT_COMPILED)
    compile_dir(path, quiet=2, rx=rest, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH)


def _sync(path: str) -> None:
    """Compiled files are used unchecked, so that none may be left half written by a power cut. The others are compared
    with what they should be before they are used."""
    for folder, _, names in os.walk(path):
        for name in names:
            if name.endswith(".pyc"):
                sync_file(f"{folder}/{name}")


def _put_in_place(unfinished: str, path: str, content: "dict[str, bytes]") -> None:
    while True:
        try:
            put_in_place(unfinished, path)
            return
        except OSError as problem:
            if problem.errno not in {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}:
                raise
        if _is_whole(path, content):  # another process was faster
            return
        discard(path)
