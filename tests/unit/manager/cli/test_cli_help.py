"""The tree of commands: complete, documented, with examples, and cheap to ask for help."""

import re
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

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


def find(words: list[str]) -> click.Command | None:
    context, command = click.Context(cli), cli
    for word in words:
        if not isinstance(command, click.Group):
            return None
        found = command.get_command(context, word)
        if found is None:
            return None
        command = found  # type: ignore[assignment]
    return command


def commands(group: click.Group = cli, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command and group that a help lists, with what a user types for it."""
    yield name, group
    context = click.Context(group)
    for word in group.list_commands(context):
        found = group.get_command(context, word)
        assert found is not None
        if isinstance(found, click.Group):
            yield from commands(found, f"{name} {word}".strip())
        elif not found.hidden:
            yield f"{name} {word}".strip(), found


def test_lists_of_commands_have_whole_sentences_in_a_terminal_of_80_columns() -> None:
    for name, command in commands():
        if isinstance(command, click.Group):
            text = command.get_help(click.Context(command, info_name=name, terminal_width=80))
            cut = [line for line in text.splitlines() if line.endswith("...") and "[ARGS]" not in line]
            assert cut == [], name


def short_options(command: click.Command) -> Iterator[tuple[str, str, bool]]:
    """Each short option with the long one it stands for, and whether the help lists it."""
    for option in command.params:
        if isinstance(option, click.Option):
            unlisted = option.unlisted if isinstance(option, UnlistedSpellings) else frozenset()
            long = next(name for name in option.opts if name.startswith("--") and name not in unlisted)
            for name in option.opts:
                if not name.startswith("--"):
                    yield name, long, not option.hidden and name not in unlisted


@pytest.mark.parametrize("verb", [verb.strip() for verb in VERBS.split(";")] + SPELLINGS_OF_NNICTL)
def test_every_verb_is_there(verb: str, invoke) -> None:
    assert find(verb.split()) is not None
    result = invoke(*verb.split(), "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage:")


def test_every_verb_is_in_the_documentation(request: pytest.FixtureRequest) -> None:
    text = (request.config.rootpath / "docs" / "cli.md").read_text()
    for verb in VERBS.split(";"):
        assert verb.strip() in text, verb


@pytest.mark.parametrize(
    "arguments", [["--help"], ["trial", "--help"], ["trial", "ls", "--help"], ["create", "--help"]]
)
def test_help_imports_no_heavy_library(arguments: list[str]) -> None:
    heavy = ("rich", "httpx", "pydantic", "fastapi", "ruamel", "optuna", "sqlite3", "asyncio")
    code = (
        "import sys\nfrom proctor.manager.cli.main import cli\n"
        f"try: cli.main({arguments!r})\nexcept SystemExit: pass\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr == "[]\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(invoke, shell: str) -> None:
    output = invoke("completion", shell).stdout
    assert "_PROCTOR_COMPLETE" in output
    assert "proctor" in output


@pytest.mark.parametrize(("name", "command"), [pytest.param(*found, id=found[0] or "proctor") for found in commands()])
def test_every_help_has_examples_that_are_command_lines(
    name: str, command: click.Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is parsed as it stands; what it would do is not tried."""
    monkeypatch.chdir(tmp_path)
    for script in ("train.py", "src/train.py"):
        Path(script).parent.mkdir(exist_ok=True)
        Path(script).touch()
    shown = command.get_help(click.Context(command, info_name="proctor"))
    _, _, text = shown.partition("Examples:\n")
    lines = [line.strip() for line in text.splitlines() if line.startswith("    proctor ")]
    assert lines, f"`proctor {name}` shows no example"
    for line in lines:
        words = shlex.split(re.split(r" +# | > ", line)[0])[1:]
        found: click.Command = cli
        context = click.Context(cli, info_name="proctor")
        while isinstance(found, click.Group) and words:
            _, resolved, words = found.resolve_command(context, words)
            assert resolved is not None
            found = resolved
        found.make_context(name, words, parent=context)
        assert found is command or line.startswith(f"proctor {name}"), f"{line!r} is an example of another command"


def test_a_short_option_that_is_listed_has_one_meaning_in_all_commands() -> None:
    meanings: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for name, command in commands():
        for short, long, is_listed in short_options(command):
            if is_listed:
                meanings[short][long].append(name)
    twice = {short: dict(found) for short, found in meanings.items() if len(found) > 1}
    assert not twice, f"list one of the meanings, and give the others as nnictl_option(nnictl=[…]): {twice}"
    assert set(meanings) > {"-f", "-o", "-p", "-y"}


def test_spellings_of_nnictl_are_accepted_and_not_listed(invoke) -> None:
    assert "--filename PATH" in invoke("experiment", "export", "--help").stdout
    assert "-f," not in invoke("experiment", "export", "--help").stdout
    accepted = {
        f"{name} {short}".strip(): long
        for name, command in commands()
        for short, long, is_listed in short_options(command)
        if not is_listed
    }
    for words, long in {
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
    }.items():
        assert accepted[words] == long
    assert "Missing option '--value'." in invoke("update", "trialnum").stderr
