"""`proctor nodes`, `platform` and `doctor FILE` against a manager whose machines are made up."""

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes.served_manager import ServedManager

from proctor.manager.api.routes import nodes as node_routes
from proctor.manager.cli import machines
from proctor.training_services.base import NodePlacement
from proctor.training_services.errors import ServiceUnavailable
from proctor.training_services.nodes.pool import NodeStatus
from proctor.training_services.providers import CheckStep, CheckVerdict, UncollectedFiles

CONFIG = """\
searchSpace: {lr: {_type: uniform, _value: [0, 1]}}
trialCommand: some-program-of-the-machines --fast
trialConcurrency: 1
tuner: {name: Random}
trainingService:
  platform: remote
  machineList:
    - {host: gpu-1, user: bob}
    - {host: gpu-2, passwordEnv: GPU_PASSWORD}
    - {host: gpu-3, port: 2222}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GPU_PASSWORD", "swordfish")
    path = tmp_path / "project" / "experiment.yml"
    path.parent.mkdir()
    path.write_text(CONFIG)
    return path


@pytest.fixture
def fleet(served: ServedManager) -> ServedManager:
    """Three machines: one well, one that cannot be reached, and the manager's own."""
    served.add_node("gpu-1", address="bob@gpu-1")
    served.add_node("gpu-2", address="gpu-2:2222", status=NodeStatus.FAILED, reason="its SSH server does not answer")
    served.add_node("local", "local", hostname="here")
    return served


def holds(served: ServedManager) -> list[str]:
    """Those of the nodes, by id."""
    return [node.hold for node in sorted(served.pool.nodes(), key=lambda node: node.id)]


def test_a_node_is_drained_with_a_reason_and_resumed(fleet: ServedManager, invoke) -> None:
    fleet.call(reserve(fleet))
    result = invoke("nodes", "drain", "gpu-1", "--reason", "new disk", code=0)
    assert result.stdout == ""
    assert "1 trial job keeps running there" in result.stderr
    assert "proctor nodes resume gpu-1" in result.stderr
    assert json.loads(invoke("nodes", "-o", "json").stdout)[0]["hold"] == "drained: new disk"
    assert "gets jobs again; it is CONNECTED" in invoke("nodes", "resume", "gpu-1").stderr
    assert holds(fleet) == ["", "", ""]


async def reserve(served: ServedManager) -> None:
    served.pool.restore("t.1", NodePlacement("gpu-1", None), "trial 0 of experiment e")


def test_a_node_is_named_by_its_address_or_a_beginning_too(fleet: ServedManager, invoke) -> None:
    assert invoke("nodes", "drain", "bob@gpu-1").exit_code == 0
    assert invoke("nodes", "drain", "loc").exit_code == 0
    assert holds(fleet) == ["drained", "", "drained"]
    several, none = invoke("nodes", "drain", "gpu"), invoke("nodes", "resume", "tpu")
    assert (several.exit_code, none.exit_code) == (5, 3)
    assert "gpu-1, gpu-2" in several.stderr
    assert "known nodes: gpu-1, gpu-2, local" in none.stderr


def test_an_exact_node_id_wins_over_an_address_and_two_nodes_of_one_address_are_ambiguous(
    served: ServedManager, invoke
) -> None:
    for node_id, address in {"gpu-10": "gpu-1", "gpu-1": "shared", "gpu-2": "shared"}.items():
        served.add_node(node_id, address=address)
    assert invoke("nodes", "drain", "gpu-1").exit_code == 0
    assert holds(served) == ["drained", "", ""]
    assert "gpu-1, gpu-2" in invoke("nodes", "drain", "shared", code=5).stderr
    assert invoke("nodes", "forget", "", "-y").exit_code == 3


def test_checking_a_node_that_answers_is_done_at_once(fleet: ServedManager, invoke) -> None:
    assert "Node gpu-1 is CONNECTED." in invoke("nodes", "check", "gpu-1", code=0).stderr
    assert fleet.remote.checked == ["gpu-1"]
    assert "not reached over a network" in invoke("nodes", "check", "local", code=5).stderr


