"""`proctor algo`: the built-in algorithms, and classes of the user's own by name."""

from pathlib import Path
from typing import Any

import click

from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.cli.identifiers import OneOf
from proctor.manager.cli.lazy import alias, examples
from proctor.manager.cli.output import Column, Format, echo, output_option, print_list, print_one, print_table
from proctor.manager.cli.session import CliSession, with_session
from proctor.manager.dispatcher.algorithms.catalog import KINDS

ALGORITHMS = (
    Column("NAME", lambda row: row["name"]),
    Column("KIND", lambda row: row["kind"]),
    Column("FROM", lambda row: row["from"]),
    Column("READY", lambda row: "yes" if row["installed"] else f"pip install 'proctor[{row['extra']}]'"),
    Column("SUMMARY", lambda row: row["summary"], wraps=True),
)
ALGORITHM = (
    Column("name", lambda row: row["name"]),
    Column("kind", lambda row: row["kind"]),
    Column("from", lambda row: row["from"]),
    Column("also called", lambda row: ", ".join(row["aliases"])),
    Column("summary", lambda row: row["summary"]),
    Column("search space", lambda row: ", ".join(row["search_space_types"])),
    Column("nested choice", lambda row: "yes" if row["nested_choice"] else ""),
)
ARGUMENTS = (
    Column("CLASSARG", lambda row: row["name"]),
    Column("KIND", lambda row: str(row["kind"])),
    Column("DEFAULT", lambda row: "required" if row.get("required") else str(row.get("default"))),
    Column("MEANING", lambda row: str(row.get("description", "")), wraps=True),
)


@click.group(epilog=examples("proctor algo list", "proctor algo show TPE"))
def algo() -> None:
    """Built-in algorithms, and your own by name."""


@algo.command("list", epilog=examples("proctor algo list"))
@output_option
@with_session
def list_(session: CliSession, output: str) -> None:
    """Tuners, assessors and trial schedulers by name."""
    print_list(every_algorithm(session), ALGORITHMS, output, empty="no algorithms")


@algo.command(epilog=examples("proctor algo show Medianstop", "proctor algo show PBT --kind trialScheduler"))
@click.argument("name")
@click.option("--kind", type=OneOf(KINDS), help="Where a tuner and a trial scheduler have the same name: which one.")
@output_option
@with_session
def show(session: CliSession, name: str, kind: str | None, output: str) -> None:
    """One algorithm and its classArgs.

    Where a tuner and a trial scheduler have the same name, both are shown.
    """
    wanted = name.lower()
    found = [
        row
        for row in every_algorithm(session)
        if wanted in (row["name"].lower(), *(other.lower() for other in row["aliases"])) and kind in (None, row["kind"])
    ]
    if not found:
        what = kind or "algorithm"
        raise CommandError(f"there is no {what} {name!r}; `proctor algo list` shows all", ExitCode.NOT_FOUND)
    if len(found) > 1 and output != Format.TABLE:
        kinds = " and a ".join(row["kind"] for row in found)
        raise click.UsageError(f"{name} is a {kinds}; give --kind with -o {output}")
    for number, row in enumerate(found):
        if number:
            echo()
        print_one(row, ALGORITHM, output)
        if output == Format.TABLE and row["class_args"]:
            echo()
            print_table(row["class_args"], ARGUMENTS)


@algo.command(
    short_help="Give a class of your own a name.", epilog=examples("proctor algo register --meta my_tuner.yml")
)
@click.option("-m", "--meta", "--meta_path", "meta", required=True, type=click.Path(path_type=Path))
@with_session
def register(session: CliSession, meta: Path) -> None:
    """Give a class of your own a name, from a YAML file with algoType, builtinName and className.

    The class is imported, in a process of its own, and must be derived from Tuner, Assessor or TrialScheduler.
    """
    from proctor.manager.cli.commands.update import read_mapping_file
    from proctor.manager.dispatcher.algorithms.registered import RegistrationError, read_meta
    from proctor.manager.dispatcher.algorithms.registered import register as register_algorithm
    from proctor.manager.dispatcher.algorithms.registry import find_builtin
    from proctor.manager.dispatcher.class_args import Caller, class_problem

    try:
        algorithm = read_meta(read_mapping_file(meta), meta.parent)
    except RegistrationError as error:
        raise CommandError(f"{meta}: {error}", ExitCode.USAGE) from error
    if find_builtin(algorithm.kind, algorithm.name) is not None:
        raise CommandError(f"{algorithm.name} is a built-in {algorithm.kind}; choose another name", ExitCode.CONFLICT)
    caller = Caller.captured({})
    if problem := class_problem(algorithm.kind, algorithm.class_name, algorithm.code_directory, caller):
        raise CommandError(f"{meta}: className: {problem}", ExitCode.USAGE)
    register_algorithm(session.home.path, algorithm)
    where = algorithm.code_directory
    session.report(f"{algorithm.kind} {algorithm.name} is {algorithm.class_name}, imported from {where}.")


@algo.command(short_help="Remove a name.", epilog=examples("proctor algo unregister MyTuner"))
@click.argument("name")
@with_session
def unregister(session: CliSession, name: str) -> None:
    """Remove a name; experiments that use the class are not affected."""
    from proctor.manager.dispatcher.algorithms.registered import unregister as unregister_algorithm

    if not unregister_algorithm(session.home.path, name):
        raise CommandError(f"{name!r} is not registered; `proctor algo list` shows all", ExitCode.NOT_FOUND)
    session.report(f"{name} is no longer registered.")


def every_algorithm(session: CliSession) -> list[dict[str, Any]]:
    """Built-in algorithms, then registered ones, with the same keys."""
    from proctor.manager.dispatcher.algorithms.registered import registered_algorithms
    from proctor.manager.dispatcher.algorithms.registry import describe

    builtin = [{**row, "from": "built-in"} for row in describe()]
    own: list[dict[str, Any]] = [
        {
            "name": algorithm.name,
            "kind": algorithm.kind,
            "aliases": [],
            "summary": f"your {algorithm.class_name}",
            "extra": None,
            "installed": True,
            "search_space_types": [],
            "nested_choice": False,
            "class_args": [],
            "from": algorithm.code_directory,
        }
        for algorithm in registered_algorithms(session.home.path).values()
    ]
    return builtin + own


alias(algo, "reg", register)
alias(algo, "unreg", unregister)
