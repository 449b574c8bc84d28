"""Every documented exit code, and that errors are sentences."""

from functools import partial

import pytest
from fakes.rest import STATUS_AFTER, FakeRest

from proctor.manager.cli.commands import nodes
from proctor.manager.cli.exits import ExitCode


def test_a_read_that_works_ends_with_0(rest: FakeRest, invoke) -> None:
    assert invoke("nodes").exit_code == 0


def test_an_error_that_nobody_expects_ends_with_1_and_one_line(invoke, rest: FakeRest, monkeypatch) -> None:
    def break_down(*_: object, **__: object) -> None:
        raise RuntimeError("the sky has fallen")

    monkeypatch.setattr(nodes, "print_list", break_down)
    result = invoke("nodes")
    assert result.exit_code == 1
    assert "RuntimeError: the sky has fallen" in result.stderr
    assert "Traceback" not in result.stderr


def test_debug_shows_the_traceback(invoke, rest: FakeRest) -> None:
    result = invoke("--debug", "trial", "show", "nothing")
    assert result.exit_code == 3
    assert "Traceback" in result.stderr


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
def test_wrong_input_ends_with_2_and_changes_nothing(rest: FakeRest, invoke, arguments: tuple[str, ...]) -> None:
    rest.add_experiment("a")
    result = invoke(*arguments)
    assert result.exit_code == 2, result.stderr
    assert result.stderr
    assert not result.stdout
    assert not rest.requests("POST") + rest.requests("PATCH") + rest.requests("DELETE")


def test_a_misspelt_command_is_told_the_nearest_one(invoke) -> None:
    assert "Did you mean 'trial'?" in invoke("trail").stderr


@pytest.mark.parametrize(
    "arguments", [("experiment", "show", "nothing"), ("trial", "show", "nothing"), ("stop",), ("algo", "show", "x")]
)
def test_what_is_not_there_ends_with_3(rest: FakeRest, invoke, arguments: tuple[str, ...]) -> None:
    result = invoke(*arguments)
    assert result.exit_code == 3
    assert result.stderr.startswith("Error: ")


def test_a_wrong_token_ends_with_4(rest: FakeRest, invoke, home) -> None:
    (home / "token").write_text("another")
    assert invoke("experiment", "list").exit_code == 4


def test_a_conflict_ends_with_5(rest: FakeRest, invoke) -> None:
    rest.add_experiment("a")
    result = invoke("experiment", "delete", "a", "--yes")
    assert result.exit_code == 5
    assert result.stderr == "Error: experiment a is running; stop it before you delete it\n"


def test_no_manager_ends_with_6(invoke) -> None:
    result = invoke("experiment", "list")
    assert result.exit_code == 6
    assert "proctor manager start" in result.stderr


def test_a_manager_that_has_gone_ends_with_6(rest: FakeRest, invoke) -> None:
    result = invoke("--url", "http://127.0.0.1:1", "nodes")
    assert result.exit_code == 6
    assert "no manager answers at http://127.0.0.1:1" in result.stderr


def test_the_home_token_is_not_shown_to_another_manager(rest: FakeRest, invoke, home) -> None:
    (home / "manager.json").unlink()
    assert invoke("--url", rest.url, "nodes").exit_code == 4


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("DONE", ExitCode.OK),
        ("ERROR", ExitCode.EXPERIMENT_FAILED),
        ("STOPPED", ExitCode.CANCELLED),
    ],
)
def test_waiting_ends_as_the_experiment_does(rest: FakeRest, invoke, status: str, code: ExitCode) -> None:
    rest.add_experiment("a")
    rest.add_trial("a", "t0")
    rest.on_ask["GET", "/experiments/a"] = lambda: rest.set_status("a", status)
    assert invoke("experiment", "wait", "a").exit_code == code


def test_waiting_for_an_experiment_without_one_good_trial_ends_with_100(rest: FakeRest, invoke) -> None:
    rest.add_experiment("a", status="DONE")
    rest.add_trial("a", "t0", status="FAILED", final_value=None)
    assert invoke("experiment", "wait", "a").exit_code == 100


def test_waiting_too_long_ends_with_101(rest: FakeRest, invoke) -> None:
    rest.add_experiment("a")
    result = invoke("experiment", "wait", "a", "--timeout", "0.001s")
    assert result.exit_code == 101
    assert result.stderr.endswith("Experiment a is still RUNNING after 0.001s.\n")
    assert invoke("experiment", "wait", "a", "--timeout", "soon").exit_code == 2


@pytest.fixture
def stopping(rest: FakeRest, monkeypatch) -> FakeRest:
    """Experiments are STOPPING first when they are stopped."""
    monkeypatch.setitem(STATUS_AFTER, "stop", "STOPPING")
    rest.add_experiment("a", reason="waiting for 2 trials to save")
    rest.add_experiment("b")
    return rest


@pytest.mark.parametrize(("words", "stopped"), [(("stop", "a"), ["a"]), (("stop", "--all"), ["a", "b"])])
def test_stop_waits_until_it_is_stopped(stopping: FakeRest, invoke, words: tuple[str, ...], stopped: list[str]) -> None:
    for name in stopped:
        stopping.on_ask["GET", f"/experiments/{name}"] = partial(end_stopping, stopping, name)
    result = invoke(*words, "--wait")
    assert result.exit_code == 0, result.stderr
    assert "Experiment a is STOPPING: waiting for 2 trials to save.\n" in result.stderr
    for name in stopped:
        assert f"Experiment {name} is STOPPED.\n" in result.stderr


def end_stopping(rest: FakeRest, name: str) -> None:
    """When it was looked at while it is STOPPING; the command looks once before it asks for the stop."""
    if rest.experiments[name]["status"] == "STOPPING":
        rest.set_status(name, "STOPPED", reason="")
    else:
        rest.on_ask["GET", f"/experiments/{name}"] = partial(end_stopping, rest, name)


def test_stop_says_what_was_not_stopped_in_time(stopping: FakeRest, invoke) -> None:
    result = invoke("stop", "a", "--wait", "--timeout", "0.001s")
    assert result.exit_code == 101
    assert result.stderr.endswith("Error: not stopped in time: a\n")
    assert invoke("stop", "a", "--timeout", "soon").exit_code == 2


def test_waiting_for_a_stop_ends_when_the_experiment_is_resumed(stopping: FakeRest, invoke, monkeypatch) -> None:
    monkeypatch.setitem(STATUS_AFTER, "stop", "RUNNING")
    result = invoke("stop", "a", "--wait")
    assert result.exit_code == 5
    assert "experiment a was resumed meanwhile" in result.stderr


def test_every_exit_code_is_in_the_documentation(request: pytest.FixtureRequest) -> None:
    text = (request.config.rootpath / "docs" / "cli.md").read_text()
    for code in ExitCode:
        assert f"| {code.value} |" in text
