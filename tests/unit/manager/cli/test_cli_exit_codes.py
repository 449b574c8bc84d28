"""Every documented exit code, and that errors are sentences."""

import pytest
from fakes.served_manager import ServedManager

from proctor.manager.cli.commands import nodes
from proctor.manager.cli.exits import ExitCode
from proctor.manager.lifecycle.states import ExperimentStatus


def test_an_error_that_nobody_expects_ends_with_1_and_one_line(invoke, served: ServedManager, monkeypatch) -> None:
    def break_down(*_: object, **__: object) -> None:
        raise RuntimeError("the sky has fallen")

    monkeypatch.setattr(nodes, "print_list", break_down)
    result = invoke("nodes", code=1)
    assert "RuntimeError: the sky has fallen" in result.stderr
    assert "Traceback" not in result.stderr
    shown = invoke("--debug", "trial", "show", "nothing")
    assert (shown.exit_code, "Traceback" in shown.stderr) == (3, True)


@pytest.fixture(scope="module")
def one(read_only: ServedManager) -> ServedManager:
    """One experiment runs."""
    read_only.add_experiment("a", status="RUNNING", trials=[{}])
    return read_only


@pytest.mark.parametrize(
    "arguments",
    [
        ("trail",),
        ("trial", "ls", "--sort", "color"),
        ("create",),
        ("create", "--config", "nowhere.yml"),
        ("update", "duration", "-v", "1x"),
        ("update", "trialnum", "-v", "0"),
        ("update", "gpuhours", "--value", "-1"),
        ("update", "priority", "--value", "1001"),
        ("update", "gpuhours", "--value", "nan"),
        ("update", "concurrency", "-v", "1001"),
        ("update", "searchspace", "-f", "nowhere.json"),
        ("trial", "add"),
        ("trial", "add", "--parameters", ""),
        ("trial", "add", "--parameters", "{"),
        ("trial", "ls", "--head", "1", "--tail", "1"),
        ("trial", "log", "a", "-f", "--head", "3"),
        ("stop", "x", "--all"),
        ("experiment", "delete"),
        ("experiment", "import", "-f", "nowhere.json"),
        ("experiment", "load", "-p", "nowhere.zip"),
        ("config", "check"),
    ],
    ids=" ".join,
)
def test_wrong_input_ends_with_2_and_changes_nothing(one: ServedManager, read, arguments: tuple[str, ...]) -> None:
    result = read(*arguments, code=2)
    assert result.stderr
    assert not result.stdout
    assert not one.requests("POST") + one.requests("PATCH") + one.requests("DELETE")


def test_a_misspelt_command_is_told_the_nearest_one(invoke) -> None:
    assert "Did you mean 'trial'?" in invoke("trail").stderr


def test_what_is_not_there_ends_with_3(served: ServedManager, invoke) -> None:
    for arguments in ("experiment show nothing", "trial show nothing", "stop", "algo show x"):
        assert invoke(*arguments.split(), code=3).stderr.startswith("Error: ")


def test_a_wrong_token_ends_with_4(served: ServedManager, invoke, home) -> None:
    (home / "token").write_text("another")
    assert invoke("experiment", "list").exit_code == 4


def test_a_conflict_ends_with_5(served: ServedManager, invoke) -> None:
    served.add_experiment("a", status="RUNNING")
    result = invoke("experiment", "delete", "a", "--yes", code=5)
    assert result.stderr == "Error: experiment a is RUNNING; stop it before you delete it\n"


def test_no_manager_ends_with_6(invoke) -> None:
    assert "proctor manager start" in invoke("experiment", "list", code=6).stderr
    assert "no manager answers at http://127.0.0.1:1" in invoke("--url", "http://127.0.0.1:1", "nodes", code=6).stderr


def test_the_home_token_is_not_shown_to_another_manager(served: ServedManager, invoke, home) -> None:
    (home / "manager.json").unlink()
    assert invoke("--url", served.url, "nodes").exit_code == 4


def test_waiting_ends_as_the_experiment_does(served: ServedManager, invoke) -> None:
    codes = {"DONE": ExitCode.OK, "ERROR": ExitCode.EXPERIMENT_FAILED, "STOPPED": ExitCode.CANCELLED}
    for status, code in codes.items():
        served.add_experiment(status, status="RUNNING", trials=[{"id": f"of-{status}", "final_value": 0.5}])
        served.on_ask["GET", f"/experiments/{status}"] = lambda name=status: served.change_experiment(
            name, status=ExperimentStatus(name)
        )
        assert invoke("experiment", "wait", status).exit_code == code


def test_waiting_for_an_experiment_without_one_good_trial_ends_with_100(served: ServedManager, invoke) -> None:
    served.add_experiment("a", status="DONE", trials=[{"status": "FAILED"}])
    assert invoke("experiment", "wait", "a").exit_code == 100


def test_waiting_too_long_ends_with_101(served: ServedManager, invoke) -> None:
    served.add_experiment("a", status="RUNNING")
    result = invoke("experiment", "wait", "a", "--timeout", "0.001s", code=101)
    assert result.stderr.endswith("Experiment a is still RUNNING after 0.001s.\n")
    assert invoke("experiment", "wait", "a", "--timeout", "soon").exit_code == 2


@pytest.fixture
def stopping(served: ServedManager) -> ServedManager:
    """Each experiment has a trial, and is STOPPING until `on_ask` says otherwise."""
    for name in ("a", "b"):
        served.create(name)
        served.until(lambda name=name: served.read(lambda c: c.execute(RUNNING_JOBS, (name,)).fetchone()))
    return served


RUNNING_JOBS = "SELECT id FROM trial_jobs WHERE experiment_id = ? AND status = 'RUNNING'"


@pytest.mark.parametrize(("words", "stopped"), [(("stop", "a"), ["a"]), (("stop", "--all"), ["a", "b"])])
def test_stop_waits_until_it_is_stopped(
    stopping: ServedManager, invoke, words: tuple[str, ...], stopped: list[str]
) -> None:
    ends = {("GET", f"/experiments/{name}"): stopping.hold_stops(name) for name in stopped}
    path = "/stop-all" if "--all" in words else "/experiments/a/stop"  # the command looks before it asks for the stop
    stopping.on_ask["POST", path] = lambda: stopping.on_ask.update(ends)
    result = invoke(*words, "--wait", code=0)
    assert "Experiment a is STOPPING: waits for 1 trial on node memory.\n" in result.stderr
    for name in stopped:
        assert f"Experiment {name} is STOPPED: stopped by the user.\n" in result.stderr


def test_stop_says_what_was_not_stopped_in_time(stopping: ServedManager, invoke) -> None:
    stopping.hold_stops("a")
    result = invoke("stop", "a", "--wait", "--timeout", "0.001s", code=101)
    assert result.stderr.endswith("Error: not stopped in time: a\n")
    assert invoke("stop", "a", "--timeout", "soon").exit_code == 2


def test_waiting_for_a_stop_ends_when_the_experiment_is_resumed(stopping: ServedManager, invoke) -> None:
    stopping.hold_stops("a")
    status = ExperimentStatus.RUNNING
    stopping.on_ask["POST", "/experiments/a/stop"] = lambda: stopping.change_experiment("a", status=status)
    assert "experiment a was resumed meanwhile" in invoke("stop", "a", "--wait", code=5).stderr


def test_every_exit_code_is_in_the_documentation(request: pytest.FixtureRequest) -> None:
    text = (request.config.rootpath / "docs" / "cli.md").read_text()
    for code in ExitCode:
        assert f"| {code.value} |" in text
