"""Decide whether a home is still the one that its control database was made in, or was moved or copied.

A manager acts outside its home: on trials under keepers, on machines and clusters, on checkpoints stored elsewhere.
In a copy all of that belongs to the original. So the control database knows where its home is and which file
manager.lock is. A renamed home has the same lock at another path: the paths below it are adapted, and nothing else. A
home with another lock was copied, restored from a backup, or moved across disks; only a person knows which, and says
so with `--moved` or `--copy`. docs/decisions/0064 has the reasons.
"""

import ctypes
import logging
import os
import shutil
import sqlite3
import struct
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from proctor.manager.process.instance import StartError
from proctor.manager.settings import Home, HomeClaim
from proctor.manager.store.errors import DatabaseUnusable
from proctor.manager.store.tables import home_place as table
from proctor.manager.store.tables.home_place import FileIdentity, HomePlace
from proctor.manager.store.verification import DatabaseFacts, inspect
from proctor.sdk.files import is_locked, replace_file
from proctor.training_services.local.service import LOCAL_NODE
from proctor.trial_keeper.settings import JOBS_FOLDER
from proctor.trial_keeper.start import stop_keeper

log = logging.getLogger(__name__)

_AT_FDCWD = -100
_STATX_BTIME = 0x800
_STATX_BYTES = 256
_MASK_AT, _BORN_AT = 0, 80  # offsets in struct statx


@dataclass(frozen=True)
class PlaceChange:
    """The change that a start makes before anything else: the home is at `place`, and was at `old`, if elsewhere."""

    place: HomePlace
    old: str | None = None
    is_copy: bool = False

    def change_files(self, home: Home) -> None:
        """Change the files of the home. May be repeated: the database is changed last. Blocks; raises OSError."""
        if self.is_copy:
            _forget_machines(home)
        elif self.old is not None:
            stop_keeper(home.node_directory(LOCAL_NODE))  # it works with the old paths; its jobs keep running
            _move_job_records(home, self.old)

    def change_database(self, connection: sqlite3.Connection, *, time: float) -> None:
        """Change the control database, in one transaction."""
        table.record(connection, self.place)
        if self.old is not None:
            for row in table.move(connection, self.old, self.place.path, time=time):
                log.warning("experiment %s keeps its folder %s, outside the home", row.id, row.directory)
        if self.is_copy:
            table.detach(connection, time=time)


def judge(home: Home, found: DatabaseFacts | None, claim: HomeClaim | None) -> PlaceChange | None:
    """Return what a start has to change; None for nothing. Blocks; raises OSError, and StartError where a person must
    say what has happened.

    :param found: the control database of the home, if there is one.
    """
    place = HomePlace(str(home.path), identify(home.lock_file))
    before = None if found is None else found.place or _guess_place(place, found.folders)
    if before is None:
        return PlaceChange(place, is_copy=found is not None and claim is HomeClaim.COPY)
    if not before.lock.is_same(place.lock):
        if claim is None:
            raise StartError(_refuse_copy(place.path, before.path))
        if claim is HomeClaim.MOVED and is_there(before):
            raise StartError(_refuse_original(place.path, before.path))
        if claim is HomeClaim.COPY and (link := _find_shared(home)):
            raise StartError(_refuse_shared(link))
        return PlaceChange(place, old=before.path, is_copy=claim is HomeClaim.COPY)
    if claim is HomeClaim.COPY:
        raise StartError(_refuse_no_copy(place.path))
    if _is_same_folder(before.path, place.path):  # also by way of a link
        return None if found and found.place else PlaceChange(place)
    if running := _count_running(home):
        raise StartError(_refuse_running(place.path, before.path, running))
    return PlaceChange(place, old=before.path)


def _guess_place(place: HomePlace, folders: Mapping[str, str]) -> HomePlace | None:
    """Return where a home was, if an earlier version has not written that down: an experiment names its former folder,
    and its folder is here. If nothing is left at the former path, the home was renamed.

    :param folders: of the experiments, by id.
    """
    for experiment_id, path in folders.items():
        folder, here = Path(path), Home(Path(place.path)).experiment_directory(experiment_id)
        if folder != here and folder.parts[-2:] == here.parts[-2:] and here.is_dir():
            old = Home(folder.parent.parent)
            lock = identify(old.lock_file) if old.lock_file.exists() else place.lock
            return HomePlace(str(old.path), lock)
    return None


def last_path(home: Home) -> str | None:
    """Return where the home was last; None if its control database does not say."""
    try:
        found = inspect(str(home.control_database), "control")
    except DatabaseUnusable:
        return None
    return found.place.path if found and found.place else None


