"""Which values of an experiment are better: decided once, from what its configuration says, and stored with it.

`objective.direction` decides. Where it is not given, NNI's `optimize_mode` in the class arguments of the tuner or the
assessor decides for both. Where nothing says it, the tuner's default in NNI holds, and a notice names the direction
taken. Statements that contradict each other are refused.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from proctor.manager.config.errors import ConfigReport
from proctor.manager.config.tree import Member, TreeNode, describe, plain
from proctor.manager.dispatcher.algorithms.catalog import KINDS

if TYPE_CHECKING:
    from proctor.manager.dispatcher.algorithms.catalog import Builtin

Direction = Literal["maximize", "minimize"]
MAXIMIZE: Direction = "maximize"
_DIRECTIONS = ("maximize", "minimize")
METRIC = "default"
"""The key of a reported mapping that holds the number to optimize; a metric that is a number is that number."""
_OPTIMIZE_MODE = "optimize_mode"
_CHOOSE = "to choose, write objective: {direction: maximize} or objective: {direction: minimize}"

ONE_OBJECTIVE = (
    "several objectives are not offered yet: give one mapping, such as objective: {direction: maximize}; the other "
    'numbers may be reported in the same metric, beside "default"'
)


@dataclass(frozen=True)
class _Statement:
    """A place in the configuration that says which values are better."""

    direction: str
    node: TreeNode

    def __str__(self) -> str:
        place = self.node.place
        where = "" if place.line is None else f" (line {place.line}, column {place.column})"
        return ".".join(str(part) for part in self.node.path) + where


@dataclass(frozen=True)
class _NamedAlgorithm:
    """The tuner, the assessor or the trial scheduler, as it is written."""

    kind: str
    section: Member
    name: str
    builtin: "Builtin | None"
    """None for a class of the user's, and for an unknown name."""

    @property
    def is_custom(self) -> bool:
        """Whether it is a class of the user's, whose arguments are its own."""
        return "className" in self.section.node.members

    @property
    def statement(self) -> _Statement | None:
        """What its class arguments say; None where they do not say it, or in other words."""
        arguments = self.section.node.members.get("classArgs")
        mode = arguments.node.members.get(_OPTIMIZE_MODE) if arguments else None
        return _statement(mode)


def settle_objective(root: TreeNode, report: ConfigReport) -> TreeNode:
    """The tree with an `objective` that has a direction; what cannot be one is reported and left out."""
    root = _refuse_list(root, report)
    given = root.members.get("objective")
    if given is not None and not isinstance(given.node.value, dict):
        return root  # the model says what it expects
    direction = given.node.members.get("direction") if given else None
    algorithms = _algorithms(root)
    own = _statement(direction)
    statements = [own, *(algorithm.statement for algorithm in algorithms)]
    made = [statement for statement in statements if statement is not None]
    chosen = made[0].direction if made else _default_of_tuner(algorithms)
    if made:
        _refuse_contradictions(made, report)
    else:
        _notice_default(root, algorithms, chosen, report)
    if made and own is None:
        _notice_other_defaults(made[0], algorithms, report)
    _notice_custom(chosen, algorithms, report)
    return root if direction is not None else _with_direction(root, given, chosen)


def stored_direction(config: Mapping[str, Any]) -> Direction:
    """The direction of a canonical configuration.

    One that was stored before there was `objective` has the direction that its tuner has really used.
    """
    objective = config.get("objective")
    return cast(Direction, objective["direction"] if objective else _direction_used_before(config))


def _direction_used_before(config: Mapping[str, Any]) -> str:
    from proctor.manager.dispatcher.algorithms.registry import find_builtin

    tuner, assessor = config.get("tuner") or {}, config.get("assessor") or {}
    modes = [(section.get("class_args") or {}).get(_OPTIMIZE_MODE) for section in (tuner, assessor)]
    own, other = (mode if mode in _DIRECTIONS else None for mode in modes)
    builtin = find_builtin("tuner", tuner["name"]) if tuner.get("name") else None
    if own is None and builtin is not None and builtin.directed:
        return builtin.default_mode
    return own or other or MAXIMIZE


