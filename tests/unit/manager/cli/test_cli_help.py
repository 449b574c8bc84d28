"""Help and completion: cheap to ask for, and with NNI's spellings. What the texts have to say is in tests/checks."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("words", [["experiment", "export"], ["trial", "list"]])
def test_every_command_has_a_help(words: list[str], invoke) -> None:
    result = invoke(*words, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith("Usage:")


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


def test_spellings_of_nnictl_are_accepted_and_not_listed(invoke) -> None:
    assert "--filename PATH" in invoke("experiment", "export", "--help").stdout
    assert "-f," not in invoke("experiment", "export", "--help").stdout
    assert "Missing option '--value'." in invoke("update", "trialnum").stderr
