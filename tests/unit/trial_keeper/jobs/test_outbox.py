"""Reports hold everything that is new, as much as fits, and nothing is forgotten before it is stored."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from proctor.manager.simulation.virtual_time import VirtualTimeLoop, run_virtual
from proctor.sdk.protocol import MAX_RECORD_BYTES
from proctor.trial_keeper.jobs.job import Job
from proctor.trial_keeper.jobs.outbox import (
    LEAST_SHARE_BYTES,
    REPORT_BYTES,
    ROOM_FOR_RUNNING_BYTES,
    KeeperReport,
    Outbox,
)
from proctor.trial_keeper.jobs.records import JobRecord, ProcessIdentity, ProcessRecord
from proctor.trial_keeper.protocol import Acknowledgement, EndReason, Exit, Launch, ReportAnswer

pytestmark = pytest.mark.anyio

MakeJob = Callable[..., Job]
END = Exit(EndReason.EXITED_OK, 0, None, 1.0, 2.0)


@pytest.fixture
def outbox() -> Outbox:
    return Outbox()


@pytest.fixture
def make_job(tmp_path: Path, outbox: Outbox) -> Iterator[MakeJob]:
    """Jobs with something in their journals, which are to be reported."""
    with ExitStack() as stack:

        def make(job_id: str, journal: bytes = b"", exit: Exit | None = None) -> Job:
            directory = tmp_path / job_id
            directory.mkdir()
            (directory / "journal").write_bytes(journal)
            launch = Launch(job_id, f"token {job_id}", "E", job_id, 0, str(directory), "true", "/", "{}", None)
            process = ProcessRecord(ProcessIdentity(1, 1), ProcessIdentity(2, 2), "boot", 1.0, 1.0)
            job = Job(JobRecord(launch, "boot"), process)
            job.find_journals()
            job.exit = exit
            stack.callback(job.close)
            outbox.queue(job)
            return job

        yield make


def parts(report: KeeperReport) -> tuple[list[Any], list[str], list[str]]:
    header = report.header
    return (
        [(chunk.job_id, chunk.member, chunk.offset, chunk.length) for chunk in header.chunks],
        [start.job_id for start in header.starts],
        [end.job_id for end in header.ends],
    )


def answer(report: KeeperReport, *, ended: bool = True, fenced: tuple[str, ...] = ()) -> ReportAnswer:
    """A manager that stores everything."""
    header = report.header
    return ReportAnswer(
        [Acknowledgement(chunk.job_id, chunk.member, chunk.offset + chunk.length) for chunk in header.chunks],
        [end.job_id for end in header.ends] if ended else [],
        list(fenced),
    )


async def test_a_short_job_is_one_report(outbox: Outbox, make_job: MakeJob) -> None:
    job = make_job("T.1", b"1\n2", END)
    report = outbox.build("session")
    assert parts(report) == ([("T.1", "0", 0, 3)], ["T.1"], ["T.1"])
    head, _, data = report.body.partition(b"\n")
    assert json.loads(head)["session"] == "session"
    assert data == b"1\n2"
    settled = outbox.settle(report, answer(report))
    assert settled.has_progress
    assert settled.stored == [job]
    assert not outbox.build("session").has_news


async def test_an_end_waits_for_the_last_byte_of_every_journal(
    outbox: Outbox, make_job: MakeJob, tmp_path: Path
) -> None:
    content = b"0123456\n" * (REPORT_BYTES // 8 + 10)
    job = make_job("T.1", content, END)
    (tmp_path / "T.1" / "journal.1").write_bytes(b"late")
    first = outbox.build("session")
    assert parts(first)[2] == []
    assert outbox.settle(first, answer(first)).stored == []
    second = outbox.build("session")
    reported = len(first.data[0])
    assert parts(second) == ([("T.1", "0", reported, len(content) - reported)], [], ["T.1"])
    assert b"".join(first.data[:1] + second.data) == content
    assert first.data[1] == b"late"
    assert outbox.settle(second, answer(second)).stored == [job]


async def test_a_report_has_room_for_so_much_and_the_rest_comes_next(outbox: Outbox, make_job: MakeJob) -> None:
    jobs = [make_job(f"{name}.1", b"x" * 1023 + b"\n" + b"y" * (REPORT_BYTES - 2000) + b"\n") for name in "TUVW"]
    reported: list[str] = []
    for _ in range(len(jobs) + 1):
        report = outbox.build("session")
        assert len(report.body) < 3 * REPORT_BYTES
        reported += [chunk[0] for chunk in parts(report)[0]]
        outbox.settle(report, answer(report))
    assert reported[:4] == ["T.1", "U.1", "V.1", "W.1"], "the first lines of all fit into one report"
    assert sorted(reported[4:]) == ["T.1", "U.1", "V.1", "W.1"]
    assert all(job.backlog == 0 for job in jobs)


LINE = b"0123456789abcde\n"


def reported_bytes(report: KeeperReport) -> Counter[str]:
    """How much of each job's journals a report holds."""
    found: Counter[str] = Counter()
    for job_id, _, _, length in parts(report)[0]:
        found[job_id] += length
    return found


