"""`proctor create` against a manager whose trials run in memory."""

import importlib.util
import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal
from fakes.kubernetes.played_api import PlayedApi
from fakes.served_manager import ServedManager, provider_of
from ruamel.yaml import YAML

from proctor.manager.cli.commands import create as create_module
from proctor.manager.cli.commands.create import submit
from proctor.manager.config.errors import NOWHERE, ConfigProblem
from proctor.manager.engine.feasibility import Outlook
from proctor.manager.errors import BadRequest
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.store.tables import trials
from proctor.sdk.client import Client, credentials
from proctor.sdk.client.errors import ProblemError
from proctor.training_services.base import EndReason
from proctor.training_services.in_memory.scripts import Final, ScriptedExit
from proctor.training_services.providers import CheckStep, CheckVerdict

CONFIG = """\
searchSpace:
  lr: {_type: loguniform, _value: [1e-4, 0.1]}
trialCommand: COMMAND
trialConcurrency: 2
maxTrialNumber: 4
tuner: {name: TPE, classArgs: {optimize_mode: maximize}}
trainingService: {platform: local}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "project" / "experiment.yml"
    path.parent.mkdir()
    path.write_text(CONFIG.replace("COMMAND", "python3 trial.py"))
    return path


def test_a_program_gets_all_of_the_new_experiment(served: ServedManager, invoke, file: Path) -> None:
    result = invoke("create", str(file), "--id", "mine", "-o", "json", code=0)
    with Client(home=served.home) as client:
        now = client.experiment("mine")
    assert json.loads(result.stdout).keys() == now.keys()
    assert (json.loads(result.stdout)["id"], now["id"]) == ("mine", "mine")
    assert "Created experiment mine" in result.stderr


def test_it_posts_the_configuration_as_written_and_prints_the_id(served: ServedManager, invoke, file: Path) -> None:
    result = invoke("create", "--config", str(file), "--id", "mine", code=0)
    assert result.stdout == "mine\n"
    [(path, body)] = served.requests("POST")
    assert path == "/experiments"
    assert body["config"]["trialCommand"] == "python3 trial.py"
    assert body["config"]["searchSpace"]["lr"]["_value"] == [1e-4, 0.1]
    assert body["directory"] == str(file.parent)
    assert f"{served.url}/experiments/mine?token=" in result.stderr
    assert "proctor stop mine" in result.stderr
    assert result.stderr.endswith("Experiment mine has started.\n")


def test_it_renders_the_objects_that_kubectl_would_take_and_starts_nothing(
    served: ServedManager, invoke, file: Path
) -> None:
    section = "trainingService: {platform: kubernetes, image: digits:3, namespace: ml, runAsUser: 10001}"
    file.write_text(file.read_text().replace("trainingService: {platform: local}", section))
    objects = list(YAML(typ="safe").load_all(invoke("create", str(file), "--render", code=0).stdout))
    assert [each["kind"] for each in objects] == ["ConfigMap", "ConfigMap", "Job", "Secret"]
    assert {each["metadata"]["namespace"] for each in objects} == {"ml"}
    assert objects[2]["spec"]["template"]["spec"]["securityContext"]["runAsUser"] == 10001
    assert [path for path, _ in served.requests("POST")] == ["/platforms/render"]


def test_a_trial_that_a_restricted_namespace_would_refuse_is_refused_with_the_key_to_give(
    served: ServedManager, invoke, file: Path, tmp_path: Path
) -> None:
    api = PlayedApi()
    api.level = "restricted"
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(api.serving(tmp_path)):
        section = f"platform: kubernetes, image: 'digits:3', kubeconfig: {tmp_path / 'kubeconfig'}"
        file.write_text(file.read_text().replace("platform: local", section))
        result = invoke("create", str(file))
    words = "the experiment cannot run on platform kubernetes: test/ml: the cluster refuses the objects of trials: "
    assert words in result.stderr
    assert result.stderr.endswith("; give trainingService.runAsUser, such as 10001\n")
    assert (result.exit_code, result.stdout) == (2, "")


def test_only_the_objects_of_kubernetes_can_be_rendered(served: ServedManager, invoke, file: Path) -> None:
    result = invoke("create", str(file), "--render")
    assert result.stderr.endswith("--render works with platform kubernetes only; this experiment's platform is local\n")
    assert result.exit_code != 0


def test_a_notice_of_the_platform_is_reported(served: ServedManager, invoke, file: Path, monkeypatch) -> None:
    machines = "trainingService: {platform: remote, machineList: [{host: a}]}"
    file.write_text(file.read_text().replace("trainingService: {platform: local}", machines))
    step = CheckStep("a", "objects", CheckVerdict.NOTE, "it is nearly full")
    monkeypatch.setattr(provider_of(served.manager), "previewed", [step])
    assert "Notice: a: it is nearly full\n" in invoke("create", str(file)).stderr


def test_the_file_is_an_argument_or_an_option_but_not_both(served: ServedManager, invoke, file: Path) -> None:
    for words in ((str(file),), ("-c", str(file)), ("--config", str(file))):
        assert invoke("create", *words).exit_code == 0
    assert len(served.requests("POST")) == 3
    assert "give one FILE" in invoke("create", str(file), "--config", str(file)).stderr
    assert "give the FILE of an experiment" in invoke("create").stderr
    assert len(served.requests("POST")) == 3


@pytest.mark.parametrize("words", [("create",), ("config", "check"), ("create", "--dry-run"), ("doctor",)])
def test_a_missing_package_is_all_that_is_said(served: ServedManager, invoke, file: Path, words, monkeypatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, package=None: None)
    text = CONFIG.replace("platform: local", "platform: remote, machineLst: [{host: a}]").replace("TPE", "TPF")
    file.write_text(text)
    result = invoke(*words, str(file))
    if words == ("doctor",):
        assert "platform remote needs asyncssh: pip install 'proctor[remote]'" in result.stdout
    else:
        assert result.stderr == "Error: platform remote needs asyncssh: pip install 'proctor[remote]'\n"
        assert result.exit_code == 2
    assert not served.requests("POST")


def test_the_environment_goes_through_a_private_file(served: ServedManager, invoke, file: Path, monkeypatch) -> None:
    monkeypatch.setenv("OF_THIS_SHELL", "yes")
    modes: list[int] = []

    def note(body: Any) -> None:
        modes.append((served.home / "incoming" / body["handover"]).stat().st_mode & 0o777)
        handed.append(served.read_handover(body))

    handed: list[dict[str, Any]] = []
    served.before["POST", "/experiments"] = note
    assert invoke("create", "--config", str(file)).exit_code == 0
    assert modes == [0o600]
    assert handed[0]["environment"]["OF_THIS_SHELL"] == "yes"
    assert handed[0]["cwd"] == os.getcwd()
    assert set(handed[0]) == {"environment", "cwd", "executable", "path", "secrets", "umask"}
    [(_, body)] = served.requests("POST")
    assert "OF_THIS_SHELL" not in json.dumps(body)


def test_a_refused_configuration_leaves_no_file_behind(
    served: ServedManager, invoke, file: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(**_: object) -> None:
        raise BadRequest("the configuration is not valid", [ConfigProblem(NOWHERE, "trialCommand", "something better")])

    monkeypatch.setattr(served.manager, "create_experiment", refuse)
    assert "trialCommand: expected something better" in invoke("create", "--config", str(file), code=2).stderr
    assert not list((home / "incoming").iterdir())


def test_problems_are_told_with_their_places_before_anything_is_asked(
    served: ServedManager, invoke, file: Path
) -> None:
    file.write_text(CONFIG.replace("trialConcurrency: 2", "trialConcurrencies: two"))
    result = invoke("create", "--config", str(file), code=2)
    assert f"{file}:4:1" in result.stderr
    assert "trialConcurrency" in result.stderr
    assert not served.asked


def test_a_dry_run_starts_nothing(invoke, file: Path, home: Path) -> None:
    result = invoke("create", "--config", str(file), "--dry-run", code=0)
    assert not result.stdout
    assert "4 trials, concurrency 2, TPE" in result.stderr
    assert not home.exists()


def test_a_dry_run_looks_for_the_program_of_the_command(invoke, file: Path) -> None:
    file.write_text(CONFIG.replace("COMMAND", "pyton3 trial.py"))
    result = invoke("create", "--config", str(file), "--dry-run")
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"{file}: trialCommand: pyton3 is not found on the PATH of the trials" in result.stderr
    remote = "remote, machineList: [{host: a, user: b}]"
    file.write_text(CONFIG.replace("COMMAND", "pyton3 trial.py").replace("local", remote))
    assert invoke("create", "--config", str(file), "--dry-run").exit_code == 0, "the machines may have it"


def test_a_dry_run_counts_the_gpus_of_this_machine(invoke, file: Path) -> None:
    file.write_text(CONFIG.replace("COMMAND", "python3 trial.py") + "trialGpuNumber: 4000\n")
    result = invoke("create", "--config", str(file), "--dry-run")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "trialGpuNumber is 4000, and this machine has " in result.stderr


def unusable(*names: str) -> dict[str, str]:
    return {name: f"node {name} is failed: it is off" for name in names}


@pytest.fixture
def machines(served: ServedManager, monkeypatch: pytest.MonkeyPatch) -> Callable[[Outlook], None]:
    """Say which machines experiments can use."""
    return lambda found: monkeypatch.setattr(served.manager, "outlook", lambda row: found)


def test_it_waits_for_machines_and_says_which_cannot_be_used(
    served: ServedManager, invoke, file: Path, machines
) -> None:
    machines(Outlook(total=3, pending=("b", "c"), unusable=unusable("a")))

    def come() -> None:
        machines(Outlook(total=3, unusable=unusable("a", "b")))
        served.emit("node")

    served.on_ask["GET", "/experiments/mine"] = come
    result = invoke("create", "--config", str(file), "--id", "mine")
    assert (result.exit_code, result.stdout) == (0, "mine\n")
    assert "2 of 3 machines cannot be used now:\n  node a is failed: it is off\n  node b is" in result.stderr


NEVER = "needs 1 GPU, node local has no GPU"


@pytest.mark.parametrize(
    ("known", "sentence"),
    [
        (
            Outlook(total=1, unusable=unusable("a")),
            "No trial can run until one of them is usable. To give up: proctor stop mine",
        ),
        (
            Outlook(total=1, unusable=unusable("local"), never=NEVER),
            f"No trial of experiment mine can ever run: {NEVER}",
        ),
    ],
    ids=["now", "ever"],
)
def test_where_no_trial_can_run_it_is_an_error_that_says_what_goes_on(
    invoke, file: Path, machines, known: Outlook, sentence: str
) -> None:
    machines(known)
    result = invoke("create", "--config", str(file), "--id", "mine", code=100)
    assert result.stdout == "mine\n"
    assert sentence in result.stderr
    assert "has started" not in result.stderr


@pytest.mark.parametrize(
    ("known", "has_started"),
    [
        (Outlook(total=2, pending=("b",)), True),
        (Outlook(total=2, pending=("a", "b")), False),
        (Outlook(total=1, unusable=unusable("a")), False),
        (Outlook(total=2, unusable=unusable("a")), True),
    ],
)
def test_it_is_said_to_have_started_once_a_machine_can_run_trials(
    invoke, file: Path, monkeypatch: pytest.MonkeyPatch, machines, known: Outlook, has_started: bool
) -> None:
    monkeypatch.setattr(create_module, "CONNECTING_SECONDS", 0.0)
    machines(known)
    result = invoke("create", "--config", str(file), "--id", "mine")
    assert "Created experiment mine (" in result.stderr
    assert ("has started" in result.stderr) == has_started


def test_an_experiment_that_fails_meanwhile_is_an_error(served: ServedManager, invoke, file: Path, machines) -> None:
    machines(Outlook(total=1, pending=("a",)))
    failed = {"status": ExperimentStatus.ERROR, "reason": "its tuner raised"}
    served.on_ask["GET", "/experiments/mine"] = lambda: served.change_experiment("mine", **failed)
    result = invoke("create", "--config", str(file), "--id", "mine", code=100)
    assert "Experiment mine cannot run: " in result.stderr
    assert "its tuner raised" in result.stderr


def test_an_id_that_is_taken_is_a_conflict(served: ServedManager, invoke, file: Path) -> None:
    served.add_experiment("mine")
    assert invoke("create", "--config", str(file), "--id", "mine").exit_code == 5


def test_in_the_foreground_it_ends_with_the_best_trial(served: ServedManager, invoke, file: Path) -> None:
    served.script = lambda form: [Final(0.0, 0.75 if form.sequence_id == 1 else 0.5)]
    result = invoke("create", "--config", str(file), "--id", "mine", "--foreground", code=0)
    best = served.read(lambda c: trials.best(c, "mine", True))
    assert f"Best trial:  1 ({best.id})" in result.stdout
    assert "Metric:      0.75 (maximize)" in result.stdout
    assert "Parameters:  lr=" in result.stdout
    assert f"Files:       {served.home}/experiments/mine/trials/1-{best.id}\n" in result.stdout
    assert f"Page:        {served.url}/experiments/mine?token=" in result.stdout
    assert "4/4 trials: 4 succeeded; best 0.75 (trial 1, maximize)" in result.stderr


def test_results_that_are_no_numbers_are_not_said_to_be_missing(served: ServedManager, invoke, file: Path) -> None:
    served.script = lambda form: [Final(0.0, float("nan"))]
    result = invoke("create", "--config", str(file), "--id", "mine", "--foreground")
    why = "no final metric is a finite number that could be compared"
    assert f"No best trial: {why}" in result.stderr
    assert "No trial has reported" not in result.stderr
    assert f"- ({why}" in invoke("experiment", "show", "mine").stdout


@pytest.mark.parametrize(("status", "code"), [("ERROR", 100), ("STOPPED", 103)])
def test_in_the_foreground_its_exit_code_is_the_experiments(
    served: ServedManager, invoke, file: Path, status: str, code: int
) -> None:
    ended = {"status": ExperimentStatus(status), "error": "the tuner's traceback"}
    served.on_ask["GET", "/experiments/mine"] = lambda: served.change_experiment("mine", **ended)
    result = invoke("create", "--config", str(file), "--id", "mine", "--foreground", code=code)
    assert "the tuner's traceback" in result.stderr


def test_in_the_foreground_the_machines_that_are_kept_are_named_at_the_end(
    served: ServedManager, invoke, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(served.manager, "experiments_on", lambda node_id: ["mine"])
    served.add_node("local", "local")
    for name in ("gpu-1", "gpu-2"):
        served.add_node(name)
    served.script = lambda form: [Final(0.0, 1.0)]
    last = invoke("create", "--config", str(file), "--id", "mine", "--foreground").stderr.splitlines()[-1]
    assert last == "It keeps its machines (gpu-1, gpu-2) until: proctor stop mine"


def test_ctrl_c_in_the_foreground_stops_watching_and_nothing_else(
    served: ServedManager, invoke, file: Path, monkeypatch
) -> None:
    from proctor.sdk.client.events import Watch

    def interrupt(*_: object) -> list[object]:
        raise KeyboardInterrupt

    monkeypatch.setattr(Watch, "wait", interrupt)
    result = invoke("create", "--config", str(file), "--id", "mine", "--foreground", code=130)
    assert "experiment mine keeps running" in result.stderr
    assert "proctor stop mine" in result.stderr
    assert served.experiment("mine").status == "RUNNING"


def test_why_no_trial_succeeded_is_told(served: ServedManager, invoke, file: Path) -> None:
    served.script = lambda form: [ScriptedExit(reason=EndReason.EXITED_ERROR, code=3, detail="exit code 3")]
    result = invoke("create", "--config", str(file), "--id", "mine", "--foreground", code=100)
    assert re.search(r"Trial \d failed: exit code 3", result.stderr), result.stderr
    assert re.search(r"proctor trial log \w{8}\n", result.stderr)


def test_secrets_are_handed_over_and_not_posted(
    served: ServedManager, home: Path, tmp_path: Path, handed: list[dict[str, Any]]
) -> None:
    loaded = SimpleNamespace(
        mapping={"password": "********"},
        secrets={"machine_list.0.password": "hush"},
        config=SimpleNamespace(tuner=None, assessor=None, trial_scheduler=None),
    )
    with Client(home=home) as client, pytest.raises(ProblemError):  # it is no configuration
        submit(client, loaded, tmp_path / "experiment.yml")
    [(_, body)] = served.requests("POST")
    assert body["config"] == {"password": "********"}
    assert handed[0]["secrets"] == {"machine_list.0.password": "hush"}


@pytest.fixture
def handed(served: ServedManager) -> list[dict[str, Any]]:
    """What is handed over with the next experiment."""
    found: list[dict[str, Any]] = []
    served.before["POST", "/experiments"] = lambda body: found.append(served.read_handover(body))
    return found


REMOTE = """
trainingService:
  platform: remote
  machineList:
    - {host: gpu-1, user: bob, passwordEnv: GPU_PASSWORD}
    - {host: gpu-2, user: bob, passwordPrompt: true}
    - {host: gpu-3, sshPassphrasePrompt: yes}
