"""What the site has beside the pages of docs/, and how these are written for it."""

import importlib.util
import json
import sys
from types import ModuleType

import pytest
from fakes.documentation import ROOT


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert "mkdocs" not in sys.modules
    return module


KNOWN = {"README.md", "remote.md", "how-to/python.md", "repository/README.md", "repository/examples/README.md"}


@pytest.mark.parametrize(
    ("page", "link", "led"),
    [
        ("how-to/python.md", "[a](../remote.md#security)", "[a](../remote.md#security)"),
        ("how-to/python.md", "[a](../../examples/README.md)", "[a](../repository/examples/README.md)"),
        ("repository/README.md", "[a](docs/remote.md)", "[a](../remote.md)"),
        ("repository/README.md", "[a](examples/README.md)", "[a](examples/README.md)"),
        ("remote.md", "[a](../training_services/base.py)", "a"),
        ("remote.md", "[a](https://example.org/x.md)", "[a](https://example.org/x.md)"),
        ("remote.md", "[a](#files)", "[a](#files)"),
        ("remote.md", "[a](nonesuch.md)", "[a](nonesuch.md)"),  # and the strict build refuses it
        ("remote.md", "[a](../nonesuch.md)", "[a](../nonesuch.md)"),
    ],
)
def test_a_link_leads_to_a_page_of_the_site(hooks: ModuleType, page: str, link: str, led: str) -> None:
    assert hooks.site_markdown(link, page, KNOWN) == led


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
    for command in (
        "proctor",
        "proctor create",
        "proctor trial log",
        "proctor update searchspace",
        "proctor nodes collect",
    ):
        assert f"\n## {command}\n\n```text\nUsage: {command} " in page
    assert "--help" in page


def test_every_call_is_on_the_page_of_the_rest_api(hooks: ModuleType) -> None:
    page = hooks.rest_calls()
    for path, verbs in json.loads((ROOT / "docs/openapi.json").read_text(encoding="utf-8"))["paths"].items():
        for verb in verbs:
            assert f"\n### {verb.upper()} {path.removeprefix('/api/v1')}\n" in page
    assert "| `max_trial_number` | body |" in page


def test_errors_and_reasons_are_on_the_page_of_messages(hooks: ModuleType) -> None:
    page = hooks.messages()
    assert "| no manager is running for …; start one with \\`proctor manager start\\` | `ManagerUnreachable` |" in page
    assert "* waiting: trialConcurrency … is used up\n" in page


def test_what_the_python_reference_names_is_there(hooks: ModuleType) -> None:
    pytest.importorskip("torch")
    for name in (name for names in hooks.PYTHON_API.values() for name in names):
        module, _, attribute = name.rpartition(".")
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            assert hasattr(importlib.import_module(module), attribute), name
