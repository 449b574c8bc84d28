"""NNI's sections for Kubernetes, `kubeflow` and `frameworkcontroller`, read as platform `kubernetes`.

There a role with one pod is what a trial is here. Its keys become those of the section, its command the trial's. What
configures an operator or its storage has no effect, and one notice names it. Several pods for one trial are refused.

A package that brings a platform of one of these names gets its section as it is written.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from proctor.manager.config.errors import ConfigReport, KeyPath, written_path
from proctor.manager.config.key_names import folded, nearest
from proctor.manager.config.platforms import PLATFORMS, Availability, plug_in_platforms
from proctor.manager.config.tree import Member, TreeNode, describe, plain, walk


@dataclass(frozen=True)
class OperatorKey:
    """A key of such a section, or of a role in it."""

    name: str
    becomes: str | None = None
    """The key of platform kubernetes, or of the experiment; None: it has no effect."""
    old_name: str | None = None
    """As NNI's first format (v1) has it."""
    refusal: str = ""
    """What to do instead, where the key is refused."""

    @property
    def outcome(self) -> str:
        """The cell of the table in docs/configuration.md."""
        if self.refusal:
            return f"refused: {self.refusal}"
        return f"`{self.becomes}`" if self.becomes else "no effect"


COUNTS = ("replicas", "taskNumber", "taskNum")
"""How many pods a role has, as either operator and format call it: one."""
ROLE_NAMES = ("worker", "master", "ps")
"""Sections of `kubeflow`."""
TASK_ROLES = "taskRoles"
"""The list of `frameworkcontroller`."""
SECTION_KEYS = (
    OperatorKey("namespace", "namespace"),
    OperatorKey("serviceAccountName", "serviceAccount"),
    OperatorKey("operator"),
    OperatorKey("apiVersion"),
    OperatorKey("storage"),
    OperatorKey("reuseMode"),
    OperatorKey("configPath", refusal="templates of Frameworks are not read: give image and podTemplate instead"),
)
ROLE_KEYS = (
    OperatorKey("command", "trialCommand"),
    OperatorKey("codeDirectory", "trialCodeDirectory"),
    OperatorKey("dockerImage", "image", "image"),
    OperatorKey("gpuNumber", "trialGpuNumber", "gpuNum"),
    OperatorKey("cpuNumber", "cpuNumber", "cpuNum"),
    OperatorKey("memorySize", "memorySize", "memoryMB"),
    OperatorKey("name"),
    OperatorKey("frameworkAttemptCompletionPolicy"),
    OperatorKey(
        "privateRegistryAuthPath",
        refusal="make a Secret of the file, `kubectl create secret generic registry --type=kubernetes.io/"
        "dockerconfigjson --from-file=.dockerconfigjson=FILE`, and name it under imagePullSecrets",
    ),
)
OPERATORS = tuple(name for name, entry in PLATFORMS.items() if entry.availability is Availability.CONVERTED)
OPERATOR_PATHS = tuple(
    f"trainingService.{path}"
    for path in (
        *(key.name for key in SECTION_KEYS),
        *(
            f"{role}.{name}"
            for role in (*ROLE_NAMES, TASK_ROLES)
            for name in (*COUNTS, *(name for key in ROLE_KEYS for name in (key.name, key.old_name) if name))
        ),
    )
)
"""Every key of these sections."""

_TARGET = "kubernetes"
_ONE_POD = (
    "a trial is one pod: train on the GPUs of one node, by trialGpuNumber and a trialCommand such as torchrun "
    "--nproc-per-node=4 train.py; trials over several nodes are not available yet"
)
_NOT_NEEDED = "no operator is needed, and code and files travel over Proctor's own connection"
_OLD_IMAGE = "NNI's own images have a Python before 3.10, with which no trial starts: name another image"


def convert_operators(root: TreeNode, report: ConfigReport) -> TreeNode:
    """The tree with such a section as one of platform kubernetes; any other tree as it is."""
    member = root.get("trainingService")
    named = member.node.get("platform") if member else None
    if member is None or named is None or named.node.value not in OPERATORS or _is_plug_in(str(named.node.value)):
        return root
    outer = next(name for name in root.members if folded(name) == folded("trainingService"))
    role = _find_role(member.node, named, report)
    if role is None:
        return root.without(outer)
    conversion = _Conversion(report)
    section = {"platform": replace(named, node=replace(named.node, value=_TARGET))}
    section |= conversion.convert(member.node, SECTION_KEYS, ("platform", *ROLE_NAMES, TASK_ROLES), is_closed=False)
    for name, moved in conversion.convert(role, ROLE_KEYS, COUNTS, is_closed=True).items():
        if name in section:
            conversion.report_twice(moved, section[name])
        section[name] = moved
    sentence = f"{named.node.value} is read as {_TARGET}: each trial is a plain Job"
    if conversion.without_effect:
        keys = ", ".join(written_path(path) for path in conversion.without_effect)
        sentence += f". Without effect: {keys}; {_NOT_NEEDED}"
    report.notice(named.place, named.node.path, sentence)
    image = section.get("image")
    if image is not None and str(image.node.value).startswith("msranni/nni"):
        report.notice(image.place, image.node.path, _OLD_IMAGE)
    return root.with_value(outer, replace(member.node, value=section))


