"""The Dockerfiles, as far as they can be checked without an engine: what they copy is there and is enough, the images
do not run as root, and their commands and variables are those that there are."""

import json
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import click
import pathspec
import pytest
from fakes.documentation import ROOT

from proctor.manager import settings
from proctor.manager.cli.main import cli

FOLDER = ROOT / "deploy" / "docker"
MANAGER, TRIAL = FOLDER / "manager.Dockerfile", FOLDER / "trial.Dockerfile"
IGNORED = pathspec.GitIgnoreSpec.from_lines((ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines())


def instructions(dockerfile: Path) -> Iterator[tuple[str, str]]:
    """Each instruction and its arguments; lines that are continued are joined, comments left out."""
    lines = [line for line in dockerfile.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    for line in "\n".join(lines).replace("\\\n", " ").splitlines():
        if line.strip():
            name, _, rest = line.strip().partition(" ")
            yield name, " ".join(rest.split())


def last(dockerfile: Path, name: str) -> str:
    """The arguments of an instruction that counts the last time it is given."""
    return [rest for found, rest in instructions(dockerfile) if found == name][-1]


def copied() -> list[str]:
    """What the manager's image takes from the checkout."""
    sources = [rest.split()[:-1] for name, rest in instructions(MANAGER) if name == "COPY" and "--from" not in rest]
    return [source for group in sources for source in group]


def is_in_context(path: str) -> bool:
    """Whether Docker is sent it. A folder that is let through by its name is let through with what is in it."""
    return not IGNORED.match_file(path)


def test_what_the_managers_image_copies_is_there_and_in_the_context() -> None:
    assert len(copied()) == 9
    assert [source for source in copied() if not (ROOT / source).exists()] == []
    assert [source for source in copied() if not is_in_context(source)] == []


@pytest.mark.parametrize("path", [".git", ".venv", "tests", "demo-home", "docs", "keepers.pem"])
def test_nothing_else_is_sent_to_the_engine(path: str) -> None:
    assert not is_in_context(path)


@pytest.mark.slow
def test_what_is_copied_is_enough_to_build_the_whole_package(tmp_path: Path) -> None:
    context, wheels = tmp_path / "context", tmp_path / "wheels"
    context.mkdir()
    for source in copied():
        subprocess.run(["cp", "-a", str(ROOT / source), str(context)], check=True)
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d"]
    subprocess.run([*command, str(wheels / "copied")], cwd=context, check=True, capture_output=True)
    subprocess.run([*command, str(wheels / "whole")], cwd=ROOT, check=True, capture_output=True)
    contents = [set(zipfile.ZipFile(next(folder.glob("*.whl"))).namelist()) for folder in sorted(wheels.iterdir())]
    assert contents[0] == contents[1]
    assert "proctor/manager/__main__.py" in contents[0]


def test_the_extras_that_are_installed_are_those_that_there_are() -> None:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (wanted,) = re.findall(r'"\.\[([a-z,]+)\]"', MANAGER.read_text(encoding="utf-8"))
    assert [extra for extra in wanted.split(",") if f"\n{extra} = [" not in text] == []


@pytest.mark.parametrize("dockerfile", [MANAGER, TRIAL], ids=lambda path: path.stem)
def test_an_image_runs_as_a_user_that_kubernetes_can_tell_from_root(dockerfile: Path) -> None:
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", last(dockerfile, "USER"))


def test_the_home_is_a_volume_of_that_user_and_the_environment_lets_the_port_be_published() -> None:
    environment = dict(pair.split("=", 1) for pair in last(MANAGER, "ENV").split())
    home = environment["PROCTOR_HOME"]
    assert last(MANAGER, "VOLUME") == home
    assert f"install -d -o proctor -g proctor -m 0700 {home}" in MANAGER.read_text(encoding="utf-8")
    variables = {name for name in environment if name.startswith("PROCTOR_")}
    assert variables <= {value for name, value in vars(settings).items() if name.startswith("ENV_")}
    web, _ = settings.read_environment(environment)
    assert (web.host, web.port, web.allow_remote) == ("0.0.0.0", 8080, True)
    assert str(web.port) in last(MANAGER, "EXPOSE").split()


def command_of(words: list[str]) -> click.Command:
    """The command of the CLI that these words name, without options."""
    assert words[0] == "proctor"
    command: click.Command = cli
    for word in words[1:]:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None, word
        command = found
    return command


def test_the_image_runs_the_manager_below_an_init_and_asks_it_how_it_is() -> None:
    init, separator, *entry = json.loads(last(MANAGER, "ENTRYPOINT"))
    assert (init, separator) == ("tini", "--")
    assert command_of([*entry, *json.loads(last(MANAGER, "CMD"))]).name == "run"
    assert command_of(json.loads(last(MANAGER, "HEALTHCHECK").partition("CMD ")[2])).name == "status"


def test_an_image_for_trials_needs_a_list_of_packages_and_nothing_of_ours() -> None:
    assert [rest for name, rest in instructions(TRIAL) if name == "COPY"] == ["requirements.txt /requirements.txt"]
    assert not [name for name, _ in instructions(TRIAL) if name in ("ENTRYPOINT", "CMD")]
