"""A renamed home is used as before; what was copied is started only once a person has said what it is."""

import json
import os
import shutil
import sqlite3
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from proctor.manager.clock import SystemClock
from proctor.manager.lifecycle.states import ExperimentStatus, TrialStatus
from proctor.manager.lifecycle.trial import DecisionKind
from proctor.manager.process.control_database import open_control
from proctor.manager.process.home_place import identify
from proctor.manager.process.instance import StartError
from proctor.manager.settings import Home, HomeClaim
from proctor.manager.store import database_identity
from proctor.manager.store.database import Database
from proctor.manager.store.rows import DecisionRow, ExperimentRow, TrialJobRow, TrialRow
from proctor.manager.store.tables import dispatcher_inputs, events, experiments, jobs, trials
from proctor.manager.store.tables.home_place import FileIdentity
from proctor.sdk.files import open_locked
from proctor.training_services.base import TrialJobStatus

pytestmark = pytest.mark.anyio

ID = "Ab3dE5f7"
Fill = Callable[[Home], Any]
SAID_TO_PEOPLE = {("events", "data"), ("experiments", "reason"), ("home", "path")}
"""Columns in which a former path may be: what was said when it was true, and where the home is."""


@asynccontextmanager
async def opened(home: Home, claim: HomeClaim | None = None) -> AsyncIterator[Database]:
    async with (await open_control(home, SystemClock(), claim=claim)).database as database:
        yield database


async def refused(home: Home, claim: HomeClaim | None = None) -> str:
    """Why a manager does not begin; nothing is changed."""
    before = {path: path.read_bytes() for path in home.path.rglob("*") if path.is_file() and path.suffix != ".db-shm"}
    with pytest.raises(StartError) as error:
        await open_control(home, SystemClock(), claim=claim)
    assert before.items() <= {path: path.read_bytes() for path in before}.items()
    return str(error.value)


@pytest.fixture
def fill(
    make_experiment: Callable[..., ExperimentRow],
    make_trial: Callable[..., TrialRow],
    make_job: Callable[..., TrialJobRow],
) -> Fill:
    """Puts a running experiment into a home, with every kind of path: of its folder, and of checkpoints."""

    async def fill_home(home: Home, **columns: Any) -> None:
        folder = home.experiment_directory(ID)
        folder.mkdir()
        checkpoint = f"{folder}/trials/0-trial0000/jobs/1/output/checkpoints/3"
        offer = {"job_id": "trial0000.1", "path": checkpoint, "sequence": 3}
        decision = DecisionRow(
            ID, 9, 1, DecisionKind.CLONE, "trial0000", 5.0, donor_trial="trial0000", donor_checkpoint=checkpoint
        )

        def write(connection: sqlite3.Connection) -> None:
            experiments.insert(connection, make_experiment(ID, **{"directory": str(folder), **columns}))
            running = make_trial(0, status=TrialStatus.RUNNING, jobs=1, origin_checkpoint=checkpoint)
            trials.insert(connection, running)
            trials.insert(connection, make_trial(1, status=TrialStatus.PAUSED))
            live = TrialJobStatus.RUNNING
            jobs.insert(
                connection,
                make_job(
                    running, status=live, resume_checkpoint=checkpoint, checkpoints=[offer, offer], started_at=5.0
                ),
            )
            dispatcher_inputs.record(connection, decision)

        async with opened(home) as database:
            await database.write(write)

    return fill_home