def _is_plug_in(name: str) -> bool:
    from proctor.training_services.errors import BrokenPlatform  # it imports the whole protocol of keepers

    try:
        return name in plug_in_platforms()
    except BrokenPlatform:
        return True  # which is reported where the platform is looked for


def _find_role(section: TreeNode, platform: Member, report: ConfigReport) -> TreeNode | None:
    """The one role; None, with the problem reported, where there is none. Of several the first: they are reported."""
    roles = [member.node for name in ROLE_NAMES if (member := section.get(name)) is not None]
    listed = section.get(TASK_ROLES)
    if listed is not None:
        if not isinstance(listed.node.value, tuple):
            found = describe(plain(listed.node))
            report.problem(listed.node.place, listed.node.path, expected="a list of roles", found=found)
            return None
        roles += listed.node.items
    if not roles:
        if section.get("configPath") is not None:
            _Conversion(report).convert(section, SECTION_KEYS, (), is_closed=False)
            return None
        where = "worker" if platform.node.value == "kubeflow" else f"{TASK_ROLES}[0]"
        expected = "a role, with command and dockerImage"
        report.problem(platform.place, (*platform.node.path[:-1], where), expected=expected, found="nothing")
        return None
    for role in roles:
        if not isinstance(role.value, dict):
            report.problem(role.place, role.path, expected="a mapping", found=describe(plain(role)))
            return None
    if len(roles) > 1:
        found = " and ".join(written_path(role.path) for role in roles)
        report.problem(roles[1].place, roles[1].path, expected="one role", found=found, message=_ONE_POD)
        return roles[0]
    for count in (member for name in COUNTS if (member := roles[0].get(name)) is not None):
        if count.node.value is not None and (count.node.value != 1 or isinstance(count.node.value, bool)):
            found = describe(plain(count.node))
            report.problem(count.node.place, count.node.path, expected="1", found=found, message=_ONE_POD)
    return roles[0]


class _Conversion:
    """Of one section; remembers the keys that have no effect."""

    def __init__(self, report: ConfigReport) -> None:
        self._report = report
        self.without_effect: list[KeyPath] = []

    def convert(
        self, holder: TreeNode, keys: tuple[OperatorKey, ...], besides: tuple[str, ...], *, is_closed: bool
    ) -> dict[str, Member]:
        """The members of a mapping by their new names.

        :param besides: keys that are dealt with elsewhere.
        :param is_closed: whether other keys are unknown; else they stay: they may be those of platform kubernetes.
        """
        by_name = {folded(name): key for key in keys for name in (key.name, key.old_name) if name}
        passed_over = {folded(name) for name in besides}
        converted: dict[str, Member] = {}
        for written, member in holder.members.items():
            key = by_name.get(folded(written))
            if folded(written) in passed_over or (member.node.value is None and key is not None):
                continue
            if key is None and is_closed:
                known = (*besides, *(key.name for key in keys))
                near = nearest(member.key, known)
                expected = "a known key"
                self._report.problem(member.place, member.node.path, expected=expected, found=member.key, nearest=near)
            elif key is None:
                converted[written] = member
            elif key.refusal:
                self._report.problem(member.place, member.node.path, message=key.refusal)
            elif key.becomes is None:
                self.without_effect += _leaves(member.node)
            else:
                if key.becomes in converted:
                    self.report_twice(member, converted[key.becomes])
                converted[key.becomes] = Member(key.becomes, member.place, _in_units(key, member.node))
        return converted

    def report_twice(self, member: Member, other: Member) -> None:
        """Two keys for one thing."""
        expected = f"either {written_path(member.node.path)} or {written_path(other.node.path)}"
        self._report.problem(member.place, member.node.path, expected=expected, found="both", message="remove one")


def _leaves(node: TreeNode) -> Iterator[KeyPath]:
    """The paths of the values below a node."""
    return (each.path for each in walk(node) if not (each.members or each.items))


def _in_units(key: OperatorKey, node: TreeNode) -> TreeNode:
    """An amount of memory without a unit is in megabytes."""
    if key.name == "memorySize" and isinstance(node.value, int) and not isinstance(node.value, bool):
        return replace(node, value=f"{node.value}Mi")
    return node
