"""`proctor nodes`, `platform` and `doctor FILE` against the fake manager."""

import json
import threading
from pathlib import Path

import pytest
from fakes.rest import FakeRest

from proctor.manager.cli import machines

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
def fleet(rest: FakeRest) -> FakeRest:
    """Three machines: one well, one that cannot be reached, and the manager's own."""
    reservation = {"job_id": "t.1", "holder": "trial 0 of experiment e", "gpus": None}
    rest.add_node("gpu-1", address="bob@gpu-1", reservations=[reservation])
    rest.add_node("gpu-2", address="gpu-2:2222", status="FAILED", reason="its SSH server does not answer")
    rest.add_node("local", kind="local", facts={"hostname": "here"})
    return rest


def test_the_list_shows_address_hold_and_reason(fleet: FakeRest, invoke) -> None:
    fleet.set_node("gpu-1", hold="drained: new disk")
    lines = invoke("nodes").stdout.splitlines()
    columns = "ID KIND STATUS ADDRESS JOBS GPUS GPU-HOURS CPU-HOURS SEEN HOLD REASON"
    assert lines[0].split() == columns.split()
    assert "bob@gpu-1" in lines[1]
    assert "drained: new disk" in lines[1]
    assert "its SSH server does not answer" in lines[2]
    assert "here" in lines[3]


def test_a_node_is_drained_with_a_reason_and_resumed(fleet: FakeRest, invoke) -> None:
    result = invoke("nodes", "drain", "gpu-1", "--reason", "new disk")
    assert result.exit_code == 0
    assert result.stdout == ""
    assert "1 trial job keeps running there" in result.stderr
    assert "proctor nodes resume gpu-1" in result.stderr
    assert json.loads(invoke("nodes", "-o", "json").stdout)[0]["hold"] == "drained: new disk"
    assert "gets jobs again; it is CONNECTED" in invoke("nodes", "resume", "gpu-1").stderr
    assert fleet.node_rows[0]["hold"] == ""


def test_a_node_is_named_by_its_address_or_a_beginning_too(fleet: FakeRest, invoke) -> None:
    assert invoke("nodes", "drain", "bob@gpu-1").exit_code == 0
    assert invoke("nodes", "drain", "loc").exit_code == 0
    assert [row["hold"] for row in fleet.node_rows] == ["drained", "", "drained"]


def test_a_name_that_fits_several_or_none_is_refused(fleet: FakeRest, invoke) -> None:
    several, none = invoke("nodes", "drain", "gpu"), invoke("nodes", "resume", "tpu")
    assert (several.exit_code, none.exit_code) == (5, 3)
    assert "gpu-1, gpu-2" in several.stderr
    assert "known nodes: gpu-1, gpu-2, local" in none.stderr


def test_an_exact_node_id_wins_over_an_address_and_two_nodes_of_one_address_are_ambiguous(
    rest: FakeRest, invoke
) -> None:
    rest.add_node("gpu-10", address="gpu-1")
    rest.add_node("gpu-1", address="shared")
    rest.add_node("gpu-2", address="shared")
    assert invoke("nodes", "drain", "gpu-1").exit_code == 0
    assert [row["hold"] for row in rest.node_rows] == ["", "drained", ""]
    result = invoke("nodes", "drain", "shared")
    assert result.exit_code == 5
    assert "gpu-1, gpu-2" in result.stderr
    assert invoke("nodes", "forget", "", "-y").exit_code == 3


def test_checking_a_node_that_answers_is_done_at_once(fleet: FakeRest, invoke) -> None:
    result = invoke("nodes", "check", "gpu-1")
    assert result.exit_code == 0
    assert "Node gpu-1 is CONNECTED." in result.stderr


