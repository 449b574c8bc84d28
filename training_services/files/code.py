"""The trial code as one archive that can be copied to a machine: a .tar.gz that is the same whenever the tree is the
same. Its files are those of `proctor.sdk.client.code_files`; links are changed so that they hold on the machine.

`pack_folder` makes one of any other folder.
"""

import asyncio
import gzip
import hashlib
import logging
import os
import stat
import tarfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

from proctor.sdk.client.code_files import IGNORE_FILES, CodeEntry, CodeTree, CodeUnreadable
from proctor.sdk.client.code_files import read_tree as read_code_tree
from proctor.sdk.files import hash_file, put_in_place
from proctor.sdk.process_limits import is_short
from proctor.training_services.errors import ServiceUnavailable, SubmissionRefused

__all__ = ["IGNORE_FILES", "CodeEntry", "CodeTree", "read_tree"]

log = logging.getLogger(__name__)

POLL_INTERVAL_SECONDS = 1.0
"""The shortest time between two scans of the tree; jobs that are submitted in between run what was there."""
ATTEMPTS = 3
ARCHIVES_FOLDER = "code-archives"
_DATE = 946684800  # 2000-01-01: the time of every file
_LEVEL = 4  # of compression: a fast network is not kept waiting by it


def read_tree(directory: Path, *, without: Sequence[Path] = ()) -> CodeTree:
    """Scan a code directory; blocks while it does. Links are relative to the folder they are in.

    Raises SubmissionRefused, naming it, for what cannot be read and for a link that leads out of the tree.
    :param without: folders that are not code wherever they are, such as the experiment's own.
    """
    try:
        tree = read_code_tree(directory, without=without)
    except CodeUnreadable as error:
        raise SubmissionRefused(str(error)) from error
    return CodeTree(tree.root, tuple(_as_there(tree.root, entry) for entry in tree.entries))


def _as_there(root: Path, entry: CodeEntry) -> CodeEntry:
    """A link as it must read on a machine where the tree is elsewhere; everything else as it is."""
    if entry.kind != stat.S_IFLNK:
        return entry
    place = root / entry.path
    target = os.path.relpath(entry.target, place.parent) if os.path.isabs(entry.target) else entry.target
    lexical = os.path.normpath(os.path.join(os.path.dirname(entry.path), target))
    resolved = os.path.realpath(place)
    if lexical.split(os.sep)[0] == os.pardir or not (resolved + os.sep).startswith(f"{root}{os.sep}"):
        raise SubmissionRefused(
            f"the link {entry.path} of the trial code leads out of {root}, to {entry.target}, which the machines do "
            "not have; replace it with a copy, or exclude it by a line in .proctorignore"
        )
    return replace(entry, target=target)


@dataclass(frozen=True)
class CodeArchive:
    """One version of the trial code. `sha256` is that of its content, before it is packed; the others are the
    file's."""

    path: Path
    sha256: str
    size: int
    file_sha256: str

    @property
    def name(self) -> str:
        """What the folder is called on a machine, below `code/`."""
        return self.sha256[:20]


