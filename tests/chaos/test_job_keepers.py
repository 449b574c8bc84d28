"""A platform that starts a keeper for each job, and a manager that is killed: while it asks for a keeper, between the
end of a job and its removal, and together with a keeper. No job runs twice, and nothing stays on the platform."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from chaos import audit, places
from chaos.harness import EXPERIMENT_ID, House, house
from chaos.places import listed
from chaos.seeds import in_chaos
from fakes.process_platform import FOLDER, POINTER, ProcessPlatform

from proctor.sdk.client import Client

TESTS = Path(__file__).parents[1]
HANGING = "echo begun >> {begun}; sleep 3600"

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


@contextmanager
def pod_house(folder: Path, *armed: str) -> Iterator[tuple[House, ProcessPlatform]]:
    """A manager that knows the platform as a plug-in, and the platform, whose pods reach the manager over TLS."""
    installed = folder / "site-packages" / "proctor_test_pods-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: proctor-test-pods\nVersion: 1\n")
    entry = "[proctor.training_services]\npods = fakes.process_platform:ProcessService\n"
    (installed / "entry_points.txt").write_text(entry)
    platform = ProcessPlatform(folder / "pods", folder / "home" / "run" / "endpoint")
    environment = {
        "PYTHONPATH": f"{installed.parent}:{TESTS}",
        FOLDER: str(platform.folder),
        POINTER: str(platform.pointer),
    }
    with house(folder, environment, options=("--keeper-listen", "127.0.0.1:0"), armed=armed) as built:
        yield built, platform


def create(built: House, command: str, *, trials: int = 3) -> None:
    """An experiment whose trials run two at a time."""
    built.create(
        {
            "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
            "trialCommand": command,
            "trialConcurrency": 2,
            "maxTrialNumber": trials,
            "tuner": {"name": "Random", "classArgs": {"seed": 1}},
            "trainingService": {"platform": "pods"},
        }
    )


def check_nothing_left(built: House, platform: ProcessPlatform) -> None:
    """No pod, and after the manager has left no process."""

    def is_empty() -> bool | None:
        return (built.is_up() and not any(platform.folder.glob("*.pod"))) or None

    built.wait_for(is_empty, f"the end of {list(platform.folder.glob('*.pod'))}")
    built.shut_down()  # returns when nothing of it runs


def jobs_of_trials(built: House) -> list[list[dict[str, Any]]]:
    """The jobs of each trial."""

    def ask(client: Client) -> list[list[dict[str, Any]]]:
        return [list(client.jobs(trial["id"])) for trial in client.trials(EXPERIMENT_ID, sort="sequence_id")]

    return built.ask(ask)


def end_reasons(built: House) -> list[list[str]]:
    """How the jobs of each trial ended."""
    return [[job["end_reason"] for job in jobs] for jobs in jobs_of_trials(built)]


@pytest.mark.parametrize(
    "armed",
    [["manager.job_keeper.start.after"], *in_chaos([listed(places.OF_A_JOB_KEEPER)])],
    ids=["once", "everywhere"],
)
@pytest.mark.thorough
def test_each_trial_runs_once_and_its_files_arrive_when_the_manager_dies_while_it_serves_a_keeper(
    armed: list[str], tmp_path: Path
) -> None:
    with pod_house(tmp_path, *armed) as (built, platform):
        create(built, f"echo kept; {built.trial_command('--saves', steps=3, seconds=(0.2, 0.4))}")
        built.wait_until_done()
        assert built.ask(lambda client: list(client.nodes()))[0]["id"] == "local"
        assert len(built.ask(lambda client: list(client.nodes()))) == 1
        assert end_reasons(built) == [["EXITED_OK"]] * 3
        check_nothing_left(built, platform)
        ending = audit.Ending.read(built.home, built.ledgers)
        folders = [path for path in (ending.folder / "trials").glob("*/jobs/1") if path.is_dir()]
        assert [(path / "stdout").read_text() for path in folders] == ["kept\n"] * 3
        assert all((path / "output/checkpoints/3/value").is_file() for path in folders)
    assert (built.places.left(), len(built.deaths)) == ([], len(armed))
    audit.check_nothing_left(ending)


@pytest.mark.thorough
def test_a_stop_that_is_cut_off_leaves_nothing_on_the_platform(tmp_path: Path) -> None:
    begun = tmp_path / "begun"
    with pod_house(tmp_path, "manager.job_keeper.stop.before", "manager.clean_up.before") as (built, platform):
        create(built, HANGING.format(begun=begun))
        built.wait_for(lambda: (begun.exists() and len(begun.read_text().split()) == 2) or None, "two trials to run")
        built.stop_experiment()
        assert len(begun.read_text().split()) == 2
        check_nothing_left(built, platform)
    assert (built.places.left(), len(built.deaths)) == ([], 2)


def test_trials_run_on_while_no_manager_runs_and_one_whose_keeper_dies_gets_another_job(tmp_path: Path) -> None:
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    report = f"{sys.executable} -c 'import proctor; proctor.report_final_result(1.0)'"
    command = f"echo begun >> {begun}; while [ ! -e {gate} ]; do sleep 0.05; done; {report}"
    with pod_house(tmp_path) as (built, platform):
        create(built, command, trials=2)
        built.wait_for(lambda: (begun.exists() and len(begun.read_text().split()) == 2) or None, "two trials to run")

        def are_running() -> list[str] | None:
            jobs = [job for each in jobs_of_trials(built) for job in each]
            return [job["id"] for job in jobs] if {job["status"] for job in jobs} == {"RUNNING"} else None

        jobs = built.wait_for(are_running, "both to be RUNNING")
        built.kill_manager()
        pid = platform.keeper_pid(jobs[0])
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        built.wait_for(lambda: (built.is_up() and len(begun.read_text().split()) == 3) or None, "another job")
        gate.touch()
        built.wait_until_done()
        assert end_reasons(built) == [["EXIT_UNKNOWN", "EXITED_OK"], ["EXITED_OK"]]
        check_nothing_left(built, platform)
