"""Live ids in completion."""

import click
from click.shell_completion import ShellComplete
from fakes.rest import FakeRest

from proctor.manager.cli import identifiers
from proctor.manager.cli.main import cli


def complete(home: object, *words: str) -> list[str]:
    *before, incomplete = words
    shell = ShellComplete(cli, {}, "proctor", "_PROCTOR_COMPLETE")
    return [item.value for item in shell.get_completions(["--home", str(home), *before], incomplete)]


def test_commands_are_completed(home) -> None:
    assert complete(home, "tr") == ["trial"]


def test_experiments_are_completed_by_their_beginning(rest: FakeRest, home, monkeypatch) -> None:
    monkeypatch.setattr(identifiers, "CAP_SECONDS", 30.0)
    for name in ("ab1", "ab2", "c"):
        rest.add_experiment(name)
    assert sorted(complete(home, "stop", "ab")) == ["ab1", "ab2"]


def test_running_trials_are_offered_before_anything_is_typed(rest: FakeRest, home, monkeypatch) -> None:
    monkeypatch.setattr(identifiers, "CAP_SECONDS", 30.0)
    rest.add_experiment("e")
    rest.add_trial("e", "done")
    rest.add_trial("e", "runs", status="RUNNING")
    assert complete(home, "trial", "kill", "") == ["runs"]
    assert complete(home, "trial", "show", "do") == ["done"]


def test_without_a_manager_nothing_is_offered(home) -> None:
    assert complete(home, "stop", "") == []


def test_a_manager_that_does_not_answer_is_not_waited_for(rest: FakeRest, home, monkeypatch) -> None:
    monkeypatch.setattr(identifiers, "CAP_SECONDS", 0.0)
    rest.add_experiment("ab1")
    assert complete(home, "stop", "") == []


def test_completion_does_not_need_a_session(rest: FakeRest, home) -> None:
    context = click.Context(cli)
    assert identifiers.experiment_ids(context, click.Argument(["experiment"]), "zzz") == []