async def test_an_end_is_reported_before_the_journals_of_trials_that_report_without_pause(
    outbox: Outbox, make_job: MakeJob
) -> None:
    floods = [make_job(f"flood{number}.1", LINE * (REPORT_BYTES // 8)) for number in range(4)]
    quiet = make_job("quiet.1", LINE, END)
    report = outbox.build("session")
    assert parts(report)[2] == ["quiet.1"]
    assert set(parts(report)[1]) == {job.job_id for job in (*floods, quiet)}, "starts need no room"


async def test_jobs_share_a_report_equally_and_use_it_up(outbox: Outbox, make_job: MakeJob) -> None:
    content = {"a.1": LINE * 200_000, "b.1": LINE * 100_000, "c.1": LINE * 10}
    for job_id, data in content.items():
        make_job(job_id, data)
    report = outbox.build("session")
    reported = reported_bytes(report)
    assert reported["c.1"] == len(content["c.1"])
    assert reported["a.1"] == reported["b.1"]
    assert REPORT_BYTES - 4 * len(LINE) < reported.total() <= REPORT_BYTES


async def test_the_journals_of_all_members_of_a_job_advance(outbox: Outbox, make_job: MakeJob, tmp_path: Path) -> None:
    job = make_job("T.1", LINE * 200_000)
    (tmp_path / "T.1" / "journal.1").write_bytes(LINE * 200_000)
    job.find_journals()
    lengths = [length for _, _, _, length in parts(outbox.build("session"))[0]]
    assert lengths == [REPORT_BYTES // 2, REPORT_BYTES // 2]


async def test_whoever_finds_no_room_comes_first_in_the_next_report(outbox: Outbox, make_job: MakeJob) -> None:
    count = 3 * REPORT_BYTES // LEAST_SHARE_BYTES // 2
    jobs = [make_job(f"{number:03}.1", LINE * (LEAST_SHARE_BYTES // 4)) for number in range(count)]
    reported: Counter[str] = Counter()
    for _ in range(3):
        report = outbox.build("session")
        reported.update(chunk[0] for chunk in parts(report)[0])
        outbox.settle(report, answer(report))
    assert reported == Counter({job.job_id: 2 for job in jobs}), "in three reports of two thirds of them each"


async def test_many_ended_jobs_leave_room_for_the_journals_of_running_ones(outbox: Outbox, make_job: MakeJob) -> None:
    make_job("running.1", LINE * 200_000)
    for number in range(3):
        make_job(f"ended{number}.1", LINE * 200_000, END)
    reported = reported_bytes(outbox.build("session"))
    assert reported["running.1"] == ROOM_FOR_RUNNING_BYTES
    assert reported["ended0.1"] == reported["ended1.1"] == reported["ended2.1"] > 0


async def test_a_line_that_is_longer_than_a_share_is_sent_whole(outbox: Outbox, make_job: MakeJob) -> None:
    line = b"x" * (MAX_RECORD_BYTES - 1) + b"\n"
    jobs = [make_job(f"{name}.1", line * 2) for name in "TUVWXYZ"]
    lengths: list[int] = []
    while (report := outbox.build("session")).has_news and any(parts(report)[0]):
        assert sum(reported_bytes(report).values()) <= REPORT_BYTES + MAX_RECORD_BYTES
        lengths += reported_bytes(report).values()
        outbox.settle(report, answer(report))
    assert sum(lengths) == 2 * len(jobs) * len(line)
    assert all(length % len(line) == 0 for length in lengths)


async def test_what_was_not_stored_is_told_again(outbox: Outbox, make_job: MakeJob) -> None:
    make_job("T.1", b"1\n", END)
    lost = outbox.build("session")  # its answer never comes
    again = outbox.build("session")
    assert parts(again) == parts(lost)
    assert outbox.settle(again, answer(again, ended=False)).stored == []
    third = outbox.build("session")
    assert parts(third) == ([], [], ["T.1"])
    settled = outbox.settle(third, answer(third, ended=False))
    assert not settled.has_progress, "nothing has moved: the sender must pause"
    assert settled.stored == []


async def test_an_unfinished_line_waits_without_another_report(
    outbox: Outbox, make_job: MakeJob, tmp_path: Path
) -> None:
    job = make_job("T.1", b"1\n2")
    first = outbox.build("session")
    assert parts(first)[0] == [("T.1", "0", 0, 2)]
    outbox.settle(first, answer(first))
    second = outbox.build("session")
    assert not second.has_news
    outbox.settle(second, answer(second))
    (tmp_path / "T.1" / "journal").write_bytes(b"1\n2\n")
    outbox.queue(job)
    assert parts(outbox.build("session"))[0] == [("T.1", "0", 2, 2)]


async def test_a_fenced_job_is_handed_over_once(outbox: Outbox, make_job: MakeJob) -> None:
    job = make_job("T.1", b"1\n")
    report = outbox.build("session")
    assert outbox.settle(report, ReportAnswer([], [], ["T.1"])).fenced == [job]
    assert not outbox.build("session").has_news


async def test_devices_are_told_once_per_change(outbox: Outbox) -> None:
    outbox.set_devices([])
    first = outbox.build("session")
    assert first.header.devices == []
    outbox.set_devices([])  # another change, while the report was under way
    outbox.settle(first, answer(first))
    second = outbox.build("session")
    assert second.header.devices == []
    outbox.settle(second, answer(second))
    assert outbox.build("session").header.devices is None


def test_more_of_a_journal_rests_and_an_end_does_not(outbox: Outbox, make_job: MakeJob) -> None:
    async def scene(loop: VirtualTimeLoop) -> tuple[float, float]:
        job = make_job("a", b"1\n")
        await outbox.rest(5.0)
        rested = loop.time()
        job.exit = END
        outbox.queue(job)
        await outbox.rest(5.0)
        return rested, loop.time()

    assert run_virtual(scene) == (5.0, 5.0)


async def test_what_is_full_and_what_is_held_up_is_reported_at_once(outbox: Outbox) -> None:
    for change in (outbox.set_full, outbox.set_suspended, outbox.set_waiting):
        outbox.build("s")
        change({"": "its disk is full"})
        async with asyncio.timeout(10):
            await outbox.wait(600)
    header = outbox.build("s").header
    assert header.full == header.stopped == header.waiting == {"": "its disk is full"}


async def test_a_journal_that_cannot_be_read_keeps_no_other_job_waiting(
    outbox: Outbox, make_job: MakeJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*, final: bool, limit: int) -> bytes:
        raise OSError(5, "Input/output error")

    bad = make_job("bad", b"1\n", END)
    make_job("good", b"2\n", END)
    monkeypatch.setattr(bad.tails["0"], "read", fail)
    chunks, _, ends = parts(outbox.build("s"))
    assert (chunks, ends) == ([("good", "0", 0, 2)], ["good"])
