"""The tree of commands: complete, documented, and cheap to ask for help."""

import subprocess
import sys

import click
import pytest

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
