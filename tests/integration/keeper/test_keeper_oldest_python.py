"""The keeper needs nothing but the standard library of the oldest Python it promises to run on."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from fakes.keeper_node import open_node
from fakes.pods import JOB, open_pod

from proctor.training_services.keepers.archive import build
from proctor.trial_keeper.protocol import EndReason, ListFiles, ReadFile, RemoveFolder, Shutdown

pytestmark = pytest.mark.anyio

OLDEST = "3.10"


@pytest.fixture(scope="module")
def oldest_python() -> str:
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [shutil.which(f"python{OLDEST}"), *sorted(map(str, pyenv.glob(f"{OLDEST}.*/bin/python")))]
    for candidate in filter(None, candidates):
        if subprocess.run([candidate, "-c", "import asyncio"], capture_output=True).returncode == 0:
            return candidate
    pytest.skip(f"no Python {OLDEST} on PATH or among pyenv's versions")


async def test_a_keeper_on_the_oldest_python_runs_stops_and_adopts(tmp_path: Path, oldest_python: str) -> None:
    async with open_node(tmp_path / "node", executable=oldest_python) as node:
        await node.manager.command(
            node.launch("T.1", "echo 1 >> $PROCTOR_JOB_DIR/journal; exit 3"),
            node.launch("U.1", "sleep 600", max_duration_seconds=600),
        )
        assert (await node.manager.end_of("T.1")).code == 3
        assert node.manager.journals["T.1", "0"] == b"1\n"
        start = await node.manager.start_of("U.1")
        assert node.manager.registrations[0].python.startswith(OLDEST)
        answer, _ = await node.manager.ask(ListFiles("list", str(node.job_directory("U.1"))))
        assert "stdout" in {file.path for file in answer.files}
        answer, data = await node.manager.ask(ReadFile("read", str(node.job_directory("U.1")), "journal", 0, 10))
        assert (answer.error, data) == ("", b"")
        (node.keeper_directory / "experiments" / "e1").mkdir(parents=True)
        answer, _ = await node.manager.ask(RemoveFolder("remove", "experiments/e1"))
        assert (answer.error, (node.keeper_directory / "experiments" / "e1").exists()) == ("", False)
        await node.replace_keeper()
        await node.manager.until(lambda: len(node.manager.registrations) == 2)
        assert {job.job_id: job.pid for job in node.manager.registrations[1].jobs}["U.1"] == start.pid
        await node.manager.restart()
        assert (await node.cancel("U.1")).reason == EndReason.CANCELED


async def test_the_keeper_of_a_pod_is_one_file_that_the_oldest_python_runs_over_tls(
    tmp_path: Path, oldest_python: str
) -> None:
    archive = build(tmp_path / "archive").path
    python = (oldest_python, "-I", "-S", "-X", "utf8", str(archive))
    async with open_pod(tmp_path, "--linger-seconds", "600", is_init=False, python=python) as pod:
        await pod.manager.command(pod.launch("echo 1 >> $PROCTOR_JOB_DIR/journal; sleep 1; exit 3"))
        await pod.manager.start_of(JOB)
        assert pod.manager.registrations[0].python.startswith(OLDEST)
        await pod.manager.restart()
        assert (await pod.manager.end_of(JOB)).code == 3
        assert pod.manager.journals[JOB, "0"] == b"1\n"
        await pod.manager.command(Shutdown())
        assert await pod.ended() == 0
        message = pod.read_termination()
        assert message is not None
        assert message.exit.code == 3
