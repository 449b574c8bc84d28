"""A keeper that came as one file to a machine without packages, from its start to the removal of its last trace."""

import asyncio
import hashlib
import os
import shutil
import signal
import subprocess
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fakes.archive_node import ArchiveNode, open_archive_node
from fakes.keeper_node import eventually, kill_and_wait

from proctor.training_services.keepers.archive import KeeperArchive
from proctor.trial_keeper.jobs.records import RecordFolder, read_exit
from proctor.trial_keeper.protocol import Cancel, EndReason

pytestmark = pytest.mark.anyio

SECONDS = 120.0
HIDES = "setsid sleep 600 & (trap '' TERM; sleep 600) & echo $PROCTOR_JOB_DIR; sleep 600"


def another_version(archive: KeeperArchive, folder: Path) -> KeeperArchive:
    """The same code under another hash."""
    path = folder / "other.pyz"
    shutil.copy(archive.path, path)
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("note", "another version")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return KeeperArchive(path, sha256, f"keeper-{sha256[:20]}.pyz")


async def start_job(node: ArchiveNode, job_id: str = "T.1", command: str = HIDES, **changes: Any) -> int:
    """Have a job run; its trial's pid."""
    await node.manager.command(node.launch(job_id, command, **changes))
    return (await asyncio.wait_for(node.manager.start_of(job_id), SECONDS)).pid


@asynccontextmanager
async def archive_node(folder: Path, python: str = "", *, left_jobs: int = 0) -> AsyncIterator[ArchiveNode]:
    """A node to which the archive was brought. On leaving, its removal stops so many jobs and leaves no trace."""
    async with open_archive_node(folder, python=python) as node:
        await node.bring()
        yield node
        assert await node.remove() == {"removed": True, "jobs": left_jobs, "left": []}
        check_that_nothing_is_left(node)


def check_that_nothing_is_left(node: ArchiveNode) -> None:
    assert node.processes() == []
    assert os.listdir(node.home) == []
    assert not node.locks.exists() or os.listdir(node.locks) == []


@pytest.fixture(params=["the system's Python", "3.10"])
def python(request: pytest.FixtureRequest) -> str:
    if request.param != "3.10":
        return ""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for candidate in filter(None, [shutil.which("python3.10"), *sorted(pyenv.glob("3.10.*/bin/python"))]):
        if subprocess.run([candidate, "-c", "import asyncio"], env={}, capture_output=True).returncode == 0:
            return str(candidate)
    pytest.skip("no Python 3.10 on PATH or among pyenv's versions")


async def test_a_keeper_comes_works_dies_is_followed_and_leaves_no_trace(tmp_path: Path, python: str) -> None:
    async with archive_node(tmp_path, python, left_jobs=1) as node:
        found = await node.command("probe", gpu_lock_directory=str(node.locks))
        assert found["archive"] == node.archive.name
        assert "pynvml" not in found["driver_note"], "the archive brings it along"
        started = await node.start()
        assert (started["started"], started["replaced"]) == (True, False)
        report = "import proctor; proctor.report_final_result(proctor.get_next_parameter()['x'])"
        await node.manager.command(node.launch("S.1", f'{node.python} -c "{report}"'))
        end = await node.manager.end_of("S.1", seconds=SECONDS)
        assert end.reason == EndReason.EXITED_OK, (node.job_directory("S.1") / "stderr").read_text()
        assert b'"kind":"final"' in node.manager.journals["S.1", "0"]

        pid = await start_job(node)
        assert await node.start() == {"pid": started["pid"], "started": False, "replaced": False}
        assert (await node.command("prepare"))["keeper"]["archive"] == node.archive.name
        await node.kill()
        assert (await node.start())["started"]
        await node.manager.until(lambda: len(node.manager.registrations) == 2, seconds=SECONDS)
        assert {job.job_id: job.pid for job in node.manager.registrations[1].jobs} == {"T.1": pid}

        assert await node.command("stop") == {"jobs": 1, "left": []}
        assert pid in node.processes(), "without kill_jobs the trial keeps running"


@pytest.mark.thorough
async def test_another_version_takes_over_with_all_jobs(tmp_path: Path) -> None:
    async with archive_node(tmp_path) as node:
        first = await node.start()
        pid = await start_job(node)
        before = node.archive.name
        await node.bring(another_version(node.archive, tmp_path))
        second = await node.start()
        assert (second["started"], second["replaced"], second["pid"] != first["pid"]) == (True, True, True)
        await node.manager.until(lambda: len(node.manager.registrations) == 2, seconds=SECONDS)
        assert node.manager.registrations[1].jobs[0].pid == pid
        assert not (node.directory / before).exists(), "nothing runs from the earlier one any more"
        await node.manager.command(Cancel("T.1", "token of T.1", grace_seconds=0.5))
        assert (await node.manager.end_of("T.1", seconds=SECONDS)).reason == EndReason.CANCELED