"""


@pytest.fixture
def remote_file(file: Path) -> Path:
    """A configuration that names its secrets instead of holding them."""
    text = CONFIG.replace("COMMAND", "python3 trial.py").replace("trainingService: {platform: local}\n", REMOTE)
    file.write_text(text)
    return file


def test_secrets_come_from_the_environment_and_from_the_terminal(
    served: ServedManager, invoke, remote_file: Path, monkeypatch: pytest.MonkeyPatch, handed: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr(create_module, "CONNECTING_SECONDS", 0.0)
    asked, answers = [], iter(["hunter2", ""])
    monkeypatch.setenv("GPU_PASSWORD", "swordfish")
    monkeypatch.setattr(credentials, "_ask_on_terminal", lambda wanted, prompt: asked.append(prompt) or next(answers))
    result = invoke("create", "--config", str(remote_file), code=0)
    assert asked == ["Password of bob@gpu-2: ", "Passphrase of gpu-3 (Enter: the same again): "]
    assert handed[0]["secrets"] == {
        "training_service.machine_list.0.password": "swordfish",
        "training_service.machine_list.1.password": "hunter2",
        "training_service.machine_list.2.ssh_passphrase": "hunter2",
    }
    assert "GPU_PASSWORD" not in handed[0]["environment"]
    for text in (json.dumps(served.requests("POST")), result.stdout, result.stderr):
        assert "swordfish" not in text
        assert "hunter2" not in text


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({}, ["password of bob@gpu-1 is expected in the environment variable GPU_PASSWORD, which is not set"]),
        ({"GPU_PASSWORD": "swordfish"}, ["password of bob@gpu-2", "passwordEnv"]),
    ],
    ids=["a variable that is not set", "no terminal to ask on"],
)
def test_a_secret_that_cannot_be_had_is_named_before_anything_is_started(
    invoke,
    remote_file: Path,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    words: list[str],
) -> None:
    monkeypatch.delenv("GPU_PASSWORD", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    said = invoke("create", "--config", str(remote_file), code=2).stderr
    assert [each for each in words if each not in said] == []
    assert not home.exists()


def test_a_registered_name_is_posted_as_its_class(served: ServedManager, invoke, file: Path) -> None:
    (file.parent / "demo.py").write_text("import proctor.sdk.tuner\n\nclass Tuner(proctor.sdk.tuner.Tuner): ...\n")
    (file.parent / "meta.yml").write_text("algoType: tuner\nbuiltinName: Mine\nclassName: demo.Tuner\n")
    assert invoke("algo", "register", "-m", str(file.parent / "meta.yml")).exit_code == 0
    file.write_text(CONFIG.replace("COMMAND", "python3 trial.py").replace("name: TPE", "name: mine"))
    assert invoke("config", "check", str(file)).exit_code == 0
    assert invoke("create", "--config", str(file)).exit_code == 0
    [(_, body)] = served.requests("POST")
    assert body["config"]["tuner"] == {
        "class_name": "demo.Tuner",
        "code_directory": str(file.parent),
        "class_args": {"optimize_mode": "maximize"},
    }


def test_a_name_that_is_not_registered_is_refused(served: ServedManager, invoke, file: Path) -> None:
    file.write_text(CONFIG.replace("COMMAND", "python3 trial.py").replace("name: TPE", "name: mine"))
    assert f"{file}:6:15: tuner.name" in invoke("config", "check", str(file), code=2).stderr
