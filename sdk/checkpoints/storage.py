"""Checkpoints in object stores and whatever else fsspec reaches by a URL (checkpointStorage).

A checkpoint is put under `<storage>/<experiment>/<trial>/<job>/<n>`, one object for each file, its manifest last: what
has none is not whole, because an upload was cut off. Deleting begins with the manifest. Nothing is renamed, which an
object store cannot do.

The trial's side uploads and downloads, in the trial's own process. The manager verifies and deletes by running this
module (`python -m proctor.sdk.checkpoints.storage`), with the credentials in the environment of that process only: it
reads one request as JSON from standard input, and prints one answer.

fsspec finds credentials where its implementations look for them: in the environment (AWS_ACCESS_KEY_ID,
FSSPEC_S3_ENDPOINT_URL …) or in their own files.
"""

import json
import os
import sys
from contextlib import contextmanager, suppress
from hashlib import sha256
from time import monotonic, sleep

from proctor.sdk.checkpoints.manifest import MANIFEST_FILE, read_manifest, verify_checkpoint
from proctor.sdk.errors import CheckpointError, DamagedCheckpointError, notice_once
from proctor.sdk.failpoints import failpoint
from proctor.sdk.files import name_unfinished, put_in_place, remove_tree, remove_unfinished

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

_DAMAGES = 2
"""How often a file is found damaged before the checkpoint counts as damaged, and not the way here."""
_PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0)
MARK_CONTENT = b"Proctor recognizes by this file that machines share this folder: do not delete it.\n"
NOT_SHARED = "what one process stores there, another one does not find"
_READ_SECONDS = 45.0
_ADVICE = "name a folder that all nodes share, or a URL of an object store"
_PROBE_CONTENT = "written by proctor to see whether checkpoints can be stored here"


class StorageError(Exception):
    """The storage does not do what it was asked to; the text is a clause that says what and why."""


def upload(folder: str, url: str) -> None:
    """Store a checkpoint, with its manifest, under a URL. What an upload that was cut off has left there is replaced;
    another whole checkpoint never is.

    :raises StorageError: it could not be stored.
    """
    names = sorted(_relative_files(folder))
    with explaining(f"{url} cannot be written"):
        system, root = open_url(url)
        if system.exists(f"{root}/{MANIFEST_FILE}"):
            with open(f"{folder}/{MANIFEST_FILE}", "rb") as file:
                if system.cat_file(f"{root}/{MANIFEST_FILE}") == file.read():
                    return
            raise FileExistsError("another experiment of the same id has a checkpoint there")
        if system.exists(root):
            system.rm(root, recursive=True)
        if has_folders(root):
            for parent in {os.path.dirname(f"{root}/{name}") for name in names}:
                system.makedirs(parent, exist_ok=True)
        files = [name for name in names if name != MANIFEST_FILE]
        for group in filter(None, (files, [MANIFEST_FILE])):
            failpoint("trial.checkpoint.upload.before")
            system.put([f"{folder}/{name}" for name in group], [f"{root}/{name}" for name in group])
        failpoint("trial.checkpoint.upload.after")


def download(url: str, folder: str, *, patience_seconds: float = 0.0, discards_damaged: bool = False) -> None:
    """Make a checkpoint a folder, which appears whole or not at all.

    :param patience_seconds: for how long it is tried again while the storage cannot be read; standard error says so.
    :param discards_damaged: a checkpoint of which a file was found damaged twice loses its manifest, so that no trial
        is offered it again.
    :raises CheckpointError: it cannot be read.
    :raises DamagedCheckpointError: it is damaged.
    """
    deadline = monotonic() + patience_seconds
    failures = damages = 0
    while True:
        try:
            if not (damage := _download_once(url, folder)):
                return
            damages += 1
        except StorageError as problem:
            if monotonic() >= deadline:
                raise CheckpointError(f"the checkpoint could not be read: {problem}") from problem
            notice_once(f"download of {url}", f"the checkpoint could not be read, and is tried again: {problem}")
        if damages == _DAMAGES:
            break
        sleep(_PAUSES[min(failures, len(_PAUSES) - 1)])
        failures += 1
    if not discards_damaged:
        raise DamagedCheckpointError(f"checkpoint {url}: {damage}")
    with suppress(StorageError), explaining(f"{url} cannot be written"):
        system, root = open_url(url)
        system.rm_file(f"{root}/{MANIFEST_FILE}")
    raise DamagedCheckpointError(
        f"checkpoint {url}: {damage}. It is not offered again: another attempt of the trial continues from the one "
        "before."
    )


def _download_once(url: str, folder: str) -> str:
    """What is wrong with the downloaded copy, as a clause; "" once it is in its place."""
    parent = os.path.dirname(folder)
    os.makedirs(parent, exist_ok=True)
    remove_unfinished(parent)
    unfinished = name_unfinished(parent)
    try:
        os.mkdir(unfinished)
        with explaining(f"{url} cannot be read"):
            system, root = open_url(url)
            manifest = system.cat_file(f"{root}/{MANIFEST_FILE}")
            names = list(read_manifest(manifest))
            for name in names:
                os.makedirs(os.path.dirname(f"{unfinished}/{name}"), exist_ok=True)
            if names:
                system.get([f"{root}/{name}" for name in names], [f"{unfinished}/{name}" for name in names])
            with open(f"{unfinished}/{MANIFEST_FILE}", "wb") as file:
                file.write(manifest)
        if damage := verify_checkpoint(unfinished, sha256(manifest).hexdigest()):
            remove_tree(unfinished)
            return damage
        put_in_place(unfinished, folder)
        return ""
    except BaseException:
        remove_tree(unfinished)
        raise


