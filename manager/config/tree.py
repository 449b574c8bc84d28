"""A configuration as a tree that remembers where each key and value was written.

Everything that reads or rewrites a configuration (old keys, aliases, sections that move) works on this
tree, so that a value keeps its position and its written key wherever it ends up.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from proctor.manager.config.errors import NOWHERE, KeyPath, SourcePosition
from proctor.manager.config.key_names import folded
from proctor.sdk.json_input import MAX_DEPTH, MAX_INTEGER_BITS

Scalar = str | int | float | bool | None


@dataclass(frozen=True)
class TreeNode:
    """A value with its position; `path` is the way to it as it was written."""

    value: "Scalar | tuple[TreeNode, ...] | dict[str, Member]"
    place: SourcePosition
    path: KeyPath

    @property
    def members(self) -> "dict[str, Member]":
        """The members of a mapping; empty for anything else."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> "tuple[TreeNode, ...]":
        """The items of a list; empty for anything else."""
        return self.value if isinstance(self.value, tuple) else ()

    def get(self, key: str) -> "Member | None":
        """The member whose key equals `key`, case and underscores aside."""
        exact = self.members.get(key)
        if exact is not None:
            return exact
        wanted = folded(key)
        return next((member for name, member in self.members.items() if folded(name) == wanted), None)

    def without(self, *keys: str) -> "TreeNode":
        """The same mapping less these keys, case and underscores aside."""
        unwanted = {folded(key) for key in keys}
        kept = {name: member for name, member in self.members.items() if folded(name) not in unwanted}
        return replace(self, value=kept)

    def with_member(self, name: str, member: "Member") -> "TreeNode":
        """The same mapping with one member added or replaced under exactly this name."""
        return replace(self, value={**self.members, name: member})

    def with_value(self, name: str, node: "TreeNode") -> "TreeNode":
        """The same mapping with the value of one existing member replaced."""
        return self.with_member(name, replace(self.members[name], node=node))


@dataclass(frozen=True)
class Member:
    """One key of a mapping, as written, with its position and its value."""

    key: str
    place: SourcePosition
    node: TreeNode


def plain(node: TreeNode) -> object:
    """The value without positions: dictionaries, lists and scalars."""
    if isinstance(node.value, dict):
        return {name: plain(member.node) for name, member in node.value.items()}
    if isinstance(node.value, tuple):
        return [plain(item) for item in node.value]
    return node.value


def find(root: TreeNode, path: KeyPath) -> tuple[TreeNode, SourcePosition, bool]:
    """Follow a path of names and indices as far as the tree goes.

    Answers the last node found, the place of the key that leads to it, and whether all of the path was there.
    Names the tree does not have are skipped: pydantic puts the name of a union's branch into its paths.
    """
    node, place, complete = root, root.place, True
    for part in path:
        following, its_place = _step(node, part)
        complete = following is not None
        if following is not None:
            node, place = following, its_place
    return node, place, complete


def _step(node: TreeNode, part: str | int) -> tuple[TreeNode | None, SourcePosition]:
    if isinstance(part, int):
        item = node.items[part] if 0 <= part < len(node.items) else None
        return item, item.place if item else node.place
    member = node.get(part)
    return (member.node, member.place) if member else (None, node.place)


def walk(node: TreeNode) -> Iterator[TreeNode]:
    """The node and everything below it."""
    yield node
    for member in node.members.values():
        yield from walk(member.node)
    for item in node.items:
        yield from walk(item)


MOST_NODES = 200_000
MOST_LEVELS = MAX_DEPTH - 2
"""More than any configuration holds, and as many as a request with one may have."""


def from_plain(value: object, path: KeyPath = ()) -> TreeNode:
    """A tree without positions from Python values; raises TypeError for what YAML could not say, or too much of it."""
    return _from_plain(value, path, itertools.count(1))


def _from_plain(value: object, path: KeyPath, counter: Iterator[int]) -> TreeNode:
    if next(counter) > MOST_NODES or len(path) > MOST_LEVELS:
        raise TypeError(f"expected at most {MOST_NODES} values in {MOST_LEVELS} levels, found more")
    if isinstance(value, Mapping):
        members = {}
        for key, child in value.items():
            if not isinstance(key, str):
                raise TypeError(f"keys must be text, found {key!r} in {path or 'the configuration'}")
            members[key] = Member(key, NOWHERE, _from_plain(child, (*path, key), counter))
        return TreeNode(members, NOWHERE, path)
    if isinstance(value, list | tuple):
        items = tuple(_from_plain(item, (*path, index), counter) for index, item in enumerate(value))
        return TreeNode(items, NOWHERE, path)
    if value is None or isinstance(value, str | int | float | bool):
        return TreeNode(value, NOWHERE, path)
    if hasattr(value, "__fspath__"):
        return TreeNode(str(value), NOWHERE, path)
    raise TypeError(f"expected text, a number, a list or a mapping, found {type(value).__name__}")


def describe(value: object) -> str:
    """A found value in a few words, short enough for one line of an error."""
    match value:
        case None:
            return "nothing"
        case bool():
            return "true" if value else "false"
        case int() if value.bit_length() > MAX_INTEGER_BITS:
            return f"an integer of {value.bit_length()} bits"
        case int() | float():
            return f"the number {value}"
        case str():
            shown = value if len(value) <= 60 else value[:57] + "..."
            return f"the text {shown!r}"
        case list() | tuple():
            return f"a list of {len(value)}" if value else "an empty list"
        case dict():
            keys = ", ".join(list(value)[:4]) + (", …" if len(value) > 4 else "")
            return f"a mapping with {keys}" if value else "an empty mapping"
    return type(value).__name__
