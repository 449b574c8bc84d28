"""Help and completion: cheap to ask for, and with NNI's spellings. What the texts have to say is in tests/checks."""

import subprocess
import sys
from pathlib import Path

import pytest
from fakes.served_manager import ServedManager


@pytest.mark.parametrize("words", [["experiment", "export"], ["trial", "list"]])
def test_every_command_has_a_help(words: list[str], invoke) -> None:
    assert invoke(*words, "--help", code=0).stdout.startswith("Usage:")


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments", [["--help"], ["trial", "--help"], ["trial", "ls", "--help"], ["create", "--help"], ["hello"]]
)
def test_help_imports_no_heavy_library(arguments: list[str]) -> None:
    heavy = ("rich", "httpx", "pydantic", "fastapi", "ruamel", "optuna", "sqlite3", "asyncio")
    code = (
        "import sys\nfrom proctor.manager.cli.main import cli\n"
        f"try: cli.main({arguments!r})\nexcept SystemExit: pass\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.endswith("[]\n"), done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "more"),
    [
        (["experiment", "list"], {"pydantic", "ruamel.yaml"}),
        (["trial", "ls", "e"], {"pydantic", "ruamel.yaml"}),
        (["create", "experiment.yml"], {"rich", "proctor.trial_keeper.protocol", "proctor.training_services.base"}),
    ],
    ids=["experiment list", "trial ls", "create"],
)
def test_a_command_imports_only_what_it_uses(
    served: ServedManager, tmp_path: Path, arguments: list[str], more: set[str]
) -> None:
    unused = {"httpx", "httpcore", "anyio", "asyncio", "rich.console", "pygments", "platformdirs", "optuna", *more}
    served.add_experiment(trials=[{}])
    (tmp_path / "experiment.yml").write_text(
        "{searchSpace: {x: {_type: uniform, _value: [0, 1]}}, trialCommand: python3 trial.py, tuner: {name: TPE}, "
        "trialConcurrency: 1, maxTrialNumber: 1, trainingService: {platform: local}}"
    )
    code = (
        "import sys\nfrom proctor.manager.cli.main import cli\n"
        f"try: cli.main({['--home', str(served.home), *arguments]!r})\n"
        "except SystemExit as left: assert not left.code\n"
        f"print('imported:', sorted({unused!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.endswith("imported: []\n"), done.stdout + done.stderr
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(invoke, shell: str) -> None:
    output = invoke("completion", shell).stdout
    assert "_PROCTOR_COMPLETE" in output
    assert "proctor" in output


def test_spellings_of_nnictl_are_accepted_and_not_listed(invoke) -> None:
    assert "--filename PATH" in invoke("experiment", "export", "--help").stdout
    assert "-f," not in invoke("experiment", "export", "--help").stdout
    assert "Missing option '--value'." in invoke("update", "trialnum").stderr
