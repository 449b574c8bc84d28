"""Whatever is killed, whenever: a job starts once, ends once, and its reports arrive once and in order."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from fakes.armed_places import ArmedPlaces
from fakes.keeper_node import Node, eventually, kill_and_wait, open_node, readable

from proctor.trial_keeper.errors import KeeperNotStarted
from proctor.trial_keeper.jobs.launching import prepare_directory
from proctor.trial_keeper.jobs.records import JobRecord
from proctor.trial_keeper.linux.identity import boot_id, is_alive, open_pidfd, start_time
from proctor.trial_keeper.linux.processes import survey
from proctor.trial_keeper.protocol import Cancel, EndReason, Exit, Launch, to_json
from proctor.trial_keeper.start import find_keeper

pytestmark = pytest.mark.anyio

# Places in keeper, spawner and reaper where something is written or done (docs/keeper.md lists what each is).
STARTING = [
    "keeper.register.before",
    "keeper.register.after",
    "keeper.commands.before",
    "keeper.commands.after",
    "file.replace.before",  # parameter.json
    "file.replace.after",
    "file.replace.before@3",  # the intent; its keeper has written keeper.json and parameter.json before
    "file.replace.after@3",
    "keeper.intent.before",
    "keeper.intent.after",
    "keeper.launch.before",
    "keeper.launch.after",
    "spawner.fork.before",
    "spawner.fork.after",
    "reaper.claim.before",
    "reaper.claim.after",
    "reaper.start.before",
    "reaper.start.after",
]
ENDING = [
    "file.replace.before",  # exit.json
    "file.replace.after",
    "reaper.exit.before",
    "reaper.exit.after",
    "keeper.exit.sync.before",
    "keeper.exit.sync.after",
    "keeper.report.before",
    "keeper.report.after",
    "keeper.exit.ack.before",
    "keeper.exit.ack.after",
]
STOPPING = ["keeper.stop.signal.before", "keeper.stop.signal.after", "reaper.stop.before", "reaper.stop.after"]
WITHOUT_REAPER = ["keeper.stop.before", "keeper.stop.after"]


def counting(node: Node, job_id: str, count: int) -> Launch:
    """A trial that reports 1, 2, 3, … at once and notes in a ledger of its own that it was started."""
    journal, ledger = node.job_directory(job_id) / "journal", node.directory / f"ledger-{job_id}"
    command = f"echo $$ >> {ledger}; for i in $(seq {count}); do echo $i >> {journal}; sleep 0.01; done"
    return node.launch(job_id, command)


def numbers(count: int) -> bytes:
    return "".join(f"{number}\n" for number in range(1, count + 1)).encode()


def ledger(node: Node, job_id: str = "T.1") -> list[str]:
    path = node.directory / f"ledger-{job_id}"
    return path.read_text().split() if path.exists() else []


async def test_a_new_keeper_adopts_the_jobs_of_one_that_was_killed(node: Node) -> None:
    start = await node.begin(counting(node, "T.1", 100), node.launch("U.1", "sleep 600"))
    await node.manager.start_of("U.1")
    await node.replace_keeper()
    await node.manager.until(lambda: len(node.manager.registrations) == 2)
    assert {job.job_id: job.pid for job in node.manager.registrations[1].jobs}["T.1"] == start.pid
    assert (await node.manager.end_of("T.1")).reason == EndReason.EXITED_OK
    assert node.manager.journals["T.1", "0"] == numbers(100)
    assert ledger(node) == [str(start.pid)]
    assert (await node.cancel("U.1")).reason == EndReason.CANCELED


async def test_a_job_that_ends_while_no_keeper_runs_is_told_by_the_next_one(node: Node) -> None:
    await node.begin("sleep 0.3; echo 1 >> $PROCTOR_JOB_DIR/journal; exit 5")
    reaper = node.process("T.1").reaper
    await node.kill()
    descriptor = open_pidfd(reaper.pid, reaper.started)
    if descriptor is not None:
        await readable(descriptor)
        os.close(descriptor)
    await node.start()
    assert (await node.manager.end_of("T.1")).code == 5
    assert node.manager.journals["T.1", "0"] == b"1\n"


@pytest.fixture(params=["socket", "TLS"])
async def linked_node(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Node]:
    """A node whose keeper reaches its manager either way."""
    async with open_node(tmp_path / "node", uses_tls=request.param == "TLS") as node:
        yield node


async def test_a_restarted_manager_gets_everything_once(linked_node: Node) -> None:
    node = linked_node
    await node.manager.command(counting(node, "T.1", 200))
    for count in (20, 60, 100):
        await node.manager.until(lambda count=count: len(node.manager.journals.get(("T.1", "0"), b"")) > count)
        await node.manager.restart()
    await node.manager.until(lambda: len(node.manager.journals["T.1", "0"]) > 200)
    await node.manager.forget_session()
    await node.manager.end_of("T.1")
    assert node.manager.journals["T.1", "0"] == numbers(200)
    assert not node.manager.overlaps
    assert len(node.manager.registrations) >= 4


async def test_a_manager_that_cannot_prove_itself_learns_nothing(linked_node: Node) -> None:
    node = linked_node
    await node.manager.stop()
    node.manager.knows_secret = False
    known = len(node.manager.registrations)
    await node.manager.start()
    log = node.keeper_directory / "log"
    await eventually(lambda: "does not know this node's secret" in log.read_text())
    assert len(node.manager.registrations) == known
    await node.manager.stop()
    node.manager.knows_secret = True
    await node.manager.start()
    await node.manager.until(lambda: len(node.manager.registrations) == known + 1)


def hiding(node: Node, job_id: str) -> Launch:
    """A trial with a child that has left its session, its parents and its environment."""
    note = node.directory / f"hidden-{job_id}"
    hidden = f"echo $$ > {note}.new; mv {note}.new {note}; exec sleep 600"
    return node.launch(job_id, f"(setsid env -i sh -c '{hidden}' &); sleep 600")


HiddenProcess = Callable[[str], Awaitable[tuple[int, int]]]


@pytest.fixture
async def hidden_process(node: Node) -> AsyncIterator[HiddenProcess]:
    """The pid of that child of a job, and when it was started. After a failure it is killed."""
    found: list[tuple[int, int]] = []

    async def wait_for(job_id: str) -> tuple[int, int]:
        note = node.directory / f"hidden-{job_id}"
        await eventually(note.exists)
        pid = int(note.read_text())
        found.append((pid, start_time(pid) or 0))
        return found[-1]

    yield wait_for
    for pid, started in found:
        if is_alive(pid, started):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("first", ["", "keeper", "spawner"])
async def test_no_child_survives_the_kill_of_its_reaper_wherever_it_hides(
    node: Node, hidden_process: HiddenProcess, first: str
) -> None:
    """Also where the reaper has lost its keeper or its spawner before."""
    await node.manager.command(hiding(node, "T.1"), hiding(node, "U.1"))
    await node.manager.start_of("T.1")
    start = await node.manager.start_of("U.1")
    hidden, of_the_other = await hidden_process("T.1"), await hidden_process("U.1")
    reaper = node.process("T.1").reaper.pid
    if first == "keeper":
        await node.kill()
    elif first == "spawner":
        await kill_and_wait(survey()[reaper].parent)
    await kill_and_wait(reaper)
    if first == "keeper":  # else the keeper may be faster than we are
        assert is_alive(*hidden)
        await node.start()
    assert (await node.manager.end_of("T.1")).reason == EndReason.EXIT_UNKNOWN
    assert not is_alive(*hidden)
    assert is_alive(*of_the_other), "the other job keeps running, hidden children and all"
    assert is_alive(start.pid, node.process("U.1").trial.started)
    await node.manager.command(Cancel("U.1", "token of U.1"), node.launch("V.1", "true"))
    assert (await node.manager.end_of("U.1")).reason == EndReason.CANCELED
    assert not is_alive(*of_the_other)
    assert (await node.manager.end_of("V.1")).reason == EndReason.EXITED_OK


async def test_a_spawner_outlives_its_keeper_for_as_long_as_its_reapers_do(node: Node) -> None:
    await node.begin("sleep 600")
    spawner = node.spawner("T.1")
    started = start_time(spawner) or 0
    assert await node.stop()
    assert is_alive(spawner, started)
    await node.start()
    await node.manager.until(lambda: len(node.manager.registrations) == 2)
    await node.cancel()
    await eventually(lambda: not is_alive(spawner, started))


async def test_a_reaper_told_to_end_by_somebody_else_ends_its_job(node: Node) -> None:
    await node.begin("setsid sleep 600 & sleep 600")
    os.kill(node.process("T.1").reaper.pid, signal.SIGTERM)
    end = await node.manager.end_of("T.1")
    assert (end.reason, "from outside" in end.detail) == (EndReason.SIGNALED, True)
    assert node.members("T.1") == []


DAMAGED = b"\xff\xfe\0 not UTF-8"


@pytest.mark.parametrize("lives", [True, False], ids=["its reaper lives", "its reaper is dead"])
async def test_a_job_whose_process_record_is_damaged_is_stopped_and_its_end_unknown(node: Node, lives: bool) -> None:
    await node.begin("setsid sleep 600 & sleep 600", node.launch("U.1", "sleep 600"))
    start = await node.manager.start_of("U.1")
    reaper = node.process("T.1").reaper
    await node.kill()
    if not lives:
        await kill_and_wait(reaper.pid)
    Path(node.records.process_file("T.1")).write_bytes(DAMAGED)
    await node.start()
    end = await node.manager.end_of("T.1")
    assert end.reason == EndReason.EXIT_UNKNOWN
    assert node.members("T.1") == []
    assert open_pidfd(reaper.pid, reaper.started) is None
    assert node.process("U.1").trial.pid == start.pid, "the other jobs keep running"
    assert "T.1" in (node.keeper_directory / "log").read_text()
    await node.cancel("U.1")


async def test_nothing_is_left_of_a_job_whose_record_is_damaged_when_its_manager_hears_that_it_is_unknown(
    node: Node,
) -> None:
    await node.begin("trap '' TERM; setsid sleep 600 & sleep 600; sleep 600")
    await eventually(lambda: len(node.members("T.1")) >= 2)
    await node.kill()
    Path(node.records.record_file("T.1")).write_bytes(DAMAGED)
    members: list[int] = []
    node.manager.before_answer = lambda name: members.extend(node.members("T.1")) if name == "register" else None
    known = len(node.manager.registrations)
    await node.start()
    await node.manager.until(lambda: len(node.manager.registrations) > known)
    assert node.manager.registrations[-1].jobs == []
    assert members == []
    assert [file.name for file in node.records.path.iterdir()] == ["T.1.unreadable"]


EXITED_WELL = json.dumps(to_json(Exit(EndReason.EXITED_OK, 0, None, 1.0, 2.0))).encode()


@pytest.mark.parametrize("content", [DAMAGED, EXITED_WELL], ids=["unreadable", "not written by its reaper"])
@pytest.mark.parametrize("keeper_lives", [True, False], ids=["under its keeper", "without a keeper"])
async def test_no_end_is_reported_while_the_trial_runs(node: Node, content: bytes, keeper_lives: bool) -> None:
    await node.begin("trap '' TERM; while true; do sleep 1; done")
    process = node.process("T.1")
    (node.job_directory("T.1") / "exit.json").write_bytes(content)
    living: list[bool] = []
    node.manager.before_answer = lambda name: (
        living.append(is_alive(process.trial.pid, process.trial.started)) if name == "report" else None
    )
    if not keeper_lives:
        await node.kill()
    await kill_and_wait(process.reaper.pid)
    assert is_alive(process.trial.pid, process.trial.started)
    if not keeper_lives:
        await node.start()
    await node.manager.end_of("T.1")
    assert not is_alive(process.trial.pid, process.trial.started)
    assert node.members("T.1") == []


async def write_down(node: Node, boot: str) -> None:
    """A keeper has written down a job during this boot, and has left before it started it."""
    await node.stop()
    launch = counting(node, "T.1", 1)
    prepare_directory(launch)
    node.records.read_all()  # makes the folder
    node.records.write([JobRecord(launch, boot)])


async def test_a_job_of_the_boot_before_is_not_started_again_and_a_shortened_journal_not_blamed_on_it(
    node: Node,
) -> None:
    await write_down(node, "the boot before")
    (node.job_directory("T.1") / "journal").write_bytes(numbers(5))
    node.manager.journals["T.1", "0"] = numbers(9)
    await node.start()
    end = await node.manager.end_of("T.1")
    assert (end.reason, end.detail) == (EndReason.EXIT_UNKNOWN, "the machine was restarted while it ran")
    assert end.run_seconds == 0.0, "it is not known how long it ran"
    assert node.manager.journals["T.1", "0"] == numbers(9), "nothing is added, neither lines nor a word of a loss"
    assert ledger(node) == []


async def test_a_job_that_was_only_written_down_is_started_by_the_next_keeper(node: Node) -> None:
    await write_down(node, boot_id())
    await node.start()
    assert (await node.manager.end_of("T.1")).reason == EndReason.EXITED_OK
    assert len(ledger(node)) == 1


@asynccontextmanager
async def kept_alive(node: Node) -> AsyncIterator[None]:
    """The keeper is started again whenever it is dead, as the local training service does."""

    async def keep_alive() -> None:
        while True:
            await _start_whole(node)
            pid = find_keeper(node.keeper_directory)
            if pid is not None:
                descriptor = os.pidfd_open(pid)
                await readable(descriptor, seconds=60)
                os.close(descriptor)

    keeping = asyncio.ensure_future(keep_alive())
    try:
        yield
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


async def _start_whole(node: Node) -> None:
    """A start continues in its thread when it is canceled: then its end is awaited, or its keeper would be left."""
    start = asyncio.ensure_future(node.start())
    try:
        await asyncio.shield(start)
    except KeeperNotStarted:
        pass  # it was killed while it came up
    except asyncio.CancelledError:
        with suppress(KeeperNotStarted):
            await start
        raise


@pytest.mark.parametrize(
    "places", [STARTING, ENDING, STOPPING, WITHOUT_REAPER], ids=["starting", "ending", "stopping", "without reaper"]
)
@pytest.mark.thorough
async def test_a_kill_at_any_place_changes_nothing_but_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, places: list[str]
) -> None:
    """A job for each place, one after another: exactly one process dies there."""
    armed = ArmedPlaces(tmp_path / "armed")
    for name, value in armed.environment.items():
        monkeypatch.setenv(name, value)
    async with open_node(tmp_path / "node") as node, kept_alive(node):
        for number, place in enumerate(places):
            job_id = f"T{number}.1"
            if "@" in place:
                await start_keeper_to_die(node, place, monkeypatch)
            elif places is not ENDING:
                armed.arm(place)
            if place.startswith("keeper.register."):
                await node.kill()
            end = await run_to_the_end(node, job_id, places, lambda place=place: armed.arm(place))  # type: ignore[misc]
            await eventually(lambda: not armed.left())  # otherwise the place was never passed
            await eventually(lambda: not list(node.records.path.iterdir()))
            check_job(node, job_id, end, place, places)


async def start_keeper_to_die(node: Node, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have another keeper, which dies at a late passage; those after it do not."""
    known = len(node.manager.registrations)
    monkeypatch.setenv("PROCTOR_FAILPOINT", place)
    await node.kill()
    await node.manager.until(lambda: len(node.manager.registrations) > known)
    monkeypatch.delenv("PROCTOR_FAILPOINT")


