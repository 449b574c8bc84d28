"""Which processes belong to a job."""

import subprocess
from collections.abc import Iterator

import pytest

from proctor.trial_keeper.linux.identity import start_time
from proctor.trial_keeper.linux.processes import find_job_processes

NO_JOB = ("nothing.1", "/nowhere")


@pytest.fixture
def leader() -> Iterator[subprocess.Popen[bytes]]:
    """A process that leads a session, and has a child."""
    command = ["bash", "-c", "sleep 600 & echo; wait"]
    with subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        for member in find_job_processes(NO_JOB, ancestors=(process.pid,)):
            subprocess.run(["kill", str(member.pid)], check=True)


def test_a_session_whose_number_another_process_has_by_now_is_not_the_jobs(leader: "subprocess.Popen[bytes]") -> None:
    started = start_time(leader.pid) or 0
    found = {process.pid for process in find_job_processes(NO_JOB, session=(leader.pid, started))}
    assert leader.pid in found
    assert len(found) == 2
    assert find_job_processes(NO_JOB, session=(leader.pid, started - 100)) == []
