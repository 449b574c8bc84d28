"""Keys of NNI's first configuration format, each converted on its own with a notice.

There is no switch between two formats: any old key is understood wherever it stands, so that files which
mix both, as many do, are read as they were meant.
"""

from dataclasses import dataclass, replace

from proctor.manager.config.errors import ConfigReport, Notice
from proctor.manager.config.key_names import folded, nearest
from proctor.manager.config.platforms import Availability, find_platform
from proctor.manager.config.tree import Member, TreeNode, describe, plain


@dataclass(frozen=True)
class OldKey:
    """One old key and what it is called now; `new` is None for keys that are dropped."""

    path: str
    new: str | None
    example: object
    sentence: str = ""

    @property
    def notice(self) -> str:
        """What the user reads."""
        if self.sentence:
            return self.sentence
        return f"is NNI's v1 name for {self.new}" if self.new else DROPPED


DROPPED = "no longer has any effect; ignored"
MOST_NOTICES = 3
"""So many old keys have a notice each."""
MULTI_PHASE = "multiPhase"
ANNOTATION = "useAnnotation"


def _algorithm(kind: str) -> tuple[OldKey, ...]:
    return (
        OldKey(f"{kind}.builtin{kind.capitalize()}Name", f"{kind}.name", "Random"),
        OldKey(f"{kind}.codeDir", f"{kind}.codeDirectory", "code"),
        OldKey(f"{kind}.gpuIndices", "tunerGpuIndices", "0"),
    )


OLD_KEYS: tuple[OldKey, ...] = (
    OldKey("authorName", None, "default"),
    OldKey("description", None, "digits"),
    OldKey("maxExecDuration", "maxExperimentDuration", "1h"),
    OldKey("maxTrialNum", "maxTrialNumber", 10),
    OldKey("searchSpacePath", "searchSpaceFile", "space.json"),
    OldKey("logDir", "experimentWorkingDirectory", "logs"),
    OldKey("multiThread", None, False),
    OldKey(MULTI_PHASE, None, False),
    OldKey("versionCheck", None, False),
    OldKey("logCollection", None, "none"),
    OldKey("trainingServicePlatform", "trainingService.platform", "local"),
    OldKey("trial.command", "trialCommand", "python old.py"),
    OldKey("trial.codeDir", "trialCodeDirectory", "code"),
    OldKey("trial.gpuNum", "trialGpuNumber", 0),
    OldKey("trial.nasMode", None, "classic_mode"),
    OldKey("localConfig.gpuIndices", "trainingService.gpuIndices", "0"),
    OldKey("localConfig.maxTrialNumPerGpu", "trainingService.maxTrialNumberPerGpu", 2),
    OldKey("localConfig.useActiveGpu", "trainingService.useActiveGpu", True),
    OldKey("remoteConfig.reuse", "trainingService.reuseMode", True),
    OldKey("trial.worker", "trainingService.worker", {"command": "python old.py", "image": "digits"}),
    OldKey("trial.master", "trainingService.master", {"command": "python old.py", "image": "digits"}),
    OldKey("trial.ps", "trainingService.ps", {"command": "python old.py", "image": "digits"}),
    OldKey("trial.taskRoles", "trainingService.taskRoles", [{"command": "python old.py", "image": "digits"}]),
    OldKey("frameworkcontrollerConfig.serviceAccountName", "trainingService.serviceAccountName", "trials"),
    OldKey("frameworkcontrollerConfig.namespace", "trainingService.namespace", "ml"),
    OldKey("frameworkcontrollerConfig.configPath", "trainingService.configPath", "template.yml"),
    *(OldKey(f"kubeflowConfig.{name}", None, "old") for name in ("operator", "apiVersion", "kubernetesServer")),
    *(
        OldKey(f"{operator}Config.{name}", None, {})
        for operator in ("kubeflow", "frameworkcontroller")
        for name in ("storage", "nfs", "azureStorage", "keyVault", "pvc", "uploadRetryCount")
    ),
    OldKey("machineList", "trainingService.machineList", [{"ip": "gpu-1", "username": "somebody"}]),
    *_algorithm("tuner"),
    *_algorithm("assessor"),
    *_algorithm("advisor"),
    OldKey("assessor.includeIntermediateResults", "tuner.includeIntermediateResults", False),
)
OLD_MACHINE_KEYS = {
    "ip": "host",
    "username": "user",
    "passwd": "password",
    "sshKeyPath": "sshKeyFile",
    "passphrase": "sshPassphrase",
    "maxTrialNumPerGpu": "maxTrialNumberPerGpu",
}
"""Old keys inside a machine of `machineList`, by what they are called now."""
OLD_CLASS_FILE = "classFileName"
"""The old way to name a custom algorithm: a file beside `className`; now `className: module.ClassName`."""

