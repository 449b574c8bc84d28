"""`proctor update`: limits and search space of a running experiment."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.cli.identifiers import experiment_argument, find_experiment
from proctor.manager.cli.lazy import examples, nnictl_option
from proctor.manager.cli.session import CliSession, with_session

F = TypeVar("F", bound=Callable[..., Any])
NO_LIMIT = "none"


class _LimitValue(click.ParamType[Any]):
    """A number or a duration, or `none` for no limit."""

    name = "limit"

    def __init__(self, read: Callable[[str], float | int | None]) -> None:
        self._read = read

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or value.lower() == NO_LIMIT:
            return NO_LIMIT if isinstance(value, str) else value
        try:
            return self._read(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _read_seconds(text: str) -> float | None:
    from proctor.sdk.client.config import read_duration

    return read_duration(text)


def _read_hours(text: str) -> float:
    try:
        hours = float(text)
    except ValueError:
        hours = 0.0
    if not 0 < hours <= 1e9:
        raise ValueError(f"expected a number of hours of more than 0, or none for no limit, found {text!r}")
    return hours


def _read_count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 999_999_999:
        raise ValueError(f"expected a number from 1 to 999999999, or none for no limit, found {text!r}")
    return int(text)


@click.group(epilog=examples("proctor update trialnum --value 100", "proctor update concurrency k3x9 --value 4"))
def update() -> None:
    """Change a running experiment. The change is stored and stays in effect after a resume."""


@update.command(epilog=examples("proctor update concurrency --value 4", "proctor update concurrency k3x9 --value 1"))
@experiment_argument
@nnictl_option(
    "--value", nnictl=["-v"], required=True, type=click.IntRange(1, 1000), help="How many trials run at the same time."
)
@with_session
def concurrency(session: CliSession, experiment: str | None, value: int) -> None:
    """Change how many trials run at the same time. Lowering it does not end running trials."""
    _change_limit(session, experiment, "trial_concurrency", value, what="Concurrency")


@update.command(
    short_help="Change the time limit of an experiment or a trial.",
    epilog=examples(
        "proctor update duration --value 12h",
        "proctor update duration --value none",
        "proctor update duration --value 30m --trial    # of each trial",
    ),
)
@experiment_argument
@nnictl_option(
    "--value", nnictl=["-v"], required=True, type=_LimitValue(_read_seconds), help="90s, 10m, 1.5h, 2d, or none."
)
@click.option("--trial", is_flag=True, help="Limit the time of each trial, not of the experiment.")
@with_session
def duration(session: CliSession, experiment: str | None, value: float | str, trial: bool) -> None:
    """Change the time limit for starting new trials or, with --trial, the time limit of each trial."""
    key = "max_trial_duration_seconds" if trial else "max_experiment_duration_seconds"
    what = "Time limit of each trial" if trial else "Time limit"
    _change_limit(session, experiment, key, None if isinstance(value, str) else value, what=what)


@update.command(epilog=examples("proctor update trialnum --value 100", "proctor update trialnum k3x9 --value none"))
@experiment_argument
@nnictl_option(
    "--value", nnictl=["-v"], required=True, type=_LimitValue(_read_count), help="A number, or none for no limit."
)
@with_session
def trialnum(session: CliSession, experiment: str | None, value: int | str) -> None:
    """Change how many trials are created. A DONE experiment resumes when the limit is raised."""
    _change_limit(
        session, experiment, "max_trial_number", None if isinstance(value, str) else value, what="Trial limit"
    )


@update.command(
    short_help="Change how many GPU-hours all trials may use.",
    epilog=examples("proctor update gpuhours --value 100", "proctor update gpuhours k3x9 --value none"),
)
@experiment_argument
@click.option("--value", required=True, type=_LimitValue(_read_hours), help="A number of hours, or none for no limit.")
@with_session
def gpuhours(session: CliSession, experiment: str | None, value: float | str) -> None:
    """Change how many GPU-hours all trials may use before no new ones start. Running trials finish."""
    _change_limit(
        session, experiment, "max_gpu_hours", None if isinstance(value, str) else value, what="Limit of GPU-hours"
    )


@update.command(
    short_help="Change which experiment gets free GPUs first.",
    epilog=examples("proctor update priority --value 5", "proctor update priority k3x9 --value -1"),
)
@experiment_argument
@click.option("--value", required=True, type=click.IntRange(-1000, 1000), help="-1000 to 1000; the default is 0.")
@with_session
def priority(session: CliSession, experiment: str | None, value: int) -> None:
    """Change which experiment gets free GPUs first: the one with the higher priority."""
    _change_limit(session, experiment, "priority", value, what="Priority")


@update.command(epilog=examples("proctor update searchspace --filename search_space.json"))
@experiment_argument
@nnictl_option(
    "--filename",
    nnictl=["-f", "--file"],
    required=True,
    type=click.Path(path_type=Path),
    help="JSON or YAML, as in the config.",
)
@with_session
def searchspace(session: CliSession, experiment: str | None, filename: Path) -> None:
    """Replace the search space. It is checked first."""
    space = read_document_file(filename)
    found = _change(session, experiment, "search_space", space)
    names = ": " + ", ".join(space) if space and isinstance(space, dict) else ""
    session.report(f"Changed the search space of {found['id']}{names}.")


def read_mapping_file(path: Path) -> dict[str, Any]:
    """The mapping in a JSON or YAML file. Raises CommandError."""
    found = read_document_file(path)
    if not isinstance(found, dict):
        raise CommandError(f"{path}: expected a mapping of keys, found {type(found).__name__}", ExitCode.USAGE)
    return found


def read_document_file(path: Path) -> Any:
    """What a JSON or YAML file holds. Raises CommandError."""
    from proctor.sdk.client.config import read_document

    try:
        return read_document(path)
    except FileNotFoundError as error:
        raise CommandError(f"{path}: there is no such file", ExitCode.USAGE) from error
    except (ValueError, OSError) as error:
        raise CommandError(str(error), ExitCode.USAGE) from error


def _change_limit(
    session: CliSession, experiment: str | None, key: str, value: float | int | None, *, what: str
) -> None:
    from proctor.manager.cli.columns import duration

    def shown(limit: float | int | None) -> str:
        if limit is None:
            return "none"
        return duration(limit) if key.endswith("_seconds") else f"{limit:g}" if key.endswith("_hours") else str(limit)

    before = _change(session, experiment, key, value)
    session.report(f"{what} of {before['id']} is now {shown(value)} (was {shown(before[key])}).")


def _change(session: CliSession, experiment: str | None, key: str, value: Any) -> dict[str, Any]:
    """Change one thing; the experiment as it was before."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise CommandError(f"the new value is not valid: {error}", ExitCode.USAGE) from error
    before = find_experiment(session.client, experiment, ended_too=True)
    session.client.update_experiment(before["id"], {key: value})
    return before
