"""How long a job has run does not depend on how the machine's clock is set."""

import json
import os
import threading
import time
from pathlib import Path

import pytest
from fakes.descriptors import no_descriptors

from proctor.sdk import channel as channels
from proctor.sdk import trial as sdk
from proctor.sdk.channel import Channel, JobTime
from proctor.sdk.protocol import (
    ENV_JOB_DIRECTORY,
    ENV_JOB_STARTED,
    ENV_JUDGED_RANK,
    ENV_VERDICT_SECONDS,
    WAITS_FILE,
    boot_time,
    read_moment,
    read_wait,
    read_waits,
    write_moment,
)

HOUR = 3600.0


def test_a_moment_is_read_on_the_boot_on_which_it_was_written_and_on_no_other() -> None:
    moment = write_moment(12.5)
    assert read_moment(moment) == 12.5
    with no_descriptors():
        assert read_moment(moment) == 12.5, "it is not of another boot only because nothing can be opened"
    other = moment.replace(moment[:8], "00000000")
    assert [read_moment(text) for text in (other, "", "12.5", f"{moment}x", moment.partition(" ")[0])] == [None] * 5


def test_the_seconds_of_a_job_are_those_since_its_start_without_its_waits(tmp_path: Path) -> None:
    now = 100.0
    job = JobTime({ENV_JOB_STARTED: write_moment(90.0)}, str(tmp_path), clock=lambda: now)
    assert job.seconds() == 10.0
    job.begin_wait(10.0)
    now = 103.0
    assert read_waits((tmp_path / WAITS_FILE).read_bytes(), 104.0) == 4.0, "one that lasts counts, too"
    job.end_wait()
    now = 105.0
    assert job.seconds() == 12.0
    assert read_waits((tmp_path / WAITS_FILE).read_bytes(), 200.0) == 3.0
    later = JobTime({ENV_JOB_STARTED: write_moment(90.0)}, str(tmp_path), clock=lambda: now)
    assert later.seconds() == 12.0, "another process of the job continues"


def test_a_wait_whose_process_was_killed_counts_no_longer_than_it_may_last(tmp_path: Path) -> None:
    now = 100.0
    known = {ENV_JOB_STARTED: write_moment(90.0)}
    JobTime(known, str(tmp_path), clock=lambda: now).begin_wait(10.0)  # killed; a launcher starts the next one
    now = 5000.0
    assert read_waits((tmp_path / WAITS_FILE).read_bytes(), now) == 10.0
    later = JobTime(known, str(tmp_path), clock=lambda: now)
    assert later.seconds() == 4900.0
    later.begin_wait(10.0)
    later.end_wait()
    assert read_waits((tmp_path / WAITS_FILE).read_bytes(), now) == 10.0


def test_threads_that_wait_at_once_wait_once(tmp_path: Path) -> None:
    now = 1000.0
    job = JobTime({ENV_JOB_STARTED: write_moment(900.0)}, str(tmp_path), clock=lambda: now)
    job.begin_wait(600.0)
    now = 1010.0
    job.begin_wait(600.0)
    now = 1015.0
    assert job.seconds() == 100.0, "also while a wait lasts"
    job.end_wait()
    now = 1020.0
    assert read_waits((tmp_path / WAITS_FILE).read_bytes(), now) == 20.0
    assert read_wait((tmp_path / WAITS_FILE).read_bytes(), now)[1] == 600.0, "the second thread still waits"
    job.end_wait()
    now = 1025.0
    assert job.seconds() == 105.0
    assert read_waits((tmp_path / WAITS_FILE).read_bytes(), now) == 20.0
    assert read_wait((tmp_path / WAITS_FILE).read_bytes(), now) == (0.0, 0.0)