_OLD_SECTIONS = ("trial", "localConfig", "remoteConfig", "kubeflowConfig", "frameworkcontrollerConfig")
_OLD_PLATFORM_SECTIONS = (
    *("paiConfig", "paiYarnConfig", "amlConfig", "dlcConfig", "adlConfig", "dltsConfig", "hybridConfig"),
)
_NO_MULTI_PHASE = "several parameters in one trial are not offered (nor by NNI 2.0 and later): start one trial for each"


def convert_version1(root: TreeNode, report: ConfigReport) -> TreeNode:
    """The tree with every old key replaced by the new one, or dropped.

    There is a notice for each, or, where there are many, as in a whole file of that format, one for all of them.
    """
    before = len(report.notices)
    root = convert_all(root, report)
    if len(report.notices) - before > MOST_NOTICES:
        report.notices[before:] = [_summary(report.notices[before:])]
    return root


def convert_all(root: TreeNode, report: ConfigReport) -> TreeNode:
    """As `convert_version1`, with a notice for each old key, however many there are."""
    before = len(report.notices)
    root = _refuse_multi_phase(root, report)
    for kind in ("tuner", "assessor", "advisor"):
        root = _join_class_file(root, kind, report)
    for old in OLD_KEYS:
        root = _convert(root, old, report)
    root = _rename_machine_keys(root, report)
    root = _drop_old_sections(root, report)
    annotation = root.get(ANNOTATION)
    if annotation is not None and annotation.node.value is False and len(report.notices) > before:
        # Every file of that format had it; in a file of the present one it has a notice of its own.
        report.notice(annotation.place, annotation.node.path, DROPPED)
        root = root.without(ANNOTATION)
    return root


def _summary(notices: list[Notice]) -> Notice:
    dropped = [notice.key for notice in notices if notice.message == DROPPED]
    ignored = f", {', '.join(dropped)} ignored" if dropped else ""
    first = min((notice.place for notice in notices), key=lambda place: (place.line or 0, place.column or 0))
    return Notice(
        first,
        "",
        f"converted {len(notices)} keys of NNI's first format (v1){ignored}; `proctor config convert FILE` prints the "
        "file with the present names",
    )


def _convert(root: TreeNode, old: OldKey, report: ConfigReport) -> TreeNode:
    parent, _, name = old.path.rpartition(".")
    section = root.get(parent) if parent else None
    holder = section.node if section else root if not parent else None
    member = holder.get(name) if holder else None
    if holder is None or member is None:
        return root
    if section:
        outer = _written(root, section)
        root = root.with_value(outer, holder.without(name))
    else:
        root = root.without(name)
    if member.node.value is None:
        return root
    report.notice(member.place, member.node.path, old.notice)
    return _put(root, old, member, report) if old.new else root


def _put(root: TreeNode, old: OldKey, member: Member, report: ConfigReport) -> TreeNode:
    parent, _, name = (old.new or "").rpartition(".")
    if not parent:
        return _put_in(root, name, member, old, report)
    section = root.get(parent)
    if section is None:
        empty = TreeNode({}, member.place, member.node.path[:-1])
        section = Member(parent, member.place, empty)
    outer = _written(root, section)
    filled = _put_in(section.node, name, member, old, report)
    return root.with_member(outer, replace(section, node=filled))