@pytest.mark.thorough
async def test_other_settings_and_a_search_path_reach_the_keeper(tmp_path: Path) -> None:
    async with archive_node(tmp_path) as node:
        await node.start()
        await node.manager.until(lambda: node.manager.registrations, seconds=SECONDS)
        answer = await node.start(search_path="/opt/special/bin", device_refresh_seconds=9.0)
        assert answer["replaced"]
        await node.manager.until(lambda: len(node.manager.registrations) == 2, seconds=SECONDS)
        await node.manager.command(node.launch("T.1", 'echo "$PATH"; env'))
        await node.manager.end_of("T.1", seconds=SECONDS)
        output = (node.job_directory("T.1") / "stdout").read_text()
        assert output.startswith("/opt/special/bin:/usr/bin:/bin\n")


@pytest.mark.thorough
async def test_jobs_that_are_killed_with_their_keeper_are_reported_by_the_next_one(tmp_path: Path) -> None:
    async with archive_node(tmp_path) as node:
        await node.start()
        await start_job(node, "T.1")
        await start_job(node, "U.1")
        answer = await node.command("stop", kill_jobs=True, grace_seconds=0.5)
        assert answer == {"jobs": 2, "left": [], "experiments": ["Ab3dE5f7"]}
        assert node.processes() == []
        for job_id in ("T.1", "U.1"):
            end = read_exit(str(node.job_directory(job_id)))
            assert end is not None
            assert end.detail == "canceled: the node was removed from the experiment"
        assert await node.command("stop", kill_jobs=True) == {"jobs": 0, "left": [], "experiments": ["Ab3dE5f7"]}
        await node.start()
        for job_id in ("T.1", "U.1"):
            assert (await node.manager.end_of(job_id, seconds=SECONDS)).reason == EndReason.CANCELED


@pytest.mark.thorough
@pytest.mark.parametrize("victims", ["keeper", "keeper and reapers", "keeper, records and reapers"])
async def test_nothing_of_a_keeper_that_was_killed_escapes_its_removal(tmp_path: Path, victims: str) -> None:
    async with archive_node(tmp_path, left_jobs=0 if "records" in victims else 2) as node:
        await node.start()
        await start_job(node, "T.1")
        await start_job(node, "U.1")
        records = RecordFolder(node.directory / "jobs")
        reapers = [record.reaper.pid for job in ("T.1", "U.1") if (record := records.read_process(job))]
        assert len(reapers) == 2
        await node.kill()
        if "reapers" in victims:
            for pid in reapers:
                await kill_and_wait(pid)
        if "records" in victims:
            shutil.rmtree(node.directory / "jobs")


async def test_a_job_whose_reaper_was_not_there_yet_never_starts_after_the_removal(tmp_path: Path) -> None:
    async with archive_node(tmp_path, left_jobs=2) as node:
        await node.start()
        await start_job(node)
        spawner = next(pid for pid in node.processes() if "trial_keeper.reaper.spawner" in command_line(pid))
        os.kill(spawner, signal.SIGSTOP)  # requests stay in its queue from now on
        await node.manager.command(node.launch("U.1", "touch started; sleep 600"))
        await eventually((node.directory / "jobs" / "U.1.json").exists, seconds=SECONDS)
        await node.kill()


async def test_what_may_not_be_removed_is_told_and_removed_when_it_may(tmp_path: Path) -> None:
    async with archive_node(tmp_path) as node:
        folder = node.directory / "experiments" / "kept"
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "file").touch()
        if os.getuid() != 0:
            folder.chmod(0o500)  # a trial has made its folder read-only: that must not stop us


async def test_commands_on_a_directory_that_is_not_there(tmp_path: Path) -> None:
    async with open_archive_node(tmp_path) as node:
        assert await node.command("stop", kill_jobs=True) == {"jobs": 0, "left": [], "experiments": []}
        assert await node.remove() == {"removed": True, "jobs": 0, "left": []}
        assert (await node.start())["started"], "what it needs is made"
        assert (await node.remove())["removed"]
        check_that_nothing_is_left(node)


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
