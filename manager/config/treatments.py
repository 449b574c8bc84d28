"""Applies the table of keys: what is refused or has no effect is reported and taken out of the tree."""

from dataclasses import replace

from proctor.manager.config.errors import Report
from proctor.manager.config.keys import ANY, KEYS, Key, Treatment
from proctor.manager.config.names import folded
from proctor.manager.config.tree import Member, Node, describe, plain
from proctor.manager.config.version1 import OLD_CLASS_FILE, OLD_KEYS, OLD_MACHINE_KEYS

_PATHS = frozenset(
    "".join(f"{folded(part)}." for part in path.replace("[]", "").split("."))
    for path in (
        *(row.path for row in KEYS),
        *(old.path for old in OLD_KEYS),
        *(f"{kind}.{OLD_CLASS_FILE}" for kind in ("tuner", "assessor", "advisor")),
        *(f"trainingService.machineList.{name}" for name in OLD_MACHINE_KEYS),
        *(f"machineList.{name}" for name in OLD_MACHINE_KEYS),
    )
)
"""Every key of either format, folded, with a dot after each part."""
_SECTIONS = frozenset(path[: path.rindex(".", 0, -1) + 1] for path in _PATHS if path.count(".") > 1)


def without_nulls(node: Node, path: str = "") -> Node:
    """The tree less the known keys without a value: they are taken as not given, as in NNI.

    This comes before every step that looks whether a key is there. Unknown keys stay, to be reported.
    """
    if isinstance(node.value, tuple):
        return replace(node, value=tuple(without_nulls(item, path) for item in node.items))
    kept = {}
    for name, member in node.members.items():
        its_path = f"{path}{folded(name)}."
        if its_path in _SECTIONS:
            member = replace(member, node=without_nulls(member.node, its_path))
        if member.node.value is not None or its_path not in _PATHS:
            kept[name] = member
    return replace(node, value=kept) if isinstance(node.value, dict) else node


def apply_treatments(root: Node, report: Report) -> Node:
    """The tree less the keys that are refused or have no effect; those are reported with their sentence."""
    for row in KEYS:
        if row.treatment is Treatment.HONOURED or row.platform is not None or row.path == "advisor":
            continue
        parent, _, name = row.path.rpartition(".")
        if parent.startswith("sharedStorage"):
            continue  # the section is refused as a whole
        root = _apply(row, root, parent, name, report)
    return root


def advisor_as_tuner(root: Node, report: Report) -> Node:
    """The tree with `advisor`, where there is one, in the place of `tuner`."""
    advisor = root.get("advisor")
    if advisor is None:
        return root
    row = next(row for row in KEYS if row.path == "advisor")
    if root.get("tuner") is not None:
        report.problem(
            advisor.place,
            advisor.node.path,
            expected="either tuner or advisor",
            found="both",
            message="remove advisor",
        )
    else:
        report.notice(advisor.place, advisor.node.path, row.sentence)
        root = root.with_member("tuner", advisor)
    return root.without("advisor")


def _apply(row: Key, root: Node, parent: str, name: str, report: Report) -> Node:
    holder = root
    if parent:
        section = root.get(parent)
        if section is None:
            return root
        holder = section.node
    member = holder.get(name)
    if member is None or not _applies(row, member):
        return root
    if row.treatment is Treatment.NOTICE:
        report.notice(member.place, member.node.path, row.sentence)
    else:
        found = describe(plain(member.node))
        report.problem(member.place, member.node.path, expected=row.expected, found=found, message=row.sentence)
    if row.stays:
        return root
    if not parent:
        return root.without(name)
    if parent == "advisor":
        return root.without(parent)  # what is left of a refused advisor is no tuner
    outer = next(key for key in root.members if folded(key) == folded(parent))
    return root.with_value(outer, holder.without(name))


def _applies(row: Key, member: Member) -> bool:
    if row.value is ANY:
        return True
    value = member.node.value
    if isinstance(row.value, str):
        return isinstance(value, str) and value.lower() == row.value.lower()
    return as_truth(value) is row.value


def as_truth(value: object) -> object:
    """A boolean from the words YAML 1.1 has for it; any other value as it is."""
    words = {"yes": True, "on": True, "true": True, "no": False, "off": False, "false": False}
    return words.get(value.lower(), value) if isinstance(value, str) else value
