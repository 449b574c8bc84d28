"""Configurations that are damaged or made to do harm: each is accepted or refused with sentences; none fails inside."""

import copy
import json
import math
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from fakes.real_manager import RealManager, real_manager
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from proctor.manager.api.requests import CreateExperiment
from proctor.manager.cli.config_file import posted_mapping
from proctor.manager.cli.main import cli
from proctor.manager.config.errors import ConfigError
from proctor.manager.config.loading import load_experiment
from proctor.manager.engine import creation
from proctor.manager.errors import BadRequest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*/config.yml"))
TEXTS = [path.read_text() for path in EXAMPLES]
TREES = [json.loads(json.dumps(YAML(typ="safe", pure=True).load(text))) for text in TEXTS]
STRANGE: list[Any] = [None, True, -1, 0, 2**63, 10**400, 1e308, math.nan, math.inf, [], {}, "", "\x00", "\ud800"]
STRANGE += ["x" * 5_000, "~nobody/x", "/dev/zero", "..", "\x1b]0;x\x07", "9" * 5000, "1e303d", [[[]]], {"": {"": 0}}]
STRANGE += [{"_type": "choice", "_value": []}, {"_type": "quniform", "_value": [0, 1e308, 1e-308]}, {"name": "TPE"}]
STRANGE += [[{"host": "-oProxyCommand=x"}], "${HOME}", "$(id)", "!!python/object:os.system"]
FRAGMENTS = [
    *("\t", "\x00", "\ud800", "&a [*a]", "*a", "<<: *a", "? ", "- ", "{", "[", "'", '"', "|", ">", "!!binary x"),
    *("%YAML 9.9\n", "---\n", "...\n", "!!python/object/apply:os.system [id]", "\x85", "\ufeff", "0x" + "f" * 500),
    *("1_000", "x: y: z", "0o777", "12:30:45", "2026-01-01", ": ", "#", "[" * 2000, "a: " * 500, "&x " * 50),
    *(".inf", "=", "~"),
]
BOMB = "a0: &a0 [x,x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 30))
# The parser gives up 500 levels down; until then its time grows with the square of what is open.
HARD = [
    *(b"", b"\xff\xfe", b"\x00" * 100, b"&a [*a]", BOMB.encode()),
    *(b"[" * 1_000, b"{" * 1_000, b"a: " * 20_000, b'{"a":' * 20_000, b"- " * 20_000),
    *(b'{"maxTrialNumber": 1e999}', b'{"a": "\\ud800"}', b'{"seed": ' + b"9" * 10_000 + b"}"),
]
QUIET = settings(derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))


