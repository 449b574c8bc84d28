"""A manager begins only with the control database that its home had, whole; otherwise it says what to do."""

import os
import shutil
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from proctor.manager.clock import SystemClock
from proctor.manager.process import control_database
from proctor.manager.process.control_database import open_control
from proctor.manager.process.instance import StartError
from proctor.manager.settings import CONFIG_FILE, METRICS_FILE, UNFINISHED_FILE, Home
from proctor.manager.store import database_identity
from proctor.manager.store.database import Database
from proctor.manager.store.database_identity import read_witness
from proctor.manager.store.migrations import load_migrations
from proctor.manager.store.tables import events

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def opened(home: Home, *, accept: bool = False) -> AsyncIterator[Database]:
    async with (await open_control(home, SystemClock(), accept=accept)).database as database:
        yield database


async def use(home: Home, *, notes: int = 3) -> None:
    """Have a manager write something."""
    async with opened(home) as database:
        await note(database, notes)


async def note(database: Database, notes: int) -> None:
    for _ in range(notes):
        await database.write(lambda c: events.append(c, time=1.0, kind=events.NOTICE, data={"text": "x" * 200}))


async def refused(home: Home) -> str:
    """Why a manager does not begin; that changes nothing."""
    before = contents(home)
    with pytest.raises(StartError) as error:
        await open_control(home, SystemClock(), accept=False)
    assert contents(home) == before
    return str(error.value)


def contents(home: Home) -> dict[str, bytes]:
    """The files of the database but the index and an empty log, which SQLite makes to read it."""
    paths = [path for path in home.path.glob("control.*") if not path.name.endswith("-shm")]
    return {path.name: body for path in paths if (body := path.read_bytes())}


def killed(home: Home, target: Path) -> Home:
    """A home as a manager leaves it that is killed now: nothing was moved from the log into the database."""
    found = Home(Path(shutil.copytree(home.path, target)))
    found.lock_file.unlink()
    os.link(home.lock_file, found.lock_file)  # it is no copy to the manager
    return found


def experiment(home: Home, name: str, *files: str) -> None:
    folder = home.experiment_directory(name)
    folder.mkdir()
    for file in files:
        (folder / file).write_text("{}")


async def test_a_new_home_gets_a_database_and_finds_it_again(home: Home) -> None:
    await use(home)
    witness = read_witness(home.control_witness)
    assert witness is not None
    assert (len(witness.id), witness.last_event) == (32, 3)
    async with opened(home) as database:
        assert await database.read(database_identity.read) == witness


async def test_a_deleted_or_emptied_database_is_refused_and_its_log_is_left(home: Home, tmp_path: Path) -> None:
    async with opened(home) as database:
        await note(database, 3)
        deleted, emptied = killed(home, tmp_path / "deleted"), killed(home, tmp_path / "emptied")
    deleted.control_database.unlink()
    os.truncate(emptied.control_database, 0)
    for broken in (deleted, emptied):
        why = await refused(broken)
        assert f"{broken.control_database} is missing or empty, but the home had one" in why
        assert "a database with 3 events was used here" in why
        assert "`proctor manager start --accept-database`" in why
        assert (broken.path / "control.db-wal").stat().st_size > 0
        shutil.copyfile(home.control_database, broken.control_database)
        async with opened(broken) as database:
            assert await database.read(events.last_id) == 3


@pytest.mark.parametrize("kept", [0.0, 0.5])
async def test_a_database_whose_log_was_cut_off_is_refused(home: Home, tmp_path: Path, kept: float) -> None:
    await use(home)
    async with opened(home) as database:
        await note(database, 4)
        whole, cut = killed(home, tmp_path / "whole"), killed(home, tmp_path / "cut")
    log = cut.path / "control.db-wal"
    os.truncate(log, int(log.stat().st_size * kept))
    why = await refused(cut)
    assert "has lost its newest" in why
    assert "its log control.db-wal was removed or cut off" in why
    shutil.copyfile(whole.path / "control.db-wal", log)
    async with opened(cut) as database:
        assert await database.read(events.last_id) == 7


