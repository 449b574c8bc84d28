"""What the documentation says of itself: its links lead somewhere, and all its code is run or says why not."""

import ast
import io
import json
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import dropwhile, groupby
from pathlib import Path

import click
from checks.sources import fail_for, source_of, sources, text_of
from fakes.documentation import (
    COMMANDS,
    ROOT,
    Block,
    blocks_of,
    broken_links,
    inline_code_of,
    linked_pages,
    links_of,
    pages,
    slug_of,
)
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from proctor.manager.cli.main import cli
from proctor.manager.config.loading import load_experiment
from proctor.manager.config.services import RemoteConfig
from proctor.trial_keeper.protocol import EndReason

KNOWN_LANGUAGES = {*COMMANDS, "python", "yaml", "json", "toml", "text", "mermaid"}
KEYWORDS = {"if", "while", "until", "do", "then"}
TROUBLESHOOTING = "docs/troubleshooting.md"
NOT_FOR_USERS = ("AssertionError", "NotImplementedError", "LookupError", "NotSavable", "ValueError")
INTERNAL_VARIABLES = {
    "PROCTOR_COMPLETE",  # by click, in the completion of a shell
    "PROCTOR_FAILPOINT",
    "PROCTOR_FAILPOINT_FOLDER",
    "PROCTOR_FAILPOINT_LOG",
    "PROCTOR_INHERITED_LAUNCHES",
    "PROCTOR_KEEPER_DIRECTORY",
    "PROCTOR_MEMBER",
    "PROCTOR_JOB_STARTED",
    "PROCTOR_MEMORY_RESERVE",
}


@cache
def blocks() -> list[Block]:
    """All code of all pages."""
    return [block for page in pages() for block in blocks_of(page)]


def read(place: str) -> str:
    return (ROOT / place).read_text(encoding="utf-8")


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    fail_for(link for page in linked_pages() for link in broken_links(page))


def test_an_anchor_is_the_same_on_the_site_and_on_github() -> None:
    assert slug_of("What is saved") == "what-is-saved"
    assert slug_of("`create`, in short") == "create-in-short"
    assert slug_of("What happens when …") == "what-happens-when"


def test_code_is_fenced_and_says_its_language() -> None:
    """Indented code has no language, and in lists the site's Markdown and GitHub's read it differently."""
    fail_for(block.place for block in blocks() if block.language not in KNOWN_LANGUAGES)


def test_commands_and_python_are_run_or_say_why_not() -> None:
    runnable = [block for block in blocks() if block.language in (*COMMANDS, "python")]
    assert len(runnable) > 50
    fail_for(
        (block.place for block in runnable if not block.mark),
        "write above each <!-- run -->, <!-- file: NAME -->, <!-- tested: tests/…::test_… --> or "
        "<!-- not run: the reason -->:",
    )
    vague = (block for block in runnable if block.mark != "run" and not block.detail)
    fail_for(f"{block.place}: {block.mark} of what, or why?" for block in vague)


def test_every_test_that_a_page_names_exists() -> None:
    named = [(block.place, name) for block in blocks() if block.mark == "tested" for name in block.detail.split(", ")]
    assert len(named) > 10
    fail_for(f"{place}: there is no {name}" for place, name in named if not is_test(name))


def is_test(name: str) -> bool:
    file, _, function = name.partition("::")
    return (ROOT / file).is_file() and f"def {function}(" in read(file)


def test_python_and_data_can_be_parsed() -> None:
    fail_for(f"{block.place}: {problem}" for block in blocks() if (problem := problem_of_parsing(block)))


def problem_of_parsing(block: Block) -> str:
    try:
        match block.language:
            case "python":
                ast.parse(block.text.replace(", ...)", ")"))  # the dots stand for arguments of the reader
            case "yaml":
                YAML(typ="safe").load(io.StringIO(block.text))
            case "json":
                json.loads(block.text)
            case "toml":
                tomllib.loads(block.text)
    except (SyntaxError, YAMLError, ValueError) as error:
        return str(error)
    return ""


# ---- commands --------------------------------------------------------------------------------------------------------