@pytest.mark.parametrize(
    ("status", "reason", "code"), [("CONNECTED", "", 0), ("FAILED", "login as bob was refused", 1)]
)
def test_checking_a_node_waits_for_what_comes_of_it(
    fleet: FakeRest, invoke, status: str, reason: str, code: int
) -> None:
    def answer() -> None:
        fleet.set_node("gpu-2", status="FAILED", reason="its network is down; it is being tried again")
        threading.Thread(target=fleet.set_node, args=("gpu-2",), kwargs={"status": status, "reason": reason}).start()

    fleet.on_ask["POST", "/nodes/gpu-2/check"] = answer
    result = invoke("nodes", "check", "gpu-2")
    assert result.exit_code == code, result.stderr
    assert result.stderr.splitlines()[-1] == f"Node gpu-2 is {status}{'; ' if reason else ''}{reason}."


def test_checking_the_managers_own_node_is_refused(fleet: FakeRest, invoke) -> None:
    result = invoke("nodes", "check", "local")
    assert result.exit_code == 5
    assert "not reached over a network" in result.stderr


STATE = {"experiment_id": "E1", "files": 0, "total_files": 0, "bytes": 0, "total_bytes": 0, "is_finished": False}
HALF = STATE | {"files": 1, "total_files": 2, "bytes": 1_500_000, "total_bytes": 3_000_000}
ALL = STATE | {"files": 2, "total_files": 2, "bytes": 3_000_000, "total_bytes": 3_000_000, "is_finished": True}


def test_files_are_collected_and_the_progress_is_shown(fleet: FakeRest, invoke) -> None:
    fleet.collections["gpu-2"] = [STATE, HALF, ALL]
    result = invoke("nodes", "collect", "gpu-2")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.splitlines() == [
        "Node gpu-2, experiment E1: connecting.",
        "Node gpu-2, experiment E1: copied 1 of 2 files (1.5 of 3.0 MB).",
        "Node gpu-2, experiment E1: done: 2 files, 3.0 MB.",
    ]


def test_without_a_node_files_of_all_that_have_some_are_collected(fleet: FakeRest, invoke) -> None:
    fleet.set_node("gpu-1", uncollected=["E1"])
    fleet.set_node("gpu-2", uncollected=["E1"])
    fleet.collections = {
        "gpu-1": [ALL],
        "gpu-2": [HALF | {"is_finished": True, "problem": "the machine is unreachable"}],
    }
    result = invoke("nodes", "collect")
    assert result.exit_code == 1
    assert "Node gpu-1, experiment E1: done: 2 files, 3.0 MB." in result.stderr
    assert (
        "Node gpu-2, experiment E1: copied 1 of 2 files; the others stay there: the machine is unreachable."
        in result.stderr
    )


def test_a_collection_that_did_not_come_to_its_end_is_a_failure(fleet: FakeRest, invoke) -> None:
    fleet.collections["gpu-2"] = [STATE, HALF]
    assert invoke("nodes", "collect", "gpu-2").exit_code == 1


def test_it_is_said_where_there_is_nothing_to_collect(fleet: FakeRest, invoke) -> None:
    one, every = invoke("nodes", "collect", "gpu-1"), invoke("nodes", "collect")
    assert (one.exit_code, every.exit_code) == (0, 0)
    assert one.stderr == "Node gpu-1 has no files that were not collected.\n"
    assert every.stderr == "No node has files that were not collected.\n"
    assert invoke("nodes", "collect", "unknown").exit_code == 3
    assert invoke("nodes", "collect", "gpu-1", "--experiment", "unknown").exit_code == 3


def test_a_node_is_forgotten_once_that_is_confirmed(fleet: FakeRest, invoke) -> None:
    declined = invoke("nodes", "forget", "gpu-2", input="n\n")
    assert "Forget node gpu-2, which is FAILED; its SSH server does not answer?" in declined.stderr
    assert len(fleet.node_rows) == 3
    assert "Forgot node gpu-2." in invoke("nodes", "forget", "gpu-2:2222", input="y\n").stderr
    assert "Forgot node gpu-1." in invoke("nodes", "forget", "gpu-1", "--yes").stderr
    assert [row["id"] for row in fleet.node_rows] == ["local"]


