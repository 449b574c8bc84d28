"""Names that the user has given to classes (`proctor algo register`) become those classes."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from proctor.manager.config.tree import Member, Node


class Registered(Protocol):
    """A class with a name."""

    @property
    def kind(self) -> str:
        """tuner, assessor or advisor."""

    @property
    def class_name(self) -> str:
        """`module.Class`."""

    @property
    def code_directory(self) -> str:
        """The absolute folder the module is imported from."""


NONE_REGISTERED: Mapping[str, Registered] = MappingProxyType({})


def resolve_registered(root: Node, registered: Mapping[str, Registered]) -> Node:
    """The tree with `className` and `codeDirectory` where tuner or assessor have a registered `name` (lower case)."""
    for kind in ("tuner", "assessor"):
        section = root.members.get(kind)
        name = section.node.members.get("name") if section is not None else None
        if section is None or name is None or not isinstance(name.node.value, str):
            continue
        found = registered.get(name.node.value.lower())
        if found is not None and {"advisor": "tuner"}.get(found.kind, found.kind) == kind:
            root = root.with_value(kind, _as_class(section.node, name, found))
    return root


def _as_class(section: Node, name: Member, found: Registered) -> Node:
    """Problems with the class are told where its name stands."""
    place, path = name.node.place, name.node.path
    resolved = section.without("name")
    for key, value in (("className", found.class_name), ("codeDirectory", found.code_directory)):
        resolved = resolved.with_member(key, Member(key, name.place, Node(value, place, path)))
    return resolved