async def run_to_the_end(node: Node, job_id: str, places: list[str], arm: Callable[[], None]) -> Exit:
    """Run one job until it ends, or is stopped, or has lost its reaper."""
    launch = counting(node, job_id, 20)
    if places is STARTING:
        await command_until_started(node, launch)
        return await node.manager.end_of(job_id)
    gate = node.directory / f"gate-{job_id}"
    launch = node.launch(job_id, f"{launch.command}; until test -e {gate}; do sleep 0.05; done")
    await command_until_started(node, launch)
    await node.manager.until(lambda: node.manager.journals.get((job_id, "0")) == numbers(20))
    if places is ENDING:
        arm()
        gate.touch()
    elif places is WITHOUT_REAPER:
        await kill_and_wait(node.process(job_id).reaper.pid)
    else:
        await node.manager.command(Cancel(job_id, f"token of {job_id}", grace_seconds=0.2))
    return await node.manager.end_of(job_id)


def check_job(node: Node, job_id: str, end: Exit, place: str, places: list[str]) -> None:
    """It has started once, ended once, and lost nothing but, with its reaper, its end."""
    starts = len(ledger(node, job_id))
    assert starts <= 1
    if end.reason == EndReason.EXIT_UNKNOWN:  # only the death of the reaper may cost the job its end
        assert (
            place.startswith("reaper.")
            or places is WITHOUT_REAPER
            or (places, place) == (ENDING, "file.replace.before")
        )
    elif places is STOPPING:
        assert end.reason == EndReason.CANCELED
    else:
        assert (end.reason, starts) == (EndReason.EXITED_OK, 1)
    if starts == 1 and end.reason != EndReason.EXIT_UNKNOWN:
        assert node.manager.journals[job_id, "0"] == numbers(20)
    assert node.members(job_id) == []
    assert not node.manager.overlaps


async def command_until_started(node: Node, launch: Launch) -> None:
    """Give the launch in every session whose keeper does not have the job, as a manager does."""
    manager = node.manager

    def has_started() -> bool:
        return launch.job_id in manager.starts or launch.job_id in manager.ends

    def has_news(known: int) -> bool:
        return len(manager.registrations) > known or has_started()

    while not has_started():
        await manager.hand_over(launch)
        await manager.until(partial(has_news, len(manager.registrations)))
