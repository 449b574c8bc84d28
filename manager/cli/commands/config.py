"""`proctor config`: write a first file, check one, or show what an experiment was asked to be."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor.manager.cli.config_file import CONFIG_PATH, config_file_argument, load_checked
from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.cli.identifiers import OneOf, experiment_argument, find_experiment
from proctor.manager.cli.lazy import examples
from proctor.manager.cli.output import Format, echo, print_one
from proctor.manager.cli.session import CliSession, with_session
from proctor.sdk.scheduler import TIME_TOTAL, TRAINING_ITERATION

if TYPE_CHECKING:
    from proctor.manager.cli.draft import ScriptFacts


@click.group(epilog=examples("proctor config init train.py", "proctor config check experiment.yml"))
def config() -> None:
    """Write, check or convert a configuration, or show an experiment's."""


@config.command(
    short_help="Show the configuration of an experiment.",
    epilog=examples("proctor config show", "proctor config show k3x9 > again.yml"),
)
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


@config.command(short_help="Check a configuration.", epilog=examples("proctor config check experiment.yml"))
@config_file_argument()
@with_session
def check(session: CliSession, file: Path) -> None:
    """Check a configuration, its search space and its algorithms' arguments; nothing is started.

    Every problem is printed with file:line:column. The exit code is 2 if there are any.
    """
    loaded = load_checked(session, file)
    session.report(f"{file}: valid. {describe_plan(loaded.config)}")
    for line in describe_scheduler(loaded.config):
        session.report(line)


@config.command(
    short_help="Write a first configuration for a script.",
    epilog=examples("proctor config init train.py", "proctor config init src/train.py search.yml"),
)
@click.argument("script", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("file", default="experiment.yml", type=CONFIG_PATH)
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@with_session
def init(session: CliSession, script: Path, file: Path, overwrite: bool) -> None:
    """Write a first configuration for a script, with comments; FILE is experiment.yml if omitted.

    The script is read, not run: each parameter that it takes from get_next_parameter, or from argparse, becomes a line
    of the search space, with a range guessed from its default. Adjust the ranges before you start.
    """
    from proctor.manager.cli.draft import read_script, render_draft

    if script.suffix not in (".py", ".sh") and not os.access(script, os.X_OK):
        raise CommandError(f"{script}: expected a script (.py, .sh) or an executable program", ExitCode.USAGE)
    facts = read_script(script)
    text = render_draft(script, file, facts)
    try:
        with file.open("w" if overwrite else "x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError as error:
        raise CommandError(f"{file} already exists; --overwrite replaces it", ExitCode.CONFLICT) from error
    names = ", ".join(parameter.name for parameter in facts.searched)
    found = f"it searches {names}" if names else "its search space is an example: replace it with your parameters"
    session.report(f"Wrote {file}; {found}.")
    if unknown := ", ".join(parameter.name for parameter in facts.searched if parameter.is_unknown):
        session.report(f"The script shows no range for {unknown}: replace the one in {file}.")
    for advice in _missing_calls(script, facts):
        session.report(advice)
    session.report(f"  check:  proctor config check {file}")
    session.report(f"  start:  proctor create {file}")


def _missing_calls(script: Path, facts: "ScriptFacts") -> Iterator[str]:
    """What a script lacks for its trials to differ and to have a result."""
    if facts.problem:
        yield f"{script}: {facts.problem}; its parameters are not known."
        return
    if not facts.asks:
        yield f"{script} does not call proctor.get_next_parameter(): without it, all trials use the same parameters."
    if not facts.reports:
        yield f"{script} does not call proctor.report_final_result(value): without it, a trial has no result."


@config.command(
    short_help="Print a file of NNI's with the present keys.",
    epilog=examples("proctor config convert old.yml > experiment.yml"),
)
@config_file_argument()
@with_session
def convert(session: CliSession, file: Path) -> None:
    """Print a file of NNI's with the present keys, as YAML; its comments are lost.

    Old keys are those of NNI's first format (v1) and of its platforms kubeflow and frameworkcontroller.

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
        session.report(f"{file}: has no old keys of NNI's; nothing to convert")
    print_one(converted, (), Format.YAML)


@config.command(epilog=examples("proctor config schema > experiment.schema.json"))
def schema() -> None:
    """The JSON Schema of configurations."""
    from proctor.manager.config.reference import render_json_schema

    echo(render_json_schema().rstrip())


def describe_plan(config: Any) -> str:
    """What the configuration asks for, in a sentence."""
    tuner = config.tuner.name or config.tuner.class_name
    trials = "trials without limit" if config.max_trial_number is None else f"{config.max_trial_number} trials"
    second = config.assessor or config.trial_scheduler
    assessor = f", {second.name or second.class_name}" if second else ""
    goal, where = config.objective.direction, config.training_service.platform
    return (
        f"{trials}, concurrency {config.trial_concurrency}, {tuner}{assessor}, {goal}, {where}: {config.trial_command}"
    )


def describe_scheduler(config: Any) -> Iterator[str]:
    """What the arguments of the trial scheduler make, where that is more than they say: the brackets of HyperBand."""
    from proctor.manager.dispatcher.algorithms.registry import describe_brackets

    scheduler = config.trial_scheduler
    if scheduler is not None and scheduler.name is not None:
        brackets = describe_brackets(scheduler.name, scheduler.class_args)
        if brackets:
            yield f"brackets of {scheduler.name} (trials to {_unit(scheduler.class_args)}): {brackets}"


def _unit(class_args: Mapping[str, Any]) -> str:
    attribute = str(class_args.get("time_attr", TRAINING_ITERATION))
    return {TRAINING_ITERATION: "step", TIME_TOTAL: "second"}.get(attribute, attribute)
