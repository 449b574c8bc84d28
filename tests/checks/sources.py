"""The product's modules as the checks read them: each is parsed once, and walked once."""

import ast
import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TypeVar, cast

from fakes.documentation import ROOT

FOLDERS = ("sdk", "trial_keeper", "training_services", "manager")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
Node = TypeVar("Node", bound=ast.AST)


@dataclass(frozen=True)
class Source:
    """A module. `place` is its path in the repository."""

    place: str

    @cached_property
    def path(self) -> Path:
        return ROOT / self.place

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes_by_type(self) -> dict[type[ast.AST], list[ast.AST]]:
        """All nodes, those inside of functions included."""
        found: dict[type[ast.AST], list[ast.AST]] = defaultdict(list)
        todo: list[ast.AST] = [self.tree]
        for node in todo:
            found[type(node)].append(node)
            for name in node._fields:
                value = getattr(node, name, None)
                if isinstance(value, list):
                    todo += [each for each in value if isinstance(each, ast.AST)]
                elif isinstance(value, ast.AST) and name != "ctx":
                    todo.append(value)
        return found

    def nodes(self, *types: type[Node]) -> Iterator[Node]:
        """All nodes of these types."""
        return (cast(Node, node) for each in types for node in self.nodes_by_type.get(each, ()))

    @cached_property
    def imports(self) -> frozenset[str]:
        """The modules and names that it imports, also inside of its functions and for annotations only."""
        found = {alias.name for node in self.nodes(ast.Import) for alias in node.names}
        for node in self.nodes(ast.ImportFrom):
            if node.module:
                found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        return frozenset(found)

    @cached_property
    def code(self) -> dict[str, ast.AST]:
        """Its functions and classes, and the methods as `Class.method`."""
        found: dict[str, ast.AST] = {}
        for node in self.tree.body:
            if isinstance(node, DEFINITIONS):
                found[node.name] = node
            if isinstance(node, ast.ClassDef):
                found |= {f"{node.name}.{inner.name}": inner for inner in node.body if isinstance(inner, DEFINITIONS)}
        return found

    def at(self, node: ast.stmt | ast.expr) -> str:
        """Where a node stands, for messages."""
        return f"{self.place}:{node.lineno}"


@cache
def source_of(place: str) -> Source:
    """A module by its path in the repository."""
    return Source(place)


@cache
def sources() -> tuple[Source, ...]:
    """All modules of the product, parsed.

    They stay until the end, so the garbage collector need not go through them again and again, which would take longer
    than to parse them.
    """
    paths = (path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    found = tuple(source_of(str(path.relative_to(ROOT))) for path in paths)
    gc.disable()
    try:
        assert all(source.nodes_by_type for source in found)
    finally:
        gc.freeze()
        gc.enable()
    return found


def text_of(node: ast.AST) -> str | None:
    """A string of the code, with `…` for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values)
    return None


def fail_for(problems: Iterable[str], rule: str = "") -> None:
    """Fail with all places that break a rule, one a line."""
    found = sorted(problems)
    assert not found, "\n".join([rule, *found])
