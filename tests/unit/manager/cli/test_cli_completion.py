"""Live ids in completion."""

import click
from click.shell_completion import ShellComplete
from fakes.served_manager import ServedManager

from proctor.manager.cli import identifiers
from proctor.manager.cli.main import cli


def complete(home: object, *words: str) -> list[str]:
    *before, incomplete = words
    shell = ShellComplete(cli, {}, "proctor", "_PROCTOR_COMPLETE")
    return [item.value for item in shell.get_completions(["--home", str(home), *before], incomplete)]


def test_commands_are_completed(home) -> None:
    assert complete(home, "tr") == ["trial"]


def test_experiments_are_completed_by_their_beginning(served: ServedManager, home, monkeypatch) -> None:
    monkeypatch.setattr(identifiers, "CAP_SECONDS", 30.0)
    for name in ("ab1", "ab2", "c"):
        served.add_experiment(name, status="RUNNING")
    assert sorted(complete(home, "stop", "ab")) == ["ab1", "ab2"]


def test_running_trials_are_offered_before_anything_is_typed(served: ServedManager, home, monkeypatch) -> None:
    monkeypatch.setattr(identifiers, "CAP_SECONDS", 30.0)
    served.add_experiment(status="RUNNING", trials=[{"id": "done"}, {"id": "runs", "status": "RUNNING"}])
    assert complete(home, "trial", "kill", "") == ["runs"]
    assert complete(home, "trial", "show", "do") == ["done"]


def test_without_a_manager_nothing_is_offered(home) -> None:
    assert complete(home, "stop", "") == []


def test_a_manager_that_does_not_answer_is_not_waited_for(served: ServedManager, home, monkeypatch) -> None:
    monkeypatch.setattr(identifiers, "CAP_SECONDS", 0.0)
    served.add_experiment("ab1", status="RUNNING")
    assert complete(home, "stop", "") == []


def test_completion_does_not_need_a_session(served: ServedManager, home) -> None:
    assert identifiers.experiment_ids(click.Context(cli), click.Argument(["experiment"]), "zzz") == []
