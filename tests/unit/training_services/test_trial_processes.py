"""Trials that a service starts without a keeper: what a full disk kept them from reporting."""

import json
import resource
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from proctor.sdk import process_limits
from proctor.sdk.disk_reserve import Reserve
from proctor.training_services.base import EndReason, Exit, TrialJobForm
from proctor.training_services.trial_processes import describe_exit, end_trials, prepare_trial

FINAL = b'{"kind":"final","value":0.5,"time":1764000000.500000}\n'


class Job:
    """The directory of a job that a service has prepared."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "job"
        self.form = TrialJobForm(
            "t.1", "token", "e", "t", 0, 1, 0, "{}", "true", str(folder), directory=str(self.folder)
        )
        prepare_trial(self.form, platform="plug-in", bundle_directory=str(folder / "bundles"))

    @property
    def journal(self) -> Path:
        return self.folder / "journal"

    def reserve(self) -> Reserve:
        return Reserve(str(self.folder / "reserve"), "0")

    def end(self) -> Exit:
        assert end_trials([("t.1", str(self.folder))]) == []
        return describe_exit(self.form, 0, 1.0)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_a_trial_gets_the_limit_on_open_files_of_the_shell_again(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_limits, "_limit_at_start", 99)  # as if this process had raised it
    form = replace(job.form, command="ulimit -Sn; ulimit -Hn")
    command = prepare_trial(form, platform="plug-in", bundle_directory=str(tmp_path / "bundles"))
    done = subprocess.run(command.arguments, capture_output=True, text=True, check=True)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    assert done.stdout.splitlines() == ["99", str(hard)]


def test_a_trial_that_has_lost_nothing_leaves_nothing(job: Job) -> None:
    assert job.end().detail == ""
    assert sorted(path.name for path in job.folder.iterdir()) == ["journal", "output", "parameter.json"]


def test_what_is_in_the_reserve_is_behind_the_journal_once(job: Job) -> None:
    job.journal.write_text('{"kind":"intermediate","value":1,"time":1.0}\n')
    assert job.reserve().keep(FINAL)
    assert job.reserve().count(3)
    end_trials([("t.1", str(job.folder))])
    end = job.end()
    first, final, lost = job.journal.read_bytes().splitlines(keepends=True)
    assert json.loads(first)["value"] == 1
    assert final == FINAL
    assert json.loads(lost)["count"] == 3
    assert (end.reason, end.lost, end.lost_finals) == (EndReason.EXITED_OK, 3, [])
    assert end.detail == "3 reports were lost: its disk was full"


def test_what_finds_no_room_even_then_is_said_to_be_lost(job: Job, tmp_path: Path) -> None:
    assert job.reserve().keep(FINAL)
    job.journal.unlink()
    job.journal.symlink_to(tmp_path / "none" / "journal")  # as impossible to write as a full disk
    end = job.end()
    assert (end.reason, end.lost, end.lost_finals) == (EndReason.EXITED_OK, 1, [0])
