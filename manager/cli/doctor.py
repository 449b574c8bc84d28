"""`proctor doctor`: is everything here that experiments need?"""

import os
import shlex
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from proctor.manager.cli.checks import CHECKS, Check, Verdict
from proctor.manager.cli.config import CONFIG_PATH
from proctor.manager.cli.exits import ExitCode
from proctor.manager.cli.output import Column, output_option, print_list
from proctor.manager.cli.session import Session, with_session

STYLES = {Verdict.OK: "green", Verdict.NOTE: "yellow", Verdict.FAIL: "bold red"}
COLUMNS = (
    Column("CHECK", lambda row: row["name"]),
    Column("", lambda row: row["verdict"], lambda row: STYLES[row["verdict"]]),
    Column("FOUND", lambda row: row["found"] + (f"; {row['advice']}" if row["advice"] else ""), wraps=True),
)
SHELL_WORDS = frozenset(
    ("if", "for", "while", "case", "(", "{", "[", "[[", "cd", "export", "source", ".", "exec", "set", "test", "eval")
)


@click.command()
@click.option("-c", "--config", "file", type=CONFIG_PATH, help="Also check what this configuration needs.")
@output_option
@with_session
def doctor(session: Session, file: Path | None, output: str) -> int:
    """Check this machine and the home; with --config also an experiment's command and code. Nothing is changed.

    The exit code is 1 when something fails.
    """
    checks = [check(session.home) for check in CHECKS]
    if file is not None:
        checks += check_config(file, session.home.path)
    print_list([asdict(check) for check in checks], COLUMNS, output, empty="")
    failed = [check.name for check in checks if check.verdict is Verdict.FAIL]
    if failed:
        session.say(f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}.")
    return ExitCode.FAILED if failed else ExitCode.OK


def check_config(file: Path, home: Path) -> list[Check]:
    """Whether a configuration is valid, and what it names is there."""
    from proctor.manager.config import ConfigError, describe_problems, load_experiment
    from proctor.manager.registered_algorithms import registered_algorithms

    try:
        loaded = load_experiment(file, registered=registered_algorithms(home))
    except ConfigError as error:
        return [Check("config", Verdict.FAIL, describe_problems(error).replace("\n", "; "))]
    notices = "; ".join(str(notice) for notice in loaded.notices)
    verdict = Verdict.NOTE if notices else Verdict.OK
    return [
        Check("config", verdict, f"{file} is valid", notices),
        _check_code(loaded.config),
        _check_command(loaded.config),
    ]


def _check_code(config: Any) -> Check:
    directory = Path(config.trial_code_directory)
    if not os.access(directory, os.R_OK | os.X_OK):
        return Check("code", Verdict.FAIL, f"{directory} cannot be read")
    dangling = next((path for path in _walk(directory) if path.is_symlink() and not path.exists()), None)
    if dangling is not None:
        return Check("code", Verdict.NOTE, f"{dangling} is a link to nothing", "remove it, or make its target")
    return Check("code", Verdict.OK, str(directory))


def _check_command(config: Any) -> Check:
    """The command's programs, as far as they can be seen without running it."""
    try:
        words = shlex.split(config.trial_command)
    except ValueError as error:
        return Check("command", Verdict.FAIL, f"{config.trial_command!r}: {error}", "check its quotes")
    while words and "=" in words[0]:  # variables in front
        words.pop(0)
    if not words or words[0] in SHELL_WORDS:
        return Check("command", Verdict.OK, config.trial_command)
    directory = Path(config.trial_code_directory)
    program = words[0] if "/" not in words[0] else str(directory / words[0])
    found = shutil.which(program)
    if found is None:
        return Check("command", Verdict.FAIL, f"{words[0]} is not found", "install it, or give its path")
    script = next((word for word in words[1:] if word.endswith((".py", ".sh"))), None)
    if script is not None and not (directory / script).is_file():
        return Check("command", Verdict.FAIL, f"there is no {directory / script}", "check trialCodeDirectory")
    return Check("command", Verdict.OK, f"{config.trial_command}  ({found})")


def _walk(directory: Path, most: int = 10_000) -> list[Path]:
    """The files below, as many as can be looked at in a moment; environments and version control left out."""
    found: list[Path] = []
    for root, folders, files in os.walk(directory):
        folders[:] = [name for name in folders if name not in {".git", ".venv", "venv", "node_modules", "__pycache__"}]
        found += [Path(root, name) for name in (*files, *folders)]
        if len(found) > most:
            break
    return found
