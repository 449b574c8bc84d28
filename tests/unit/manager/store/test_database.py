"""Database files: shared commits, savepoints, reads, closing, migrations."""

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from proctor.manager.lifecycle.experiment_failures import NO_ENDS, TrialEnds
from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.manager.store.database import HEALTHY, Database
from proctor.manager.store.errors import DatabaseUnusable, NewerDatabase, ReadTimeout
from proctor.manager.store.migrations import load_migrations
from proctor.manager.store.tables import events, experiments, jobs, trials
from proctor.manager.store.tables.jobs import JobUsage

pytestmark = pytest.mark.anyio

ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Where the database of a test lies."""
    return str(tmp_path / "control.db")


@pytest.fixture
async def database(path: str) -> AsyncIterator[Database]:
    """A database that is open during a test."""
    async with await Database.open(path, "control") as database:
        yield database


def _note(connection: sqlite3.Connection) -> int:
    return events.append(connection, time=1.0, kind=events.NOTICE, data={})


def _last(connection: sqlite3.Connection) -> int:
    return events.last_id(connection)


class _Gate:
    """A write that holds the writer thread until it is opened."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, connection: sqlite3.Connection) -> None:
        self.entered.set()
        assert self.opened.wait(30)

    def open_once_entered(self) -> None:
        assert self.entered.wait(30)
        self.opened.set()


async def test_a_write_returns_its_result_once_it_is_committed(database: Database, path: str) -> None:
    assert await database.write(_note) == 1
    other = sqlite3.connect(path)
    assert other.execute("SELECT count(*) FROM events").fetchone() == (1,)
    other.close()
    assert (database.commits, database.health, database.pending) == (1, HEALTHY, 0)


async def test_the_file_is_its_owners_and_keeps_every_commit_on_disk(database: Database, path: str) -> None:
    assert os.stat(path).st_mode & 0o777 == 0o600
    pragmas = ("journal_mode", "synchronous", "foreign_keys")
    settings = await database.write(lambda c: [c.execute(f"PRAGMA {name}").fetchone()[0] for name in pragmas])
    assert settings == ["wal", 2, 1]


async def test_writes_of_one_turn_share_one_commit_and_keep_their_order(database: Database) -> None:
    assert await asyncio.gather(*(database.write(_note) for _ in range(50))) == list(range(1, 51))
    assert database.commits == 1


async def test_writes_that_queue_up_behind_a_commit_share_the_next_one(database: Database) -> None:
    gate = _Gate()
    waiting: list[Awaitable[object]] = [database.write(gate)]
    await asyncio.to_thread(gate.entered.wait, 30)
    for _ in range(20):
        waiting.append(database.write(_note))
        await asyncio.sleep(0)
    gate.opened.set()
    await asyncio.gather(*waiting)
    assert database.commits == 1  # the gate itself changed nothing


async def test_a_write_that_changes_nothing_is_no_commit(database: Database) -> None:
    assert await database.write(_last) == 0
    assert database.commits == 0


async def test_a_write_that_raises_takes_back_only_itself(database: Database) -> None:
    def fail(connection: sqlite3.Connection) -> None:
        _note(connection)
        raise LookupError("the caller's own error")

    def clash(connection: sqlite3.Connection) -> None:
        _note(connection)
        connection.execute("INSERT INTO nodes (id, kind, status) VALUES ('n', 'local', 'x'), ('n', 'local', 'x')")

    results = await asyncio.gather(
        database.write(_note), database.write(fail), database.write(clash), database.write(_note),
        return_exceptions=True,
    )  # fmt: skip
    assert [type(result) for result in results] == [int, LookupError, sqlite3.IntegrityError, int]
    assert (await database.read(_last), database.commits, database.health) == (2, 1, HEALTHY)


async def test_a_write_that_ends_the_transaction_harms_no_other(database: Database) -> None:
    results = await asyncio.gather(
        database.write(_note), database.write(lambda c: c.execute("ROLLBACK")), database.write(_note),
        return_exceptions=True,
    )  # fmt: skip
    assert [type(result) for result in results] == [int, sqlite3.OperationalError, int]
    assert await database.read(_last) == 2


async def test_a_cancelled_caller_stops_waiting_and_the_write_goes_on(database: Database) -> None:
    gate = _Gate()
    holding = database.write(gate)
    await asyncio.to_thread(gate.entered.wait, 30)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await database.write(_note)
    gate.opened.set()
    await holding
    assert await database.write(_last) == 1
    assert database.pending == 0


async def test_a_read_sees_every_write_that_was_awaited_and_changes_nothing(database: Database) -> None:
    for expected in range(1, 6):
        await database.write(_note)
        assert list(await asyncio.gather(database.read(_last), database.read(_last))) == [expected] * 2
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        await database.read(_note)
    assert await database.read(_last) == 5


