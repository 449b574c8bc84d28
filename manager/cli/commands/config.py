"""`proctor config`: check a file, or show what an experiment was asked to be."""

from pathlib import Path
from typing import Any

import click

from proctor.manager.cli.config_file import load_checked
from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.cli.identifiers import OneOf, experiment_argument, find_experiment
from proctor.manager.cli.output import Format, echo, print_one
from proctor.manager.cli.session import CliSession, with_session

CONFIG_PATH = click.Path(path_type=Path)


@click.group()
def config() -> None:
    """Check or convert a configuration, or show an experiment's."""


@config.command()
@experiment_argument
@click.option(
    "-o",
    "--output",
    type=OneOf([Format.YAML.value, Format.JSON.value]),
    default=Format.YAML.value,
    show_default=True,
)
@with_session
def show(session: CliSession, experiment: str | None, output: str) -> None:
    """The configuration of an experiment as it was understood, without secrets. `config check` accepts it.

    The search space is always shown under search_space, also where it came from a file.
    """
    found = find_experiment(session.client, experiment, ended_too=True)
    print_one(
        {key: None if key == "search_space_file" else value for key, value in found["config"].items()}, (), output
    )


@config.command()
@click.argument("file", required=False, type=CONFIG_PATH)
@click.option("-c", "--config", "named", type=CONFIG_PATH, hidden=True)
@with_session
def check(session: CliSession, file: Path | None, named: Path | None) -> None:
    """Check a configuration, its search space and its algorithms' arguments; nothing is started.

    Every problem is printed with file:line:column. The exit code is 2 if there are any.
    """
    path = file or named
    if path is None:
        raise click.UsageError("give the FILE to check")
    loaded = load_checked(session, path)
    session.report(f"{path}: valid. {describe_plan(loaded.config)}")


@config.command()
@click.argument("file", type=CONFIG_PATH)
@with_session
def convert(session: CliSession, file: Path) -> None:
    """Print a file of NNI's first format (v1) with the present keys, as YAML; its comments are lost.

    What was converted is listed on stderr. Save the output in the same folder: relative paths start there.
    """
    from proctor.manager.config.errors import ConfigError, describe_problems
    from proctor.manager.config.loading import convert_file

    try:
        converted, notices = convert_file(file)
    except ConfigError as error:
        raise CommandError(f"{file} cannot be converted:\n{describe_problems(error)}", ExitCode.USAGE) from error
    for notice in notices:
        session.report(str(notice))
    if not notices:
        session.report(f"{file}: has no key of NNI's first format (v1); nothing to convert")
    print_one(converted, (), Format.YAML)


@config.command()
def schema() -> None:
    """The JSON Schema of configurations."""
    from proctor.manager.config.reference import render_json_schema

    echo(render_json_schema().rstrip())


def describe_plan(config: Any) -> str:
    """What the configuration asks for, in a sentence."""
    tuner = config.tuner.name or config.tuner.class_name
    trials = "trials without limit" if config.max_trial_number is None else f"{config.max_trial_number} trials"
    assessor = f", {config.assessor.name or config.assessor.class_name}" if config.assessor else ""
    goal, where = config.objective.direction, config.training_service.platform
    return f"{trials}, {config.trial_concurrency} at a time, {tuner}{assessor}, {goal}, {where}: {config.trial_command}"
