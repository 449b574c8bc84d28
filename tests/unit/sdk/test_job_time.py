"""How long a job has run does not depend on how the machine's clock is set."""

import json
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