class CodeArchives:
    """The archives of one code directory, the newest one made when it is asked for.

    :param directory: the code.
    :param folder: where the archives are.
    :param without: folders that are not code, see `read_tree`.
    :param monotonic: seconds; for `POLL_INTERVAL_SECONDS`.
    """

    def __init__(
        self,
        directory: Path,
        folder: Path,
        *,
        without: Sequence[Path] = (),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._folder = folder
        self._without = without
        self._monotonic = monotonic
        self._scanning = asyncio.Lock()
        self._building = asyncio.Lock()
        self._tree: CodeTree | None = None
        self._scanned_at: float | None = None
        self._built: tuple[CodeTree, CodeArchive] | None = None
        self._held: Counter[str] = Counter()  # archives that are being copied, by name

    async def scan(self) -> CodeTree:
        """The tree as it is, or was a moment ago. Raises SubmissionRefused, see `read_tree`."""
        async with self._scanning:
            now = self._monotonic()
            if self._tree is None or self._scanned_at is None or now - self._scanned_at >= POLL_INTERVAL_SECONDS:
                self._tree = await asyncio.to_thread(read_tree, self._directory, without=self._without)
                self._scanned_at = self._monotonic()
            return self._tree

    async def newest(self) -> CodeArchive:
        """The archive of the tree, built if it has changed. Raises SubmissionRefused; ServiceUnavailable when the
        archive cannot be written, or when the files change during each of several attempts to read them."""
        async with self._building:
            for _ in range(ATTEMPTS):
                tree = await self.scan()
                if self._built is not None and self._built[0] == tree and self._built[1].path.exists():
                    return self._built[1]
                try:
                    archive = await asyncio.to_thread(build_archive, tree, self._folder)
                except _Changed as error:
                    log.info("%s; the code is scanned again", error)
                    self._scanned_at = None
                    continue
                except OSError as error:
                    raise ServiceUnavailable(
                        f"the archive of the trial code cannot be written to {self._folder}: {error.strerror or error}"
                    ) from error
                self._built = (tree, archive)
                return archive
        raise ServiceUnavailable(f"the files of the trial code in {self._directory} change while they are read")

    @asynccontextmanager
    async def hold(self, archive: CodeArchive) -> AsyncIterator[None]:
        """Keep an archive while it is copied. After that, archives are removed that are neither held nor the newest."""
        self._held[archive.name] += 1
        try:
            yield
        finally:
            self._held[archive.name] -= 1
        async with self._building:
            kept = {name for name, copies in self._held.items() if copies}
            kept |= set() if self._built is None else {self._built[1].name}
            await asyncio.to_thread(_remove_others, self._folder, kept)


class ExperimentCode:
    """The code of one experiment's jobs. Their forms name the directory.

    :param directory: the experiment's own, which is not code and has the archives.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._archives: dict[str, CodeArchives] = {}

    def of(self, code_directory: str) -> CodeArchives:
        """The archives of a code directory."""
        found = self._archives.get(code_directory)
        if found is None:
            code, ours = Path(code_directory), self._directory
            others = [ours.parent] if ours.parent != code and ours.parent.is_relative_to(code) else []
            found = CodeArchives(code, ours / ARCHIVES_FOLDER, without=[ours, *others])
            self._archives[code_directory] = found
        return found


def build_archive(tree: CodeTree, folder: Path) -> CodeArchive:
    """Write the archive of a tree into a folder, where it appears under its name by a rename. Blocks.

    Raises OSError; one of its kind says that a file has changed meanwhile.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = folder / f".{os.getpid()}-{time.monotonic_ns()}.new"
    try:
        with open(draft, "wb") as file:
            content = hashlib.sha256()
            with gzip.GzipFile("", "wb", _LEVEL, cast(BinaryIO, file), mtime=0) as packed:
                sink = cast(BinaryIO, _Digested(packed, content))
                with tarfile.open(mode="w|", fileobj=sink, format=tarfile.PAX_FORMAT) as archive:
                    for entry in tree.entries:
                        _add(archive, tree.root, entry)
        sha256 = content.hexdigest()
        path = folder / f"{sha256[:20]}.tar.gz"
        size, file_sha256 = draft.stat().st_size, hash_file(draft)
        put_in_place(draft, path)
    finally:
        draft.unlink(missing_ok=True)
    return CodeArchive(path, sha256, size, file_sha256)


def pack_folder(folder: Path, archive: Path) -> str:
    """Make a .tar.gz of a folder, packed quickly rather than well; returns the hash of the file. Blocks. Raises
    OSError."""
    with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
        tar.add(folder, arcname=".")
    return hash_file(archive)


class _Changed(OSError):
    """A file is no longer what it was when the tree was scanned."""


class _Digested:
    """Passes on what is written, and counts it into a digest."""

    def __init__(self, sink: gzip.GzipFile, digest: "hashlib._Hash") -> None:
        self._sink = sink
        self._digest = digest

    def write(self, data: bytes) -> int:
        self._digest.update(data)
        return self._sink.write(data)


def _add(archive: tarfile.TarFile, root: Path, entry: CodeEntry) -> None:
    info = tarfile.TarInfo(entry.path)
    info.mtime = _DATE
    info.mode = 0o755 if entry.is_executable else 0o644
    if entry.kind == stat.S_IFDIR:
        info.type = tarfile.DIRTYPE
        archive.addfile(info)
    elif entry.kind == stat.S_IFLNK:
        info.type, info.linkname = tarfile.SYMTYPE, entry.target
        archive.addfile(info)
    else:
        info.size = entry.size
        with _open(root, entry) as file:
            try:
                archive.addfile(info, file)
            except OSError as error:
                if error.errno is None:  # tarfile's own: the file has become shorter
                    raise _Changed(f"{entry.path} has changed while it was read") from error
                raise


def _open(root: Path, entry: CodeEntry) -> BinaryIO:
    """The file, if it has not changed since the scan."""
    try:
        descriptor = os.open(root / entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if is_short(error):
            raise
        raise _Changed(f"{entry.path} can no longer be opened ({error.strerror})") from error
    facts = os.fstat(descriptor)
    if not stat.S_ISREG(facts.st_mode) or (facts.st_size, facts.st_mtime_ns) != (entry.size, entry.modified_ns):
        os.close(descriptor)
        raise _Changed(f"{entry.path} has changed since it was scanned")
    return cast(BinaryIO, os.fdopen(descriptor, "rb"))


def _remove_others(folder: Path, names: Collection[str]) -> None:
    for path in folder.glob("*.tar.gz"):
        if path.name.removesuffix(".tar.gz") not in names:
            path.unlink(missing_ok=True)
    for path in folder.glob(".*.new"):  # of a manager that was killed
        path.unlink(missing_ok=True)