async def test_an_older_copy_is_refused_unless_a_person_accepts_it(home: Home, tmp_path: Path) -> None:
    await use(home)
    copy = tmp_path / "copy.db"
    shutil.copyfile(home.control_database, copy)
    await use(home)
    shutil.copyfile(copy, home.control_database)
    assert "has lost its newest 3 events: it is an older copy" in await refused(home)
    async with opened(home, accept=True) as database:
        assert await database.read(lambda c: database_identity.unknown_since(c, "whoever")) > 0
    await use(home)


async def test_the_database_of_another_home_is_refused(home: Home, tmp_path: Path) -> None:
    other = Home(tmp_path / "other")
    other.prepare()
    other.lock_file.touch()
    await use(home)
    await use(other, notes=9)
    shutil.copyfile(other.control_database, home.control_database)
    assert "is not the one that this home used" in await refused(home)


async def test_a_damaged_database_is_refused_also_by_who_accepts_another_one(home: Home) -> None:
    await use(home, notes=200)
    whole = home.control_database.read_bytes()
    for begin, end in ((4096 * 6, 4096 * 12), (0, 4096)):
        home.control_database.write_bytes(whole[:begin] + b"\x5a" * (end - begin) + whole[end:])
        why = await refused(home)
        assert "is damaged" in why
        assert "Restore it from a copy." in why
        with pytest.raises(StartError, match="is damaged"):
            await open_control(home, SystemClock(), accept=True)
    home.control_database.write_bytes(whole)
    await use(home)


async def test_a_large_database_is_read_through_beside_the_start(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    await use(home, notes=200)
    monkeypatch.setattr(control_database, "CHECKED_AT_ONCE_BYTES", 0)
    control = await open_control(home, SystemClock(), accept=False)
    async with control.database:
        assert not control.pages.done.is_set()
        await control.pages.run()
        assert control.pages.done.is_set()
    whole = home.control_database.read_bytes()
    home.control_database.write_bytes(whole[: 4096 * 6] + b"\x5a" * 4096 * 6 + whole[4096 * 12 :])
    control = await open_control(home, SystemClock(), accept=False)
    async with control.database:
        with pytest.raises(StartError, match="is damaged"):
            await control.pages.run()
        assert not control.pages.done.is_set()


async def test_without_a_witness_the_folders_of_experiments_tell(home: Home) -> None:
    await use(home)
    experiment(home, "half", CONFIG_FILE, METRICS_FILE, UNFINISHED_FILE)
    experiment(home, "foreign", "notes.txt")
    home.control_witness.write_text("torn")
    await use(home)  # neither is an experiment
    home.control_witness.unlink()
    experiment(home, "digits", CONFIG_FILE, METRICS_FILE)
    assert "has folders of experiments that it does not know (digits)" in await refused(home)
    async with opened(home, accept=True):
        pass
    assert home.experiment_directory("digits").exists()
    await use(home)  # the witness is there again


async def test_a_home_whose_keepers_have_jobs_is_not_begun_with_an_empty_database(home: Home) -> None:
    records = home.node_directory("local") / "jobs"
    records.mkdir(parents=True)
    (records / "a.1.json").write_text("{}")
    assert "has the records of 1 trial job" in await refused(home)


async def test_a_database_from_before_there_were_witnesses_is_taken(home: Home) -> None:
    experiment(home, "digits", CONFIG_FILE)
    connection = sqlite3.connect(home.control_database)
    for script in load_migrations("control")[:5]:
        connection.executescript(script)
    connection.executescript(f"PRAGMA application_id = {0x50524331}; PRAGMA user_version = 5")
    connection.close()
    await use(home)
    assert read_witness(home.control_witness) is not None


async def test_a_disk_that_takes_no_witness_is_no_error(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, data: bytes, offset: int) -> int:
        raise OSError(28, "No space left on device")

    async with opened(home) as database:
        monkeypatch.setattr(os, "pwrite", refuse)
        await note(database, 2)
    monkeypatch.undo()
    await use(home)
