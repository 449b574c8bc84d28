"""What the documentation says of itself: its links lead somewhere, and all its code is run or says why not."""

import ast
import io
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from itertools import dropwhile, groupby
from pathlib import Path

import click
import pytest
from fakes.documentation import (
    COMMANDS,
    ROOT,
    Block,
    blocks_of,
    broken_links,
    inline_code_of,
    linked_pages,
    pages,
    slug_of,
)
from ruamel.yaml import YAML

from proctor.manager.cli.main import cli
from proctor.manager.config.loading import load_experiment
from proctor.manager.config.services import RemoteConfig
from proctor.trial_keeper.protocol import EndReason

BLOCKS = [block for page in pages() for block in blocks_of(page)]
RUNNABLE = [block for block in BLOCKS if block.language in (*COMMANDS, "python")]
KNOWN_LANGUAGES = {*COMMANDS, "python", "yaml", "json", "toml", "text", "mermaid"}
KEYWORDS = {"if", "while", "until", "do", "then"}


def named(blocks: list[Block]) -> "pytest.MarkDecorator":
    return pytest.mark.parametrize("block", blocks, ids=lambda block: block.place)


@pytest.mark.parametrize("page", linked_pages())
def test_every_link_leads_to_a_file_and_a_heading(page: str) -> None:
    assert broken_links(page) == []


@pytest.mark.parametrize(
    ("heading", "slug"),
    [
        ("What is saved", "what-is-saved"),
        ("`create`, in short", "create-in-short"),
        ("What happens when …", "what-happens-when"),
    ],
)
def test_an_anchor_is_the_same_on_the_site_and_on_github(heading: str, slug: str) -> None:
    assert slug_of(heading) == slug


@pytest.mark.parametrize("page", pages())
def test_code_is_fenced_and_says_its_language(page: str) -> None:
    """Indented code has no language, and in lists the site's Markdown and GitHub's read it differently."""
    assert [block.place for block in blocks_of(page) if block.language not in KNOWN_LANGUAGES] == []


@named(RUNNABLE)
def test_commands_and_python_are_run_or_say_why_not(block: Block) -> None:
    assert block.mark, (
        f"{block.place}: write above it <!-- run -->, <!-- file: NAME -->, <!-- tested: tests/…::test_… --> or "
        "<!-- not run: the reason -->"
    )
    assert block.mark == "run" or block.detail, f"{block.place}: {block.mark} of what, or why?"


@named([block for block in BLOCKS if block.mark == "tested"])
def test_a_test_that_a_page_names_exists(block: Block) -> None:
    for name in block.detail.split(", "):
        file, _, function = name.partition("::")
        assert (ROOT / file).is_file(), f"{block.place}: there is no {file}"
        assert f"def {function}(" in (ROOT / file).read_text(encoding="utf-8"), (
            f"{block.place}: {file} has no {function}"
        )


@named([block for block in BLOCKS if block.language == "python"])
def test_python_can_be_parsed(block: Block) -> None:
    ast.parse(block.text.replace(", ...)", ")"))  # the dots stand for arguments of the reader


@named([block for block in BLOCKS if block.language in ("yaml", "json", "toml")])
def test_data_can_be_parsed(block: Block) -> None:
    if block.language == "yaml":
        YAML(typ="safe").load(io.StringIO(block.text))
    elif block.language == "json":
        json.loads(block.text)
    else:
        tomllib.loads(block.text)


def invocations(text: str) -> list[list[str]]:
    """The arguments of each `proctor …` in a text of commands."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
        lexer.whitespace_split = True
        for _, group in groupby(lexer, lambda word: set(word) <= set(";&|<>")):
            words = list(dropwhile(lambda word: word == "!" or word in KEYWORDS or "=" in word, group))
            if words and words[0] == "proctor":
                found.append(words[1:])
    return found


def check_command_line(words: list[str]) -> None:
    """Raise click's error where `proctor` would not take these arguments; nothing is run, and no file need exist."""
    command: click.Command = cli
    context = click.Context(command, info_name="proctor")
    rest = command.make_parser(context).parse_args(list(words))[1]
    while isinstance(command, click.Group) and rest:
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None
        command, context = found, click.Context(found, info_name=name, parent=context)
        rest = command.make_parser(context).parse_args(rest)[1]


@named([block for block in BLOCKS if block.language in COMMANDS and invocations(block.text)])
def test_every_command_that_a_page_shows_is_one_that_there_is(block: Block) -> None:
    for words in invocations(block.text):
        check_command_line(words)


@pytest.mark.parametrize("page", linked_pages())
def test_every_command_in_the_text_of_a_page_is_one_that_there_is(page: str) -> None:
    for code in inline_code_of(page):
        for words in invocations(code.partition("…")[0] if code.startswith("proctor ") else ""):
            check_command_line(words)


@pytest.mark.parametrize(
    "line", ["proctor nonesuch", "proctor create --nonesuch", "proctor trial lst", "proctor -x create"]
)
def test_a_command_that_there_is_not_is_found(line: str) -> None:
    (words,) = invocations(line)
    with pytest.raises(click.UsageError):
        check_command_line(words)