def test_threads_that_report_at_one_milestone_leave_the_time_of_their_job_right(tmp_path: Path) -> None:
    """Each thread pauses until the other one does; then there is a verdict."""
    both = threading.Barrier(2, lambda: (tmp_path / "control.json").write_text("{}"))

    def pause(_: float) -> None:
        both.wait(30)

    (tmp_path / "control.json").write_text(json.dumps({"milestone": 1}))
    known = {ENV_JOB_DIRECTORY: str(tmp_path), ENV_JUDGED_RANK: "0", ENV_JOB_STARTED: write_moment(boot_time() - 50.0)}
    channel = Channel(known | {ENV_VERDICT_SECONDS: "600"}, pause=pause)
    reports = [
        threading.Thread(target=channel.await_verdict, args=(1,), kwargs={"is_stored": True, "has_value": True})
        for _ in range(2)
    ]
    for report in reports:
        report.start()
    for report in reports:
        report.join(60)
        assert not report.is_alive()
    ran = channel.time.seconds()
    assert ran is not None
    assert 50.0 <= ran < 50.0 + HOUR / 2


def begin_wait_and_die(known: dict[str, str], now: float) -> None:
    """In a process of its own."""
    child = os.fork()
    if child == 0:
        JobTime(known, known[ENV_JOB_DIRECTORY], clock=lambda: now).begin_wait(600.0)
        os._exit(0)
    os.waitpid(child, 0)


def test_the_next_process_of_a_job_ends_the_wait_in_which_the_one_before_was_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {ENV_JOB_DIRECTORY: str(tmp_path), ENV_JUDGED_RANK: "0", ENV_JOB_STARTED: write_moment(90.0)}
    begin_wait_and_die(known, 100.0)
    monkeypatch.setattr(channels, "JobTime", lambda *given: JobTime(*given, clock=lambda: 130.0))
    Channel({**known, "RANK": "1", "WORLD_SIZE": "2"})
    assert read_wait((tmp_path / WAITS_FILE).read_bytes(), 130.0) == (30.0, 600.0), "a rank that is not judged"
    channel = Channel(known)
    assert read_wait((tmp_path / WAITS_FILE).read_bytes(), 130.0) == (0.0, 0.0)
    assert read_waits((tmp_path / WAITS_FILE).read_bytes(), 500.0) == 30.0
    assert channel.time.seconds() == 10.0


def test_a_process_that_begins_beside_the_one_that_waits_ends_no_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(channels, "JobTime", lambda *given: JobTime(*given, clock=lambda: now))
    known = {ENV_JOB_DIRECTORY: str(tmp_path), ENV_JUDGED_RANK: "0", ENV_JOB_STARTED: write_moment(90.0)}
    waiting = Channel(known).time
    waiting.begin_wait(600.0)
    now = 130.0
    Channel(known)  # of a script that the trial starts, for example
    assert read_wait((tmp_path / WAITS_FILE).read_bytes(), now) == (30.0, 600.0)
    waiting.end_wait()
    assert (waiting.seconds(), read_wait((tmp_path / WAITS_FILE).read_bytes(), now)) == (10.0, (0.0, 0.0))


def test_a_process_forked_in_a_wait_does_not_wait(tmp_path: Path) -> None:
    """The lock that shows the wait is its parent's alone."""
    known = {ENV_JOB_STARTED: write_moment(90.0)}
    waiting = JobTime(known, str(tmp_path), clock=lambda: 100.0)
    waiting.begin_wait(600.0)
    ready, go = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        os.close(go[1])
        os.write(ready[1], b"1")
        os.read(go[0], 1)  # until the parent has looked
        os._exit(0)
    try:
        os.read(ready[0], 1)
        waiting._release()  # as its death would
        JobTime(known, str(tmp_path), clock=lambda: 130.0).end_left_wait()
        assert read_wait((tmp_path / WAITS_FILE).read_bytes(), 130.0) == (0.0, 0.0)
    finally:
        for descriptor in (*ready, *go):
            os.close(descriptor)
        os.waitpid(child, 0)


