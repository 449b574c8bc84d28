"""What people get wrong, on a whole system: a clear sentence, an exit code, and nothing lost or left behind.

(Wrong configurations are tested where they are read, in tests/unit/manager/config.)
"""

import json
import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from chaos.processes import TAG, Kind, find, tagged

from proctor.sdk.client import Client
from proctor.sdk.client.events import Watch
from proctor.trial_keeper.start import stop_keeper

pytestmark = pytest.mark.slow

LIMIT_SECONDS = 120
MEBIBYTE = 1 << 20
GOOD = "import proctor\nproctor.report_final_result(0.5)\n"

LOUD_TUNER = """\
import sys
from nni.tuner import Tuner

class Loud(Tuner):
    def update_search_space(self, search_space):
        print('{"type": "Pong", "nonce": 1}  I am loud', flush=True)

    def generate_parameters(self, parameter_id, **kwargs):
        print('louder', file=sys.stderr)
        sys.stdout.write('loudest')
        return {'x': 0.25}

    def receive_trial_result(self, *args, **kwargs):
        print('got it')
"""

OK, FAILED, USAGE, CONFLICT, UNREACHABLE, EXPERIMENT_FAILED = 0, 1, 2, 5, 6, 100


@dataclass
class Shell:
    """A shell of a user's, in a folder, with a home of its own."""

    folder: Path
    tag: str

    @property
    def home(self) -> Path:
        """The manager's home."""
        return self.folder / "home"

    def run(self, module: str, *words: object) -> "subprocess.CompletedProcess[str]":
        """Run `python -m module …`, whatever comes of it."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PROCTOR_", "PYTHON"))}
        ours = {"PROCTOR_HOME": str(self.home), "PROCTOR_PORT": "0", TAG: self.tag}
        path = os.pathsep.join([str(Path(sys.executable).parent), kept["PATH"]])
        return subprocess.run(
            [sys.executable, "-P", "-m", module, *map(str, words)],
            env={**kept, **ours, "PATH": path},
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )

    def proctor(self, *words: object) -> "subprocess.CompletedProcess[str]":
        """Run the command line."""
        return self.run("proctor.manager.cli.main", *words)

    def read(self, *words: object) -> Any:
        """What a reading command says, as JSON."""
        done = self.proctor(*words, "-o", "json")
        assert done.returncode == OK, done.stderr
        found = json.loads(done.stdout)
        return found["items"] if isinstance(found, dict) and "items" in found else found

    def write(self, name: str, text: str) -> Path:
        """A file of the user's."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def create(self, script: str | None = GOOD, **settings: Any) -> "Outcome":
        """`proctor create --foreground` of one trial of this script; everything about it."""
        folder = f"code-{uuid.uuid4().hex[:6]}"
        (self.folder / folder).mkdir()
        if script is not None:
            self.write(f"{folder}/trial.py", script)
        config: dict[str, Any] = {
            "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
            "trialCommand": "python trial.py",
            "trialCodeDirectory": ".",
            "trialConcurrency": 1,
            "maxTrialNumber": 1,
            "objective": {"direction": "maximize"},
            "tuner": {"name": "Random"},
            "trainingService": {"platform": "local"},
            **settings,
        }
        file = self.write(f"{folder}/experiment.yml", json.dumps(config))
        done = self.proctor("create", "--config", file, "--foreground")
        experiment_id = done.stdout.split("\n")[0]
        trials = self.read("trial", "ls", experiment_id)
        return Outcome(done.returncode, done.stdout + done.stderr, experiment_id, trials)


@dataclass(frozen=True)
class Outcome:
    """How an experiment of one trial went."""

    code: int
    said: str
    experiment_id: str
    trials: list[dict[str, Any]]

    @property
    def trial(self) -> dict[str, Any]:
        """The trial."""
        (trial,) = self.trials
        return trial


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


@pytest.mark.parametrize(
    ("settings", "words", "code", "said"),
    [
        ({"trialCommand": "pyton3 trial.py"}, ["--dry-run"], USAGE, "trialCommand: pyton3 is not found on the PATH"),
        ({"trialCommand": "pyton3 trial.py"}, [], USAGE, "trialCommand: pyton3 is not found on the PATH"),
        ({"trialGpuNumber": 4000}, ["--dry-run"], USAGE, "trialGpuNumber is 4000, and this machine has"),
        ({"trialGpuNumber": 4000}, [], EXPERIMENT_FAILED, "needs 4000 GPUs, node local has"),
    ],
)
def test_what_can_never_run_is_told_by_create(
    shell: Shell, settings: dict[str, Any], words: list[str], code: int, said: str
) -> None:
    config = {
        "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
        "trialCommand": "python trial.py",
        "trialConcurrency": 1,
        "tuner": {"name": "Random"},
        "trainingService": {"platform": "local"},
    }
    file = shell.write("never.yml", json.dumps({**config, **settings}))
    done = shell.proctor("create", "--config", file, *words)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert bool(done.stdout) is (code == EXPERIMENT_FAILED)


def test_a_command_that_is_not_found_fails_the_trial_with_its_name(shell: Shell) -> None:
    outcome = shell.create(trialCommand="true && no-such-program --fast")
    assert outcome.code == EXPERIMENT_FAILED
    assert outcome.trial["status"] == "FAILED"
    assert "no-such-program: command not found" in outcome.trial["reason"]


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