@pytest.mark.parametrize(
    ("status", "reason", "code"), [("CONNECTED", "", 0), ("FAILED", "login as bob was refused", 1)]
)
def test_checking_a_node_waits_for_what_comes_of_it(
    fleet: ServedManager, invoke, status: str, reason: str, code: int
) -> None:
    def answer() -> None:
        fleet.set_node("gpu-2", reason="its network is down; it is being tried again")
        then = {"status": NodeStatus(status), "reason": reason}
        threading.Thread(target=fleet.set_node, args=("gpu-2",), kwargs=then).start()

    fleet.on_ask["POST", "/nodes/gpu-2/check"] = answer
    fleet.set_node("gpu-2", reason="its network is down; it is being tried again")
    result = invoke("nodes", "check", "gpu-2", code=code)
    assert result.stderr.splitlines()[-1] == f"Node gpu-2 is {status}{'; ' if reason else ''}{reason}."


BEGUN = {"files": 0, "total_files": 0, "bytes": 0, "total_bytes": 0}
HALF = {"files": 1, "total_files": 2, "bytes": 1_500_000, "total_bytes": 3_000_000}
ALL = {"files": 2, "total_files": 2, "bytes": 3_000_000, "total_bytes": 3_000_000}


def play(
    served: ServedManager, monkeypatch: pytest.MonkeyPatch, *, is_cut_off: bool = False, **states: list[dict[str, Any]]
) -> None:
    """Have nodes (`gpu_1`) files of experiment E1, and collections go through these states, the last of which ends
    them."""
    nodes = {name.replace("_", "-"): list(progress) for name, progress in states.items()}
    served.remote.left = [UncollectedFiles("E1", node_id, "there", "it was away") for node_id in nodes]

    async def wait_for_any(seconds: float, ended: asyncio.Event, *others: asyncio.Event) -> bool:
        [(node_id, _)] = [key for key, each in served.remote.collections.items() if each.ended is ended]
        for name, value in nodes[node_id].pop(0).items():
            setattr(served.remote.collections[node_id, "E1"], name, value)
        if not nodes[node_id] and not is_cut_off:
            ended.set()
        return not nodes[node_id]

    monkeypatch.setattr(node_routes, "wait_for_any", wait_for_any)


