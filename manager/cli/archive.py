"""Experiments as zip files.

proctor.json              {"format": 2, "experiment": resource with its "views" and "scheduler_tables"}
trials.jsonl jobs.jsonl metrics.jsonl
checkpoints.jsonl imported.jsonl    since format 2
experiment/…              its folder: logs, outputs, checkpoints; no databases, environment or secrets
code/…                    the code directory, when asked for: the files that travel to a machine
"""

import errno
import json
import os
import re
import secrets
import shutil
import signal
import stat
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from proctor.manager.cli.columns import size_text
from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.cli.machines import find_logins, handover_file
from proctor.sdk.files import UNFINISHED_PREFIX, put_in_place

if TYPE_CHECKING:
    from proctor.sdk.client.client import Client

DAMAGES = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, RuntimeError, ValueError)
"""What reading a damaged zip raises: a name that is not the UTF-8 that it is said to be is a ValueError. The same as in
manager/engine/archive/format.py, as are the next four."""
COMPRESSIONS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
MAX_HEAD_BYTES = 16 * 1024 * 1024
SPARE_BYTES = 256 * 1024 * 1024
NEVER_SAVED = re.compile(r"(environment|secrets|\.proctor-owner)\.json|.*\.db(-wal|-shm)?")
FORMATS = (1, 2)
FOLDER, CODE = "experiment", "code"
HEAD = "proctor.json"
_FIRST_NAME = slice(30, 30 + len(HEAD))  # where a zip that begins with it has it
CODE_ARCHIVES = "code-archives"  # what was made of the code for machines
DRAFT_SUFFIX = ".proctor-draft"
LARGE_BYTES = 300_000_000
MANY_CODE_FILES = 2_000
"""NNI's limits for a code directory; beyond them `save` asks."""
MOST_NAMED = 3
MOST_DRAWN = 200  # times that the progress is drawn
PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class ArchiveMember:
    """One file of an archive: its name there, where it is, and how many of its bytes are saved at most."""

    name: str
    path: str
    size: int


@dataclass(frozen=True)
class Contents:
    """The files that are saved beside the records. `left_out`: a sentence for each kind of file that is not."""

    folder: tuple[ArchiveMember, ...]
    code: tuple[ArchiveMember, ...]
    code_directory: str | None
    left_out: tuple[str, ...]

    @property
    def size(self) -> int:
        """The bytes of all files, before they are compressed."""
        return sum(member.size for member in (*self.folder, *self.code))

    @property
    def is_large(self) -> bool:
        """Whether it is so much that it may not have been meant."""
        return self.size > LARGE_BYTES or len(self.code) > MANY_CODE_FILES

    def describe(self) -> str:
        """What is saved, and how much that is."""
        parts = [f"{_counted(self.folder)} of the experiment"]
        if self.code_directory is not None:
            parts.append(f"{_counted(self.code)} of its code in {self.code_directory}")
        return " and ".join(parts)


def find_contents(experiment: dict[str, Any], target: Path, *, with_code: bool) -> Contents:
    """Look at everything that an archive at `target` will hold. Raises CommandError."""
    folder = Path(experiment["directory"])
    if not folder.is_dir():
        raise CommandError(f"{folder} is not on this machine; save the experiment where its manager runs")
    selection = _Selection(os.path.realpath(target.parent) + os.sep + target.name)
    members = tuple(selection.of_folder(os.path.realpath(folder)))
    directory = experiment["config"]["trial_code_directory"] if with_code else None
    code = () if directory is None else tuple(selection.of_code(Path(directory)))
    return Contents(members, code, directory, tuple(selection.left_out()))