def invocations(text: str) -> list[list[str]]:
    """The arguments of each `proctor …` in a text of commands."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        if "proctor" not in line:
            continue
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|<>")
        lexer.whitespace_split = True
        for _, group in groupby(lexer, lambda word: set(word) <= set(";&|<>")):
            words = list(dropwhile(lambda word: word == "!" or word in KEYWORDS or "=" in word, group))
            if words and words[0] == "proctor":
                found.append(words[1:])
    return found


def problem_of_command(words: list[str]) -> str:
    """Why `proctor` would not take these arguments; nothing is run, and no file need exist."""
    command: click.Command = cli
    context = click.Context(command, info_name="proctor")
    try:
        rest = command.make_parser(context).parse_args(list(words))[1]
        while isinstance(command, click.Group) and rest:
            name, found, rest = command.resolve_command(context, rest)
            assert found is not None
            command, context = found, click.Context(found, info_name=name, parent=context)
            rest = command.make_parser(context).parse_args(rest)[1]
    except click.UsageError as error:
        return error.format_message()
    return ""


def commands_of_pages() -> Iterator[tuple[str, list[str]]]:
    """Each command of a block or of the text, and where it stands."""
    for block in blocks():
        if block.language in COMMANDS:
            yield from ((block.place, words) for words in invocations(block.text))
    for page in linked_pages():
        for code in inline_code_of(page):
            if code.startswith("proctor "):
                yield from ((f"{page}: `{code}`", words) for words in invocations(code.partition("…")[0]))


def test_every_command_that_a_page_shows_is_one_that_there_is() -> None:
    found = list(commands_of_pages())
    assert len(found) > 200
    fail_for(f"{place}: {problem}" for place, words in found if (problem := problem_of_command(words)))


def test_a_command_that_there_is_not_is_found() -> None:
    for line in ("proctor nonesuch", "proctor create --nonesuch", "proctor trial lst", "proctor -x create"):
        (words,) = invocations(f"A=1 {line} | head")
        assert problem_of_command(words), line


# ---- messages and variables ------------------------------------------------------------------------------------------


def messages() -> list[str]:
    """What troubleshooting.md quotes: the first cell of each row, in backticks."""
    return re.findall(r"^\| `([^`]+)` \|", read(TROUBLESHOOTING), re.MULTILINE)


def pattern_of(quote: str) -> re.Pattern[str]:
    """Finds the parts of a quote, without what is filled in, one behind the other in one line."""
    parts = (part.strip(" ;:,.") for part in quote.split("…"))
    return re.compile(".*?".join(re.escape(part) for part in parts if part))


def test_each_message_is_explained_once() -> None:
    quotes = Counter(messages())
    assert len(quotes) > 100
    fail_for(quote for quote, count in quotes.items() if count > 1)


def test_a_message_that_is_explained_is_one_that_the_code_has() -> None:
    nodes = (node for source in sources() for node in source.nodes(ast.Constant, ast.JoinedStr))
    lines = "\n".join(" ".join(text.split()) for node in nodes if (text := text_of(node)) and " " in text)
    missing = (quote for quote in messages() if not pattern_of(quote).search(lines))
    fail_for(missing, "no string of the code has these words:")


def raised_by_the_trainer() -> Iterator[tuple[str, str]]:
    """The sentences of the errors that the trainer raises, and where."""
    for source in sources():
        for node in source.nodes(ast.Raise) if source.place.startswith("sdk/pytorch/") else ():
            if isinstance(node.exc, ast.Call) and node.exc.args:
                text = text_of(node.exc.args[0]) or ""
                if ast.unparse(node.exc.func) not in NOT_FOR_USERS and text.replace("…", "").count(" ") > 1:
                    yield source.at(node), " ".join(text.split())


def test_every_message_of_the_trainer_is_explained() -> None:
    options = "… must be …; found …"  # the words of many; explained is that of an option, which has no others
    explained = [pattern_of(quote) for quote in messages() if quote != options]
    rows = [row for row in raised_by_the_trainer() if row[1] != f"{options}."]
    assert len(rows) > 50
    fail_for(f"{place}: {text}" for place, text in rows if not any(each.search(text) for each in explained))


def test_every_end_of_a_job_is_explained() -> None:
    rows = read(TROUBLESHOOTING).partition("| END | what happened |\n|---|---|\n")[2].partition("\n\n")[0].splitlines()
    explained = {name for row in rows for name in row.split("|")[1].strip().split(", ")}
    assert explained == {reason.value for reason in EndReason}


def test_every_environment_variable_is_documented() -> None:
    variable = re.compile(r"PROCTOR_[A-Z_]*[A-Z]")
    in_code = {name for source in sources() for name in variable.findall(source.text)}
    assert set(variable.findall(read("docs/environment.md"))) == in_code - INTERNAL_VARIABLES


def test_the_machines_of_the_tutorial_are_a_configuration(tmp_path: Path) -> None:
    texts = [block.text for block in blocks_of("docs/tutorial.md") if block.language == "yaml"]
    experiment, machines = texts[0], texts[-1]
    assert experiment.endswith("trainingService:\n  platform: local\n")  # its last two lines, which are replaced
    (tmp_path / "two-machines.yml").write_text("".join(experiment.splitlines(keepends=True)[:-2]) + machines)
    loaded = load_experiment(tmp_path / "two-machines.yml")
    assert isinstance(loaded.config.training_service, RemoteConfig)
    assert [machine.host for machine in loaded.config.training_service.machine_list] == ["localhost", "gpu-1"]


# ---- the site --------------------------------------------------------------------------------------------------------


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    """MkDocs says so too, where it is installed."""
    named = re.findall(r"(?:: |- )(\S+\.md)$", read("mkdocs.yml").partition("\nnav:\n")[2], re.MULTILINE)
    assert len(named) == len(set(named))
    there = {page.removeprefix("docs/") for page in pages() if page.startswith("docs/")}
    beside = {page.removeprefix("repository/") for page in named if page.startswith("repository/")}
    assert [page for page in beside if not (ROOT / page).is_file()] == []
    listed = {page for page in there if re.match(r"decisions/\d", page)}
    assert {f"decisions/{target}" for _, target in links_of("docs/decisions/README.md")} >= listed
    assert {page for page in named if not page.startswith(("repository/", "generated/"))} == there - listed


def test_each_page_of_the_dashboard_has_a_picture_that_is_shown() -> None:
    """They depend on the fonts of a machine, so they are not compared: `make pictures`."""
    drawn = re.findall(r'^    "(\w+)": \("/', source_of("docs/site/page_pictures.py").text, re.MULTILINE)
    assert {f"{name}.png" for name in drawn} == {path.name for path in (ROOT / "docs" / "pictures").glob("*.png")}
    fail_for(name for name in drawn if f"(pictures/{name}.png)" not in read("docs/dashboard.md"))
