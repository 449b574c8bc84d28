"""From what a person types to an experiment or a trial: whole ids, unique prefixes, names, numbers, or nothing.

Also the ids that the completion of a shell offers, and options that take one of a few words.
"""

import re
import threading
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.control_characters import clean
from proctor.manager.lifecycle.states import ExperimentStatus

if TYPE_CHECKING:
    from proctor.sdk.client.client import Client
    from proctor.sdk.client.transport import JsonObject

F = TypeVar("F", bound=Callable[..., Any])
ENDED = frozenset(status for status in ExperimentStatus if status.has_ended)
"""Experiments in these statuses are not "running" for a command without an id."""
MOST_NAMED = 10
MOST_FOUND = 20
"""The manager finds no more by the beginning of an id."""
SHORTEST_ID = 8
"""Fewer digits are always the number of a trial."""
CAP_SECONDS = 0.3
"""A shell must not hang: what has not come by then is not offered."""
MOST_OFFERED = 20
_IDENTIFIER = re.compile(r"[A-Za-z0-9_-]+")


class OneOf(click.Choice[str]):
    """An option that takes one of a few words."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        """What was expected, what was found, and the most similar word."""
        from difflib import get_close_matches

        *most, last = self.choices
        words = {self.normalize_choice(word, ctx): word for word in self.choices}
        near = get_close_matches(self.normalize_choice(value, ctx), words, n=1)
        hint = f" Did you mean {words[near[0]]}?" if near else ""
        return f"expected {', '.join(most)} or {last}; found {value!r}.{hint}"


def find_experiment(client: "Client", text: str | None, *, ended_too: bool = False) -> "JsonObject":
    """The experiment that `text` names: by its id, else by its name, else by the unique beginning of its id.

    An exact id comes first, so that the name of one experiment never hides the id of another; an exact name comes
    before the beginning of another experiment's id. With a `*` at its end the text is the beginning of an id only.
    Without text it is the only one that runs; with `ended_too`, where none runs, the only or the newest one.
    Raises CommandError (3 not found, 5 ambiguous) with what there is.
    """
    if text is None:
        return _only_running(client, ended_too=ended_too)
    beginning = text.removesuffix("*")
    _require_text(beginning, "an experiment", text)
    found = _by_id_or_name(client, text) if beginning == text else []
    return _single(
        found or list(client.experiments(id_prefix=beginning)),
        f"no experiment has the id, id prefix or name {text!r}; `proctor experiment list` shows all",
        f"{text!r} matches several experiments; name one by its id",
    )


def find_trial(client: "Client", text: str, experiment: str | None) -> "JsonObject":
    """The trial of an id or a unique prefix; or of its number, in the named, the running or the newest experiment."""
    _require_text(text, "a trial", text)
    is_number = text.isascii() and text.isdigit()
    found = [] if is_number and len(text) < SHORTEST_ID else _by_id(client, text, experiment)
    if not found and is_number:
        owner = find_experiment(client, experiment, ended_too=True)
        found = [row for row in client.trials(owner["id"]) if row["sequence_id"] == int(text)]
        return _single(found, f"experiment {owner['id']} has no trial {text}", "")
    return _single(
        found,
        f"no trial has an id that begins with {text!r}; `proctor trial ls` shows all",
        f"{text!r} matches several trials",
    )


def _require_text(text: str, what: str, given: str) -> None:
    """An empty variable of a script must not mean "whichever there is"."""
    if not text:
        raise click.UsageError(f"expected the id of {what}, or the beginning of one, found {given!r}")


def _by_id_or_name(client: "Client", text: str) -> list["JsonObject"]:
    """The experiment of exactly this id, else all of exactly this name."""
    from proctor.sdk.client.errors import NotFound

    if _IDENTIFIER.fullmatch(text):
        try:
            return [client.experiment(text)]
        except NotFound:
            pass
    return list(client.experiments(name=text, archived=None))


def _by_id(client: "Client", text: str, experiment: str | None) -> list["JsonObject"]:
    """The trial of exactly this id, else all whose ids begin so; of the named experiment, if one is named."""
    found = list(client.find_trials(text))
    if experiment is not None:
        owner = find_experiment(client, experiment)["id"]
        if len(found) >= MOST_FOUND:  # there may be more, and all of the named experiment count
            found = [row for row in client.trials(owner) if row["id"].startswith(text)]
        found = [row for row in found if row["experiment_id"] == owner]
    return [row for row in found if row["id"] == text] or found


def experiment_argument(function: F) -> F:
    """Adds the optional ID of an experiment; the function gets it as `experiment`."""
    return click.argument("experiment", metavar="[ID]", required=False, shell_complete=experiment_ids)(function)


def trial_argument(function: F) -> F:
    """Adds the TRIAL that a command is about, and `--experiment`; nnictl's `[ID] -T TRIAL` works as well.

    The function gets `trial` and `experiment`, both texts; see `named_trial`.
    """
    decorate = (
        click.argument("words", metavar="TRIAL", nargs=-1, shell_complete=trial_ids),
        click.option(
            "-T", "--trial-id", "--trial_id", "trial", metavar="TRIAL", help="The trial, as nnictl has it.", hidden=True
        ),
        click.option("-e", "--experiment", metavar="ID", help="The experiment, if TRIAL is a number or a prefix."),
    )
    for option in reversed(decorate):
        function = option(function)
    return function


def named_trial(client: "Client", words: Sequence[str], trial: str | None, experiment: str | None) -> "JsonObject":
    """The trial that `trial_argument` was given."""
    names = [*words]
    if trial is not None and names:
        experiment = experiment or names.pop(0)
    if trial is None and names:
        trial = names.pop(0)
    if trial is None or names:
        found = "none" if trial is None else " ".join([trial, *names])
        raise click.UsageError(f"expected one TRIAL (an id, the beginning of one, or a number), found {found}")
    return find_trial(client, trial, experiment)


def is_running(experiment: "JsonObject") -> bool:
    """Whether something still happens in it by itself."""
    return experiment["status"] not in ENDED


def machines_kept(client: "Client", experiment_ids: Collection[str]) -> dict[str, list[str]]:
    """By experiment: the machines of a platform with machines that it keeps. One that is DONE or in ERROR does so until
    it is stopped."""
    kept: dict[str, list[str]] = {}
    for node in client.nodes():
        for identifier in node["experiments"] if node["kind"] != "local" else ():
            if identifier in experiment_ids:
                kept.setdefault(identifier, []).append(node["id"])
    return kept


def _only_running(client: "Client", *, ended_too: bool) -> "JsonObject":
    every = list(client.experiments())
    running = [row for row in every if is_running(row)]
    if not running and ended_too and every:
        return max(every, key=lambda row: str(row["created_at"]))
    if not running and every:
        newest = sorted(every, key=lambda row: str(row["created_at"]), reverse=True)
        raise CommandError("no experiment is running; name one by its id:\n" + _describe(newest), ExitCode.NOT_FOUND)
    return _single(
        running,
        "there are no experiments; `proctor create FILE` starts one",
        "several experiments are running; name one by its id",
    )


def _single(found: list["JsonObject"], none: str, several: str) -> "JsonObject":
    if not found:
        raise CommandError(none, ExitCode.NOT_FOUND)
    if len(found) > 1:
        raise CommandError(f"{several}:\n{_describe(found)}", ExitCode.CONFLICT)
    return found[0]


def _describe(rows: list["JsonObject"]) -> str:
    lines = [f"  {row['id']}  {row['status']:<10}  {_title(row)}" for row in rows[:MOST_NAMED]]
    more = len(rows) - MOST_NAMED
    return "\n".join([*lines, *([f"  … and {more} more"] if more > 0 else [])])


def _title(row: "JsonObject") -> str:
    """An experiment's name, or a trial's place."""
    return str(row["name"]) if "name" in row else f"trial {row['sequence_id']} of {row['experiment_id']}"


# ---- the ids that shell completion offers ---------------------------------------------------------------------------


def experiment_ids(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of experiments that begin so, with status and name."""

    def ask(client: "Client") -> list[CompletionItem]:
        found: list[CompletionItem] = []
        for row in client.experiments(id_prefix=incomplete):
            text = clean(f"{row['status']} {row['name']}").replace("\n", " ")  # the shell takes a line for an item
            found.append(CompletionItem(row["id"], help=text))
        return found

    return _within_cap(context, ask)


