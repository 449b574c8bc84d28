"""`stop X; resume X`, as users of nnictl type it: the second waits for the first."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from fakes.real_manager import RealManager, real_manager

from proctor.sdk.client.experiment import Experiment

pytestmark = pytest.mark.slow

SAVES_UNTIL_IT_MAY_END = """
import os, sys, time
import proctor

proctor.get_next_parameter()
while not proctor.should_stop():
    proctor.report_intermediate_result(0)
    time.sleep(0.02)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealManager]:
    with real_manager(tmp_path_factory.mktemp("manager")) as made:
        yield made


@pytest.fixture
def end(tmp_path: Path) -> Path:
    """A trial that has been asked to stop ends when this file is there."""
    return tmp_path / "end"


@pytest.fixture
def experiment(manager: RealManager, end: Path) -> Iterator[str]:
    """One whose only trial has begun to report."""
    created = manager.create(SAVES_UNTIL_IT_MAY_END, end, saveSeconds=60)
    manager.until(
        lambda: any(trial["intermediate_count"] for trial in manager.trials(created)), "the first report of a trial"
    )
    yield created
    end.touch()
    manager.client.stop_all()


@pytest.fixture
def ours(manager: RealManager, experiment: str) -> Iterator[Experiment]:
    """The same in Python."""
    made = Experiment(None, experiment, home=manager.home)
    yield made
    made.client.close()


def test_resume_of_the_command_line_waits_for_the_end_of_a_stop(
    manager: RealManager, experiment: str, end: Path
) -> None:
    manager.command_line("stop", experiment)
    resume = manager.spawn("resume", experiment, stderr=subprocess.PIPE)
    assert resume.stderr is not None
    with resume:
        assert "is still being stopped (waits for trial 0 to save" in resume.stderr.readline()
        end.touch()
        assert "resumed" in resume.stderr.read()
    assert resume.returncode == 0
    manager.until_status(experiment, "RUNNING")


def test_resume_from_python_waits_for_the_end_of_a_stop(
    manager: RealManager, ours: Experiment, end: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours.stop()
    assert ours.get_status() == "STOPPING"
    said: list[str] = []

    class Stderr:
        """Lets the trial end once `resume` has said that it waits."""

        def write(self, text: str) -> int:
            said.append(text)
            if "is still being stopped" in text:
                threading.Thread(target=end.touch).start()
            return len(text)

        def flush(self) -> None: ...

    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", Stderr())
        assert ours.resume(wait_completion=False) is None
    assert any("is still being stopped" in text for text in said)
    manager.until_status(str(ours.id), "RUNNING")


def test_a_stopped_experiment_is_viewed_from_python_until_it_is_stopped(ours: Experiment, end: Path) -> None:
    end.touch()
    ours.stop()
    ours.view(non_blocking=True)
    assert ours.get_status() == "VIEWED"
    ours.stop()
    assert ours.get_status() == "STOPPED"
