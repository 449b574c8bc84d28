"""Names that the user has given to classes (`proctor algo register`) become those classes."""

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Protocol

from proctor.manager.config.errors import Report
from proctor.manager.config.experiment import AlgorithmConfig
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

    @property
    def class_args_validator(self) -> str | None:
        """`module.Class` of what checks its class arguments, or None."""


Refusal = Callable[[Registered, Mapping[str, Any]], str]
"""Asks the validator of a registered algorithm about class arguments: why they are refused, or ''."""


NONE_REGISTERED: Mapping[str, Registered] = MappingProxyType({})


def find_registered(root: Node, registered: Mapping[str, Registered]) -> dict[str, Registered]:
    """The registered algorithms that the tree names, by kind (tuner, assessor); `registered` is by lower-case name."""
    named: dict[str, Registered] = {}
    for kind in ("tuner", "assessor"):
        name = root.members[kind].node.members.get("name") if kind in root.members else None
        if name is None or not isinstance(name.node.value, str):
            continue
        found = registered.get(name.node.value.lower())
        if found is not None and {"advisor": "tuner"}.get(found.kind, found.kind) == kind:
            named[kind] = found
    return named


def resolve_registered(root: Node, named: Mapping[str, Registered]) -> Node:
    """The tree with `className` and `codeDirectory` where tuner or assessor have the `name` of a registered one."""
    for kind, found in named.items():
        section = root.members[kind].node
        root = root.with_value(kind, _as_class(section, section.members["name"], found))
    return root


def check_class_args(
    root: Node,
    named: Mapping[str, Registered],
    algorithms: Mapping[str, AlgorithmConfig],
    refusal: Refusal,
    report: Report,
) -> None:
    """Report what the validators of registered algorithms have against their class arguments."""
    for kind, found in named.items():
        algorithm = algorithms.get(kind)
        message = refusal(found, algorithm.class_args) if algorithm is not None else ""
        if message:
            section = root.members[kind].node
            at = section.members.get("classArgs") or section.members["className"]
            report.problem(at.node.place, (*section.path, "classArgs"), message=message)


def _as_class(section: Node, name: Member, found: Registered) -> Node:
    """Problems with the class are told where its name stands."""
    place, path = name.node.place, name.node.path
    resolved = section.without("name")
    for key, value in (("className", found.class_name), ("codeDirectory", found.code_directory)):
        resolved = resolved.with_member(key, Member(key, name.place, Node(value, place, path)))
    return resolved