def _statement(member: Member | None) -> _Statement | None:
    if member is None or member.node.value not in _DIRECTIONS:
        return None
    return _Statement(str(member.node.value), member.node)


def _refuse_list(root: TreeNode, report: ConfigReport) -> TreeNode:
    given = root.members.get("objective")
    if given is None or not isinstance(given.node.value, tuple):
        return root
    found = describe(plain(given.node))
    report.problem(given.node.place, given.node.path, expected="a mapping", found=found, message=ONE_OBJECTIVE)
    return root.without("objective")


def _algorithms(root: TreeNode) -> list[_NamedAlgorithm]:
    from proctor.manager.dispatcher.algorithms.registry import find_builtin

    found = []
    for kind in KINDS:
        section = root.members.get(kind)
        members = section.node.members if section else {}
        named = members.get("className") or members.get("name")
        if section is None or named is None:
            continue
        name = str(plain(named.node))
        builtin = None if "className" in members else find_builtin(kind, name)
        found.append(_NamedAlgorithm(kind, section, builtin.name if builtin else name, builtin))
    return found


def _default_of_tuner(algorithms: list[_NamedAlgorithm]) -> str:
    """NNI's default of the tuner."""
    tuner = next((algorithm for algorithm in algorithms if algorithm.kind == "tuner"), None)
    return tuner.builtin.default_mode if tuner and tuner.builtin else MAXIMIZE


def _refuse_contradictions(statements: list[_Statement], report: ConfigReport) -> None:
    first, *others = statements
    for other in others:
        if other.direction != first.direction:
            report.problem(
                other.node.place,
                other.node.path,
                expected=f"{first.direction}, as {first} says",
                found=describe(other.direction),
                message="an experiment has one direction, for all its algorithms: make them the same",
            )


def _notice_default(root: TreeNode, algorithms: list[_NamedAlgorithm], chosen: str, report: ConfigReport) -> None:
    member = root.members.get("objective") or root.members.get("tuner")
    if member is None:
        return
    tuner = next((algorithm for algorithm in algorithms if algorithm.kind == "tuner"), None)
    why = f", as by {tuner.name} in NNI" if tuner and tuner.builtin and tuner.builtin.directed else ""
    text = f"no direction given; assuming {chosen}{why}; {_CHOOSE}"
    report.notice(member.place, ("objective", "direction"), text)


def _notice_other_defaults(decisive: _Statement, algorithms: list[_NamedAlgorithm], report: ConfigReport) -> None:
    """Say where NNI would take another direction: of an algorithm that does not name one beside one that does."""
    for algorithm in algorithms:
        builtin = algorithm.builtin
        if builtin is None or algorithm.statement is not None or not builtin.directed:
            continue
        if builtin.default_mode != decisive.direction:
            text = f"{algorithm.name} will {decisive.direction}, as {decisive} says; its default in NNI is"
            report.notice(algorithm.section.place, (algorithm.kind,), f"{text} {builtin.default_mode}")


def _notice_custom(chosen: str, algorithms: list[_NamedAlgorithm], report: ConfigReport) -> None:
    for algorithm in algorithms:
        if algorithm.is_custom and algorithm.statement is None:
            text = (
                f"the direction, {chosen}, is not passed to {algorithm.name}, because the arguments of your own "
                f"class are not changed: it must {chosen} by itself, or take optimize_mode in its classArgs"
            )
            report.notice(algorithm.section.place, (algorithm.kind,), text)


def _with_direction(root: TreeNode, given: Member | None, chosen: str) -> TreeNode:
    key = given or Member("objective", root.place, TreeNode({}, root.place, (*root.path, "objective")))
    direction = TreeNode(chosen, key.place, (*key.node.path, "direction"))
    section = key.node.with_member("direction", Member("direction", key.place, direction))
    return root.with_member("objective", Member(key.key, key.place, section))
