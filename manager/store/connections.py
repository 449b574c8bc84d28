"""Opening SQLite connections the way both databases need them, and what SQLite's errors mean for us."""

import mmap
import os
import sqlite3
from contextlib import suppress
from urllib.parse import quote

from proctor.manager.store.errors import DatabaseUnusable, StoreError
from proctor.manager.store.migrations import SchemaName, check_version, migrate
from proctor.sdk.disk_errors import describe_full, has_no_inodes, is_full
from proctor.sdk.files import require_room

BUSY_TIMEOUT_MILLISECONDS = 5_000
WAL_LIMIT_BYTES = 16 * 1024 * 1024  # what the file is cut down to when the log starts over
CACHE_KIBIBYTES = 4096  # of each writer; with four times as much 25,000 trials took as long, and 14 MiB more memory
RESTORE = "Restore it from a copy."
SAFETY_CHECKPOINT_PAGES = 4_000  # inside a commit, when the ones beside it did not keep up
_INDEX_BYTES = 64 * 1024  # of a log of 8,000 pages; a log of WAL_LIMIT_BYTES needs half of it
_DESCRIPTORS = "/proc/self/fd"

_WAIT_FOR = {
    sqlite3.SQLITE_FULL: "free some space",
    sqlite3.SQLITE_IOERR: "check the disk",
    sqlite3.SQLITE_CANTOPEN: "check that its folder exists and is writable",
    sqlite3.SQLITE_READONLY: "make it and its folder writable",
    sqlite3.SQLITE_BUSY: "end the program that has it locked",
}
_REFUSALS = {"SQLITE_CONSTRAINT_DATATYPE", "SQLITE_TOOBIG", "SQLITE_MISMATCH"}
_LACK_OF_ROOM = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN}


def open_writer(
    path: str,
    schema: SchemaName,
    connection_class: type[sqlite3.Connection] = sqlite3.Connection,
    *,
    create: bool = True,
) -> sqlite3.Connection:
    """The connection that changes the file, which is migrated as needed and made (0600) only with `create`.

    Raises DatabaseUnusable or NewerDatabase.
    """
    try:
        _require_file(path, create=create)
        _require_room_for_index(path)
        connection = _connect(path, connection_class)
    except (OSError, sqlite3.Error) as error:
        raise DatabaseUnusable(f"The database {path} cannot be opened: {_describe_any(error, path)}.") from error
    try:
        version = check_version(connection, path, schema)
        if version == 0 and not create:
            raise DatabaseUnusable(f"The database {path} is empty. {RESTORE}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT_BYTES}")
        connection.execute(f"PRAGMA wal_autocheckpoint = {SAFETY_CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA cache_size = {-CACHE_KIBIBYTES}")
        migrate(connection, version, schema)
        _allocate_index(path)
    except OSError as error:
        connection.close()
        raise DatabaseUnusable(f"The database {path} cannot be opened: {_describe_any(error, path)}.") from error
    except sqlite3.Error as error:
        connection.close()
        advice = advise(error, path)
        raise DatabaseUnusable(f"The database {path} cannot be used: {describe(error)}; {advice}.") from error
    except StoreError:
        connection.close()
        raise
    return connection


def open_reader(path: str) -> sqlite3.Connection:
    """A connection that cannot change anything (checkpoints excepted). The file must be there. Raises sqlite3.Error,
    and DatabaseUnusable where there is no room for the index of its log."""
    if not os.path.exists(f"{path}-shm"):
        try:
            _require_room_for_index(path)
        except OSError as error:
            raise DatabaseUnusable(f"The database {path} cannot be read: {_describe_any(error, path)}.") from error
    connection = _connect(f"file:{quote(path)}?mode=rw", sqlite3.Connection, uri=True)
    connection.execute("PRAGMA query_only = ON")
    return connection


