"""The tree of commands: complete, documented, and with examples in every help."""

import re
import shlex
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest
from checks.sources import fail_for
from fakes.documentation import ROOT

from proctor.manager.cli.lazy import UnlistedSpellings
from proctor.manager.cli.main import cli

VERBS = """
create; resume; view; stop; update searchspace; update concurrency; update duration; update trialnum;
trial ls; trial show; trial kill; trial retry; trial add; trial log; experiment list; experiment show;
experiment status; experiment wait; config init;
experiment delete; experiment export; experiment import; experiment save; experiment load; nodes; top; log manager;
log dispatcher; log trial; config show; config check; algo register; algo list; algo show; algo unregister; webui url;
manager run; manager start; manager stop; manager status; doctor; version; completion
"""
SPELLINGS_OF_NNICTL = ["experiment ls", "trial list", "algo reg", "algo unreg", "log stdout", "log stderr"]


@cache
def commands() -> dict[str, click.Command]:
    """Every command and group that a help lists, by what a user types for it."""
    return dict(below(cli, ""))


def below(group: click.Group, name: str) -> Iterator[tuple[str, click.Command]]:
    yield name, group
    context = click.Context(group)
    for word in group.list_commands(context):
        found = group.get_command(context, word)
        assert found is not None
        if isinstance(found, click.Group):
            yield from below(found, f"{name} {word}".strip())
        elif not found.hidden:
            yield f"{name} {word}".strip(), found


def resolve(words: list[str]) -> tuple[click.Command | None, click.Context, list[str]]:
    """The command that a line of words runs, the context above it, and its arguments."""
    found: click.Command | None = cli
    context = click.Context(cli, info_name="proctor")
    while isinstance(found, click.Group) and words:
        _, found, words = found.resolve_command(context, words)
    return found, context, words


def test_every_verb_is_there_and_in_the_documentation() -> None:
    verbs = [verb.strip() for verb in VERBS.split(";")]
    for verb in [*verbs, *SPELLINGS_OF_NNICTL]:
        found, context, rest = resolve(verb.split())
        assert found is not None, verb
        assert rest == [], verb
        assert found.get_help(context).startswith("Usage:"), verb
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    fail_for(verb for verb in verbs if verb not in text)


def test_lists_of_commands_have_whole_sentences_in_a_terminal_of_80_columns() -> None:
    groups = {name: command for name, command in commands().items() if isinstance(command, click.Group)}
    helps = {
        name: group.get_help(click.Context(group, info_name=name, terminal_width=80)) for name, group in groups.items()
    }
    fail_for(
        f"{name}: {line}"
        for name, text in helps.items()
        for line in text.splitlines()
        if line.endswith("...") and "[ARGS]" not in line
    )


def test_every_help_has_examples_that_are_command_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is parsed as it stands; what it would do is not tried."""
    monkeypatch.chdir(tmp_path)
    Path("src").mkdir()
    for script in ("train.py", "src/train.py"):
        Path(script).touch()
    fail_for(problem for name, command in commands().items() for problem in problems_of_examples(name, command))


def problems_of_examples(name: str, command: click.Command) -> Iterator[str]:
    _, _, text = command.get_help(click.Context(command, info_name="proctor")).partition("Examples:\n")
    lines = [line.strip() for line in text.splitlines() if line.startswith("    proctor ")]
    if not lines:
        yield f"`proctor {name}` shows no example"
    for line in lines:
        try:
            found, context, words = resolve(shlex.split(re.split(r" +# | > ", line)[0])[1:])
            assert found is not None
            found.make_context(name, words, parent=context)
        except click.UsageError as error:
            yield f"`proctor {name}`: {line!r}: {error.format_message()}"
            continue
        if found is not command and not line.startswith(f"proctor {name}"):
            yield f"`proctor {name}`: {line!r} is an example of another command"


def short_options(command: click.Command) -> Iterator[tuple[str, str, bool]]:
    """Each short option with the long one it stands for, and whether the help lists it."""
    for option in command.params:
        if isinstance(option, click.Option):
            unlisted = option.unlisted if isinstance(option, UnlistedSpellings) else frozenset()
            long = next(name for name in option.opts if name.startswith("--") and name not in unlisted)
            for name in option.opts:
                if not name.startswith("--"):
                    yield name, long, not option.hidden and name not in unlisted


def test_a_short_option_that_is_listed_has_one_meaning_in_all_commands() -> None:
    meanings: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, command in commands().items():
        for short, long, is_listed in short_options(command):
            if is_listed:
                meanings[short][long].append(name)
    twice = {short: dict(found) for short, found in meanings.items() if len(found) > 1}
    assert not twice, f"list one of the meanings, and give the others as nnictl_option(nnictl=[…]): {twice}"
    assert set(meanings) > {"-f", "-o", "-p", "-y"}


def test_spellings_of_nnictl_are_not_listed() -> None:
    accepted = {
        f"{name} {short}".strip(): long
        for name, command in commands().items()
        for short, long, is_listed in short_options(command)
        if not is_listed
    }
    wanted = {
        "-v": "--version",
        "create -f": "--foreground",
        "resume -f": "--foreground",
        "update concurrency -v": "--value",
        "update searchspace -f": "--filename",
        "experiment export -f": "--filename",
        "experiment import -f": "--filename",
        "experiment save -p": "--path",
        "experiment load -p": "--path",
        "experiment load -c": "--code-directory",
        "top -t": "--time",
        "trial kill -T": "--trial-id",
    }
    assert wanted.items() <= accepted.items()
