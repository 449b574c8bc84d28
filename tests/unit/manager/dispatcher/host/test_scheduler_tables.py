"""What people see of a trial scheduler: when it is sent, and what becomes of tables that are none."""

import json
import math
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.client.in_process import open_in_process
from proctor.manager.dispatcher.host import host, scheduling
from proctor.manager.dispatcher.host.host import TABLES_SECONDS, Host, TableTimer
from proctor.manager.dispatcher.host.session import HostSession
from proctor.sdk.scheduler import StopVerdict, TrialReport, TrialScheduler, Verdict

SPACE = {"x": {"_type": "uniform", "_value": [0, 1]}}
ASHA = protocol.AlgorithmSpec(name="ASHA", class_args={"max_t": 9, "reduction_factor": 3})
SECONDS = 30.0


def initialize(scheduler: protocol.AlgorithmSpec | None = ASHA) -> protocol.Initialize:
    return protocol.Initialize("e", SPACE, protocol.AlgorithmSpec(name="Random"), None, 7, "", scheduler=scheduler)


def report(position: int, parameter_id: int, step: int, value: float) -> protocol.ReportMetrics:
    row = protocol.ReportedMetric(parameter_id, f"t{parameter_id}", 1, step - 1, value, step)
    return protocol.ReportMetrics(position, [row])


class Session:
    """A session that is asked for its tables."""

    def __init__(self, scheduler: protocol.AlgorithmSpec | None = ASHA) -> None:
        self.said: list[Any] = []
        self.session = HostSession(lambda message: self.said.append(protocol.decode(protocol.encode(message))))
        self.session.handle(initialize(scheduler))

    def tables(self) -> list[Any]:
        """The tables that are sent now, each time."""
        before = len(self.said)
        self.session.send_tables()
        return [message.tables for message in self.said[before:]]


def test_tables_are_sent_when_they_have_changed() -> None:
    session = Session()
    ((empty,),) = session.tables()
    assert empty["title"] == "Rungs"
    assert empty["columns"] == ["milestone", "trials", "best value", "stopped"]
    assert empty["rows"][0] == [1, 0, None, 0]
    assert session.tables() == []
    session.session.handle(protocol.RequestTrialJobs(1, [0]))
    session.session.handle(report(2, 0, 1, 0.5))
    ((table,),) = session.tables()
    assert table["rows"][0] == [1, 1, 0.5, 0]
    assert session.tables() == []


def test_without_a_scheduler_nothing_is_sent() -> None:
    assert Session(None).tables() == []


def test_a_population_says_which_columns_are_trials() -> None:
    session = Session(protocol.AlgorithmSpec(name="PBT", class_args={"perturbation_interval": 2}))
    ((table,),) = session.tables()
    assert [table["columns"][index] for index in table["trial_columns"]] == ["trial", "clone of"]


class Showing(TrialScheduler):
    """Shows what a test says."""

    shown: Any = None

    def describe(self) -> Any:
        if isinstance(self.shown, Exception):
            raise self.shown
        return self.shown


@pytest.fixture
def showing(monkeypatch: pytest.MonkeyPatch) -> Session:
    monkeypatch.setattr(Showing, "shown", [])
    monkeypatch.setattr(HostSession, "_make_scheduler", lambda *_: Showing())
    return Session()


def test_what_a_scheduler_of_the_users_shows_is_made_into_tables(
    showing: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [[0, math.nan, "x" * 1000], [1], [2, True, None, "too much"]]
    table = {"title": "Own", "columns": ["trial", 2, "word"], "rows": rows, "trial_columns": [0, 7]}
    monkeypatch.setattr(Showing, "shown", [table] * 100)
    (tables,) = showing.tables()
    assert len(tables) == scheduling.MOST_TABLES
    assert tables[0] == {
        "title": "Own",
        "columns": ["trial", "2", "word"],
        "rows": [[0, "NaN", "x" * 300], [1, None, None], [2, True, None]],
        "trial_columns": [0],
    }


@pytest.mark.parametrize(
    "shown", [ValueError("a fault of its own"), ["no table"], [{"title": "no rows"}], [{"rows": 3}], None, 7]
)
def test_a_scheduler_that_cannot_be_shown_keeps_running_and_the_reason_is_logged_once(
    showing: Session, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], shown: Any
) -> None:
    monkeypatch.setattr(Showing, "shown", shown)
    assert showing.tables() == [[]]
    assert "Traceback" in capsys.readouterr().out
    assert showing.tables() == []
    assert capsys.readouterr().out == ""
    assert all(not isinstance(message, protocol.Error) for message in showing.said)
    monkeypatch.setattr(Showing, "shown", [{"title": "again", "columns": [], "rows": []}])
    assert showing.tables() != []


# ---- when ---------------------------------------------------------------------------------------------------------