def write_archive(
    client: "Client", experiment: dict[str, Any], contents: Contents, target: Path, saved: Callable[[int], None]
) -> None:
    """Write an experiment into a zip that only its owner may read, and that is complete whenever it is there.

    A file that has grown since it was looked at is cut there; one that is gone is left out.
    :param saved: called with the number of bytes whenever some have been read.
    :raises CommandError: the archive cannot be written.
    :raises OSError: a file cannot be read.
    """
    if not target.parent.is_dir():
        raise CommandError(f"{target.parent}: there is no such folder", ExitCode.USAGE)
    draft = target.with_name(f".{target.name}.{secrets.token_hex(4)}{DRAFT_SUFFIX}")
    try:
        with _interrupted_when_ended(), _named_in_errors(target, draft):
            descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with (
                os.fdopen(descriptor, "w+b") as file,
                zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, strict_timestamps=False) as archive,
            ):
                _write_records(archive, client, experiment)
                for member in (*contents.folder, *contents.code):
                    _write_member(archive, member, saved)
            put_in_place(draft, target)
    finally:
        draft.unlink(missing_ok=True)


def load_archive(
    client: "Client", path: Path, *, code_directory: Path | None, identifier: str | None, keep_storage: bool
) -> dict[str, Any]:
    """Hand a saved experiment to the manager, which takes it in as STOPPED. Raises CommandError.

    :param keep_storage: it stores its checkpoints where it did before.
    """
    from proctor.sdk.client.credentials import held_copy

    config = read_archive(path)["config"]
    if code_directory is not None:
        _unpack_code(path, code_directory)
    logins = find_logins(config if keep_storage else {**config, "checkpoint_storage": None})
    with held_copy(client.home, path) as handed, handover_file(client, logins) as handover:
        return client.load_experiment(
            handed,
            experiment_id=identifier,
            code_directory=None if code_directory is None else str(code_directory.absolute()),
            keep_storage=keep_storage,
            handover=handover,
        )


def require_replaceable(path: Path, experiment: dict[str, Any]) -> None:
    """Raise CommandError where something is at a path that was not given, and is not an earlier archive of this
    experiment."""
    if not os.path.lexists(path):
        return
    try:
        there = read_archive(path)
    except (CommandError, OSError):
        there = {}
    if any(there.get(key) != experiment[key] for key in ("id", "created_at")):
        raise CommandError(
            f"{path} is there already, and is not this experiment; give a file name with --path", ExitCode.USAGE
        )


def read_archive(path: Path) -> dict[str, Any]:
    """The experiment's resource in an archive. Raises CommandError where it is none, or of a newer kind."""
    try:
        with _damage_refused(path), zipfile.ZipFile(path) as archive:
            member = archive.getinfo(HEAD)
            _check_compression(member)
            if member.file_size > MAX_HEAD_BYTES:
                raise zipfile.BadZipFile(f"its {HEAD} is larger than {MAX_HEAD_BYTES} bytes")
            head = json.loads(archive.read(member))
            found = head["format"]
    except FileNotFoundError as error:
        raise CommandError(f"{path}: there is no such file", ExitCode.USAGE) from error
    except (KeyError, TypeError) as error:
        raise CommandError(
            f"{path} is not an experiment saved by `proctor experiment save`. One that nnictl saved cannot be loaded: "
            "create it from its configuration, and import what `nnictl experiment export` wrote",
            ExitCode.USAGE,
        ) from error
    if found not in FORMATS:
        text = f"{path} has format {found}; this version reads formats up to {FORMATS[-1]}"
        raise CommandError(text, ExitCode.USAGE)
    experiment = head.get("experiment")
    if not isinstance(experiment, dict) or not isinstance(experiment.get("config"), dict):
        raise CommandError(f"{path} is not an experiment saved by `proctor experiment save`", ExitCode.USAGE)
    return dict(experiment)


@contextmanager
def _damage_refused(path: Path) -> Iterator[None]:
    try:
        yield
    except DAMAGES as error:
        raise _damaged(path, str(error)) from error
    except OSError as error:
        if error.errno not in {
            errno.EINVAL,
            errno.EOVERFLOW,
        }:  # a place before the beginning of the file, or beyond any
            raise
        raise _damaged(path, error.strerror or str(error)) from error