def is_there(place: HomePlace) -> bool:
    """Return whether a home is still at this place."""
    try:
        return identify(Home(Path(place.path)).lock_file).is_same(place.lock)
    except OSError:
        return False


def identify(path: Path) -> FileIdentity:
    """Return which file a path names. Raises OSError."""
    inode = os.stat(path).st_ino
    buffer = ctypes.create_string_buffer(_STATX_BYTES)
    try:
        failed = ctypes.CDLL(None).statx(_AT_FDCWD, os.fsencode(path), 0, _STATX_BTIME, buffer)
    except AttributeError:  # a C library without it
        return FileIdentity(inode)
    if failed or not struct.unpack_from("=I", buffer, _MASK_AT)[0] & _STATX_BTIME:
        return FileIdentity(inode)  # the file system does not know
    seconds, nanoseconds = struct.unpack_from("=qI", buffer, _BORN_AT)
    return FileIdentity(inode, seconds * 10**9 + nanoseconds)


def _is_same_folder(path: str, other: str) -> bool:
    try:
        return path == other or os.path.samefile(path, other)
    except OSError:
        return False


def _find_shared(home: Home) -> Path | None:
    """Return what a copy shares with the home that it was copied from: a link to elsewhere was copied as a link."""
    folders = (home.experiments_directory, home.nodes_directory, home.run_directory, home.incoming_directory)
    root = home.path.resolve()
    return next((path for path in (home.control_database, *folders) if not path.resolve().is_relative_to(root)), None)


def _count_running(home: Home) -> int:
    """Return how many trials run under reapers of this home. Their processes know its old path only."""
    count = 0
    for file in home.nodes_directory.glob(f"*/{JOBS_FOLDER}/*.process"):
        with suppress(OSError):
            count += is_locked(file)
    return count


def _move_job_records(home: Home, old: str) -> None:
    old_text, new_text = table.json_prefix(old).encode(), table.json_prefix(str(home.path)).encode()
    for file in (home.node_directory(LOCAL_NODE) / JOBS_FOLDER).glob("*.json"):
        data = file.read_bytes()
        if old_text in data:
            replace_file(str(file), data.replace(old_text, new_text), durable=True)


def _forget_machines(home: Home) -> None:
    """Remove the ids and keys by which keepers and machines know a home; they are made anew. The host keys that people
    have accepted stay; so does what is behind a link."""
    keys = (home.path / "manager.id", home.path / "keeper.key", home.keeper_certificate, home.endpoint_pointer)
    for path in (*keys, home.control_witness):
        path.unlink(missing_ok=True)
    for folder in home.nodes_directory.iterdir():
        if folder.is_symlink():
            folder.unlink()
        elif folder.is_dir():
            shutil.rmtree(folder)


_UNCHANGED = "Nothing was changed"


def _refuse_running(path: str, old: str, running: int) -> str:
    trials = f"{running} trials of it run" if running > 1 else "a trial of it runs"
    return (
        f"the home {path} was moved from {old} while {trials}, with the old paths. {_UNCHANGED}. Move it back, and "
        "start the manager there; move the home once they have ended, or after `proctor trial kill`"
    )


def _refuse_no_copy(path: str) -> str:
    return (
        f"the home {path} is no copy: its manager.lock is the file that its control database knows. {_UNCHANGED}. "
        "Start it without --copy. If it is a snapshot of a whole disk, where a copy has the same files, copy it once "
        "more (cp -a), and start that copy with --copy"
    )


def _refuse_copy(path: str, old: str) -> str:
    was = f"a copy of {old}" if old != path else "restored from a copy"
    return (
        f"the home {path} is {was}, or was moved across disks: its manager.lock is another file than the one that its "
        f"control database knows. {_UNCHANGED}. If the other home is no longer used, start this one once with `proctor "
        "manager start --moved`: it takes its place. If both are used, start this one once with `proctor manager start "
        "--copy`: it becomes a home of its own; what runs, and what is stored elsewhere, stays with the original"
    )


def _refuse_shared(link: Path) -> str:
    return (
        f"{link} is a link to {link.resolve()}, which is the original's: both homes would change it. {_UNCHANGED}. "
        "Replace the link by a copy of what it leads to, and start it again"
    )


def _refuse_original(path: str, old: str) -> str:
    return (
        f"the home {path} was not moved: {old} is still there, and two managers cannot own the same trials. "
        f"{_UNCHANGED}. Remove {old} if it is no longer used, or start this one with `proctor manager start --copy`"
    )
