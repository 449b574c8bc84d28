"""What MkDocs builds besides docs/: generated references, and the pages that stand beside the code.

Links between all of these lead to the site's pages; a link to source code becomes plain text. Run by `make docs`.
"""

import ast
import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from proctor.manager.cli.main import cli

if TYPE_CHECKING:  # a test reads what is made here without MkDocs
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
BESIDE_THE_CODE = "repository"  # the folder of the site for pages from outside of docs/
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
NO_CLAUSE = re.compile(r"%|\||-->|\]\(|\"\$|; exec ")  # lines of logs, tables, diagrams, shell commands
CODE = re.compile(r"`[^`]*`")
ITEM = re.compile(r"(?:[*-]|\d+\.) ")
WIDTH = 100

PYTHON_API = {
    "Experiments": ("proctor.sdk.client.experiment.Experiment", "proctor.sdk.client.results.Results"),
    "Outcomes": ("proctor.sdk.client.results.TrialOutcome", "proctor.sdk.client.results.TrialResult"),
    "Configuration": (
        "proctor.sdk.client.config.ExperimentConfig",
        "proctor.sdk.client.config.ObjectiveConfig",
        "proctor.sdk.client.config.AlgorithmConfig",
        "proctor.sdk.client.config.CustomAlgorithmConfig",
        "proctor.sdk.client.config.LocalConfig",
        "proctor.sdk.client.config.RemoteConfig",
        "proctor.sdk.client.config.RemoteMachineConfig",
        "proctor.sdk.client.config.RunMode",
    ),
    "REST as Python calls": (
        "proctor.sdk.client.client.Client",
        "proctor.sdk.client.result_calls.ResultCalls",
        "proctor.sdk.client.trial_calls.TrialCalls",
        "proctor.sdk.client.errors",
    ),
    "What a trial calls": ("proctor.sdk.trial", "proctor.sdk.channel.StopRequest", "proctor.sdk.errors"),
    "Tuners and assessors": (
        "proctor.sdk.tuner.Tuner",
        "proctor.sdk.assessor.Assessor",
        "proctor.sdk.testing",
    ),
    "The PyTorch trainer": (
        "proctor.sdk.pytorch.trainer.Trainer",
        "proctor.sdk.pytorch.config.Settings",
        "proctor.sdk.pytorch.model.Model",
        "proctor.sdk.pytorch.data.module.DataModule",
        "proctor.sdk.pytorch.callbacks.base.Callback",
        "proctor.sdk.pytorch.plain",
    ),
}
MESSAGES = {
    "Command line": ("manager/cli",),
    "Manager": ("manager/process", "manager/settings.py", "manager/app.py", "manager/engine", "manager/api"),
    "Tuners and assessors": ("manager/dispatcher",),
    "Machines and platforms": ("training_services",),
    "Trials": ("sdk/trial.py", "sdk/metrics.py", "sdk/channel.py", "sdk/checkpoints", "sdk/compat"),
    "Scripts that control experiments": ("sdk/client",),
    "PyTorch trainer": ("sdk/pytorch",),
}
REASONS = {
    "A configuration": ("manager/config", "manager/dispatcher/algorithms/registry.py", "manager/trial_commands.py"),
    "An experiment": ("manager/lifecycle", "manager/engine/loop", "manager/engine/feasibility.py"),
    "A trial": ("manager/placement.py", "training_services/nodes", "trial_keeper/jobs", "trial_keeper/reaper"),
    "A machine": ("training_services/ssh", "training_services/keepers/heartbeats.py"),
}
"""Where sentences and clauses are made that are shown without being raised."""


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Add the pages that are not in docs/."""
    from mkdocs.structure.files import File

    made = {"commands.md": commands(), "rest.md": rest_calls(), "python.md": python_api(), "messages.md": messages()}
    for name, text in made.items():
        files.append(File.generated(config, f"generated/{name}", content=text))
    for path in pages_beside_the_code():
        text = (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, f"{BESIDE_THE_CODE}/{path}", content=text))
    return files


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    """Write a page as the site wants it."""
    return site_markdown(markdown, page.file.src_uri, set(files.src_uris))


def site_markdown(markdown: str, page: str, known: set[str]) -> str:
    """A page's text with links that lead to the pages of the site, and with lists and tables as its Markdown, which is
    not GitHub's, wants them: a blank line above a list, and no backslash before a bar in code.

    :param page: its path in the site, as are those of the `known` ones.
    """
    beside = page.startswith(f"{BESIDE_THE_CODE}/")
    source = page.removeprefix(f"{BESIDE_THE_CODE}/") if beside else f"docs/{page}"

    def lead(link: re.Match[str]) -> str:
        sign, text, target = link.groups()
        path, anchor, heading = target.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return link[0]
        found = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        place = found.removeprefix("docs/") if found.startswith("docs/") else f"{BESIDE_THE_CODE}/{found}"
        if place not in known:
            return text if (ROOT / found).exists() and not found.startswith("docs/") else link[0]
        return f"{sign}[{text}]({posixpath.relpath(place, posixpath.dirname(page) or '.')}{anchor}{heading})"

    lines, is_code, in_list = list[str](), False, False
    for line in markdown.split("\n"):
        above = lines[-1] if lines else ""
        if line.lstrip().startswith("```"):
            is_code = not is_code
        elif not is_code:
            line = LINK.sub(lead, line)
            if line.startswith("|"):
                line = CODE.sub(lambda span: span[0].replace("\\|", "|"), line)
            if ITEM.match(line) and above.strip() and not in_list:
                lines.append("")
            goes_on = line.startswith(" ") or (bool(line.strip()) and bool(above.strip()))
            in_list = ITEM.match(line) is not None or (in_list and (goes_on or not line.strip()))
        lines.append(line)
    return "\n".join(lines)


def pages_beside_the_code() -> list[str]:
    """The Markdown that is not in docs/ and is part of the site."""
    folders = ("examples", "benchmarks", "deploy")
    found = [*ROOT.glob("*.md"), *(path for folder in folders for path in (ROOT / folder).rglob("*.md"))]
    return sorted(str(path.relative_to(ROOT)) for path in found)


# ---- what is generated -----------------------------------------------------------------------------------------------


def commands() -> str:
    """The help of every command, as the terminal shows it."""
    parts = ["# Every command", "", "What `--help` prints. [Command line](../cli.md) has what they have in common."]
    for words, command, context in walk(cli, click.Context(cli, info_name="proctor", **cli.context_settings)):
        parts += ["", f"## {words}", "", "```text", command.get_help(context), "```"]
    return "\n".join(parts) + "\n"


def walk(command: click.Command, context: click.Context) -> Iterator[tuple[str, click.Command, click.Context]]:
    """A command and all below it, with what one types."""
    context.max_content_width = context.terminal_width = WIDTH
    yield context.command_path, command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None and not found.hidden:
                yield from walk(found, click.Context(found, info_name=name, parent=context))


def rest_calls() -> str:
    """Every call of the REST API, from the OpenAPI document."""
    document = json.loads((ROOT / "docs/openapi.json").read_text(encoding="utf-8"))
    parts = ["# Every REST call", "", "From the [OpenAPI document](../openapi.json)."]
    parts += ["[REST API](../rest.md) has tokens, errors and the stream of changes."]
    calls = [(path, verb, call) for path, verbs in document["paths"].items() for verb, call in verbs.items()]
    for tag in dict.fromkeys(call.get("tags", ["other"])[0] for _, _, call in calls):
        parts += ["", f"## {tag.capitalize()}"]
        for path, verb, call in calls:
            if call.get("tags", ["other"])[0] == tag:
                parts += one_call(path, verb, call, document)
    return "\n".join(parts) + "\n"


def one_call(path: str, verb: str, call: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    """A call: what it does, its parameters, the fields of its body, what it answers with."""
    yield from ("", f"### {verb.upper()} {path.removeprefix('/api/v1')}", "", f"**{call.get('summary', '')}.**")
    if description := call.get("description", ""):
        yield from ("", cell(description))
    rows = [(p["name"], p["in"], kind_of(p["schema"]), p.get("description", "")) for p in call.get("parameters", ())]
    if body := call.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema"):
        schema = resolved(body, document)
        needed = schema.get("required", ())
        rows += [
            (name, "body" + (", required" if name in needed else ""), kind_of(field), field.get("description", ""))
            for name, field in schema.get("properties", {}).items()
        ]
    if rows:
        yield from ("", "| name | in | type | meaning |", "|---|---|---|---|")
        yield from (f"| `{name}` | {where} | {kind} | {cell(meaning)} |" for name, where, kind, meaning in rows)
    answers = [(code, answer) for code, answer in call["responses"].items() if code != "default"]
    yield from ("", "Answers: " + "; ".join(f"{code} {answer_of(answer)}".strip() for code, answer in answers) + ".")


def resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    """A schema itself, where only its name stands."""
    if "$ref" not in schema:
        return schema
    return dict(document["components"]["schemas"][schema["$ref"].rpartition("/")[2]])


def kind_of(schema: dict[str, Any]) -> str:
    """The type of a value in a few words."""
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(dict.fromkeys(kind_of(choice) for choice in choices))
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    kind = schema.get("type", "any")
    return f"list of {kind_of(schema['items'])}" if kind == "array" and "items" in schema else str(kind)


def answer_of(answer: dict[str, Any]) -> str:
    """What an answer holds: the name of its schema, or its kind."""
    content = answer.get("content", {})
    names = [kind_of(media["schema"]) for media in content.values() if media.get("schema")]
    return " or ".join(names or list(content))


def cell(text: str) -> str:
    """Text for a cell of a table."""
    return " ".join(text.split()).replace("|", "\\|")


def python_api() -> str:
    """Where mkdocstrings puts the docstrings."""
    parts = ["# Python API", "", "From the docstrings. [From Python](../how-to/python.md) has whole scripts."]
    for heading, names in PYTHON_API.items():
        parts += ["", f"## {heading}", *(f"\n::: {name}" for name in names)]
    return "\n".join(parts) + "\n"


def messages() -> str:
    """The message of every error that the code raises, and the sentences of which reasons are made."""
    parts = ["# Error messages", "", "All errors by their words; `…` stands for names and numbers. Most say what to do"]
    parts += ["themselves. [Troubleshooting](../troubleshooting.md) explains those that need more."]
    for heading, places in MESSAGES.items():
        rows = {row for place in places for row in raised_in(ROOT / place)}
        parts += ["", f"## {heading}", "", "| message | error |", "|---|---|"]
        parts += [f"| {escaped(text)} | `{error}` |" for text, error in sorted(rows, key=lambda row: by_words(row[0]))]
    parts += [
        "",
        "## Reasons and problems",
        "",
        "What is said of a configuration, an experiment, a trial or a machine is",
    ]
    parts += ["composed of these."]
    for heading, places in REASONS.items():
        clauses = {text for place in places for text in clauses_in(ROOT / place)}
        parts += ["", f"### {heading}", "", *(f"* {escaped(text)}" for text in sorted(clauses, key=by_words))]
    return "\n".join(parts) + "\n"


def by_words(text: str) -> str:
    """The order in which one looks for a message."""
    return text.strip("… :;,.`'\"").lower()


def modules(place: Path) -> Iterator[ast.Module]:
    """A module, or all below a folder."""
    for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
        yield parse(path)


def parse(path: Path) -> ast.Module:
    """One module."""
    return ast.parse(path.read_text(encoding="utf-8"))


def clauses_in(place: Path) -> Iterator[str]:
    """The texts of at least four words that are neither documentation nor a line of a log."""
    for module in modules(place):
        nodes = list(ast.walk(module))
        parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
        documentation = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
        for node in nodes:
            if isinstance(node, ast.Constant | ast.JoinedStr) and id(node) not in parts | documentation:
                text = cell(words_of(node))
                if text.replace("…", "").count(" ") >= 3 and not NO_CLAUSE.search(text):
                    yield text


def raised_in(place: Path) -> Iterator[tuple[str, str]]:
    """The messages that are raised in a module or below a folder, with the names of their classes."""
    for module in modules(place):
        for node in ast.walk(module):
            if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
                text, error = words_of(node.exc.args[0]), ast.unparse(node.exc.func).rpartition(".")[2]
                is_sentence = " " in text.replace("…", "").strip(" :;,.")
                if is_sentence and error not in ("AssertionError", "NotImplementedError"):
                    yield cell(text), error


def words_of(node: ast.expr) -> str:
    """The text of an expression, with `…` for what is filled in."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return words_of(node.left) + words_of(node.right)
    return "…"


def escaped(text: str) -> str:
    """Text that Markdown shows as it is."""
    return re.sub(r"([*_`<>\[\]])", r"\\\1", text)
