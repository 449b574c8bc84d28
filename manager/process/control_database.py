"""Opening the control database of a home, once it is known to be that home's, and whole.

The database decides which trials are stopped as unknown, so a manager must not begin with another one than the home
had: an empty one after `control.db` was deleted, an older one after its log was lost, a damaged one. It refuses to
start and says what to do; nothing is changed, and trials keep running. A person who wants to begin with what is there
says so once, with `--accept-database`. docs/decisions/0019 has the reasons.
"""

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from proctor.manager.clock import Clock
from proctor.manager.process.home_place import judge
from proctor.manager.process.instance import StartError
from proctor.manager.settings import CONFIG_FILE, METRICS_FILE, UNFINISHED_FILE, Home, HomeClaim
from proctor.manager.store import database_identity
from proctor.manager.store.database import Database
from proctor.manager.store.database_identity import read_witness
from proctor.manager.store.errors import DatabaseUnusable
from proctor.manager.store.verification import DatabaseFacts, check_pages, inspect

ACCEPT_OPTION = "--accept-database"
CHECKED_AT_ONCE_BYTES = 256 * 1024 * 1024
"""A larger database is read through beside the start, which would take too long otherwise."""


@dataclass(frozen=True)
class ControlDatabase:
    """An open control database. `pages` are being checked: no order to stop an unknown job before that is done."""

    database: Database
    pages: "PageCheck"


class PageCheck:
    """Whether the pages of a database fit together: `done` is set once they are known to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.done = asyncio.Event()

    async def run(self) -> None:
        """Read the whole file. Raises StartError."""
        if not self.done.is_set():
            try:
                await asyncio.to_thread(check_pages, str(self._path))
            except DatabaseUnusable as error:
                raise StartError(_refuse_damaged(str(error))) from error
            self.done.set()


async def open_control(
    home: Home, clock: Clock, *, accept: bool = False, claim: HomeClaim | None = None
) -> ControlDatabase:
    """Verify and open the control database of a home; a new home gets one.

    :param accept: a person has said that what is there is the home's database, or that it must begin with a new one.
    :param claim: what a person says of a home that was moved or copied.
    :raises StartError: it is not the home's, not whole, or cannot be opened; nothing was changed.
    """
    path = home.control_database
    pages = PageCheck(path)
    try:
        found = await asyncio.to_thread(inspect, str(path), "control")
    except DatabaseUnusable as error:
        raise StartError(_refuse_damaged(str(error))) from error
    if not accept:
        await asyncio.to_thread(_require_same, home, found)
    try:
        change = await asyncio.to_thread(judge, home, found, claim)
    except OSError as error:
        raise StartError(f"the home {home.path} cannot be used: {error}") from error
    if found is not None and found.size_bytes <= CHECKED_AT_ONCE_BYTES:
        await pages.run()
    try:
        database = await Database.open(str(path), "control")
        try:
            if accept:
                await database.write(lambda c: database_identity.accept(c, clock.now()))
            if change is not None:
                await asyncio.to_thread(change.change_files, home)
                await database.write(lambda c: change.change_database(c, time=clock.now()))
            await database.keep_witness(home.control_witness)
        except BaseException:
            await database.close()
            raise
    except (DatabaseUnusable, OSError) as error:
        raise StartError(str(error)) from error
    return ControlDatabase(database, pages)


def _require_same(home: Home, found: DatabaseFacts | None) -> None:
    """Raise StartError where the database is not the one that the home had."""
    witness = read_witness(home.control_witness)
    if found is None:
        used = [] if witness is None else [f"a database with {witness.last_event} events was used here"]
        if traces := [*used, *_traces(home, {})]:
            raise StartError(_refuse_lost(home, traces))
    elif witness is None:
        if traces := list(_folders(home, found.folders)):
            raise StartError(_refuse_unknown(home, traces))
    elif found.identity is None or found.identity.id != witness.id:
        raise StartError(_refuse_other(home))
    elif found.identity.last_event < witness.last_event:
        raise StartError(_refuse_older(home, witness.last_event - found.identity.last_event))


def _traces(home: Home, known: Collection[str]) -> Iterator[str]:
    """What shows that the home had a database that knew more than `known` experiments."""
    yield from _folders(home, known)
    records = len(list(home.nodes_directory.glob("*/jobs/*.json")))
    if records:
        yield f"{home.nodes_directory} has the records of {records} trial job{'s' * (records > 1)}"
    if any(home.nodes_directory.glob("*/node.json")):
        yield f"{home.nodes_directory} has machines"


def _folders(home: Home, known: Collection[str]) -> Iterator[str]:
    folders = [path for path in home.experiments_directory.glob("*") if path.name not in known]
    whole = [path for path in folders if (path / CONFIG_FILE).exists() and (path / METRICS_FILE).exists()]
    ours = [path for path in whole if not (path / UNFINISHED_FILE).exists()]
    if ours:
        names = ", ".join(sorted(path.name for path in ours)[:3]) + (", …" if len(ours) > 3 else "")
        yield f"{home.experiments_directory} has folders of experiments that it does not know ({names})"


_UNCHANGED = "Nothing was changed, and the trials keep running"


def _restore(home: Home) -> str:
    path = home.control_database
    return f"Restore {path.name} (and {path.name}-wal if there was one) in {home.path} from a backup"


def _accept(consequence: str) -> str:
    return f"or start once with `proctor manager start {ACCEPT_OPTION}`: {consequence}"


def _refuse_damaged(sentence: str) -> str:
    return f"{sentence} {_UNCHANGED}. To start with an empty database, move the file away first"


def _refuse_lost(home: Home, traces: list[str]) -> str:
    return (
        f"the control database {home.control_database} is missing or empty, but the home had one: {'; '.join(traces)}. "
        f"{_UNCHANGED}. {_restore(home)}, "
        + _accept("a new database is made, trials of the lost one are stopped, and its folders stay where they are")
    )


def _refuse_unknown(home: Home, traces: list[str]) -> str:
    return (
        f"the control database {home.control_database} does not belong to this home, or has lost data: "
        f"{'; '.join(traces)}. {_UNCHANGED}. {_restore(home)}, move these folders away, "
        + _accept("trials that it does not know are stopped, and these folders stay where they are")
    )


def _refuse_other(home: Home) -> str:
    return (
        f"the control database {home.control_database} is not the one that this home used: its id differs from the one "
        f"in {home.control_witness.name}. {_UNCHANGED}. {_restore(home)}, "
        + _accept("trials that it does not know are stopped")
    )


def _refuse_older(home: Home, missing: int) -> str:
    return (
        f"the control database {home.control_database} has lost its newest {missing} event{'s' * (missing > 1)}: it is "
        f"an older copy, or its log {home.control_database.name}-wal was removed or cut off. {_UNCHANGED}. "
        f"{_restore(home)}, "
        + _accept("the lost events are not recovered, and trials that it does not know are stopped")
    )