def test_a_node_that_an_experiment_needs_is_not_forgotten(fleet: FakeRest, invoke) -> None:
    fleet.set_node("gpu-2", experiments=["E1"])
    result = invoke("nodes", "forget", "gpu-2", "--yes")
    assert result.exit_code == 5
    assert "used by experiment E1" in result.stderr


def test_doctor_prints_every_hop_of_every_machine_in_one_table(rest: FakeRest, invoke, file: Path) -> None:
    rest.found["gpu-2"] = [
        {"name": "port"},
        {"name": "login", "verdict": "fail", "found": "login as bob was refused", "advice": "give a password"},
    ]
    result = invoke("doctor", "--config", str(file))
    assert result.exit_code == 1
    lines = result.stdout.splitlines()
    assert lines[0].split() == ["MACHINE", "CHECK", "FOUND", "ADVICE"]
    assert lines[1].split()[:2] == ["here", "python"]
    assert [line.split()[:3] for line in lines[-4:]] == [
        ["gpu-1", "check", "ok"],
        ["gpu-2", "port", "ok"],
        ["gpu-2", "login", "fail"],
        ["gpu-3", "check", "ok"],
    ]
    assert "give a password" in lines[-2]
    printed = result.stderr.splitlines()
    assert set(printed[:3]) == {"bob@gpu-1: ok", "gpu-2: login: login as bob was refused", "gpu-3:2222: ok"}
    assert "login of gpu-2" in printed[-1]
    assert "swordfish" not in result.stdout + result.stderr


def test_a_machine_that_can_run_no_trial_is_a_failure_only_where_no_other_can(
    rest: FakeRest, invoke, file: Path
) -> None:
    unable = [{"name": "trials", "verdict": "fail", "found": "gpuIndices names GPU 7, it has GPUs 0, 1"}]
    rest.found = dict.fromkeys(("gpu-1", "gpu-2", "gpu-3"), unable)

    def verdicts() -> list[str]:
        rows = json.loads(invoke("doctor", "--config", str(file), "-o", "json").stdout)
        return [row["verdict"] for row in rows if row["name"] == "trials"]

    assert verdicts() == ["fail", "fail", "fail"]
    rest.found["gpu-2"] = [{"name": "trials", "verdict": "skipped", "found": "not reached"}]
    assert verdicts() == ["fail", "skipped", "fail"]
    rest.found["gpu-2"] = [{"name": "trials", "found": "need 1 GPU, may use 2"}]
    assert verdicts() == ["note", "ok", "note"]


def test_what_was_skipped_is_one_line_for_people_and_all_of_it_for_programs(rest: FakeRest, invoke, file: Path) -> None:
    skipped = [{"name": name, "verdict": "skipped", "found": "not reached"} for name in ("login", "python", "gpus")]
    rest.found["gpu-2"] = [{"name": "port", "verdict": "fail", "found": "refused"}, *skipped]
    lines = invoke("doctor", "--config", str(file)).stdout.splitlines()
    [line] = [line for line in lines if " skipped " in line]
    assert line.split() == ["gpu-2", "login", "…", "gpus", "skipped", "not", "reached"]
    rows = json.loads(invoke("doctor", "--config", str(file), "-o", "json").stdout)
    assert [row["name"] for row in rows if row["verdict"] == "skipped"] == ["login", "python", "gpus"]


def test_doctor_asks_about_one_machine_a_request_and_hands_the_secrets_over(
    rest: FakeRest, invoke, file: Path, home: Path
) -> None:
    rows = json.loads(invoke("doctor", "--config", str(file), "-o", "json").stdout)
    assert [row["machine"] for row in rows if row["machine"]] == ["gpu-1", "gpu-2", "gpu-3"]
    assert sorted(body["machine"] for _, body in rest.requests("POST")) == [0, 1, 2]
    assert rest.handed_over["secrets"] == {"training_service.machine_list.1.password": "swordfish"}
    assert "GPU_PASSWORD" not in rest.handed_over["environment"]
    assert not list((home / "incoming").iterdir())