class Clock:
    """Sleeps until the test says that the time is over."""

    def __init__(self) -> None:
        self.asked: queue.Queue[float] = queue.Queue()
        self._over = threading.Semaphore(0)

    def sleep(self, seconds: float) -> None:
        self.asked.put(seconds)
        self._over.acquire()

    def pass_time(self) -> None:
        self._over.release()


def test_there_are_two_seconds_between_two_tables_however_much_happens() -> None:
    clock, sent = Clock(), queue.Queue[str]()
    timer = TableTimer(lambda: sent.put("tables"), sleep=clock.sleep)
    timer.notice()
    assert sent.get(timeout=SECONDS)
    assert clock.asked.get(timeout=SECONDS) == TABLES_SECONDS
    for _ in range(5):
        timer.notice()
    assert sent.empty()
    clock.pass_time()
    assert sent.get(timeout=SECONDS)
    assert clock.asked.get(timeout=SECONDS) == TABLES_SECONDS
    clock.pass_time()
    with pytest.raises(queue.Empty):  # nothing has happened since
        sent.get(timeout=0.05)
    timer.notice()
    assert sent.get(timeout=SECONDS)


@pytest.fixture
def channel(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], socket.socket]]:
    """Serves on one end of a socket pair until the other end is closed."""
    monkeypatch.setattr(host, "TABLES_SECONDS", 3600.0)
    ends: list[socket.socket] = []
    threads: list[threading.Thread] = []

    def open_channel() -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.settimeout(SECONDS)
        ends.extend((ours, theirs))

        def serve() -> None:
            Host(theirs).serve()
            theirs.shutdown(socket.SHUT_RDWR)  # as at the end of its process

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return ours

    yield open_channel
    for end in ends[::2]:
        end.close()
    for thread in threads:
        thread.join(SECONDS)
    for end in ends[1::2]:
        end.close()


def test_the_last_state_is_sent_before_the_dispatcher_leaves(channel: Callable[[], socket.socket]) -> None:
    ours = channel()
    messages = [initialize(), protocol.RequestTrialJobs(1, [0, 1]), report(2, 0, 1, 0.5), report(3, 1, 1, 0.25)]
    with ours.makefile("rb") as lines:
        ours.sendall(protocol.encode(messages[0]))
        first = [protocol.decode(next(lines)), protocol.decode(next(lines))]
        assert [type(message) for message in first] == [protocol.Initialized, protocol.SchedulerTables]
        ours.sendall(protocol.encode(messages[1]))
        assert [type(protocol.decode(next(lines))) for _ in range(2)] == [protocol.NewTrial] * 2
        ours.sendall(b"".join(map(protocol.encode, [*messages[2:], protocol.Terminate()])))
        rest = [protocol.decode(line) for line in lines]
    tables = [message for message in rest if isinstance(message, protocol.SchedulerTables)]
    assert [table.tables[0]["rows"][0] for table in tables] == [[1, 2, 0.5, 1]]
    assert rest[-1] == tables[-1]


class StoppingAtOnce(TrialScheduler):
    """Stops each trial at its first report, so that every report has an answer. Its table is always another one."""

    def __init__(self) -> None:
        self.described: queue.Queue[int] = queue.Queue()
        self._count = 0

    def on_trial_result(self, trial: int, result: TrialReport) -> Verdict:
        return StopVerdict("has reported")

    def describe(self) -> list[dict[str, Any]]:
        self._count += 1
        self.described.put(self._count)
        return [{"title": "Own", "columns": ["count"], "rows": [[self._count]]}]


def test_a_manager_that_is_gone_is_sent_nothing_more(
    channel: Callable[[], socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = StoppingAtOnce()
    monkeypatch.setattr(HostSession, "_make_scheduler", lambda *_: scheduler)
    ours = channel()
    with ours.makefile("rb") as lines:
        ours.sendall(protocol.encode(initialize()))
        first = [protocol.decode(next(lines)) for _ in range(2)]
        assert [type(message) for message in first] == [protocol.Initialized, protocol.SchedulerTables]
        ours.sendall(protocol.encode(protocol.RequestTrialJobs(1, [0])))
        assert isinstance(protocol.decode(next(lines)), protocol.NewTrial)
        ours.sendall(protocol.encode(report(2, 0, 1, 0.5)))
        assert isinstance(protocol.decode(next(lines)), protocol.KillTrial)
        assert scheduler.described.get_nowait() == 1
        ours.shutdown(socket.SHUT_WR)
        assert list(lines) == []  # until the host has left
    with pytest.raises(queue.Empty):  # nor was it going to send any
        scheduler.described.get(timeout=0.05)


@pytest.mark.anyio
async def test_in_the_managers_own_process_tables_come_at_the_end() -> None:
    async with open_in_process() as channel:
        inputs = [initialize(), protocol.RequestTrialJobs(1, [0]), report(2, 0, 1, 0.5), protocol.Terminate()]
        await channel.send(b"".join(map(protocol.encode, inputs)))
        kinds = [json.loads(line)["type"] async for line in channel.lines()]
    assert kinds == ["Initialized", "NewTrial", "SchedulerTables"]
