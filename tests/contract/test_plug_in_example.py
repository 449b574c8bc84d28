"""The example of a plug-in, installed as a package of its own: it keeps the contract, and runs in a real manager."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from fakes.real_manager import RealManager, real_manager

from proctor.training_services.base import TrainingService
from proctor.training_services.errors import SubmissionRefused
from proctor.training_services.keepers.hub import KeeperHub
from proctor.training_services.nodes.pool import NodePool
from proctor.training_services.registry import ServiceContext, create, known_platforms
from proctor.training_services.testing import (
    Behavior,
    Recorder,
    ServiceHarness,
    TrainingServiceContract,
    serving,
)
from proctor.training_services.trial_processes import living_trials

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "plug-in-subprocess"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder that the package is installed in; it is on `sys.path`, as an environment's site-packages is."""
    folder = tmp_path_factory.mktemp("site-packages")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--target", str(folder), str(EXAMPLE)], check=True, timeout=120)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield folder


class SubprocessHarness(ServiceHarness):
    metadata = ("max_jobs", 4)

    def __init__(self, directory: Path) -> None:
        self.directory = self.code_directory = directory

    async def open(self) -> None:
        pool = NodePool()
        settings = {"platform": "subprocess", "max_jobs": 2, "grace_seconds": 0.5}
        context = ServiceContext(self.experiment_id, self.directory, pool, KeeperHub(pool), settings)
        self.service = create("subprocess", context)

    async def block(self) -> TrainingService:
        await self.service.set_cluster_metadata("max_jobs", 0)
        return self.service

    async def unblock(self) -> None:
        await self.service.set_cluster_metadata("max_jobs", 2)


@pytest.fixture
async def harness(installed: Path, tmp_path: Path, anyio_backend: str) -> AsyncIterator[SubprocessHarness]:
    async with SubprocessHarness(tmp_path).opened() as harness:
        yield harness
        await harness.service.clean_up()


class TestSubprocessTrainingService(TrainingServiceContract):
    """The suite, on the fixture above."""


@pytest.mark.anyio
async def test_the_jobs_of_a_killed_manager_are_ended_by_the_next_service(harness: SubprocessHarness) -> None:
    form, recorder = harness.form(Behavior.DETACH), Recorder()
    recorder.listen(harness.service)
    async with serving(harness.service):
        await harness.service.submit_trial_job(form)
        await recorder.until(lambda: bool(recorder.journals.get(form.job_id)))
        next_service = await harness.restart()
        await next_service.cancel_trial_job("another.1")
        assert harness.find_processes() == [f"a process of job {form.job_id}"]
        await next_service.cancel_trial_job(form.job_id)
        assert await harness.processes() == []


def test_the_example_refuses_what_it_cannot_run(installed: Path, tmp_path: Path) -> None:
    assert "subprocess" in known_platforms()
    pool = NodePool()
    context = ServiceContext(ServiceHarness.experiment_id, tmp_path, pool, KeeperHub(pool), {"max_jobs": "many"})
    with pytest.raises(SubmissionRefused, match="maxJobs: expected an integer from 1, found 'many'"):
        create("subprocess", context)


TRIAL = """\
import sys, time
from pathlib import Path
import proctor
gate = Path(sys.argv[1])
proctor.get_next_parameter()
for value in range(20):
    proctor.report_intermediate_result(value)
with open(gate.with_name("begun"), "a") as file:
    file.write("1")
while not gate.exists():
    time.sleep(0.05)
proctor.report_final_result(1.0)
"""


@pytest.fixture
def manager(installed: Path, tmp_path: Path) -> Iterator[RealManager]:
    with real_manager(tmp_path, environment={"PYTHONPATH": str(installed)}) as made:
        yield made


@pytest.mark.thorough
def test_in_a_real_manager_no_trial_runs_twice_into_one_journal_when_it_is_killed(
    manager: RealManager, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    begun = gate.with_name("begun")
    experiment = manager.create(
        TRIAL,
        gate,
        trialConcurrency=3,
        maxTrialNumber=3,
        trainingService={"platform": "subprocess", "maxJobs": 2},
    )
    manager.poll_for(lambda: begun.exists() and len(begun.read_text()) == 2, "two trials to run")
    reason = "waiting: 2 of 2 slots of platform subprocess are taken"
    manager.until(lambda: reason in [trial["reason"] for trial in manager.trials(experiment)], "a reason to wait")
    manager.kill()
    manager.start()
    manager.poll_for(lambda: len(begun.read_text()) == 4, "two trials to run again")
    gate.touch()
    manager.until_status(experiment, "DONE")
    for trial in manager.trials(experiment):
        assert trial["status"] == "SUCCEEDED"
        jobs = list(manager.client.jobs(trial["id"]))
        assert [job["end_reason"] for job in jobs] == ["EXIT_UNKNOWN", "EXITED_OK"]
        reports = [m for m in manager.client.metrics(trial["id"]) if m["kind"] == "intermediate"]
        by_job = {job["number"]: [m["value"] for m in reports if m["job"] == job["number"]] for job in jobs}
        assert by_job[2] == list(range(20))
        assert by_job[1] == list(range(len(by_job[1])))
    assert len(begun.read_text()) == 5
    manager.command_line("stop", experiment)
    manager.until_status(experiment, "STOPPED")
    assert living_trials(str(manager.home)) == set()