def test_doctor_does_not_look_for_programs_of_the_machines_here(rest: FakeRest, invoke, file: Path) -> None:
    rows = json.loads(invoke("doctor", "--config", str(file), "-o", "json").stdout)
    assert {row["name"]: row["verdict"] for row in rows}["command"] == "ok"


def test_doctor_tells_of_a_missing_password_and_of_the_rest(
    rest: FakeRest, invoke, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("GPU_PASSWORD")
    result = invoke("doctor", "--config", str(file), "-o", "json")
    last = json.loads(result.stdout)[-1]
    assert (last["name"], last["verdict"]) == ("logins", "fail")
    assert "GPU_PASSWORD" in last["found"]
    assert result.exit_code == 1
    assert rest.requests("POST") == []


def test_a_request_that_fails_ends_the_command_with_its_sentence(rest: FakeRest, invoke, file: Path) -> None:
    rest.refused = "the manager cannot reach machines"
    result = invoke("doctor", "--config", str(file))
    assert result.exit_code == 1
    assert "the manager cannot reach machines" in result.stderr


def test_cleaning_tells_what_was_removed_and_what_is_left(rest: FakeRest, invoke, file: Path) -> None:
    rest.found["gpu-1"] = [{"verdict": "fail", "found": "experiment e uses it", "advice": "stop it"}]
    result = invoke("platform", "clean", "--config", str(file))
    assert result.exit_code == 1
    assert [line.split()[:3] for line in result.stdout.splitlines()[1:]] == [
        ["gpu-1", "clean", "fail"],
        ["gpu-2", "clean", "ok"],
        ["gpu-3", "clean", "ok"],
    ]
    assert "Not clean: gpu-1." in result.stderr
    del rest.found["gpu-1"]
    assert invoke("platform", "clean", "--config", str(file)).exit_code == 0


def test_a_platform_without_machines_cannot_be_cleaned(invoke, file: Path, home: Path) -> None:
    file.write_text(CONFIG[: CONFIG.index("trainingService")] + "trainingService: {platform: local}\n")
    result = invoke("platform", "clean", "--config", str(file))
    assert result.exit_code == 2
    assert "platform local has no machines to clean" in result.stderr
    assert not home.exists()


class Successive(dict[str, list[list[dict[str, str]]]]):
    """What is found on a machine each time it is asked about; afterwards all is well."""

    def get(self, host: str, default: object = None) -> object:  # type: ignore[override]
        answers = super().get(host)
        return answers.pop(0) if answers else default


def test_cleaning_waits_for_an_experiment_that_is_leaving_and_says_so_once(
    rest: FakeRest, invoke, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machines, "PAUSE_SECONDS", 0.0)
    leaving = [{"name": "leaving", "verdict": "fail", "found": "experiment e was stopped and is leaving it"}]
    rest.found = Successive({"gpu-2": [leaving, leaving]})
    result = invoke("platform", "clean", "--config", str(file))
    assert result.exit_code == 0
    assert result.stderr.count("gpu-2: waits: experiment e was stopped and is leaving it") == 1
    assert sorted(body["machine"] for _, body in rest.requests("POST")) == [0, 1, 1, 1, 2]
    assert rest.handed_over["secrets"]


def test_cleaning_does_not_wait_for_ever(rest: FakeRest, invoke, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machines, "LEAVING_SECONDS", 0.0)
    found = "experiment e was stopped and is leaving it"
    rest.found["gpu-2"] = [{"name": "leaving", "verdict": "fail", "found": found, "advice": "ask again"}]
    result = invoke("platform", "clean", "--config", str(file))
    assert result.exit_code == 1
    assert found in result.stdout
    assert "Not clean: gpu-2." in result.stderr