def former_paths(home: Home, old: Path) -> list[tuple[str, str]]:
    """The columns of the control database in which a path is below the folder `old`."""
    found = []
    with closing(sqlite3.connect(home.control_database)) as connection:
        for (table,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
            for _, column, *_ in connection.execute(f"PRAGMA table_info({table})").fetchall():
                if connection.execute(f"SELECT 1 FROM {table} WHERE instr({column}, ?)", (f"{old}/",)).fetchone():
                    found.append((table, column))
    return found


def renamed(home: Home, name: str) -> Home:
    return Home(home.path.rename(home.path.with_name(name)))


def copied(home: Home, name: str = "copy") -> Home:
    return Home(Path(shutil.copytree(home.path, home.path.with_name(name))))


async def test_a_renamed_home_is_used_with_its_paths_adapted(home: Home, fill: Fill) -> None:
    await fill(home)
    assert len(former_paths(home, home.path)) == 5
    record = home.node_directory("local") / "jobs" / "trial0000.1.json"
    record.parent.mkdir(parents=True)
    record.write_text(json.dumps({"launch": {"directory": f"{home.path}/experiments/x", "command": "pwd"}}))
    moved = renamed(home, "élsewhere")
    async with opened(moved) as database:
        row = await database.read(lambda c: experiments.get(c, ID))
        assert (row.directory, row.status) == (str(moved.experiment_directory(ID)), ExperimentStatus.RUNNING)
        job = await database.read(lambda c: jobs.get(c, "trial0000.1"))
        assert [offer["path"] for offer in job.checkpoints or []] == [job.resume_checkpoint] * 2
        assert str(job.resume_checkpoint).startswith(f"{row.directory}/trials")
    assert former_paths(moved, home.path) == []
    launch = json.loads((moved.node_directory("local") / "jobs" / record.name).read_text())["launch"]
    assert launch == {"directory": f"{moved.path}/experiments/x", "command": "pwd"}
    await fill_nothing(renamed(moved, "home"))
    assert former_paths(home, moved.path) == []


async def fill_nothing(home: Home) -> None:
    async with opened(home):
        pass


async def test_a_folder_outside_a_renamed_home_is_named_with_its_path(home: Home, fill: Fill, tmp_path: Path) -> None:
    await fill(home, directory=str(tmp_path / "other" / ID))
    async with opened(renamed(home, "moved")) as database:
        assert (await database.read(lambda c: experiments.get(c, ID))).directory == str(tmp_path / "other" / ID)
        notices = await database.read(lambda c: events.after(c, 0, limit=99))
        said = [event.data["text"] for event in notices if event.kind == events.NOTICE]
        assert said == [
            f"the home was moved from {home.path} to {tmp_path}/moved; the folder of this experiment, "
            f"{tmp_path}/other/{ID}, is outside it"
        ]


async def test_a_home_that_is_reached_by_a_link_was_not_moved(home: Home, fill: Fill, tmp_path: Path) -> None:
    await fill(home)
    (tmp_path / "link").symlink_to(home.path)
    async with opened(Home(tmp_path / "link")) as database:
        assert (await database.read(lambda c: experiments.get(c, ID))).directory == str(home.experiment_directory(ID))


async def test_a_home_that_was_renamed_under_running_trials_is_to_be_moved_back(home: Home, fill: Fill) -> None:
    await fill(home)
    process = home.node_directory("local") / "jobs" / "trial0000.1.process"
    process.parent.mkdir(parents=True)
    claimed = open_locked(process)
    assert claimed is not None
    moved = renamed(home, "moved")
    for claim in (None, HomeClaim.MOVED):  # they write where the home was, whatever a person says
        assert f"was moved from {home.path} while a trial of it runs, with the old paths" in await refused(moved, claim)
    os.close(claimed)
    await fill_nothing(moved)


async def test_a_home_that_is_no_copy_is_not_made_one(home: Home, fill: Fill) -> None:
    await fill(home)
    assert f"the home {home.path} is no copy: " in await refused(home, HomeClaim.COPY)
    copy = copied(home)
    async with opened(copy, HomeClaim.COPY) as database:
        before = await database.read(database_identity.read)
    assert "Start it without --copy." in await refused(copy, HomeClaim.COPY)
    async with opened(copy) as database:
        assert (await database.read(database_identity.read)).id == before.id


async def test_a_copy_is_refused_until_a_person_says_what_it_is(home: Home, fill: Fill) -> None:
    await fill(home)
    copy = copied(home)
    said = await refused(copy)
    assert said.startswith(f"the home {copy.path} is a copy of {home.path}, or was moved across disks: ")
    assert "`proctor manager start --moved`" in said
    assert "`proctor manager start --copy`" in said
    said = await refused(copy, HomeClaim.MOVED)
    assert f"was not moved: {home.path} is still there" in said
    shutil.rmtree(home.path)
    before = (copy.path / "control.witness").read_text()
    async with opened(copy, HomeClaim.MOVED) as database:
        row = await database.read(lambda c: experiments.get(c, ID))
        assert (row.directory, row.status) == (str(copy.experiment_directory(ID)), ExperimentStatus.RUNNING)
        assert (await database.read(database_identity.read)).id == before.split()[0]
    await fill_nothing(copy)  # it is at home now


async def test_a_home_that_was_restored_in_its_place_is_claimed_once(home: Home, fill: Fill) -> None:
    await fill(home)
    copied(home, "backup")
    shutil.rmtree(home.path)
    restored = Home(Path(shutil.copytree(home.path.with_name("backup"), home.path)))
    assert f"the home {home.path} is restored from a copy" in await refused(restored)
    await fill_nothing_claimed(restored)
    await fill_nothing(restored)


async def fill_nothing_claimed(home: Home) -> None:
    async with opened(home, HomeClaim.MOVED):
        pass


async def test_a_copy_becomes_a_home_of_its_own_that_owns_nothing_outside(
    home: Home, fill: Fill, make_experiment: Callable[..., ExperimentRow], tmp_path: Path
) -> None:
    await fill(home, config={"checkpoint_storage": {"location": "s3://bucket/x"}}, clean_up_owed=True)
    async with opened(home) as database:
        done = ExperimentStatus.DONE
        for row in (
            make_experiment("outside1", directory=str(tmp_path / "other" / "outside1")),
            make_experiment("finished", directory=str(home.experiment_directory("finished")), status=done),
        ):
            await database.write(lambda c, row=row: experiments.insert(c, row))  # type: ignore[misc]
        original = await database.read(database_identity.read)
    known_as = home.manager_id(), home.keeper_key()
    home.node_directory("far").mkdir()
    copy = copied(home)
    async with opened(copy, HomeClaim.COPY) as database:
        assert await database.read(experiments.ids) == {ID, "finished"}
        row = await database.read(lambda c: experiments.get(c, ID))
        assert (row.status, row.directory) == (ExperimentStatus.STOPPED, str(copy.experiment_directory(ID)))
        assert row.reason == "the home was copied while this experiment was RUNNING; resume it to continue it here"
        assert (row.config["checkpoint_storage"], row.clean_up_owed) == (None, 0)
        assert (await database.read(lambda c: experiments.get(c, "finished"))).status is ExperimentStatus.DONE
        assert await database.read(jobs.all_live) == []
        assert await database.read(lambda c: jobs.run_before(c, ["trial0000"])) == {"trial0000": 0.0}
        found = await database.read(lambda c: [trials.get(c, f"trial000{number}").status for number in (0, 1)])
        assert found == [TrialStatus.WAITING, TrialStatus.PAUSED]
        identity = await database.read(database_identity.read)
        assert identity.id != original.id
    assert (copy.manager_id() != known_as[0], copy.keeper_key() != known_as[1]) == (True, True)
    assert list(copy.nodes_directory.iterdir()) == []
    await fill_nothing(copy)
    async with opened(home) as database:  # the original has lost nothing
        assert await database.read(experiments.ids) == {ID, "finished", "outside1"}
        assert (await database.read(lambda c: experiments.get(c, ID))).status is ExperimentStatus.RUNNING


def copied_with_links(home: Home) -> Home:
    """As `cp -a` does it."""
    return Home(Path(shutil.copytree(home.path, home.path.with_name("copy"), symlinks=True)))


def moved_out(path: Path, disk: Path) -> Path:
    """Have what is there on another disk, with a link in its place."""
    disk.mkdir(exist_ok=True)
    target = path.rename(disk / path.name)
    path.symlink_to(target)
    return target


async def test_a_copy_leaves_what_its_links_lead_to_to_the_original(home: Home, fill: Fill, tmp_path: Path) -> None:
    await fill(home)
    home.node_directory("far").mkdir()
    there = [moved_out(path, tmp_path / "disk") for path in (home.experiment_directory(ID), home.node_directory("far"))]
    (there[1] / "secret").touch()
    (home.nodes_directory / "known_hosts").write_text("gpu-1 ssh-ed25519 AAAA")
    copy = copied_with_links(home)
    async with opened(copy, HomeClaim.COPY) as database:
        assert await database.read(experiments.ids) == set()
    assert [path.name for path in copy.nodes_directory.iterdir()] == ["known_hosts"]
    assert (there[0].is_dir(), (there[1] / "secret").exists()) == (True, True)


@pytest.mark.parametrize("name", ["experiments", "nodes", "control.db"])
async def test_a_copy_that_shares_a_folder_with_the_original_by_a_link_is_refused(
    home: Home, fill: Fill, tmp_path: Path, name: str
) -> None:
    await fill(home)
    target = moved_out(home.path / name, tmp_path / "disk")
    copy = copied_with_links(home)
    said = await refused(copy, HomeClaim.COPY)
    assert f"{copy.path}/{name} is a link to {target}, which is the original's" in said
    (copy.path / name).unlink()
    (shutil.copytree if target.is_dir() else shutil.copy2)(target, copy.path / name)
    async with opened(copy, HomeClaim.COPY) as database:
        assert await database.read(experiments.ids) == {ID}


async def forget_place(home: Home) -> None:
    """Have the database say as little of its home as one of an earlier version."""
    with closing(sqlite3.connect(home.control_database)) as connection:
        connection.execute("UPDATE home SET path = NULL, lock = NULL")
        connection.commit()


async def test_a_home_of_an_earlier_version_that_was_renamed_or_copied_is_recognized_by_its_folders(
    home: Home, fill: Fill
) -> None:
    await fill(home)
    await forget_place(home)
    assert f"is a copy of {home.path}" in await refused(copied(home))
    moved = renamed(home, "moved")
    async with opened(moved) as database:
        assert (await database.read(lambda c: experiments.get(c, ID))).directory == str(moved.experiment_directory(ID))
    assert former_paths(moved, home.path) == []


def test_a_renamed_file_is_the_same_and_a_copy_is_another(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    first = identify(file)
    file.rename(tmp_path / "renamed")
    shutil.copy2(tmp_path / "renamed", file)
    assert identify(tmp_path / "renamed") == first
    assert not identify(file).is_same(first)


def test_a_time_of_birth_that_is_not_known_decides_nothing() -> None:
    assert FileIdentity(7, 5).is_same(FileIdentity(7))
    assert not FileIdentity(7, 5).is_same(FileIdentity(7, 6))
    assert not FileIdentity(7).is_same(FileIdentity(8))
