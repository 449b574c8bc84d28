"""The machines of a configuration: what it takes to log in, and requests about each, with a line for each that is done.

Passwords and passphrases are looked up here, once, and handed to the manager beside the configuration.
"""

import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from proctor.manager.cli.config_file import posted_mapping
from proctor.manager.cli.exits import CommandError, ExitCode
from proctor.manager.cli.output import Column, Format, TableRow, echo, print_list, print_table

if TYPE_CHECKING:
    from proctor.sdk.client.client import Client

AT_ONCE = 8
LEAVING = ("leaving", "fail")
"""The step of a machine that a stopped experiment has not left yet."""
LEAVING_SECONDS = 300.0
"""How long that is waited for. The manager waits within each request, for 10 s."""
PAUSE_SECONDS = 0.5
STYLES = {"ok": "green", "note": "yellow", "fail": "bold red", "skipped": "dim"}
COLUMNS = (
    Column("MACHINE", lambda row: row["machine"] or "here"),
    Column("CHECK", lambda row: row["name"]),
    Column("", lambda row: row["verdict"], lambda row: STYLES[row["verdict"]]),
    Column("FOUND", lambda row: row["found"], wraps=True),
    Column("ADVICE", lambda row: row["advice"], wraps=True),
)

RunChecks = Callable[..., list[TableRow]]
"""`Client.check_platform` or `Client.clean_platform`."""
_CheckOutcome = tuple[int, list[TableRow] | str | Exception]
"""Of a machine, by its place in the list: its steps, what it waits for, or what was raised."""


@dataclass(frozen=True)
class Logins:
    """What a configuration needs to get into its machines."""

    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By path in the canonical configuration."""
    variables: frozenset[str] = frozenset()
    """The environment variables they came from: not for trials."""


def find_logins(config: Mapping[str, Any], inline: Mapping[str, str] | None = None) -> Logins:
    """Look in the environment and ask on the terminal, as the canonical configuration says. Raises CommandError.

    :param inline: secrets that stood in the configuration itself.
    """
    from proctor.sdk.client.credentials import MissingSecret, find_secrets, secret_variables

    try:
        named = find_secrets(config)
    except MissingSecret as error:
        raise CommandError(str(error), ExitCode.USAGE) from error
    return Logins({**(inline or {}), **named}, frozenset(secret_variables(config)))


def handover_file(client: "Client", logins: Logins) -> AbstractContextManager[str]:
    """The name of a file with this shell's environment and the logins; removed afterwards if the manager left it."""
    from proctor.sdk.client.credentials import caller_environment

    return caller_environment(client.home, secret_values=logins.secrets, without=logins.variables)


class MachineLines:
    """All machines of one configuration, or its cluster."""

    def __init__(self, client: "Client", loaded: Any, file: Path, logins: Logins) -> None:
        self._client = client
        self._config = posted_mapping(loaded)
        self._directory = os.path.abspath(file.parent)
        self._logins = logins
        service = loaded.config.training_service
        self._addresses = [machine.address for machine in getattr(service, "machine_list", ())]
        self._has_machines = bool(self._addresses)  # else its platform is asked about as a whole
        self._addresses = self._addresses or [service.platform]

    def ask(self, ask: RunChecks, report: Callable[[str], None]) -> list[TableRow]:
        """The steps of every machine, in the order of the list; some machines are asked at once.

        :param report: gets a line for each machine that is finished, and one for what a machine waits for. Raises what
            one of the requests raised.
        """
        todo: SimpleQueue[int] = SimpleQueue()
        done: SimpleQueue[_CheckOutcome] = SimpleQueue()
        for index in range(len(self._addresses)):
            todo.put(index)

        def work() -> None:
            while True:
                try:
                    index = todo.get_nowait()
                except Empty:
                    return
                try:
                    done.put((index, self._ask_patiently(ask, index, done)))
                except Exception as error:
                    done.put((index, error))

        # Daemons: Ctrl-C does not wait for machines that do not answer.
        for number in range(min(AT_ONCE, len(self._addresses))):
            threading.Thread(target=work, name=f"machines {number}", daemon=True).start()
        return self._collect(done, report)

    def _ask_patiently(self, ask: RunChecks, index: int, news: "SimpleQueue[_CheckOutcome]") -> list[TableRow]:
        """The steps of one machine. While a stopped experiment is leaving it, a line says so, and the manager is asked
        again."""
        shown = ""
        deadline = time.monotonic() + LEAVING_SECONDS
        while True:
            with handover_file(self._client, self._logins) as handover:
                machine = index if self._has_machines else None
                steps = ask(self._config, directory=self._directory, handover=handover, machine=machine)
            waits = next((step["found"] for step in steps if (step["name"], step["verdict"]) == LEAVING), None)
            if waits is None or time.monotonic() >= deadline:
                return steps
            if waits != shown:
                news.put((index, f"waits: {waits}"))
            shown = waits
            time.sleep(PAUSE_SECONDS)

    def _collect(self, done: "SimpleQueue[_CheckOutcome]", report: Callable[[str], None]) -> list[TableRow]:
        steps: dict[int, list[TableRow]] = {}
        while len(steps) < len(self._addresses):
            index, found = done.get()
            if isinstance(found, Exception):
                raise found
            if not isinstance(found, str):
                steps[index] = found
            report(f"{self._addresses[index]}: {found if isinstance(found, str) else summary(found)}")
        return settled([step for _, found in sorted(steps.items()) for step in found])


def settled(rows: Sequence[TableRow]) -> list[TableRow]:
    """The manager was asked about one machine at a time: that a machine cannot run a trial is no failure where another
    one can."""
    able = any(row["name"] == "trials" and row["verdict"] == "ok" for row in rows)
    return [
        {**row, "verdict": "note"} if able and row["name"] == "trials" and row["verdict"] == "fail" else row
        for row in rows
    ]


def print_steps(rows: Sequence[TableRow], output: str) -> None:
    """Print the steps of this and other machines; on a terminal each machine has a table of its own."""
    shown = folded(rows) if output == Format.TABLE else rows
    if output == Format.TABLE and sys.stdout.isatty():
        for machine, steps in groupby(shown, key=lambda row: str(row["machine"])):
            if machine:
                echo(f"\nMachine {machine}")
            print_table(list(steps), COLUMNS[1:])
        return
    columns = COLUMNS if any(row["machine"] for row in rows) else COLUMNS[1:]
    print_list(shown, columns, output, empty="")


def folded(rows: Sequence[TableRow]) -> list[TableRow]:
    """For people: the steps of a machine that were skipped for one reason, in one line."""
    shown: list[TableRow] = []
    for row in rows:
        last = shown[-1] if shown else row
        alike = all(last[key] == row[key] for key in ("machine", "verdict", "found"))
        if shown and alike and row["verdict"] == "skipped":
            shown[-1] = {**last, "name": f"{last['name'].partition(' … ')[0]} … {row['name']}"}
        else:
            shown.append(row)
    return shown


def summary(steps: Sequence[TableRow]) -> str:
    """One machine in a line: what failed first, or that all is well."""
    failed = next((step for step in steps if step["verdict"] == "fail"), None)
    if failed is not None:
        return f"{failed['name']}: {failed['found']}"
    notes = sum(step["verdict"] == "note" for step in steps)
    return "ok" + (f", {notes} notes" if notes > 1 else ", 1 note" if notes else "")