async def test_a_read_stays_on_one_state_of_the_database(database: Database) -> None:
    seen: list[int] = []
    read_once, written = threading.Event(), threading.Event()

    def look_twice(connection: sqlite3.Connection) -> None:
        seen.append(_last(connection))
        read_once.set()
        assert written.wait(30)
        seen.append(_last(connection))

    looking = database.read(look_twice)
    await asyncio.to_thread(read_once.wait, 30)
    await database.write(_note)
    written.set()
    await looking
    assert seen == [0, 0]


async def test_a_read_that_takes_too_long_is_interrupted_and_the_next_one_works(database: Database) -> None:
    with pytest.raises(ReadTimeout, match=r"longer than 0\.01 s"):
        await database.read(lambda c: c.execute(ENDLESS).fetchone(), time_limit_seconds=0.01)
    assert await database.read(_last) == 0


async def test_what_a_read_raises_reaches_its_caller(database: Database) -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        await database.read(lambda c: c.execute("SELECT * FROM nowhere"))


async def test_closing_carries_out_what_was_asked_and_refuses_the_rest(path: str) -> None:
    database = await Database.open(path, "control")
    gate = _Gate()
    asked = [database.write(gate), *(database.write(_note) for _ in range(5)), database.read(_last)]
    closing = [asyncio.ensure_future(database.close()) for _ in range(2)]
    await asyncio.sleep(0)
    gate.opened.set()
    await asyncio.gather(*closing)
    assert [future.done() for future in asked] == [True] * 7  # type: ignore[attr-defined]
    assert asked[5].result() == 5  # type: ignore[attr-defined]
    with pytest.raises(DatabaseUnusable, match="is closed"):
        await database.write(_note)
    with pytest.raises(DatabaseUnusable, match="is closed"):
        await database.read(_last)
    await database.close()
    assert database.pending == 0
    assert not os.path.exists(f"{path}-wal")


async def test_outside_work_is_told_while_it_lasts(path: str) -> None:
    reported: list[int] = []
    async with await Database.open(path, "control", on_pending=reported.append) as database:
        assert sum(reported) == 0
        writing, reading = database.write(_note), database.read(_last)
        assert (sum(reported), database.pending) == (2, 2)
        await asyncio.gather(writing, reading)
        assert (sum(reported), database.pending) == (0, 0)
        with pytest.raises(LookupError):
            await database.write(_raise)
    assert sum(reported) == 0


def _raise(connection: sqlite3.Connection) -> None:
    raise LookupError


def test_virtual_time_stands_still_while_a_write_is_under_way(path: str) -> None:
    gate = _Gate()

    async def main(loop: VirtualTimeLoop) -> int:
        async with await Database.open(path, "control", on_pending=loop.pending) as database:
            holding = database.write(gate)
            threading.Thread(target=gate.open_once_entered).start()
            async with asyncio.timeout(0.001):
                await holding
                return await database.write(_note)

    assert run_virtual(main) == 1


async def test_reopening_keeps_the_rows_and_the_version(path: str) -> None:
    for expected in (1, 2):
        async with await Database.open(path, "control") as database:
            assert await database.write(_note) == expected
            version = await database.read(lambda c: c.execute("PRAGMA user_version").fetchone()[0])
            assert version == len(load_migrations("control"))


def made_before(path: str, column: str) -> sqlite3.Connection:
    """A control database of the last version without this column."""
    scripts = load_migrations("control")
    version = next(number for number, script in enumerate(scripts) if column in script)
    connection = sqlite3.connect(path)
    connection.executescript("".join(scripts[:version]) + f"PRAGMA application_id = {0x50524331}")
    connection.execute(f"PRAGMA user_version = {version}")
    return connection


async def test_an_experiment_of_an_older_version_is_not_judged_by_its_next_trials(path: str) -> None:
    connection = made_before(path, "ended_trials")
    experiment = "INSERT INTO experiments (id, name, status, config, search_space, directory, seed, created_at, "
    experiment += "trial_concurrency) VALUES (?, 'e', 'RUNNING', '{}', '{}', '/e', 1, 0, 1)"
    connection.executemany(experiment, [("old",), ("new",)])
    trial = "INSERT INTO trials (id, experiment_id, sequence_id, status, parameter_id, parameters, created_at) "
    trial += "VALUES (?, 'old', ?, ?, 1, '{}', 0)"
    statuses = ("SUCCEEDED", "FAILED", "SYS_CANCELED", "RUNNING")
    connection.executemany(trial, [(f"t{n}", n, status) for n, status in enumerate(statuses)])
    connection.commit()
    connection.close()
    async with await Database.open(path, "control") as database:
        old, new = [await database.read(lambda c, key=key: experiments.get(c, key)) for key in ("old", "new")]
    assert (old.trial_ends, new.trial_ends) == (TrialEnds(ended=2), NO_ENDS)


