"""Reports hold everything that is new, as much as fits, and nothing is forgotten before it is stored."""

import json
from pathlib import Path
from typing import Any

import pytest

from proctor.manager.virtual_time import VirtualTimeLoop, run_virtual
from proctor.trial_keeper.job import Job
from proctor.trial_keeper.outbox import REPORT_BYTES, Outbox, Report
from proctor.trial_keeper.protocol import Acknowledgement, EndReason, Exit, Launch, ReportAnswer
from proctor.trial_keeper.records import JobRecord, ProcessIdentity, ProcessRecord

pytestmark = pytest.mark.anyio

END = Exit(EndReason.EXITED_OK, 0, None, 1.0, 2.0)


@pytest.fixture
async def stored() -> list[Job]:
    return []


@pytest.fixture
async def fenced() -> list[Job]:
    return []


@pytest.fixture
async def outbox(stored: list[Job], fenced: list[Job]) -> Outbox:
    outbox = Outbox(on_stored=lambda job: (stored.append(job), outbox.drop(job)), on_fenced=fenced.append)
    return outbox


def make_job(tmp_path: Path, job_id: str, journal: bytes = b"") -> Job:
    directory = tmp_path / job_id
    directory.mkdir()
    (directory / "journal").write_bytes(journal)
    launch = Launch(job_id, f"token {job_id}", "E", job_id, 0, str(directory), "true", "/", "{}", None)
    process = ProcessRecord(ProcessIdentity(1, 1), ProcessIdentity(2, 2), "boot", 1.0, 1.0)
    job = Job(JobRecord(launch, "boot"), process)
    job.find_journals()
    return job


def parts(report: Report) -> tuple[list[Any], list[str], list[str]]:
    header = report.header
    return (
        [(chunk.job_id, chunk.member, chunk.offset, chunk.length) for chunk in header.chunks],
        [start.job_id for start in header.starts],
        [end.job_id for end in header.ends],
    )


def answer(report: Report, *, ended: bool = True, fenced: tuple[str, ...] = ()) -> ReportAnswer:
    """A manager that stores everything."""
    header = report.header
    return ReportAnswer(
        [Acknowledgement(chunk.job_id, chunk.member, chunk.offset + chunk.length) for chunk in header.chunks],
        [end.job_id for end in header.ends] if ended else [],
        list(fenced),
    )


async def test_a_short_job_is_one_report(outbox: Outbox, stored: list[Job], tmp_path: Path) -> None:
    job = make_job(tmp_path, "T.1", b"1\n2")
    job.exit = END
    outbox.mark(job)
    report = outbox.build("session")
    assert parts(report) == ([("T.1", "0", 0, 3)], ["T.1"], ["T.1"])
    head, _, data = report.body.partition(b"\n")
    assert json.loads(head)["session"] == "session"
    assert data == b"1\n2"
    assert outbox.settle(report, answer(report))
    assert stored == [job]
    assert not outbox.build("session").has_news
    job.close()


async def test_an_end_waits_for_the_last_byte_of_every_journal(
    outbox: Outbox, stored: list[Job], tmp_path: Path
) -> None:
    content = b"0123456\n" * (REPORT_BYTES // 8 + 10)
    job = make_job(tmp_path, "T.1", content)
    (tmp_path / "T.1" / "journal.1").write_bytes(b"late")
    job.exit = END
    outbox.mark(job)
    first = outbox.build("session")
    assert parts(first)[2] == []
    outbox.settle(first, answer(first))
    second = outbox.build("session")
    assert parts(second) == ([("T.1", "0", REPORT_BYTES, len(content) - REPORT_BYTES)], [], ["T.1"])
    assert b"".join(first.data[:1] + second.data) == content
    assert first.data[1] == b"late"
    outbox.settle(second, answer(second))
    assert stored == [job]
    job.close()


async def test_a_report_has_room_for_so_much_and_the_rest_comes_next(outbox: Outbox, tmp_path: Path) -> None:
    jobs = [
        make_job(tmp_path, f"{name}.1", b"x" * 1023 + b"\n" + b"y" * (REPORT_BYTES - 2000) + b"\n") for name in "TUVW"
    ]
    for job in jobs:
        outbox.mark(job)
    told: list[str] = []
    for _ in range(len(jobs)):
        report = outbox.build("session")
        assert len(report.body) < 3 * REPORT_BYTES
        told += [chunk[0] for chunk in parts(report)[0]]
        outbox.settle(report, answer(report))
    assert told == ["T.1", "U.1", "V.1", "W.1"]
    for job in jobs:
        job.close()


async def test_what_was_not_stored_is_told_again(outbox: Outbox, stored: list[Job], tmp_path: Path) -> None:
    job = make_job(tmp_path, "T.1", b"1\n")
    job.exit = END
    outbox.mark(job)
    lost = outbox.build("session")  # its answer never comes
    again = outbox.build("session")
    assert parts(again) == parts(lost)
    outbox.settle(again, answer(again, ended=False))
    third = outbox.build("session")
    assert parts(third) == ([], [], ["T.1"])
    assert not outbox.settle(third, answer(third, ended=False)), "nothing has moved: the sender must pause"
    assert stored == []
    job.close()


async def test_an_unfinished_line_waits_without_another_report(outbox: Outbox, tmp_path: Path) -> None:
    job = make_job(tmp_path, "T.1", b"1\n2")
    outbox.mark(job)
    first = outbox.build("session")
    assert parts(first)[0] == [("T.1", "0", 0, 2)]
    outbox.settle(first, answer(first))
    second = outbox.build("session")
    assert not second.has_news
    outbox.settle(second, answer(second))
    (tmp_path / "T.1" / "journal").write_bytes(b"1\n2\n")
    outbox.mark(job)
    assert parts(outbox.build("session"))[0] == [("T.1", "0", 2, 2)]
    job.close()


async def test_a_fenced_job_is_handed_over_once(outbox: Outbox, fenced: list[Job], tmp_path: Path) -> None:
    job = make_job(tmp_path, "T.1", b"1\n")
    outbox.mark(job)
    report = outbox.build("session")
    outbox.settle(report, ReportAnswer([], [], ["T.1"]))
    assert fenced == [job]
    job.close()


async def test_devices_are_told_once_per_change(outbox: Outbox) -> None:
    outbox.mark_devices([])
    first = outbox.build("session")
    assert first.header.devices == []
    outbox.mark_devices([])  # another change, while the report was under way
    outbox.settle(first, answer(first))
    second = outbox.build("session")
    assert second.header.devices == []
    outbox.settle(second, answer(second))
    assert outbox.build("session").header.devices is None


def test_more_of_a_journal_rests_and_an_end_does_not(tmp_path: Path) -> None:
    async def scene(loop: VirtualTimeLoop) -> tuple[float, float]:
        outbox = Outbox(on_stored=lambda job: None, on_fenced=lambda job: None)
        job = make_job(tmp_path, "a", b"1\n")
        outbox.mark(job)
        await outbox.rest(5.0)
        rested = loop.time()
        job.exit = END
        outbox.mark(job)
        await outbox.rest(5.0)
        return rested, loop.time()

    assert run_virtual(scene) == (5.0, 5.0)