def machine_error(error: BaseException) -> sqlite3.Error | OSError | None:
    """The error behind `error` that is the machine's fault, not the caller's: SQLite's, or the system's when the file
    was opened; None if there is none."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, DatabaseUnusable) and isinstance(seen.__cause__, OSError):
            return seen.__cause__
        if isinstance(seen, sqlite3.Error) and primary_code(seen) in _WAIT_FOR:
            return seen
        seen = seen.__cause__ or seen.__context__
    return None


def refusal_of(error: BaseException) -> str:
    """What is wrong with a value that could not be stored, as a clause; "" for any other error."""
    if isinstance(error, sqlite3.Error):
        name = getattr(error, "sqlite_errorname", "")
        is_refusal = isinstance(error, sqlite3.DataError) or name in _REFUSALS or "binding parameter" in str(error)
    else:
        is_refusal = isinstance(error, OverflowError | UnicodeEncodeError | RecursionError)
    return f"{error}" if is_refusal else ""


def explain(path: str, error: sqlite3.Error | OSError) -> str:
    """The sentence for people while a database cannot be written."""
    if isinstance(error, OSError):
        return f"The database {path} cannot be opened: {_describe_any(error, path)}. It is tried again until it works."
    return (
        f"The database {path} cannot be written: {describe(error)}. It is tried again until it works; "
        f"{advise(error, path)}."
    )


def advise(error: sqlite3.Error, path: str) -> str:
    """What to do about an error, as a clause."""
    if primary_code(error) in _LACK_OF_ROOM and has_no_inodes(path):
        return "its disk has no inodes left: remove some files"
    if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_IOERR_SHMSIZE:  # there is no room for the index
        return _WAIT_FOR[sqlite3.SQLITE_FULL]
    return _WAIT_FOR.get(primary_code(error), "check the file")


def describe(error: sqlite3.Error) -> str:
    """SQLite's words for an error, with its symbolic name."""
    name = getattr(error, "sqlite_errorname", "")
    return f"{error} ({name})" if name else str(error)


def primary_code(error: sqlite3.Error) -> int:
    """SQLite's primary result code, -1 for errors of the Python module itself."""
    code = getattr(error, "sqlite_errorcode", None)
    return -1 if code is None else int(code) & 0xFF


def _require_file(path: str, *, create: bool) -> None:
    """Make the file, or see that it is there and not empty: SQLite would drop the log of an empty one.

    One that is there is not opened: closing it would drop the locks of all connections that this process has to it, and
    another process, which takes itself for the last one, would remove the log under them.
    """
    if create:
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o600))
    elif os.stat(path).st_size == 0:
        raise DatabaseUnusable(f"The database {path} is empty. {RESTORE}")


def _has_small_blocks(path: str) -> bool:
    """Whether a page of memory can be part of a file without having its room on the disk.

    SQLite maps the index of its log, and makes room for it by writing one byte of each page. Where blocks are smaller
    than pages, the kernel looks for the rest when the page is first written, and kills the process (SIGBUS) if the disk
    is full by then.
    """
    try:
        return os.statvfs(path).f_frsize < mmap.PAGESIZE
    except OSError:  # SQLite will say what is wrong
        return False


def _require_room_for_index(path: str) -> None:
    if _has_small_blocks(path):
        require_room(os.path.dirname(os.path.abspath(path)), 2 * _INDEX_BYTES)


def _allocate_index(path: str) -> None:
    """Give the index its room, through SQLite's own descriptor: closing another one would drop SQLite's locks."""
    if not _has_small_blocks(path):
        return
    index = os.path.realpath(path) + "-shm"
    for name in os.listdir(_DESCRIPTORS):
        with suppress(FileNotFoundError):  # the descriptor of the folder itself, or another thread's
            if os.readlink(f"{_DESCRIPTORS}/{name}") == index:
                os.posix_fallocate(int(name), 0, _INDEX_BYTES)
                return


def _describe_any(error: Exception, path: str) -> str:
    if isinstance(error, sqlite3.Error):
        return f"{describe(error)}; {advise(error, path)}"
    if isinstance(error, OSError) and is_full(error):
        return describe_full(error.errno or 0, path)
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return f"{text}; check its folder and its disk"


def _connect(path: str, connection_class: type[sqlite3.Connection], *, uri: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(
        path,
        uri=uri,
        timeout=BUSY_TIMEOUT_MILLISECONDS / 1000,
        isolation_level=None,  # transactions are ours to begin and end
        check_same_thread=False,  # opened in one thread, used in another, never in two at once
        cached_statements=512,
        factory=connection_class,
    )
    connection.execute("PRAGMA foreign_keys = ON")
    connection.execute("PRAGMA temp_store = MEMORY")
    return connection