async def test_jobs_of_an_older_version_are_counted_once(path: str) -> None:
    connection = made_before(path, "job_usage")
    connection.executescript(
        """
        INSERT INTO experiments (id, name, status, config, search_space, directory, seed, created_at, trial_concurrency)
        VALUES ('e', 'e', 'RUNNING', '{}', '{}', '/e', 1, 0, 1);
        INSERT INTO trials (id, experiment_id, sequence_id, status, parameter_id, parameters, created_at)
        VALUES ('t', 'e', 0, 'RUNNING', 1, '{}', 0);
        INSERT INTO trial_jobs (
            id, trial_id, experiment_id, number, token, status, parameter_id, parameters, placement, node_id,
            started_at, ended_at
        ) VALUES
        ('t.1', 't', 'e', 1, 'x', 'ENDED', 1, '{}', '{"node_id": "a", "gpus": [{}, {}]}', 'a', 10, 20),
        ('t.2', 't', 'e', 2, 'x', 'ENDED', 1, '{}', '{"node_id": "a", "gpus": null}', 'a', 10, 20),
        ('t.3', 't', 'e', 3, 'x', 'ENDED', 1, '{}', NULL, NULL, NULL, 20),
        ('t.4', 't', 'e', 4, 'x', 'RUNNING', 1, '{}', '{"node_id": "b", "gpus": [{}]}', 'b', 30, NULL);
        """
    )
    connection.close()
    async with await Database.open(path, "control") as database:
        used = await database.read(lambda c: jobs.usage_by_node(c, now=35.0))
    assert used == {"a": JobUsage(20.0, 0.0, 2), "b": JobUsage(5.0, 0.0, 1)}


async def test_a_pause_of_an_older_version_is_the_schedulers_if_its_log_paused_the_trial_else_the_users(
    path: str,
) -> None:
    connection = made_before(path, "paused_by")
    connection.executescript(
        """
        INSERT INTO experiments (id, name, status, config, search_space, directory, seed, created_at, trial_concurrency)
        VALUES ('e', 'e', 'RUNNING', '{}', '{}', '/e', 1, 0, 1);
        INSERT INTO trials (id, experiment_id, sequence_id, status, reason, parameter_id, parameters, created_at, jobs)
        VALUES ('scheduled', 'e', 0, 'PAUSED', '', 1, '{}', 0, 2),
               ('user', 'e', 1, 'PAUSED', '', 1, '{}', 0, 2),
               ('never ran', 'e', 2, 'PAUSED', '', 1, '{}', 0, 0),
               ('with all', 'e', 3, 'PAUSED', 'paused with its experiment', 1, '{}', 0, 1),
               ('being paused', 'e', 4, 'RUNNING', '', 1, '{}', 0, 1),
               ('running', 'e', 5, 'RUNNING', '', 1, '{}', 0, 1),
               ('retried', 'e', 6, 'WAITING', '', 1, '{}', 0, 1);
        INSERT INTO trial_jobs (
            id, trial_id, experiment_id, number, token, status, parameter_id, parameters, stop_reason, stop_position,
            detail
        ) VALUES
        ('1', 'scheduled', 'e', 2, 'x', 'ENDED', 1, '{}', 'PAUSED', 7, ''),
        ('2', 'user', 'e', 1, 'x', 'ENDED', 1, '{}', 'PAUSED', 7, ''),
        ('3', 'user', 'e', 2, 'x', 'ENDED', 1, '{}', 'PAUSED', NULL, 'paused by the user'),
        ('4', 'with all', 'e', 1, 'x', 'ENDED', 1, '{}', 'PAUSED', NULL, 'paused with its experiment'),
        ('5', 'being paused', 'e', 1, 'x', 'STOPPING', 1, '{}', 'PAUSED', 8, ''),
        ('6', 'running', 'e', 1, 'x', 'RUNNING', 1, '{}', NULL, NULL, ''),
        ('7', 'retried', 'e', 1, 'x', 'ENDED', 1, '{}', 'PAUSED', 7, '');
        """
    )
    connection.close()
    async with await Database.open(path, "control") as database:
        rows = (await database.read(lambda c: trials.page(c, "e"))).items
    assert {row.id: row.paused_by for row in rows} == {
        "scheduled": "SCHEDULER",
        "user": "USER",
        "never ran": "USER",
        "with all": "EXPERIMENT",
        "being paused": "SCHEDULER",
        "running": None,
        "retried": None,
    }


