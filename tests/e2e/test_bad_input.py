"""What people get wrong in a trial, on a whole system: a clear sentence, an exit code, and nothing lost or left behind.

(Wrong configurations are tested where they are read, in tests/unit/manager/config; a home or a port that cannot be
used in tests/integration/manager/test_manager_process.py.)
"""

import json
import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from chaos.processes import TAG, Kind, find, tagged

from proctor.trial_keeper.start import stop_keeper

pytestmark = pytest.mark.slow

LIMIT_SECONDS = 120
MEBIBYTE = 1 << 20
GOOD = "import proctor\nproctor.report_final_result(0.5)\n"


OK, EXPERIMENT_FAILED = 0, 100


@dataclass
class Shell:
    """A shell of a user's, in a folder, with a home of its own."""

    folder: Path
    tag: str

    @property
    def home(self) -> Path:
        """The manager's home."""
        return self.folder / "home"

    def proctor(self, *words: object) -> "subprocess.CompletedProcess[str]":
        """Run the command line, whatever comes of it."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PROCTOR_", "PYTHON"))}
        ours = {"PROCTOR_HOME": str(self.home), "PROCTOR_PORT": "0", TAG: self.tag}
        path = os.pathsep.join([str(Path(sys.executable).parent), kept["PATH"]])
        return subprocess.run(
            [sys.executable, "-P", "-m", "proctor.manager.cli.main", *map(str, words)],
            env={**kept, **ours, "PATH": path},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )

    def read(self, *words: object) -> Any:
        """What a reading command says, as JSON."""
        done = self.proctor(*words, "-o", "json")
        assert done.returncode == OK, done.stderr
        found = json.loads(done.stdout)
        return found["items"] if isinstance(found, dict) and "items" in found else found

    def create(self, script: str | None) -> "Outcome":
        """`proctor create --foreground` of one trial of this script; everything about it."""
        code = self.folder / f"code-{uuid.uuid4().hex[:6]}"
        code.mkdir()
        if script is not None:
            (code / "trial.py").write_text(script)
        config = {
            "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
            "trialCommand": "python trial.py",
            "trialConcurrency": 1,
            "maxTrialNumber": 1,
            "objective": {"direction": "maximize"},
            "tuner": {"name": "Random"},
            "trainingService": {"platform": "local"},
        }
        (code / "experiment.yml").write_text(json.dumps(config))
        done = self.proctor("create", "--config", code / "experiment.yml", "--foreground")
        experiment_id = done.stdout.split("\n")[0]
        (trial,) = self.read("trial", "ls", experiment_id)
        return Outcome(done.returncode, experiment_id, trial)


@dataclass(frozen=True)
class Outcome:
    """How an experiment of one trial went."""

    code: int
    experiment_id: str
    trial: dict[str, Any]


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    """A shell for all tests of this file. When they are through, nothing of them may be left."""
    shell = Shell(tmp_path_factory.mktemp("user"), uuid.uuid4().hex)
    yield shell
    assert shell.proctor("stop", "--all").returncode == OK
    assert shell.proctor("manager", "stop").returncode == OK
    stop_keeper(shell.home / "nodes" / "local")
    assert tagged(shell.tag) == {}
    assert os.listdir(shell.home / "incoming") == []
    assert os.listdir(shell.home / "nodes" / "local" / "jobs") == []


def test_a_missing_script_fails_the_trial_with_what_python_said(shell: Shell) -> None:
    outcome = shell.create(script=None)
    assert outcome.code == EXPERIMENT_FAILED
    assert outcome.trial["status"] == "FAILED"
    assert "trial.py" in outcome.trial["reason"]
    assert "No such file" in outcome.trial["reason"]
    assert "trial.py" in shell.proctor("trial", "log", outcome.trial["id"], "--stderr").stdout


def test_a_script_that_prints_a_hundred_megabytes_is_no_trouble(shell: Shell) -> None:
    loud = "import sys\nfor _ in range(100 * 1024):\n    sys.stdout.write('x' * 1023 + '\\n')\n"
    outcome = shell.create(loud + GOOD)
    assert outcome.code == OK
    assert outcome.trial["final_value"] == 0.5
    (output,) = Path(outcome.trial["directory"]).glob("jobs/1/stdout")
    assert output.stat().st_size == 100 * MEBIBYTE, "every byte is there"
    (manager,) = find(Kind.MANAGER, shell.home, shell.tag)
    (keeper,) = find(Kind.KEEPER, shell.home, shell.tag)
    for process in (manager, keeper):
        assert peak_memory(process.pid) < 400 * MEBIBYTE, f"the {process.kind} holds output in memory"


def test_of_two_final_metrics_the_first_counts_and_the_second_is_spoken_of(shell: Shell) -> None:
    outcome = shell.create(GOOD + "proctor.report_final_result(0.75)\n")
    assert outcome.code == OK
    assert (outcome.trial["status"], outcome.trial["final_value"]) == ("SUCCEEDED", 0.5)
    assert "the first final metric" in shell.proctor("trial", "log", outcome.trial["id"], "--stderr").stdout
    notices = shell.read("experiment", "show", outcome.experiment_id)["notices"]
    assert "a second final metric was reported and ignored" in notices


def peak_memory(pid: int) -> int:
    """The most bytes of memory that the process has held."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} is gone")