def _damaged(path: Path, why: str) -> CommandError:
    text = f"{path} is not an experiment saved by `proctor experiment save`, or is damaged: {why}"
    return CommandError(text, ExitCode.USAGE)


def _check_compression(member: zipfile.ZipInfo) -> None:
    """The modules of other compressions fail in their own ways. Raises BadZipFile."""
    if member.compress_type not in COMPRESSIONS:
        raise zipfile.BadZipFile(f"{member.filename} is compressed in another way than `save` does")


class _Selection:
    """Chooses the files of an archive, and remembers which were left out that the user might miss.

    :param target: the archive, which never becomes a part of itself; no part of its folder is a link.
    """

    def __init__(self, target: str) -> None:
        self._target = target
        self._links: list[str] = []
        self._reserved: list[str] = []
        self._unnameable: list[str] = []

    def left_out(self) -> Iterator[str]:
        """Sentences about files that are not saved."""
        for what, names in {
            "links to folders, broken links, and links to files that are never saved": self._links,
            "files named like the manager's own databases and secrets": self._reserved,
            "files whose names cannot be stored in an archive (not UTF-8, or with a backslash)": self._unnameable,
        }.items():
            if names:
                more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
                yield f"Left out: {what}: {', '.join(names[:MOST_NAMED])}{more}"

    def of_folder(self, root: str) -> Iterator[ArchiveMember]:
        """The files of the experiment's folder; no databases, environment, secrets, nor the home of another manager,
        nor what is left of a checkpoint that is being made or deleted."""
        from proctor.sdk.client.home import holds_state

        for folder, folders, names in os.walk(root, onerror=_pass_over_vanished):
            inside = os.path.relpath(folder, root) if folder != root else ""
            kept = [name for name in sorted(folders) if inside or name != CODE_ARCHIVES]
            kept = [name for name in kept if not name.startswith(UNFINISHED_PREFIX)]
            self._links += [path for path in (os.path.join(folder, name) for name in kept) if os.path.islink(path)]
            folders[:] = [name for name in kept if not holds_state(os.path.join(folder, name))]
            for name in sorted(names):
                path = os.path.join(folder, name)
                if not NEVER_SAVED.fullmatch(name):
                    yield from self._member(FOLDER, os.path.join(inside, name), path, root)
                elif inside:  # those at the top are the manager's own
                    self._reserved.append(path)

    def of_code(self, directory: Path) -> Iterator[ArchiveMember]:
        """The files that would travel to a machine, but no version control and no environment. Raises CommandError."""
        from proctor.sdk.client.code_files import LEFT_OUT, VERSION_CONTROL, CodeUnreadable, read_tree

        try:
            tree = read_tree(directory, left_out=(*LEFT_OUT, "venv/"))
        except CodeUnreadable as error:
            raise CommandError(f"the code cannot be saved: {error}. Without -s only the experiment is saved") from error
        for entry in tree.entries:
            path = os.path.join(tree.root, entry.path)
            if entry.kind != stat.S_IFDIR and VERSION_CONTROL.isdisjoint(entry.path.split("/")):
                yield from self._member(CODE, entry.path, path, str(tree.root))

    def _member(self, part: str, inside: str, path: str, root: str) -> Iterator[ArchiveMember]:
        """The file at `path`, or the one that a link there leads to; nothing for archives and their drafts."""
        if path == self._target or path.endswith(DRAFT_SUFFIX):
            return
        try:
            facts = os.stat(path)
        except OSError:  # it has vanished, or is a link to nothing
            facts = None
        is_file = facts is not None and stat.S_ISREG(facts.st_mode)
        if os.path.islink(path) and (not is_file or self._leads_to_what_is_never_saved(path, part, root)):
            self._links.append(path)
        elif "\\" in inside or not _is_text(inside):
            self._unnameable.append(ascii(path))
        elif facts is not None and is_file and not _is_saved_experiment(path):
            yield ArchiveMember(f"{part}/{inside}", path, facts.st_size)

    def _leads_to_what_is_never_saved(self, link: str, part: str, root: str) -> bool:
        from proctor.sdk.client.code_files import VERSION_CONTROL
        from proctor.sdk.client.home import holds_state

        place = Path(os.path.realpath(link))
        folders = list(takewhile(lambda folder: folder != Path(root), place.parents))
        is_own = part == FOLDER and place.is_relative_to(root)
        return (
            str(place) == self._target
            or not VERSION_CONTROL.isdisjoint({place.name, *(folder.name for folder in folders)})
            or any(holds_state(str(folder)) for folder in folders)
            or (is_own and NEVER_SAVED.fullmatch(place.name) is not None)
        )