def test_files_are_collected_and_the_progress_is_shown(
    fleet: ServedManager, invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(fleet, monkeypatch, gpu_2=[BEGUN, HALF, ALL])
    result = invoke("nodes", "collect", "gpu-2")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.splitlines() == [
        "Node gpu-2, experiment E1: connecting.",
        "Node gpu-2, experiment E1: copied 1 of 2 files (1.5 of 3.0 MB).",
        "Node gpu-2, experiment E1: done: 2 files, 3.0 MB.",
    ]


def test_without_a_node_files_of_all_that_have_some_are_collected(
    fleet: ServedManager, invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(fleet, monkeypatch, gpu_1=[ALL], gpu_2=[HALF | {"problem": "the machine is unreachable"}])
    result = invoke("nodes", "collect", code=1)
    assert "Node gpu-1, experiment E1: done: 2 files, 3.0 MB." in result.stderr
    assert (
        "Node gpu-2, experiment E1: copied 1 of 2 files; the others stay there: the machine is unreachable."
        in result.stderr
    )


def test_a_collection_that_did_not_come_to_its_end_is_a_failure(
    fleet: ServedManager, invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    play(fleet, monkeypatch, is_cut_off=True, gpu_2=[BEGUN, HALF])
    assert invoke("nodes", "collect", "gpu-2").exit_code == 1


def test_it_is_said_where_there_is_nothing_to_collect(fleet: ServedManager, invoke) -> None:
    one, every = invoke("nodes", "collect", "gpu-1"), invoke("nodes", "collect")
    assert (one.exit_code, every.exit_code) == (0, 0)
    assert one.stderr == "Node gpu-1 has no files that were not collected.\n"
    assert every.stderr == "No node has files that were not collected.\n"
    assert invoke("nodes", "collect", "unknown").exit_code == 3
    assert invoke("nodes", "collect", "gpu-1", "--experiment", "unknown").exit_code == 3


def test_a_node_is_forgotten_once_that_is_confirmed(fleet: ServedManager, invoke) -> None:
    declined = invoke("nodes", "forget", "gpu-2", input="n\n")
    assert "Forget node gpu-2, which is FAILED; its SSH server does not answer?" in declined.stderr
    assert len(fleet.pool.nodes()) == 3
    fleet.remote.used = {"gpu-2"}
    assert "used by experiment E1" in invoke("nodes", "forget", "gpu-2", "--yes", code=5).stderr
    fleet.remote.used.clear()
    assert "Forgot node gpu-2." in invoke("nodes", "forget", "gpu-2:2222", input="y\n").stderr
    assert "Forgot node gpu-1." in invoke("nodes", "forget", "gpu-1", "--yes").stderr
    assert [node.id for node in fleet.pool.nodes()] == ["local"]


def step(name: str, verdict: str = "ok", found: str = "as it should be", advice: str = "") -> dict[str, Any]:
    return {"name": name, "verdict": CheckVerdict(verdict), "found": found, "advice": advice}


def find(served: ServedManager, host: str, *steps: dict[str, Any]) -> None:
    """What is found on a machine."""
    served.remote.steps[host] = [CheckStep(host, **each) for each in steps]


def test_doctor_prints_every_hop_of_every_machine_in_one_table(served: ServedManager, invoke, file: Path) -> None:
    find(served, "gpu-2", step("port"), step("login", "fail", "login as bob was refused", "give a password"))
    result = invoke("doctor", "--config", str(file), code=1)
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["MACHINE", "CHECK", "FOUND", "ADVICE"]
    assert lines[1].split()[:2] == ["here", "python"]
    assert [line.split()[:3] for line in lines[-4:]] == [
        ["gpu-1", "login", "ok"],
        ["gpu-2", "port", "ok"],
        ["gpu-2", "login", "fail"],
        ["gpu-3", "login", "ok"],
    ]
    assert "give a password" in lines[-2]
    printed = result.stderr.splitlines()
    assert set(printed[:3]) == {"bob@gpu-1: ok", "gpu-2: login: login as bob was refused", "gpu-3:2222: ok"}
    assert "login of gpu-2" in printed[-1]
    assert "swordfish" not in result.stdout + result.stderr


def test_a_machine_that_can_run_no_trial_is_a_failure_only_where_no_other_can(
    served: ServedManager, invoke, file: Path
) -> None:
    for host in ("gpu-1", "gpu-2", "gpu-3"):
        find(served, host, step("trials", "fail", "gpuIndices names GPU 7, it has GPUs 0, 1"))

    def verdicts() -> list[str]:
        rows = json.loads(invoke("doctor", "--config", str(file), "-o", "json").stdout)
        return [row["verdict"] for row in rows if row["name"] == "trials"]

    assert verdicts() == ["fail", "fail", "fail"]
    find(served, "gpu-2", step("trials", "skipped", "not reached"))
    assert verdicts() == ["fail", "skipped", "fail"]
    find(served, "gpu-2", step("trials", found="need 1 GPU, may use 2"))
    assert verdicts() == ["note", "ok", "note"]


def test_all_of_what_was_skipped_is_there_for_programs(served: ServedManager, invoke, file: Path) -> None:
    skipped = [step(name, "skipped", "not reached") for name in ("login", "python", "gpus")]
    find(served, "gpu-2", step("port", "fail", "refused"), *skipped)
    rows = json.loads(invoke("doctor", "--config", str(file), "-o", "json").stdout)
    assert [row["name"] for row in rows if row["verdict"] == "skipped"] == ["login", "python", "gpus"]


def test_doctor_asks_about_one_machine_a_request_and_hands_the_secrets_over(
    served: ServedManager, invoke, file: Path, home: Path
) -> None:
    handed: list[dict[str, Any]] = []
    served.before["POST", "/platforms/check"] = lambda body: handed.append(served.read_handover(body))
    rows = json.loads(invoke("doctor", "--config", str(file), "-o", "json").stdout)
    assert [row["machine"] for row in rows if row["machine"]] == ["gpu-1", "gpu-2", "gpu-3"]
    assert sorted(body["machine"] for _, body in served.requests("POST")) == [0, 1, 2]
    assert [secrets for _, _, secrets in served.remote.asked if secrets] == [
        {"training_service.machine_list.0.password": "swordfish"}
    ]
    assert "GPU_PASSWORD" not in handed[0]["environment"]
    assert not list((home / "incoming").iterdir())


def test_doctor_does_not_look_for_programs_of_the_machines_here(served: ServedManager, invoke, file: Path) -> None:
    rows = json.loads(invoke("doctor", "--config", str(file), "-o", "json").stdout)
    assert {row["name"]: row["verdict"] for row in rows}["command"] == "ok"


def test_doctor_tells_of_a_missing_password_and_of_the_rest(
    served: ServedManager, invoke, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPU_PASSWORD")
    result = invoke("doctor", "--config", str(file), "-o", "json")
    last = json.loads(result.stdout)[-1]
    assert (last["name"], last["verdict"]) == ("logins", "fail")
    assert "GPU_PASSWORD" in last["found"]
    assert result.exit_code == 1
    assert served.requests("POST") == []


def test_a_request_that_fails_ends_the_command_with_its_sentence(
    served: ServedManager, invoke, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise ServiceUnavailable("the manager cannot reach machines")

    monkeypatch.setattr(served.remote, "inspect", refuse)
    assert "the manager cannot reach machines" in invoke("doctor", "--config", str(file), code=1).stderr


def test_cleaning_tells_what_was_removed_and_what_is_left(served: ServedManager, invoke, file: Path) -> None:
    find(served, "gpu-1", step("clean", "fail", "experiment e uses it", "stop it"))
    result = invoke("platform", "clean", "--config", str(file), code=1)
    assert [line.split()[:3] for line in result.stdout.splitlines()[1:]] == [
        ["gpu-1", "clean", "fail"],
        ["gpu-2", "clean", "ok"],
        ["gpu-3", "clean", "ok"],
    ]
    assert "Not clean: gpu-1." in result.stderr
    del served.remote.steps["gpu-1"]
    assert invoke("platform", "clean", "--config", str(file)).exit_code == 0


def test_a_platform_without_machines_cannot_be_cleaned(invoke, file: Path, home: Path) -> None:
    file.write_text(CONFIG[: CONFIG.index("trainingService")] + "trainingService: {platform: local}\n")
    result = invoke("platform", "clean", "--config", str(file), code=2)
    assert "platform local has no machines to clean" in result.stderr
    assert not home.exists()


class Successive(dict[str, list[Sequence[CheckStep]]]):
    """What is found on a machine each time it is asked about; afterwards all is well."""

    def get(self, host: str, default: object = None) -> object:  # type: ignore[override]
        answers = super().get(host)
        return answers.pop(0) if answers else default


def test_cleaning_waits_for_an_experiment_that_is_leaving_and_says_so_once(
    served: ServedManager, invoke, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines, "PAUSE_SECONDS", 0.0)
    leaving = [CheckStep("gpu-2", **step("leaving", "fail", "experiment e was stopped and is leaving it"))]
    monkeypatch.setattr(served.remote, "steps", Successive({"gpu-2": [leaving, leaving]}))
    result = invoke("platform", "clean", "--config", str(file), code=0)
    assert result.stderr.count("gpu-2: waits: experiment e was stopped and is leaving it") == 1
    assert sorted(body["machine"] for _, body in served.requests("POST")) == [0, 1, 1, 1, 2]
    assert all(secrets for _, settings, secrets in served.remote.asked if "gpu-2" in str(settings))


def test_cleaning_does_not_wait_for_ever(
    served: ServedManager, invoke, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines, "LEAVING_SECONDS", 0.0)
    found = "experiment e was stopped and is leaving it"
    find(served, "gpu-2", step("leaving", "fail", found, "ask again"))
    result = invoke("platform", "clean", "--config", str(file), code=1)
    assert found in result.stdout
    assert "Not clean: gpu-2." in result.stderr
