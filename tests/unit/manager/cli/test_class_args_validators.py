"""The validators of registered algorithms, which are the user's code, and what they have against `classArgs`."""

import os
import sys
from pathlib import Path

import pytest

from proctor.manager.dispatcher import class_args
from proctor.manager.dispatcher.algorithms.registered import RegisteredAlgorithm
from proctor.manager.dispatcher.class_args import Caller, refusal

META = "algoType: tuner\nbuiltinName: Mine\nclassName: own.tuner.Mine\nclassArgsValidator: own.tuner.Validator\n"
CONFIG = """\
searchSpace: {{x: {{_type: uniform, _value: [0, 1]}}}}
trialCommand: "true"
trialConcurrency: 1
trainingService: {{platform: local}}
tuner:
  name: mine
  classArgs: {arguments}
"""
TUNER = """
import os
import sys
from nni.utils import ClassArgsValidator
from nni.tuner import Tuner

print("a validator may print")

class Mine(Tuner):
    pass

class Validator(ClassArgsValidator):
    def validate_class_args(self, **kwargs):
        if kwargs.get("rate", 0) > 1:
            raise ValueError("rate should be\\nat most 1")
        if kwargs.get("leave"):
            os._exit(7)
        if kwargs.get("exit"):
            sys.exit("no")
        if kwargs.get("sleep"):
            import time
            time.sleep(1000)
        if kwargs.get("where"):
            raise ValueError(f"{os.getpid()} {sys.executable} {os.getcwd()} {os.environ.get('ONLY_HERE')}")
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "tuner.py").write_text(TUNER)
    (tmp_path / "meta.yml").write_text(META)
    return tmp_path


@pytest.fixture
def mine(folder: Path) -> RegisteredAlgorithm:
    return RegisteredAlgorithm("Mine", "tuner", "own.tuner.Mine", str(folder), "own.tuner.Validator")


def check(invoke, folder: Path, arguments: str):
    (folder / "config.yml").write_text(CONFIG.format(arguments=arguments))
    assert invoke("algo", "register", "--meta", str(folder / "meta.yml")).exit_code == 0
    return invoke("config", "check", str(folder / "config.yml"))


def test_class_args_that_a_validator_accepts_are_valid(invoke, folder: Path) -> None:
    assert check(invoke, folder, "{rate: 0.5}").exit_code == 0
    assert "own.tuner" not in sys.modules


def test_class_args_that_a_validator_refuses_are_a_problem_at_their_place(invoke, folder: Path) -> None:
    result = check(invoke, folder, "{rate: 3}")
    assert result.exit_code == 2
    assert "config.yml:7:14: tuner.classArgs: own.tuner.Validator refuses them: rate should be; at most 1" in (
        result.stderr
    )


def test_class_args_are_checked_where_none_are_given(invoke, folder: Path) -> None:
    strict = TUNER.replace('if kwargs.get("rate", 0) > 1:', 'if "rate" not in kwargs:')
    (folder / "own" / "tuner.py").write_text(strict)
    result = check(invoke, folder, "")
    assert "config.yml:6:9: tuner.classArgs: own.tuner.Validator refuses them: rate" in result.stderr


def test_create_refuses_them_before_anything_is_started(invoke, folder: Path, home: Path) -> None:
    assert check(invoke, folder, "{rate: 3}").exit_code == 2
    result = invoke("create", "--config", str(folder / "config.yml"))
    assert (result.exit_code, list(home.iterdir())) == (2, [home / "algorithms.json"])


def test_a_validator_runs_as_the_caller_and_not_in_this_process(mine: RegisteredAlgorithm, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    environment = {"PATH": os.environ["PATH"], "ONLY_HERE": "yes"}
    handover = {"executable": str(tmp_path / "python"), "cwd": str(tmp_path / "here"), "environment": environment}
    pid, _, directory, variable = refusal(mine, {"where": True}, Caller.captured(handover)).split()[-4:]
    assert int(pid) != os.getpid()
    assert (directory, variable) == (str(tmp_path / "here"), "yes")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"leave": True}, "could not be asked: its process ended with 7"),
        ({"exit": True}, "refuses them: SystemExit: no"),
        ({"unexpected argument": 1}, ""),
    ],
)
def test_a_validator_that_misbehaves_is_reported(mine: RegisteredAlgorithm, arguments: dict, words: str) -> None:
    found = refusal(mine, arguments, Caller.captured({}))
    assert words in found
    assert bool(found) is bool(words)


def test_a_validator_that_does_not_end_is_ended(mine: RegisteredAlgorithm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_args, "TIME_LIMIT_SECONDS", 0.2)
    assert "took longer than 0.2 s" in refusal(mine, {"sleep": True}, Caller.captured({}))


@pytest.mark.parametrize(
    ("validator", "words"),
    [("own.tuner.None_", "AttributeError"), ("own.nothing.Validator", "ModuleNotFoundError"), ("own.tuner.Mine", "At")],
)
def test_a_validator_that_is_not_there_is_named(folder: Path, validator: str, words: str) -> None:
    mine = RegisteredAlgorithm("Mine", "tuner", "own.tuner.Mine", str(folder), validator)
    found = refusal(mine, {}, Caller.captured({}))
    assert validator in found
    assert words in found


def test_an_algorithm_without_a_validator_takes_everything(folder: Path) -> None:
    mine = RegisteredAlgorithm("Mine", "tuner", "own.tuner.Mine", str(folder))
    assert refusal(mine, {"rate": 3}, Caller(executable="/nowhere", environment={})) == ""


def test_an_interpreter_that_cannot_be_started_is_named(mine: RegisteredAlgorithm) -> None:
    assert "/nowhere cannot be started" in refusal(mine, {}, Caller(executable="/nowhere", environment={}))


def test_the_name_of_a_validator_is_a_module_and_a_class(invoke, folder: Path) -> None:
    (folder / "meta.yml").write_text(META.replace("own.tuner.Validator", "Validator"))
    result = invoke("algo", "register", "--meta", str(folder / "meta.yml"), code=2)
    assert "classArgsValidator: expected module.Class, found 'Validator'" in result.stderr
