"""What the site has beside the pages of docs/, and how these are written for it."""

import importlib.util
import json
import sys
from types import ModuleType

import pytest
from checks.sources import fail_for, source_of
from fakes.documentation import ROOT


def load(name: str) -> ModuleType:
    """A script of docs/site, which no package holds."""
    spec = importlib.util.spec_from_file_location(f"site_{name}", ROOT / "docs" / "site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    module = load("hooks")
    assert "mkdocs" not in sys.modules
    module.parse = lambda path: source_of(str(path.relative_to(ROOT))).tree
    return module


KNOWN = {"README.md", "remote.md", "how-to/python.md", "repository/README.md", "repository/examples/README.md"}


def test_a_link_leads_to_a_page_of_the_site(hooks: ModuleType) -> None:
    for page, link, led in (
        ("how-to/python.md", "[a](../remote.md#security)", "[a](../remote.md#security)"),
        ("how-to/python.md", "[a](../../examples/README.md)", "[a](../repository/examples/README.md)"),
        ("repository/README.md", "[a](docs/remote.md)", "[a](../remote.md)"),
        ("repository/README.md", "[a](examples/README.md)", "[a](examples/README.md)"),
        ("remote.md", "[a](../training_services/base.py)", "a"),
        ("remote.md", "[a](https://example.org/x.md)", "[a](https://example.org/x.md)"),
        ("remote.md", "[a](#files)", "[a](#files)"),
        ("remote.md", "[a](nonesuch.md)", "[a](nonesuch.md)"),  # and the strict build refuses it
        ("remote.md", "[a](../nonesuch.md)", "[a](../nonesuch.md)"),
    ):
        assert hooks.site_markdown(link, page, KNOWN) == led, (page, link)


def test_a_list_below_a_paragraph_gets_an_empty_line_and_code_stays_as_it_is(hooks: ModuleType) -> None:
    text = (
        "Considered:\n* one,\n  in two lines\n* another\n\nThen:\n1. first\n\n```text\nno\n* list\n[a](remote.md)\n```"
    )
    assert hooks.site_markdown(text, "README.md", KNOWN) == text.replace("red:\n", "red:\n\n").replace(
        "n:\n1", "n:\n\n1"
    )


def test_a_bar_in_the_code_of_a_table_has_no_backslash(hooks: ModuleType) -> None:
    assert hooks.site_markdown("| `a\\|b` | c\\|d |", "README.md", KNOWN) == "| `a|b` | c\\|d |"


def test_every_command_is_on_the_page_of_commands(hooks: ModuleType) -> None:
    page = hooks.commands()
    for words in ("", " create", " trial log", " update searchspace", " nodes collect"):
        assert f"\n## proctor{words}\n\n```text\nUsage: proctor{words} " in page
    assert "--help" in page


def test_every_call_is_on_the_page_of_the_rest_api(hooks: ModuleType) -> None:
    page = hooks.rest_calls()
    paths = json.loads((ROOT / "docs/openapi.json").read_text(encoding="utf-8"))["paths"]
    calls = (f"{verb.upper()} {path.removeprefix('/api/v1')}" for path, verbs in paths.items() for verb in verbs)
    fail_for(call for call in calls if f"\n### {call}\n" not in page)
    assert "| `max_trial_number` | body |" in page


def test_errors_and_reasons_are_on_the_page_of_messages(hooks: ModuleType) -> None:
    page = hooks.messages()
    assert "| no manager is running for …; start one with \\`proctor manager start\\` | `ManagerUnreachable` |" in page
    assert "* waiting: trialConcurrency … is used up\n" in page


def test_what_the_python_reference_names_is_there(hooks: ModuleType) -> None:
    """A module, or what one defines."""
    fail_for(name for names in hooks.PYTHON_API.values() for name in names if not is_defined(name))


def is_defined(name: str) -> bool:
    path = name.removeprefix("proctor.").replace(".", "/")
    if (ROOT / f"{path}.py").is_file() or (ROOT / path / "__init__.py").is_file():
        return True
    module, _, attribute = path.rpartition("/")
    return (ROOT / f"{module}.py").is_file() and attribute in source_of(f"{module}.py").code


def test_the_picture_of_the_terminal_is_the_one_that_its_script_draws() -> None:
    """If the terminal's screens were changed on purpose: `make pictures`."""
    pictures = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "pictures").glob("*.svg")}
    assert list(pictures) == ["terminal.svg"]
    assert pictures["terminal.svg"] == load("pictures").draw_terminal(), "run `make pictures`"