def test_where_the_start_is_not_known_the_seconds_are_not_either(tmp_path: Path) -> None:
    assert JobTime({}, str(tmp_path)).seconds() is None
    assert JobTime({ENV_JOB_STARTED: "another-boot 5.0"}, str(tmp_path)).seconds() is None


@pytest.mark.parametrize(
    "data", [b"", b"x y z", b"1.0", b"-1 0 0", b"nan 0 0", b"1e9 0 0", b"inf 0 0", b"1 2", b"1 2 3 4"]
)
def test_a_file_of_waits_that_says_nothing_sensible_counts_as_none(data: bytes) -> None:
    assert read_waits(data, 50.0) == 0.0


@pytest.mark.parametrize(
    ("data", "wait"),
    [
        (b"5.0 40.0 600.0", (10.0, 600.0)),
        (b"5.0 0.0 0.0", (0.0, 0.0)),  # it does not wait
        (b"5.0 40.0 10.0", (0.0, 0.0)),  # its process was killed in it
        (b"5.0 51.0 600.0", (0.0, 0.0)),
        (b"5.0 40.0 1e9", (0.0, 0.0)),
        (b"5.0 nan 600.0", (0.0, 0.0)),
        (b"5.0 40.0 inf", (0.0, 0.0)),
        (b"", (0.0, 0.0)),
    ],
)
def test_how_long_a_trial_waits_now_is_read_from_its_file(data: bytes, wait: tuple[float, float]) -> None:
    assert read_wait(data, 50.0) == wait


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_record_says_how_long_its_job_had_run_although_the_clock_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    monkeypatch.setenv(ENV_JOB_DIRECTORY, str(tmp_path))
    monkeypatch.setenv(ENV_JOB_STARTED, write_moment(boot_time() - 50.0))
    monkeypatch.setattr(sdk, "_State", type("_State", (sdk._State,), {}))
    monkeypatch.setattr(sdk, "time", lambda: time.time() + hours * HOUR)
    sdk.report(0.5, step=1)
    sdk.report_final_result(0.5)
    records = [json.loads(line) for line in (tmp_path / "journal").read_text().splitlines()]
    assert [record["kind"] for record in records] == ["intermediate", "final"]
    assert all(50.0 <= record["seconds"] < 50.0 + HOUR / 2 for record in records)


@pytest.mark.parametrize("hours", [-1, 1])
def test_how_long_a_trial_may_save_does_not_change_when_the_clock_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: int
) -> None:
    body = {"stop": True, "request": "stop", "reason": "", "deadline": time.time() + 600.0}
    (tmp_path / "control.json").write_text(json.dumps(body | {"until": write_moment(boot_time() + 600.0)}))
    monkeypatch.setattr(channels, "time", lambda: time.time() + hours * HOUR)
    request = Channel({ENV_JOB_DIRECTORY: str(tmp_path)}).read_stop_request()
    assert request is not None
    assert 300.0 < request.seconds_left <= 600.0


def test_a_wait_for_a_verdict_is_written_down_while_it_lasts_and_when_it_is_over(tmp_path: Path) -> None:
    now, seen = 1000.0, list[float]()

    def pause(seconds: float) -> None:
        nonlocal now
        seen.append(read_waits((tmp_path / WAITS_FILE).read_bytes(), now))
        now += seconds

    (tmp_path / "control.json").write_text(json.dumps({"milestone": 1}))
    known = {ENV_JOB_DIRECTORY: str(tmp_path), ENV_JUDGED_RANK: "0", ENV_VERDICT_SECONDS: "5"}
    channel = Channel(known, clock=lambda: now, pause=pause)
    channel.time = JobTime(known | {ENV_JOB_STARTED: write_moment(990.0)}, str(tmp_path), clock=lambda: now)
    channel.await_verdict(1, is_stored=True, has_value=True)
    assert (seen[0], now) == (0.0, pytest.approx(1005.0))
    assert seen[-1] > 4.0
    assert channel.time.seconds() == pytest.approx(10.0)
