"""`proctor completion`, and the live ids that completion offers."""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem, get_completion_class

from proctor.manager.cli.output import echo
from proctor.manager.terminal import clean

if TYPE_CHECKING:
    from proctor.sdk.client.client import Client

CAP_SECONDS = 0.3
"""A shell must not hang: what has not come by then is not offered."""
MOST = 20


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """The completion script for your shell.

    \b
    bash: proctor completion bash > ~/.local/share/bash-completion/completions/proctor
    zsh:  proctor completion zsh > ~/.zfunc/_proctor      (with ~/.zfunc in $fpath)
    fish: proctor completion fish > ~/.config/fish/completions/proctor.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows the three shells"
    script = kind(context.find_root().command, {}, "proctor", "_PROCTOR_COMPLETE")
    echo(script.source_template % script.source_vars())


def experiment_ids(context: click.Context, incomplete: str) -> list[CompletionItem]:
    """Ids of experiments that begin so, with status and name."""

    def ask(client: "Client") -> list[CompletionItem]:
        rows = client.experiments(id_prefix=incomplete)
        return [CompletionItem(row["id"], help=_on_one_line(f"{row['status']} {row['name']}")) for row in rows]

    return _within_cap(context, ask)


def trial_ids(context: click.Context, incomplete: str) -> list[CompletionItem]:
    """Ids of trials that begin so; of those that run now when nothing was typed yet."""

    def ask(client: "Client") -> list[CompletionItem]:
        rows = list(client.find_trials(incomplete)) if incomplete else _running(client)
        return [CompletionItem(row["id"], help=f"{row['status']} trial {row['sequence_id']}") for row in rows]

    return _within_cap(context, ask)


def _on_one_line(text: str) -> str:
    """The shell shows it as it is, and takes a line for an item."""
    return clean(text).replace("\n", " ")


def _running(client: "Client") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for experiment in client.experiments(status="RUNNING"):
        found += client.trials(experiment["id"], status="RUNNING", page_size=MOST)
        if len(found) >= MOST:
            break
    return found[:MOST]


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