def text_of(node: ast.AST) -> str | None:
    """A string of the code, with `…` for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    return None


@cache
def strings_of_the_code() -> list[str]:
    files = [
        path for top in ("manager", "sdk", "training_services", "trial_keeper") for path in (ROOT / top).rglob("*.py")
    ]
    found = [text_of(node) for path in files for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    return [" ".join(text.split()) for text in found if text and " " in text]


def messages() -> list[str]:
    """What troubleshooting.md quotes: the first cell of each row, in backticks."""
    text = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    return re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)


def is_in(quote: str, text: str) -> bool:
    """Whether the parts of a quote, without what is filled in, follow each other in a string of the code."""
    at = 0
    for part in quote.split("…"):
        found = text.find(part.strip(" ;:,."), at)
        if found < 0:
            return False
        at = found + len(part.strip())
    return True


def test_each_message_is_explained_once() -> None:
    quotes = messages()
    assert len(quotes) > 100
    assert sorted(quote for quote in set(quotes) if quotes.count(quote) > 1) == []


@pytest.mark.parametrize("quote", messages())
def test_a_message_that_is_explained_is_one_that_the_code_has(quote: str) -> None:
    assert any(is_in(quote, text) for text in strings_of_the_code()), f"no string of the code has these words: {quote}"


def raised_by_the_trainer() -> Iterator[tuple[str, str]]:
    """The sentences of the errors that the trainer raises, and where."""
    for path in (ROOT / "sdk" / "pytorch").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                text = text_of(node.exc.args[0]) or ""
                if ast.unparse(node.exc.func) not in NOT_FOR_USERS and text.replace("…", "").count(" ") > 1:
                    yield f"{path.name}:{node.lineno}", " ".join(text.split())


def test_every_message_of_the_trainer_is_explained() -> None:
    options = "… must be …; found …"  # the words of many; explained is that of an option, which has no others
    quotes = [quote for quote in messages() if quote != options]
    rows = [row for row in raised_by_the_trainer() if row[1] != f"{options}."]
    assert [row for row in rows if not any(is_in(quote, row[1]) for quote in quotes)] == []


def test_every_end_of_a_job_is_explained() -> None:
    text = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
    rows = text.partition("| END | what happened |\n|---|---|\n")[2].partition("\n\n")[0].splitlines()
    explained = {name for row in rows for name in row.split("|")[1].strip().split(", ")}
    assert explained == {reason.value for reason in EndReason}


NOT_FOR_USERS = ("AssertionError", "NotImplementedError", "LookupError", "NotSavable", "ValueError")
INTERNAL_VARIABLES = {
    "PROCTOR_COMPLETE",  # by click, in the completion of a shell
    "PROCTOR_FAILPOINT",
    "PROCTOR_FAILPOINT_COUNTER",
    "PROCTOR_FAILPOINT_LOG",
    "PROCTOR_INHERITED_LAUNCHES",
    "PROCTOR_KEEPER_DIRECTORY",
    "PROCTOR_MEMBER",
    "PROCTOR_MEMORY_RESERVE",
}


def test_every_environment_variable_is_documented() -> None:
    files = [
        path for top in ("manager", "sdk", "training_services", "trial_keeper") for path in (ROOT / top).rglob("*.py")
    ]
    in_code = {name for path in files for name in re.findall(r"PROCTOR_[A-Z_]*[A-Z]", path.read_text(encoding="utf-8"))}
    page = (ROOT / "docs/environment.md").read_text(encoding="utf-8")
    assert set(re.findall(r"PROCTOR_[A-Z_]*[A-Z]", page)) == in_code - INTERNAL_VARIABLES


def test_the_machines_of_the_tutorial_are_a_configuration(tmp_path: Path) -> None:
    blocks = [block for block in blocks_of("docs/tutorial.md") if block.language == "yaml"]
    experiment, machines = blocks[0].text, blocks[-1].text
    assert experiment.endswith("trainingService:\n  platform: local\n")  # its last two lines, which are replaced
    (tmp_path / "two-machines.yml").write_text("".join(experiment.splitlines(keepends=True)[:-2]) + machines)
    loaded = load_experiment(tmp_path / "two-machines.yml")
    assert isinstance(loaded.config.training_service, RemoteConfig)
    assert [machine.host for machine in loaded.config.training_service.machine_list] == ["localhost", "gpu-1"]


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    """MkDocs says so too, where it is installed."""
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    named = re.findall(r"(?:: |- )(\S+\.md)$", text, re.MULTILINE)
    assert len(named) == len(set(named))
    there = {page.removeprefix("docs/") for page in pages() if page.startswith("docs/")}
    beside = {page.removeprefix("repository/") for page in named if page.startswith("repository/")}
    assert [page for page in beside if not (ROOT / page).is_file()] == []
    listed = {page for page in there if re.match(r"decisions/\d", page)}  # in their index, see test_structure
    assert {page for page in named if not page.startswith(("repository/", "generated/"))} == there - listed


def test_each_page_of_the_dashboard_has_a_picture_that_is_shown() -> None:
    """They depend on the fonts of a machine, so they are not compared: `make pictures`."""
    script = (ROOT / "docs" / "site" / "page_pictures.py").read_text(encoding="utf-8")
    drawn = re.findall(r'^    "(\w+)": \("/', script, re.MULTILINE)
    assert {f"{name}.png" for name in drawn} == {path.name for path in (ROOT / "docs" / "pictures").glob("*.png")}
    shown = (ROOT / "docs" / "dashboard.md").read_text(encoding="utf-8")
    assert [name for name in drawn if f"(pictures/{name}.png)" not in shown] == []


def test_the_picture_is_the_one_that_its_script_draws(tmp_path: Path) -> None:
    """If the terminal's screens were changed on purpose: `make pictures`."""
    script = ROOT / "docs" / "site" / "pictures.py"
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    environment = {**os.environ, "PYTHONPATH": paths}
    subprocess.run([sys.executable, str(script), str(tmp_path)], env=environment, check=True)
    drawn = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.iterdir()}
    assert set(drawn) == {path.name for path in (ROOT / "docs" / "pictures").glob("*.svg")}
    for name, text in drawn.items():
        assert (ROOT / "docs" / "pictures" / name).read_text(encoding="utf-8") == text, (
            f"run `make pictures` for {name}"
        )