async def test_a_database_of_a_newer_version_is_refused_and_left_alone(path: str) -> None:
    async with await Database.open(path, "control") as database:
        await database.write(lambda c: c.execute("PRAGMA user_version = 999"))
    before = Path(path).read_bytes()
    with pytest.raises(NewerDatabase, match="has version 999, written by a newer Proctor"):
        await Database.open(path, "control")
    assert Path(path).read_bytes() == before


async def test_a_database_of_another_kind_is_refused(path: str) -> None:
    await (await Database.open(path, "control")).close()
    with pytest.raises(DatabaseUnusable, match="is not a Proctor metrics database"):
        await Database.open(path, "metrics")


async def test_a_file_that_is_no_database_is_refused(path: str) -> None:
    Path(path).write_bytes(b"dear diary" * 1000)
    with pytest.raises(DatabaseUnusable, match="file is not a database"):
        await Database.open(path, "control")
    assert Path(path).read_bytes() == b"dear diary" * 1000


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnusable, match=r"nowhere/control\.db cannot be opened"):
        await Database.open(str(tmp_path / "nowhere" / "control.db"), "control")


async def test_an_experiment_of_an_older_version_keeps_the_first_rules(path: str) -> None:
    connection = made_before(path, "ADD COLUMN rules")
    connection.execute(
        "INSERT INTO experiments (id, name, status, config, search_space, directory, seed, created_at, "
        "trial_concurrency) VALUES ('old', 'e', 'RUNNING', '{}', '{}', '/e', 1, 0, 1)"
    )
    connection.commit()
    connection.close()
    async with await Database.open(path, "control") as database:
        assert (await database.read(lambda c: experiments.get(c, "old"))).rules == 1


async def test_a_failed_migration_leaves_the_version_before_it(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    await (await Database.open(path, "control")).close()
    scripts = (*load_migrations("control"), "CREATE TABLE fine (id INTEGER);\nCREATE TABLE fine (id INTEGER);")
    monkeypatch.setattr("proctor.manager.store.migrations.load_migrations", lambda schema: scripts)
    with pytest.raises(DatabaseUnusable, match="table fine already exists"):
        await Database.open(path, "control")
    monkeypatch.undo()
    async with await Database.open(path, "control") as database:
        tables = await database.read(lambda c: c.execute("SELECT name FROM sqlite_schema").fetchall())
    assert ("events",) in tables
    assert ("fine",) not in tables


async def test_the_log_stays_bounded_and_reaches_the_database(path: str) -> None:
    def write_much(connection: sqlite3.Connection) -> None:
        events.append(connection, time=1.0, kind=events.NOTICE, data={"text": "x" * 128 * 1024})

    largest = 0
    async with await Database.open(path, "control") as database:
        for _ in range(320):  # 40 MiB
            await database.write(write_much)
            largest = max(largest, os.stat(f"{path}-wal").st_size)
        assert os.stat(path).st_size > 16 * 2**20
    assert largest < 20 * 2**20


async def test_a_checkpoint_is_due_now_and_then_beside_the_writes(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(database._readers, "checkpoint", lambda: asked.append("checkpoint"))
    for _ in range(251):
        await database.write(_note)
    assert len(asked) == 1
    await database.write(lambda c: [_note(c) for _ in range(10_001)] and None)
    assert len(asked) == 2


async def test_without_threads_everything_happens_in_the_loop_in_the_order_asked(path: str) -> None:
    order: list[str] = []

    def step(name: str) -> Callable[[sqlite3.Connection], int]:
        def run(connection: sqlite3.Connection) -> int:
            order.append(f"{name} in {threading.current_thread().name}")
            return _note(connection) if name.startswith("write") else _last(connection)

        return run

    here = threading.current_thread().name
    database = await Database.open(path, "control", threads=False)
    first = database.write(step("write 1")), database.read(step("read 1"))
    assert list(await asyncio.gather(*first)) == [1, 1]
    with pytest.raises(LookupError):
        await database.write(_raise)
    last = database.read(step("read 2"))
    await database.close()
    assert await last == 1
    assert order == [f"write 1 in {here}", f"read 1 in {here}", f"read 2 in {here}"]
    assert (database.commits, database.pending) == (1, 0)
    assert not os.path.exists(f"{path}-wal")


async def test_a_read_that_its_caller_does_not_wait_for_any_more_ends(path: str) -> None:
    database = await Database.open(path, "control")
    begun = threading.Semaphore(0)

    def read(connection: sqlite3.Connection) -> None:
        begun.release()
        connection.execute(ENDLESS)

    async with asyncio.timeout(60):
        running = [asyncio.ensure_future(database.read(read, 3600.0)) for _ in range(20)]  # more than there are threads
        await asyncio.to_thread(begun.acquire)
        for each in running:
            each.cancel()
        assert await database.read(_last) == 0
        await database.close()
