"""A trial that waits for the verdict of its trial scheduler says so once it has waited for a while."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from proctor.sdk.channel import JobTime
from proctor.sdk.protocol import ENV_JUDGED_RANK
from proctor.trial_keeper.jobs import job as jobs
from proctor.trial_keeper.jobs.job import Job
from proctor.trial_keeper.jobs.records import JobRecord, ProcessIdentity, ProcessRecord, StopRecord
from proctor.trial_keeper.protocol import Launch

REASON = "waits for the verdict of its trial scheduler, for at most 600 s (verdictTimeout)"


class Scene:
    """A job, and its trial's side of the files in its directory, by this clock."""

    def __init__(self, folder: Path) -> None:
        self.now = 100.0
        self.time = JobTime({}, str(folder), clock=lambda: self.now)
        trial = ProcessIdentity(1, 1)
        environment = {ENV_JUDGED_RANK: "0"}
        launch = Launch("T.1", "token", "E", "T", 3, str(folder), "true", "/code", "{}", None, environment=environment)
        self.job = Job(JobRecord(launch, "boot"), process=ProcessRecord(trial, trial, "boot", 0.0, 0.0))

    def after(self, seconds: float) -> str:
        """What the job says so much later."""
        self.now += seconds
        return self.job.describe_wait(self.now)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_a_wait_is_described_once_it_has_lasted_for_a_while_until_it_is_over(scene: Scene) -> None:
    assert scene.after(0.0) == ""
    scene.time.begin_wait(600.0)
    assert [scene.after(1.5), scene.after(1.0), scene.after(500.0)] == ["", REASON, REASON]
    scene.time.end_wait()
    assert scene.after(0.0) == ""


def test_a_wait_is_over_when_it_has_lasted_as_long_as_it_may(scene: Scene) -> None:
    scene.time.begin_wait(600.0)
    assert scene.after(601.0) == ""


def test_a_verdict_for_which_the_disk_has_no_room_is_shown_once_there_is_some(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(directory: str, milestone: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    job, control = scene.job, tmp_path / "control.json"
    job.record = replace(job.record, launch=replace(job.record.launch, milestone=9))
    with monkeypatch.context() as full:
        full.setattr(jobs, "write_milestone", refuse)
        job.show_milestone()
    assert (job.milestone_unwritten, control.exists()) == (True, False)
    job.show_milestone()
    assert (job.milestone_unwritten, control.read_text()) == (False, '{"milestone": 9}')


def test_a_job_that_is_to_stop_is_shown_no_milestone(scene: Scene, tmp_path: Path) -> None:
    launch = replace(scene.job.record.launch, milestone=9)
    scene.job.record = JobRecord(launch, "boot", StopRecord("CANCELED", 5.0))
    scene.job.show_milestone()
    assert not (tmp_path / "control.json").exists()


def test_a_job_that_is_to_stop_waits_for_no_verdict(scene: Scene) -> None:
    scene.time.begin_wait(600.0)
    scene.job.record = JobRecord(scene.job.record.launch, "boot", StopRecord("CANCELED", 5.0))
    assert scene.after(5.0) == ""