def trial_ids(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of trials that begin so; of those that run now when nothing was typed yet."""

    def ask(client: "Client") -> list[CompletionItem]:
        rows = list(client.find_trials(incomplete)) if incomplete else _running(client)
        return [CompletionItem(row["id"], help=f"{row['status']} trial {row['sequence_id']}") for row in rows]

    return _within_cap(context, ask)


def _running(client: "Client") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for experiment in client.experiments(status="RUNNING"):
        found += client.trials(experiment["id"], status="RUNNING", page_size=MOST_OFFERED)
        if len(found) >= MOST_OFFERED:
            break
    return found[:MOST_OFFERED]


def _within_cap(context: click.Context, ask: "Callable[[Client], list[CompletionItem]]") -> list[CompletionItem]:
    """What the manager answers in time; nothing when it does not."""
    given = context.find_root().params
    found: list[CompletionItem] = []

    def work() -> None:
        from proctor.sdk.client.client import Client
        from proctor.sdk.client.errors import ClientError

        try:
            with Client(given.get("url"), home=given.get("home"), timeout_seconds=CAP_SECONDS) as client:
                found.extend(ask(client))
        except ClientError:
            return

    thread = threading.Thread(target=work, name="ask for ids", daemon=True)
    thread.start()
    thread.join(CAP_SECONDS)
    return list(found)
