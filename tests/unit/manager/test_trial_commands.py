"""Whether the program of a trial's command is there; what is not certain is no problem."""

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from proctor.manager.trial_commands import problem_of

ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/"}


@pytest.fixture
def code(tmp_path: Path) -> Path:
    for name, mode in (("run.sh", 0o755), ("plain.sh", 0o644)):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(mode)
    return tmp_path


def problem(command: str, code: Path, environment: Mapping[str, str] = ENVIRONMENT) -> str:
    return problem_of(command, str(code), environment)


@pytest.mark.parametrize(
    "command",
    ["pyton3 trial.py", "pyton3 'a; b' > log 2>&1", "  pyton3 -m x && echo done", "pyton3", 'pyton3 "$(date; date)"'],
)
def test_a_program_that_is_not_on_the_path_is_a_problem(code: Path, command: str) -> None:
    assert problem(command, code).startswith(f"pyton3 is not found on the PATH of the trials ({ENVIRONMENT['PATH']})")


@pytest.mark.parametrize("command", ["./none.sh", "./plain.sh --fast", "/no/such/program x"])
def test_a_path_that_cannot_be_executed_is_a_problem(code: Path, command: str) -> None:
    assert problem(command, code).startswith(f"there is no {command.split()[0]} that can be executed in {code}")


@pytest.mark.parametrize(
    "command",
    [
        *("python3 trial.py", "./run.sh", "bash -c pyton3", "cd x && pyton3 t.py", "source env.sh", "exec pyton3"),
        *(
            "time pyton3",
            "! pyton3",
            "[ -f x ] && pyton3",
            "[[ -f x ]]",
            "{ pyton3; }",
            "(pyton3)",
            "if pyton3; then x; fi",
        ),
        *("FOO=1 pyton3", "PATH=/opt/bin:$PATH pyton3 t.py", "$PYTHON t.py", "'pyton3' t.py", "~/bin/pyton3", "`x`"),
        *("pyton3 a; python3 b", "pyton3 || python3 b", "pyton3 | cat", "pyton3 &", "pyton3 a\npython3 b"),
        *(
            "pyton3() { python3 t.py; }; pyton3",
            "function pyton3 { x; }",
            "pyton3 () { x; }",
            "# pyton3",
            "pyton3 'open",
        ),
    ],
)
def test_what_is_there_or_not_certain_is_no_problem(code: Path, command: str) -> None:
    assert problem(command, code) == ""


def test_the_path_and_the_functions_of_the_caller_count(code: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "pyton3").symlink_to(tmp_path / "run.sh")
    bare = {"PATH": "/usr/bin:/bin"}
    assert problem("pyton3 x", code, bare)
    assert problem("pyton3 x", code, {"PATH": f"{tmp_path}/bin:/usr/bin:/bin"}) == ""
    assert problem("pyton3 x", code, {**bare, "BASH_FUNC_pyton3%%": "() { true; }"}) == ""
    assert problem("pyton3 x", code, {**bare, "BASH_FUNC_command_not_found_handle%%": "() { true; }"}) == ""
    (tmp_path / "env.sh").write_text("pyton3() { true; }\n")
    assert problem("pyton3 x", code, {**bare, "BASH_ENV": str(tmp_path / "env.sh")}) == ""


def test_where_bash_gives_no_answer_there_is_no_problem(code: Path) -> None:
    assert problem("pyton3 x", code / "nowhere") == ""
    assert problem("pyton3 x", code, {"PATH": str(code)}) == ""  # no bash there