def places(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of everything in a tree."""
    yield above
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*above, key))


@st.composite
def trees(draw: st.DrawFn) -> Any:
    """A real configuration with some strange values and keys."""
    tree = copy.deepcopy(draw(st.sampled_from(TREES)))
    for _ in range(draw(st.integers(1, 3))):
        place = draw(st.sampled_from(list(places(tree))[1:] or [()]))
        value = copy.deepcopy(draw(st.sampled_from(STRANGE)))
        if not place or not isinstance(tree, dict):
            return value
        holder = tree
        for key in place[:-1]:
            holder = holder[key]
        if draw(st.booleans()) or not isinstance(holder, dict):
            holder[place[-1]] = value
        else:
            holder[draw(st.sampled_from(["", "\x00", "x" * 300, "tuner", "TUNER", "train_concurrency", "\ud800"]))] = (
                value
            )
    return tree


@st.composite
def texts(draw: st.DrawFn) -> str:
    """The text of a real configuration with something put in, cut out or repeated."""
    text = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(1, 3))):
        begin = draw(st.integers(0, len(text)))
        end = min(len(text), begin + draw(st.integers(0, 30)))
        text = text[:begin] + draw(st.sampled_from([*FRAGMENTS, text[begin:end] * 3])) + text[end:]
    return text


def check(folder: Path, content: bytes) -> None:
    """`config check` says that it is valid, or what is wrong with it."""
    file = folder / "config.yml"
    file.write_bytes(content)
    result = CliRunner().invoke(cli, ["--home", str(folder / "home"), "config", "check", str(file)])
    assert result.exception is None or isinstance(result.exception, SystemExit), (content[:500], result.exc_info)
    assert result.exit_code in (0, 2), (content[:500], result.output)
    assert "Traceback" not in result.output
    if result.exit_code:
        assert "is not a valid configuration" in result.output
        assert len(result.output) < 100_000


@settings(QUIET, max_examples=200)
@given(tree=trees())
def test_a_file_with_strange_values_is_checked(tree: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    check(folder_of(tmp_path_factory), json.dumps(tree).encode())


@pytest.mark.thorough
@settings(QUIET, max_examples=200)
@given(text=texts())
def test_a_file_with_odd_yaml_is_checked(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    check(folder_of(tmp_path_factory), text.encode("utf-8", "surrogatepass"))


@pytest.mark.thorough
@pytest.mark.parametrize("content", HARD, ids=lambda content: repr(content[:12]))
def test_a_hostile_file_is_checked(content: bytes, tmp_path: Path) -> None:
    check(tmp_path, content)


def folder_of(factory: pytest.TempPathFactory) -> Path:
    """One folder for all examples."""
    folder = factory.getbasetemp() / "configurations"
    folder.mkdir(exist_ok=True)
    return folder


NUMBERS = {"400 digits": 10**400, "infinity": math.inf}
"""JSON, or the manager's gate for it, does not let them pass."""
MORE_NUMBERS = {
    "1024 bits": 2**1024 - 1,
    "63 bits": 2**63,
    "-1": -1,
    "0": 0,
    "large": 1e308,
    "small": 5e-324,
    "NaN": math.nan,
}
TOP_KEYS = sorted(json.loads((Path(__file__).parents[2] / "docs/experiment.schema.json").read_text())["properties"])


def with_number(number: float) -> Iterator[tuple[Path, Any]]:
    """Real configurations in which one number is another one, or a top key is a number; with their folders."""
    for example, tree in zip(EXAMPLES, TREES, strict=True):
        for path in places(tree):
            holder = changed = copy.deepcopy(tree)
            for key in path[:-1]:
                holder = holder[key]
            if path and isinstance(holder[path[-1]], int | float) and not isinstance(holder[path[-1]], bool):
                holder[path[-1]] = number
                yield example.parent, changed
    for key in TOP_KEYS:
        yield EXAMPLES[0].parent, {**TREES[0], key: number}


def as_yaml(tree: Any) -> str:
    """JSON, but for numbers that it does not have."""
    return re.sub(r"\b(NaN|Infinity)\b", lambda found: {"NaN": ".nan", "Infinity": ".inf"}[found[0]], json.dumps(tree))


@pytest.mark.slow
@pytest.mark.parametrize(
    "number",
    [
        *(pytest.param(number, id=name) for name, number in NUMBERS.items()),
        *(pytest.param(number, id=name, marks=pytest.mark.thorough) for name, number in MORE_NUMBERS.items()),
    ],
)
def test_config_check_and_create_agree_on_a_number(number: float, tmp_path: Path) -> None:
    disagreements = []
    for folder, tree in with_number(number):
        link = tmp_path / folder.name
        if not link.exists():
            shutil.copytree(folder, link)
        (link / "config.yml").write_text(as_yaml(tree))
        try:
            loaded = load_experiment(link / "config.yml")
        except ConfigError as error:
            problem, posted = str(error), tree
        else:
            problem, posted = "", posted_mapping(loaded)
        refusal = refusal_of_create(posted, link, tmp_path)
        if bool(problem) != bool(refusal):
            disagreements.append((tree, problem, refusal))
    assert not disagreements


def refusal_of_create(config: Any, folder: Path, home: Path) -> str:
    """What keeps a manager from making an experiment of a configuration that a client sends; "": nothing."""
    try:
        sent = json.loads(json.dumps(config, allow_nan=False))
        body = CreateExperiment.model_validate({"config": sent, "directory": str(folder)})
        creation.check(body.config, body.directory, home)
    except (ValueError, BadRequest) as error:
        return str(error)
    return ""


class Checked:
    """A manager that is asked what it would make of a configuration."""

    def __init__(self, manager: RealManager) -> None:
        self.incoming = manager.home / "incoming"
        headers = {"Authorization": f"Bearer {manager.client.token}", "Content-Type": "application/json"}
        self.client = httpx.Client(base_url=manager.client.url, headers=headers, timeout=60)

    def dry_run(self, config: Any, **rest: str) -> httpx.Response:
        body = {"config": config, "directory": str(EXAMPLES[0].parent), "dry_run": True, **rest}
        return self.client.post("/api/v1/experiments", content=json.dumps(body))


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Checked]:
    with real_manager(tmp_path_factory.mktemp("checked")) as manager:
        made = Checked(manager)
        with made.client:
            yield made


@pytest.mark.slow
@settings(QUIET, max_examples=150)
@given(tree=trees())
def test_a_dry_run_of_a_strange_configuration_is_answered(tree: Any, checked: Checked) -> None:
    answer = checked.dry_run(tree)
    assert answer.status_code in (200, 400, 409, 422), (tree, answer.text)
    if answer.status_code != 200:
        assert answer.json()["detail"]
        assert len(answer.text) < 1_000_000


@pytest.mark.slow
def test_a_damaged_handover_is_refused(checked: Checked) -> None:
    for content in (b"", b"[]", b"\xff", b'{"secrets": 7}', b"[" * 100_000, b'{"umask": "x", "cwd": []}'):
        (checked.incoming / "damaged.json").write_bytes(content)
        answer = checked.dry_run(TREES[0], handover="damaged.json")
        assert answer.status_code in (400, 422), (content[:20], answer.text)
        assert "handed-over file" in answer.json()["detail"]


@pytest.mark.slow
def test_a_handover_that_cannot_be_a_file_is_refused(checked: Checked) -> None:
    for name in ("x" * 5000, "../token", "\x00", "", ".", "no/such"):
        answer = checked.dry_run(TREES[0], handover=name)
        assert answer.status_code in (400, 422), (name[:20], answer.text)