def verify_stored(url: str, manifest: "str | None") -> str:
    """Return why no trial must continue from a stored checkpoint, as a clause; "" if all its files are there. Their
    content is verified where it is downloaded.

    :param manifest: the SHA-256 of its manifest, as it was registered.
    :raises StorageError: the storage cannot be read.
    """
    with explaining(f"{url} cannot be read"):
        system, root = open_url(url)
        try:
            data = system.cat_file(f"{root}/{MANIFEST_FILE}")
        except FileNotFoundError:
            return "it is gone, or was found to be damaged: it has no manifest"
        if manifest is not None and sha256(data).hexdigest() != manifest:
            return "its manifest is not the one that was registered"
        found = system.find(root, detail=True)
        sizes = {path[len(root) + 1 :]: facts["size"] for path, facts in found.items()}
        for name, (size, _) in read_manifest(data).items():
            if name not in sizes:
                return f"{name} is missing"
            if sizes[name] != size:
                return f"{name} has {sizes[name]:,} bytes, {size:,} expected"
    return ""


def delete_stored(url: str) -> None:
    """Delete everything under a URL; a checkpoint is gone at once, because its manifest goes first. What is not there
    is deleted already.

    :raises StorageError: something of it is left.
    """
    with explaining(f"{url} cannot be deleted"):
        system, root = open_url(url)
        if not system.exists(root):
            return
        if system.exists(f"{root}/{MANIFEST_FILE}"):
            system.rm_file(f"{root}/{MANIFEST_FILE}")
        try:
            system.rm(root, recursive=True)
        except FileNotFoundError:  # an object store forgets a folder with its last object
            return


def probe(url: str, *, mark: str = "") -> bool:
    """Write a small object, have another process read it, and delete it: what a job has stored, a later one must find.
    Return whether the object that is called `mark` is there, too.

    :raises StorageError: what keeps checkpoints from being stored under the URL.
    """
    with explaining(f"{url} cannot be used"):
        system, root = open_url(url)
        name = f".proctor-probe-{os.getpid()}-{os.urandom(4).hex()}"
        if has_folders(root):
            system.makedirs(root, exist_ok=True)
        system.pipe_file(f"{root}/{name}", _PROBE_CONTENT.encode())
        try:
            if problem := _read_in_another_process(f"{url.rstrip('/')}/{name}"):
                raise OSError(f"{NOT_SHARED} ({problem}); {_ADVICE}")
        finally:
            system.rm_file(f"{root}/{name}")
        return bool(mark) and bool(system.exists(f"{root}/{mark}"))


def _read_in_another_process(url: str) -> str:
    """Return what keeps another process from finding the object of a probe, as a clause; "" if nothing does."""
    from subprocess import TimeoutExpired, run

    request = json.dumps({"do": "read", "url": url}).encode()
    command = [sys.executable, "-m", "proctor.sdk.checkpoints.storage"]
    try:
        asked = run(command, input=request, capture_output=True, timeout=_READ_SECONDS)
        answer = json.loads(asked.stdout)
    except TimeoutExpired:
        return f"it has not answered for {_READ_SECONDS:.0f} s"
    except ValueError:
        return asked.stderr.decode(errors="replace").strip()[-300:] or f"exit code {asked.returncode}"
    if "error" in answer:
        return str(answer["error"])
    return "" if answer.get("answer") == _PROBE_CONTENT else "it reads something else"


@contextmanager
def explaining(clause: str) -> "Iterator[None]":
    """Whatever an implementation of fsspec raises, as a StorageError."""
    try:
        yield
    except Exception as problem:
        raise StorageError(f"{clause}: {_describe(problem)}") from problem


def _describe(problem: Exception) -> str:
    text = " ".join(str(problem).split()).rstrip(".") or type(problem).__name__
    if isinstance(problem, ImportError):
        if getattr(problem, "name", None) == "fsspec":
            return f"fsspec is not installed for {sys.executable}; install it with what this kind of URL needs"
        return f"{text} (for {sys.executable})"
    return text if isinstance(problem, OSError) else f"{type(problem).__name__}: {text}"


def open_url(url: str) -> "tuple[Any, str]":
    """The file system of a URL, and the path in it. What it remembers of earlier listings is forgotten: other processes
    write, too."""
    from fsspec.core import url_to_fs  # type: ignore[import-untyped, unused-ignore]

    system, root = url_to_fs(url)
    system.invalidate_cache()
    return system, root.rstrip("/")


def has_folders(root: str) -> bool:
    """Whether folders must be made: the paths of an object store begin with its bucket, which is never made here."""
    return root.startswith("/")


def _relative_files(folder: str) -> "list[str]":
    return [os.path.relpath(f"{parent}/{name}", folder) for parent, _, names in os.walk(folder) for name in names]


def _answer(request: "dict[str, Any]") -> str:
    url = request["url"]
    if request["do"] == "verify":
        return verify_stored(url, request["manifest"])
    if request["do"] == "delete":
        delete_stored(url)
    elif request["do"] == "download":
        download(url, request["folder"])
    elif request["do"] == "read":
        with explaining(f"{url} cannot be read"):
            system, path = open_url(url)
            return bytes(system.cat_file(path)).decode(errors="replace")
    elif request["do"] == "probe":
        return "marked" if probe(url, mark=request.get("mark", "")) else ""
    else:
        raise StorageError(f"unknown request {request['do']!r}")
    return ""


def answer_request(answer: "Callable[[dict[str, Any]], str]") -> None:
    """Read one request from standard input and print what `answer` makes of it, or the error that it raises."""
    try:
        outcome: dict[str, object] = {"answer": answer(json.load(sys.stdin))}
    except (StorageError, CheckpointError) as error:
        outcome = {"error": str(error)}
    print(json.dumps(outcome))


if __name__ == "__main__":
    answer_request(_answer)
