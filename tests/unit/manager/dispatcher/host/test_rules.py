"""An experiment that began with the rules of an earlier version decides by them to its end."""

import json
from pathlib import Path
from typing import Any

import pytest
from fakes.recorded_sessions import CASES, FOLDER

from proctor.manager.dispatcher import protocol
from proctor.manager.dispatcher.algorithms.catalog import CURRENT_RULES
from proctor.manager.dispatcher.host.session import HostSession


def lines_of(path: Path) -> list[tuple[str, dict[str, Any]]]:
    return [(way, body) for way, body in map(json.loads, path.read_text(encoding="utf-8").splitlines())]


def replay(lines: list[tuple[str, dict[str, Any]]], **changes: Any) -> list[dict[str, Any]]:
    """Send a session what was sent then; returns what it answers."""
    answers: list[dict[str, Any]] = []
    session = HostSession(lambda message: answers.append(json.loads(protocol.encode(message))))
    for way, body in lines:
        if way == ">":
            changed = body | changes if body["type"] == "Initialize" else body
            session.handle(protocol.decode(json.dumps(changed).encode()))
    return answers


@pytest.mark.parametrize("name", CASES)
def test_an_experiment_of_an_earlier_release_is_decided_as_then(name):
    lines = lines_of(FOLDER / f"{name}.jsonl")
    assert "rules" not in lines[0][1], "recorded before rules had versions"
    expected = [body for way, body in lines if way == "<"]
    for number, (found, before) in enumerate(zip(replay(lines), expected, strict=True)):
        assert found == before, f"answer {number}"


@pytest.mark.parametrize("name", ["hyperband-50", "bohb-tpe"])
def test_a_new_experiment_is_decided_by_the_rules_of_now(name):
    lines = lines_of(FOLDER / f"{name}.jsonl")
    expected = [body for way, body in lines if way == "<"]
    assert replay(lines, rules=CURRENT_RULES) != expected


def test_rules_that_are_not_known_are_refused_with_what_to_do():
    (first, *_) = lines_of(FOLDER / "median.jsonl")
    (error,) = replay([first], rules=CURRENT_RULES + 1)
    assert error["type"] == "Error"
    assert "update Proctor, then resume the experiment" in error["summary"]