def _pass_over_vanished(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _is_saved_experiment(path: str) -> bool:
    """Whether a file is an archive of this kind: an earlier one would be saved again with every later one."""
    if not path.endswith(".zip"):
        return False
    try:
        with open(path, "rb") as file:
            head = file.read(_FIRST_NAME.stop)
    except OSError:
        return False
    return head.startswith(b"PK\x03\x04") and head[_FIRST_NAME] == HEAD.encode()


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _counted(members: Iterable[ArchiveMember]) -> str:
    sizes = [member.size for member in members]
    return f"{len(sizes):,} file{'s' * (len(sizes) != 1)} ({size_text(sum(sizes))})"


@contextmanager
def show_progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, if that is a terminal; gives what to call with the number of bytes whenever some are saved."""
    done, hidden = 0, not sys.stderr.isatty()
    with click.progressbar(
        length=max(total, 1),
        label="Saving",
        file=sys.stderr,
        hidden=hidden,
        update_min_steps=max(total // MOST_DRAWN, 1),
        item_show_func=lambda text: text,
    ) as bar:

        def advance(size: int) -> None:
            nonlocal done
            done += size
            bar.update(size, f"{size_text(done)} of {size_text(total)}")

        yield advance


@contextmanager
def _named_in_errors(target: Path, draft: Path) -> Iterator[None]:
    """Names the archive in errors that name its draft or no file: its disk is full, or it is too large for it."""
    try:
        yield
    except OSError as error:
        if error.filename not in (None, str(draft)):
            raise
        raise CommandError(f"{target} cannot be written: {error.strerror or error}") from error


@contextmanager
def _interrupted_when_ended() -> Iterator[None]:
    """SIGTERM and the end of the terminal do what Ctrl-C does: nothing half-written stays."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _write_records(archive: zipfile.ZipFile, client: "Client", experiment: dict[str, Any]) -> None:
    from proctor.sdk.client.errors import NotFound

    trials = list(client.trials(experiment["id"], sort="sequence_id"))
    try:
        views = client.views(experiment["id"])
    except NotFound:  # a manager before there were saved views
        views = []
    try:
        scheduler = client.scheduler(experiment["id"])["tables"]
    except NotFound:  # a manager before there were trial schedulers
        scheduler = []
    head = {**experiment, "views": views, "scheduler_tables": scheduler}
    try:
        imported = client.imported_results(experiment["id"])
    except NotFound:  # a manager of an earlier version
        imported = []
    archive.writestr(HEAD, json.dumps({"format": FORMATS[-1], "experiment": head}, indent=1))
    archive.writestr("trials.jsonl", _lines(trials))
    archive.writestr("jobs.jsonl", _lines(job for trial in trials for job in client.jobs(trial["id"])))
    for name, read in (("metrics.jsonl", client.metrics), ("checkpoints.jsonl", client.checkpoints)):
        with archive.open(name, "w") as file:
            for trial in trials:
                file.write(_lines(read(trial["id"])).encode())
    archive.writestr("imported.jsonl", _lines(imported))


def _lines(rows: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)


def _write_member(archive: zipfile.ZipFile, member: ArchiveMember, saved: Callable[[int], None]) -> None:
    try:
        info = zipfile.ZipInfo.from_file(member.path, member.name, strict_timestamps=False)
        descriptor = os.open(member.path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:  # it has vanished since it was looked at
        return
    info.compress_type = zipfile.ZIP_DEFLATED
    info.file_size = left = member.size
    with os.fdopen(descriptor, "rb") as source, archive.open(info, "w") as copy:
        while left and (piece := source.read(min(left, PIECE_BYTES))):
            copy.write(piece)
            left -= len(piece)
            saved(len(piece))


def _check_room(path: Path, members: list[zipfile.ZipInfo], target: Path) -> None:
    """Raise CommandError if these members do not fit on the disk of a folder that may not be there yet."""
    needed = sum(member.file_size for member in members)
    there = next(folder for folder in (target, *target.parents) if folder.exists())
    if needed > (free := shutil.disk_usage(there).free) - SPARE_BYTES:
        raise CommandError(
            f"the code in {path} takes {needed >> 20} MiB unpacked, but the disk of {there} has {free >> 20} MiB left, "
            f"of which {SPARE_BYTES >> 20} MiB are kept free; free some space and load it again"
        )


def _unpack_code(path: Path, target: Path) -> None:
    """Write the saved code into a folder. What is damaged is found before anything is written; where the folder cannot
    be written, nothing new stays."""
    with _damage_refused(path), zipfile.ZipFile(path) as archive:
        members = [member for member in archive.infolist() if member.filename.startswith(f"{CODE}/")]
        if not members:
            raise CommandError(f"{path} contains no code; it was saved without --code", ExitCode.USAGE)
        root = target.absolute()
        _check_room(path, members, root)
        for member in members:
            if not _place(root, member).resolve().is_relative_to(root.resolve()):
                raise CommandError(f"{path} wants to write outside of {target}: {member.filename}", ExitCode.USAGE)
            _check_compression(member)
            with archive.open(member) as source:
                while source.read(PIECE_BYTES):
                    pass
            _require_free(archive, member, _place(root, member))
        made: list[Path] = []
        try:
            for member in members:
                _unpack_member(archive, member, _place(root, member), made)
        except OSError as error:
            _unmake(made)
            problem = error.strerror or error
            raise CommandError(
                f"the code in {path} cannot be unpacked: {error.filename or target}: {problem}"
            ) from error
        except BaseException:
            _unmake(made)
            raise


def _place(root: Path, member: zipfile.ZipInfo) -> Path:
    return root / member.filename.removeprefix(f"{CODE}/")


def _require_free(archive: zipfile.ZipFile, member: zipfile.ZipInfo, place: Path) -> None:
    """Raise CommandError for a place at which something else is than this member."""
    if not os.path.lexists(place) or (member.is_dir() and place.is_dir()):
        return
    if place.is_file() and place.stat().st_size == member.file_size and place.read_bytes() == archive.read(member):
        return
    raise CommandError(
        f"{place} is there already, and is not what was saved; give another --code-directory", ExitCode.USAGE
    )


def _unpack_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo, place: Path, made: list[Path]) -> None:
    """Write one file or folder; `made` gets what was not there before. Raises OSError."""
    folder = place if member.is_dir() else place.parent
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    made += reversed(missing)
    if member.is_dir():
        return
    if not place.exists():
        made.append(place)
    with archive.open(member) as source, place.open("wb") as copy:
        shutil.copyfileobj(source, copy)
    if member.external_attr >> 16 & stat.S_IXUSR:
        mode = place.stat().st_mode
        place.chmod(mode | (mode & 0o444) >> 2)  # those who may read it may run it


def _unmake(made: list[Path]) -> None:
    for path in reversed(made):
        with suppress(OSError):
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