def _put_in(holder: TreeNode, name: str, member: Member, old: OldKey, report: ConfigReport) -> TreeNode:
    present = holder.get(name)
    if present is not None and present.node.value is not None:
        report.problem(
            member.place,
            member.node.path,
            expected=f"either {old.path} or {old.new}, which is its new name",
            found="both",
            message=f"remove {old.path}",
        )
        return holder
    return holder.without(name).with_member(name, member)


def _refuse_multi_phase(root: TreeNode, report: ConfigReport) -> TreeNode:
    member = root.get(MULTI_PHASE)
    if member is None or member.node.value in (None, False, "no", "off"):
        return root
    found = describe(plain(member.node))
    report.problem(member.place, member.node.path, expected="false", found=found, message=_NO_MULTI_PHASE)
    return root.without(MULTI_PHASE)


def _join_class_file(root: TreeNode, kind: str, report: ConfigReport) -> TreeNode:
    """`classFileName: my/tuner.py` with `className: Mine` is `className: my.tuner.Mine`."""
    section = root.get(kind)
    file = section.node.get(OLD_CLASS_FILE) if section else None
    if section is None or file is None:
        return root
    node = section.node.without(OLD_CLASS_FILE)
    name = node.get("className")
    if not isinstance(file.node.value, str) or not file.node.value.endswith(".py"):
        found = describe(plain(file.node))
        report.problem(file.place, file.node.path, expected="a Python file, ending in .py", found=found)
    elif name is not None and isinstance(name.node.value, str):
        module = file.node.value.removesuffix(".py").removeprefix("./").replace("/", ".")
        joined = replace(name.node, value=f"{module}.{name.node.value}")
        node = node.with_member(_written(node, name), replace(name, node=joined))
        report.notice(file.place, file.node.path, f"is an old key; read as className: {joined.value}")
    return root.with_value(_written(root, section), node)


def _rename_machine_keys(root: TreeNode, report: ConfigReport) -> TreeNode:
    service = root.get("trainingService")
    machines = service.node.get("machineList") if service else None
    if service is None or machines is None or not machines.node.items:
        return root
    renamed = tuple(_rename_machine(machine, report) for machine in machines.node.items)
    listed = replace(machines.node, value=renamed)
    inner = service.node.with_value(_written(service.node, machines), listed)
    return root.with_value(_written(root, service), inner)


def _rename_machine(machine: TreeNode, report: ConfigReport) -> TreeNode:
    for name, new in OLD_MACHINE_KEYS.items():
        member = machine.get(name)
        if member is not None and machine.get(new) is None:
            report.notice(member.place, member.node.path, f"is NNI's v1 name for {new}")
            machine = machine.without(name).with_member(new, member)
    return machine


def _drop_old_sections(root: TreeNode, report: ConfigReport) -> TreeNode:
    """Drop the old sections; keys left in them are unknown, unless the platform is refused as a whole."""
    service = root.get("trainingService")
    named = service.node.get("platform") if service else None
    platform = find_platform(named.node.value) if named and isinstance(named.node.value, str) else None
    refused = platform is not None and platform.availability is Availability.REFUSED
    for name in _OLD_SECTIONS:
        member = root.get(name)
        if member is not None and not refused:
            _report_left_over(name, member, report)
        root = root.without(name)
    return root.without(*_OLD_PLATFORM_SECTIONS) if refused else root


def _report_left_over(section: str, member: Member, report: ConfigReport) -> None:
    if not isinstance(member.node.value, dict | None):
        found = describe(plain(member.node))
        report.problem(member.node.place, member.node.path, expected="a mapping", found=found)
    known = [old.path.partition(".")[2] for old in OLD_KEYS if old.path.startswith(section + ".")]
    for left in member.node.members.values():
        near = nearest(left.key, known)
        report.problem(left.place, left.node.path, expected="a known key", found=left.key, nearest=near)


def _written(holder: TreeNode, member: Member) -> str:
    """The name under which a member stands (or would stand) in its mapping."""
    return next((name for name in holder.members if folded(name) == folded(member.key)), member.key)