def test_metrics_that_are_not_json_fail_the_trial_and_keep_what_came_before(shell: Shell) -> None:
    bad = "import proctor\nproctor.report_intermediate_result(1)\nproctor.report_intermediate_result(object())\n"
    outcome = shell.create(bad + GOOD)
    assert outcome.code == EXPERIMENT_FAILED
    assert outcome.trial["status"] == "FAILED"
    assert "MetricError" in outcome.trial["reason"]
    assert (outcome.trial["intermediate_count"], outcome.trial["latest_value"]) == (1, 1.0)


def test_of_two_final_metrics_the_first_counts_and_the_second_is_spoken_of(shell: Shell) -> None:
    outcome = shell.create(GOOD + "proctor.report_final_result(0.75)\n")
    assert outcome.code == OK
    assert (outcome.trial["status"], outcome.trial["final_value"]) == ("SUCCEEDED", 0.5)
    assert "the first final metric" in shell.proctor("trial", "log", outcome.trial["id"], "--stderr").stdout
    assert notices(shell, outcome.experiment_id) == ["a second final metric was reported and ignored"]


def test_a_code_directory_with_a_dangling_link_is_run_in_place_and_as_a_snapshot(shell: Shell) -> None:
    make = f"import os\nif not os.path.islink('nowhere'):\n    os.symlink('/no/such/target', 'nowhere')\n{GOOD}"
    assert shell.create(make).code == OK
    code = shell.folder / "linked"
    code.mkdir()
    (code / "trial.py").write_text(GOOD)
    (code / "nowhere").symlink_to("/no/such/target")
    for snapshot in (False, True):
        outcome = shell.create(trialCodeDirectory=str(code), codeSnapshot=snapshot)
        assert (outcome.code, outcome.trial["status"]) == (OK, "SUCCEEDED"), outcome.said


def test_a_tuner_that_prints_writes_into_the_dispatchers_log(shell: Shell) -> None:
    shell.write("tuners/loud_tuner.py", LOUD_TUNER)
    tuner = {"className": "loud_tuner.Loud", "codeDirectory": str(shell.folder / "tuners")}
    outcome = shell.create(tuner=tuner)
    assert (outcome.code, outcome.trial["parameters"]) == (OK, {"x": 0.25}), outcome.said
    log = shell.proctor("log", "dispatcher", outcome.experiment_id).stdout
    for word in ("I am loud", "louder", "loudest"):
        assert word in log


def test_a_second_manager_on_a_home_is_refused_and_the_first_goes_on(shell: Shell) -> None:
    url = shell.proctor("manager", "start").stdout
    refused = shell.run("proctor.manager", "--home", shell.home, "--port", "0")
    assert refused.returncode == CONFLICT
    assert f"a manager runs on the home {shell.home} already" in refused.stderr
    assert url.strip() in refused.stderr
    assert shell.proctor("manager", "start").stdout == url
    assert shell.proctor("manager", "status").returncode == OK


def test_a_port_in_use_is_named_and_nothing_is_left(tmp_path: Path) -> None:
    shell = Shell(tmp_path, uuid.uuid4().hex)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        in_front = shell.run("proctor.manager", "--home", shell.home, "--port", port)
        behind = shell.proctor("manager", "start", "--port", port)
    assert (in_front.returncode, behind.returncode) == (FAILED, UNREACHABLE)
    for said in (in_front.stderr, behind.stderr):
        assert f"port {port} of 127.0.0.1 is in use by another program" in said
        assert "Traceback" not in said
    assert tagged(shell.tag) == {}
    assert not (shell.home / "manager.json").exists()


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    shell = Shell(tmp_path, uuid.uuid4().hex)
    shell.home.write_text("this is a file")
    config = shell.write(
        "experiment.yml",
        json.dumps(
            {
                "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
                "trialCommand": "python trial.py",
                "trialConcurrency": 1,
                "objective": {"direction": "maximize"},
                "tuner": {"name": "Random"},
                "trainingService": {"platform": "local"},
            }
        ),
    )
    in_front = shell.run("proctor.manager", "--home", shell.home, "--port", "0")
    behind = shell.proctor("create", "--config", config)
    assert (in_front.returncode, behind.returncode) == (FAILED, UNREACHABLE)
    for said in (in_front.stderr, behind.stderr):
        assert f"cannot write the home {shell.home}" in said
        assert "PROCTOR_HOME" in said
        assert "Traceback" not in said
    assert tagged(shell.tag) == {}
    assert sorted(os.listdir(tmp_path)) == ["experiment.yml", "home"]


def notices(shell: Shell, experiment_id: str) -> list[str]:
    """What the stream of changes says of the experiment beside changes; waits for the first such thing."""
    shown: list[str] = []
    gives_up = time.monotonic() + LIMIT_SECONDS
    with Client(home=shell.home) as client, Watch(client.events(experiment_id=experiment_id, after=0)) as watch:
        while not shown and time.monotonic() < gives_up:
            shown += [event["data"]["text"] for event in watch.wait(LIMIT_SECONDS) if event["kind"] == "notice"]
    return shown


def peak_memory(pid: int) -> int:
    """The most bytes of memory that the process has held."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} is gone")
