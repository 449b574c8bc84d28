"""Command groups that import a command only when it is asked for, and end with the documented exit codes."""

import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from importlib import import_module
from typing import IO, Any, TypeVar, cast

import click

from proctor.manager.cli.exits import ExitCode, describe_error
from proctor.manager.cli.output import CleanFile, echo

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Lazy:
    """A command that is not imported yet: `location` is `module:attribute` in this package."""

    location: str
    summary: str
    section: str = "Commands"
    hidden: bool = False


class LazyGroup(click.Group):
    """A group whose commands are imported one by one; its help needs none of them."""

    def __init__(self, *args: Any, lazy: Mapping[str, Lazy], aliases: Mapping[str, str], **settings: Any) -> None:
        """:param aliases: other spellings, not listed; `nnictl` calls some things differently."""
        super().__init__(*args, **settings)
        self._lazy = lazy
        self._aliases = aliases

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names that are listed, in the order of the sections."""
        return [name for name, found in self._lazy.items() if not found.hidden]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command."""
        found = self._lazy.get(self._aliases.get(cmd_name, cmd_name))
        if found is None:
            return None
        module, _, attribute = found.location.partition(":")
        command = getattr(import_module(f"proctor.manager.cli.commands.{module}"), attribute)
        return command if isinstance(command, click.Command) else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does, but with the nearest name in the error."""
        if args and args[0] not in self._lazy and args[0] not in self._aliases and not args[0].startswith("-"):
            from difflib import get_close_matches

            near = get_close_matches(args[0], [*self.list_commands(ctx), *self._aliases], n=1)
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {near[0]!r}?" if near else ""))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The commands by section."""
        listed = {name: self._lazy[name] for name in self.list_commands(ctx)}
        for section in dict.fromkeys(command.section for command in listed.values()):
            rows = [(name, found.summary) for name, found in listed.items() if found.section == section]
            with formatter.section(section):
                formatter.write_dl(rows)


class RootGroup(LazyGroup):
    """The `proctor` command: every error is a sentence on stderr and an exit code, never a traceback."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **settings: Any) -> Any:
        """Run a command line and leave the process."""
        arguments = list(sys.argv[1:] if args is None else args)
        settings["standalone_mode"] = False
        sys.exit(self._run(arguments, *rest, **settings))

    def _run(self, arguments: list[str], *rest: Any, **settings: Any) -> int:
        try:
            result = super().main(arguments, *rest, **settings)
            sys.stdout.flush()
            return result if isinstance(result, int) else ExitCode.OK
        except click.ClickException as error:
            error.show(cast(IO[str], CleanFile(sys.stderr)))
            return error.exit_code
        except (KeyboardInterrupt, click.Abort):
            echo("Interrupted.", err=True)
            return ExitCode.INTERRUPTED
        except BrokenPipeError:  # the reader of our output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ExitCode.FAILED
        except Exception as error:
            return _report_error(error, debug="--debug" in arguments)


def _report_error(error: Exception, *, debug: bool) -> int:
    found = describe_error(error)
    if debug:
        echo(traceback.format_exc(), err=True)
    if found is None:
        hint = "" if debug else " Run it again with `proctor --debug …` to see where."
        text = f"{type(error).__name__}: {error}"
        echo(f"Error: internal error: {text}.{hint}", err=True)
        return ExitCode.FAILED
    text, code = found
    echo(f"Error: {text}", err=True)
    return code


class UnlistedSpellings(click.Option):
    """An option with spellings that its help does not list.

    Each short option that is listed has one meaning in all commands; nnictl's, where they differ, are accepted too.
    """

    def __init__(self, *arguments: Any, unlisted: Sequence[str], **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.unlisted = frozenset(unlisted)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """As click does, without what is not listed."""
        listed = copy(self)
        listed.opts = [spelling for spelling in self.opts if spelling not in self.unlisted]
        return click.Option.get_help_record(listed, ctx)

    def get_error_hint(self, ctx: click.Context | None) -> str:
        """As click does, without what is not listed."""
        return " / ".join(f"'{spelling}'" for spelling in self.opts if spelling not in self.unlisted)


def nnictl_option(*listed: str, nnictl: Sequence[str], **settings: Any) -> Callable[[F], F]:
    """As `click.option`, with nnictl's spellings of it, which the help does not list."""
    return click.option(*listed, *nnictl, cls=UnlistedSpellings, unlisted=nnictl, **settings)


def examples(*lines: str) -> str:
    """The epilog of a command: command lines as a user types them, some with a comment."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def ignored_option(*names: str, because: str, **settings: Any) -> Callable[[F], F]:
    """Adds an option of nnictl that has no meaning here: it is accepted, and one sentence on stderr says why it has no
    effect. It is not listed, and the function does not get it."""

    def explain(context: click.Context, parameter: click.Parameter, value: object) -> None:
        if value and not context.resilient_parsing:
            echo(f"{max(names, key=len)} has no effect: {because}", err=True)

    return click.option(*names, expose_value=False, hidden=True, callback=explain, **settings)


def alias(group: click.Group, name: str, command: click.Command) -> None:
    """Let `name` be another spelling of a command; it is not listed."""
    twin = type(command)(
        name=name,
        callback=command.callback,
        params=command.params,
        help=f"The same as `{command.name}`.",
        hidden=True,
    )
    group.add_command(twin, name)
