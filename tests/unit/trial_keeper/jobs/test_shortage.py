"""What a keeper cannot look at for lack of descriptors is not known; it is never taken for what is not there."""

import errno
import json
import os
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fakes.descriptors import no_descriptors
from fakes.launches import make_launch

from proctor.trial_keeper.files.access import list_files, read_file
from proctor.trial_keeper.jobs.cleanup import can_save
from proctor.trial_keeper.jobs.job import Job
from proctor.trial_keeper.jobs.lost_reports import find_losses, is_reserve_used
from proctor.trial_keeper.jobs.outbox import Outbox
from proctor.trial_keeper.jobs.records import JobRecord, RecordFolder, read_exit, write_exit
from proctor.trial_keeper.journal_tail import find_members, read_anchor
from proctor.trial_keeper.linux.files import verdict_seconds
from proctor.trial_keeper.linux.identity import describe_stop, is_alive, open_pidfd, start_time
from proctor.trial_keeper.linux.locks import read_if_locked
from proctor.trial_keeper.linux.processes import read_tag
from proctor.trial_keeper.protocol import EndReason, Exit, Launch

END = Exit(EndReason.EXITED_OK, 0, None, 1.0, 2.0)


def launch_of(tmp_path: Path) -> Launch:
    return make_launch("T.1", "true", folder=tmp_path / "job", code=tmp_path)


@pytest.fixture
def folder(tmp_path: Path) -> RecordFolder:
    """Of a keeper with a job."""
    folder = RecordFolder(tmp_path / "jobs")
    folder.path.mkdir()
    folder.write([JobRecord(launch_of(tmp_path), "boot")])
    (folder.path / "T.1.process").write_text("{}")
    return folder


def test_nothing_that_cannot_be_looked_at_is_gone(tmp_path: Path, folder: RecordFolder) -> None:
    (tmp_path / "job").mkdir()
    write_exit(str(tmp_path / "job"), END)
    started, launch = start_time(os.getpid()), launch_of(tmp_path)
    assert not can_save(launch)
    assert started is not None
    looks: list[Callable[[], Any]] = [
        lambda: read_exit(str(tmp_path / "job")),
        lambda: find_members(str(tmp_path / "job")),
        lambda: read_anchor(str(tmp_path / "job"), "0"),
        lambda: find_losses(str(tmp_path / "job")),
        lambda: folder.read_all(),
        lambda: folder.read_process("T.1"),
        lambda: folder.is_damaged("T.1"),
        lambda: folder.is_claimed("T.1"),
        lambda: start_time(os.getpid()),
        lambda: is_alive(os.getpid(), started),
        lambda: open_pidfd(os.getpid(), started),
        lambda: read_tag(os.getpid()),
        lambda: list_files(str(tmp_path)),
        lambda: read_file(str(tmp_path / "job"), "exit.json", 0, 10),
        lambda: read_if_locked(str(tmp_path / "job" / "exit.json")),
        lambda: verdict_seconds(str(tmp_path / "job"), 1.0),
    ]
    found = []
    with no_descriptors():
        for look in looks:
            try:
                look()
            except OSError as error:
                found.append(error.errno)
            else:
                found.append(0)
        assert is_reserve_used(str(tmp_path / "job")), "as long as it is not known"
        assert can_save(launch), "as long as it is not known"
        assert describe_stop(os.getpid(), started) == ""
    assert found == [errno.EMFILE] * len(looks)
    assert read_exit(str(tmp_path / "job")) == END
    assert [record.launch.job_id for record in folder.read_all()[0]] == ["T.1"], "its record was not set aside"


def test_the_end_of_a_job_is_not_reported_before_its_journals_can_be_found(tmp_path: Path) -> None:
    directory = tmp_path / "job"
    directory.mkdir()
    job = Job(JobRecord(make_launch("T.1", "true", folder=directory, code=tmp_path), "boot"), exit=END)
    outbox = Outbox()
    outbox._dirty["T.1"] = job
    (directory / "journal.1").write_text(json.dumps({"kind": "final", "value": 1.0, "time": 1.0}) + "\n")
    with no_descriptors():
        report = outbox.build("s")
    assert (report.header.ends, report.has_news) == ([], True), "it is sent again after a pause"
    report = outbox.build("s")
    assert [(chunk.member, chunk.length) for chunk in report.header.chunks] == [("1", len(report.data[0]))]
    assert [asdict(end)["job_id"] for end in report.header.ends] == ["T.1"]
    job.close()
