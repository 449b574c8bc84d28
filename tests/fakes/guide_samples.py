"""The samples of the trainer's pages in docs/, and whether the functions that they call take such arguments."""

import ast
import inspect
import re
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any

from proctor.sdk.pytorch import DataLoaderParams

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "trainer.md").read_text()
QUICK_START = (DOCS / "trainer-quick-start.md").read_text()
NO_METHODS: "Mapping[str, str]" = MappingProxyType({})


def find_sample(heading: str, page: str = GUIDE) -> str:
    """The first piece of Python below a heading."""
    return page.partition(f"\n{heading}\n")[2].partition("```python\n")[2].partition("```")[0]


def find_samples(heading: str, page: str) -> "list[str]":
    """All pieces of Python below a heading."""
    section = page.partition(f"\n{heading}\n")[2].partition("\n## ")[0]
    return [piece.partition("```")[0] for piece in section.split("```python\n")[1:]]


def check_sample(heading: str, methods: "Mapping[str, str]" = NO_METHODS) -> "list[str]":
    """Check the calls of a sample; called in an incarnation that has the frameworks."""
    return check_calls(find_sample(heading), methods)


def check_calls(sample: str, methods: "Mapping[str, str]" = NO_METHODS) -> "list[str]":
    """Check that each call of a sample is one that its function would take, and return what is called.

    :param methods: of which class the objects are whose methods are called, by their names in the sample.
    """
    tree = ast.parse(sample.replace(", ...)", ")"))  # the dots stand for arguments of the user
    known: dict[str, Any] = {"DataLoaderParams": DataLoaderParams}
    for statement in tree.body:
        if isinstance(statement, ast.ImportFrom):
            module = import_module(statement.module or "")
            known |= {alias.name: getattr(module, alias.name) for alias in statement.names}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in calls:
        function, is_method = _find_function(ast.unparse(call.func), methods, known)
        arguments = [None] * (len(call.args) + is_method)
        inspect.signature(function).bind(*arguments, **{str(word.arg): None for word in call.keywords})
    return [ast.unparse(call.func) for call in calls]


def _find_function(
    name: str, methods: "Mapping[str, str]", known: "dict[str, Any]"
) -> "tuple[Callable[..., Any], bool]":
    owner, _, method = name.rpartition(".")
    if owner in methods:
        kind = _find_function(methods[owner], NO_METHODS, known)[0]
        return getattr(kind, method), True
    return (getattr(import_module(owner), method) if owner else known[name]), False


def read_hooks(column: int) -> "list[str]":
    """The names in a column of the guide's table of hooks, counted from 0."""
    table = GUIDE.partition("\nWhich hook corresponds to which")[2].partition("\n\n")[2].partition("\n\n")[0]
    cells = [line.split("|")[column + 1] for line in table.splitlines()[2:]]
    return [name for cell in cells for name in re.findall(r"`([a-z_]+)[^`]*`", cell)]


def find_unknown(library: str, kind: str, column: int) -> "list[str]":
    """The hooks of a column that a class does not have."""
    found = getattr(import_module(library), kind)
    return [name for name in read_hooks(column) if not hasattr(found, name)]
