"""`proctor doctor`: is everything here that experiments need? `proctor platform`: clean the machines of one."""

import os
import shlex
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from proctor.manager.cli.checks import CHECKS, Check, CheckResult
from proctor.manager.cli.config_file import config_file_argument, load_checked
from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.cli.lazy import examples
from proctor.manager.cli.machines import MachineLines, find_logins, print_steps
from proctor.manager.cli.output import TableRow, output_option
from proctor.manager.cli.session import CliSession, with_session

SHELL_WORDS = frozenset(
    ("if", "for", "while", "case", "(", "{", "[", "[[", "cd", "export", "source", ".", "exec", "set", "test", "eval")
)


@click.command(epilog=examples("proctor doctor", "proctor doctor experiment.yml"))
@config_file_argument(required=False)
@output_option
@with_session
def doctor(session: CliSession, file: Path | None, output: str) -> int:
    """Check this machine and the home; with the FILE of an experiment also its command and code, and every hop to
    every machine of platform remote, or the cluster of platform kubernetes. Nothing is changed but in the cluster: a
    Job with one pod, like a trial's, is created there and deleted again.

    The manager is started in the background if machines have to be reached and none runs. The exit code is 1 if a
    check fails.
    """
    rows = _rows(check(session.home) for check in CHECKS)
    if file is not None:
        rows += check_config(session, file)
    print_steps(rows, output)
    failed = [
        f"{row['name']} of {row['machine']}" if row["machine"] else str(row["name"])
        for row in rows
        if row["verdict"] == CheckResult.FAIL
    ]
    if failed:
        session.report(f"{len(failed)} of {len(rows)} checks failed: {', '.join(failed)}.")
    return ExitCode.FAILED if failed else ExitCode.OK


def check_config(session: CliSession, file: Path) -> list[TableRow]:
    """Whether a configuration is valid, and what it names is there: code, command, machines."""
    from proctor.manager.config.errors import ConfigError, describe_problems
    from proctor.manager.config.loading import load_experiment
    from proctor.manager.dispatcher.algorithms.registered import registered_algorithms

    try:
        loaded = load_experiment(file, registered=registered_algorithms(session.home.path))
    except ConfigError as error:
        return _rows([Check("config", CheckResult.FAIL, describe_problems(error).replace("\n", "; "))])
    notices = "; ".join(str(notice) for notice in loaded.notices)
    verdict = CheckResult.NOTE if notices else CheckResult.OK
    checks = [Check("config", verdict, f"{file} is valid", notices)]
    service = loaded.config.training_service
    if getattr(service, "code", None) is None:  # else it is on the machines
        checks += [_check_code(loaded.config), _check_command(loaded.config)]
    return _rows(checks) + (_check_machines(session, loaded, file) if service.platform != "local" else [])


def _check_machines(session: CliSession, loaded: Any, file: Path) -> list[TableRow]:
    """Every hop to every machine, tried by the manager: it is the one who will connect."""
    try:
        logins = find_logins(loaded.config.canonical(), loaded.secrets)
    except CommandError as error:
        return _rows([Check("logins", CheckResult.FAIL, str(error), "the machines were not tried")])
    from proctor.sdk.client.errors import BadInput

    client = session.ensure_client()
    try:
        return MachineLines(client, loaded, file, logins).ask(client.check_platform, session.report)
    except BadInput as error:  # a platform of a package that has nothing to look at
        return _rows([Check("platform", CheckResult.NOTE, str(error))])


def _rows(checks: Iterable[Check]) -> list[TableRow]:
    return [{"machine": "", **asdict(check)} for check in checks]


def _check_code(config: Any) -> Check:
    directory = Path(config.trial_code_directory)
    if not os.access(directory, os.R_OK | os.X_OK):
        return Check("code", CheckResult.FAIL, f"{directory} cannot be read")
    dangling = next((path for path in _walk(directory) if path.is_symlink() and not path.exists()), None)
    if dangling is not None:
        return Check("code", CheckResult.NOTE, f"{dangling} is a link to nothing", "remove it, or make its target")
    return Check("code", CheckResult.OK, str(directory))


def _check_command(config: Any) -> Check:
    """The command's programs, as far as they can be seen without running it."""
    try:
        words = shlex.split(config.trial_command)
    except ValueError as error:
        return Check("command", CheckResult.FAIL, f"{config.trial_command!r}: {error}", "check its quotes")
    while words and "=" in words[0]:  # variables in front
        words.pop(0)
    if not words or words[0] in SHELL_WORDS:
        return Check("command", CheckResult.OK, config.trial_command)
    directory = Path(config.trial_code_directory)
    if config.training_service.platform != "local":  # its programs are those of the machines
        return _check_script(words, directory) or Check("command", CheckResult.OK, config.trial_command)
    from proctor.manager.trial_commands import problem_of

    program = words[0] if "/" not in words[0] else str(directory / words[0])
    found = shutil.which(program)
    if found is None and not problem_of(config.trial_command, str(directory), os.environ):
        return Check("command", CheckResult.OK, config.trial_command)  # not certain: it may be a function, for example
    if found is None:
        return Check("command", CheckResult.FAIL, f"{words[0]} is not found", "install it, or give its path")
    return _check_script(words, directory) or Check("command", CheckResult.OK, f"{config.trial_command}  ({found})")


def _check_script(words: Sequence[str], directory: Path) -> Check | None:
    script = next((word for word in words[1:] if word.endswith((".py", ".sh"))), None)
    if script is None or (directory / script).is_file():
        return None
    return Check("command", CheckResult.FAIL, f"there is no {directory / script}", "check trialCodeDirectory")


def _walk(directory: Path, most: int = 10_000) -> list[Path]:
    """The files below, as many as can be looked at in a moment; environments and version control left out."""
    from proctor.sdk.client.code_files import IGNORED_FOLDERS

    found: list[Path] = []
    for root, folders, files in os.walk(directory):
        folders[:] = [name for name in folders if name not in {*IGNORED_FOLDERS, "venv"}]
        found += [Path(root, name) for name in (*files, *folders)]
        if len(found) > most:
            break
    return found


@click.group(epilog=examples("proctor platform clean experiment.yml"))
def platform() -> None:
    """Clean the machines or the cluster of a configuration."""


@platform.command(
    short_help="Remove everything of this manager from machines.",
    epilog=examples("proctor platform clean experiment.yml"),
)
@config_file_argument()
@output_option
@with_session
def clean(session: CliSession, file: Path, output: str) -> int:
    """Remove everything this home's manager put on the machines or into the cluster: keepers, their trials, folders,
    objects.

    Machines that a running experiment uses are skipped; stop the experiment first. If a stopped experiment is still
    releasing its machines, this waits up to 5 minutes. The exit code is 1 if anything is or may be left behind.
    """
    loaded = load_checked(session, file)
    platform = loaded.config.training_service.platform
    if platform == "local":
        raise CommandError(f"{file}: platform {platform} has no machines to clean", ExitCode.USAGE)
    logins = find_logins(loaded.config.canonical(), loaded.secrets)
    client = session.ensure_client()
    steps = MachineLines(client, loaded, file, logins).ask(client.clean_platform, session.report)
    print_steps(steps, output)
    failed = dict.fromkeys(step["machine"] for step in steps if step["verdict"] == "fail")
    if failed:
        session.report(f"Not clean: {', '.join(failed)}.")
    return ExitCode.FAILED if failed else ExitCode.OK
