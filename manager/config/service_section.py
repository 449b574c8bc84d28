"""The `trainingService` section before it is validated: which platform, and what belongs to the root."""

from dataclasses import replace

from proctor.manager.config.errors import Report
from proctor.manager.config.names import folded, nearest
from proctor.manager.config.platforms import (
    PLATFORMS,
    Availability,
    Platform,
    find_platform,
    nearest_platform,
    plug_in_platforms,
    supported_platforms,
)
from proctor.manager.config.tree import Member, Node, describe, plain
from proctor.manager.config.validation import all_finite
from proctor.training_services.errors import BrokenPlatform

INHERITED = ("trialCommand", "trialCodeDirectory", "trialGpuNumber", "debug")
"""Keys NNI lets one write in the section instead of the root; the section wins."""
_ADD_ONE = (
    "other platforms come from packages that are installed beside Proctor, by an entry point of the group "
    "proctor.training_services"
)
_ACTIVE_GPU = (
    "useActiveGpu is not given and taken as false: GPUs on which other processes run are left alone; NNI "
    "refuses this configuration"
)


def settle_service(root: Node, report: Report) -> Node:
    """The tree with an understood platform, or without the section where the platform is refused."""
    member = root.get("trainingService")
    if member is None or not isinstance(member.node.value, dict | tuple):
        return root
    if isinstance(member.node.value, tuple):
        _refuse(PLATFORMS["hybrid"], member, "a mapping", report)
        return root.without("trainingService")
    platform = _platform(member, report)
    if platform is None or platform.refusal:
        return root.without("trainingService")
    root = _hoist(root, member.node, report)
    _notice_active_gpu(root, report)
    return root


def _platform(member: Member, report: Report) -> Platform | None:
    """The platform the section names, with what there is to say about it reported."""
    named = member.node.get("platform")
    name = named.node.value if named is not None else None
    platform = find_platform(name) if isinstance(name, str) else None
    if named is None or platform is None or platform.availability is not Availability.SUPPORTED:
        return _other_platform(member, platform, report)
    if platform.refusal:
        _refuse(platform, named, " or ".join(supported_platforms()), report)
    return platform


def _other_platform(member: Member, refused: Platform | None, report: Report) -> Platform | None:
    """The platform of an installed package, if the section names one. `refused` is one of ours of that name."""
    section = member.node
    named = section.get("platform")
    try:
        plug_ins = plug_in_platforms()
    except BrokenPlatform as error:
        report.problem(member.place, (*section.path, "platform"), message=str(error))
        return None
    expected = " or ".join((*supported_platforms(), *plug_ins))
    if named is None or not isinstance(named.node.value, str):
        place, path = (named.node.place, named.node.path) if named else (member.place, (*section.path, "platform"))
        found = describe(plain(named.node)) if named else "nothing"
        report.problem(place, path, expected=expected, found=found)
    elif named.node.value in plug_ins:
        return _plug_in(named.node.value, section, report)
    elif refused is not None:
        _refuse(refused, named, expected, report)
    else:
        _report_unknown(named, named.node.value, expected, plug_ins, report)
    return None


def _report_unknown(named: Member, name: str, expected: str, plug_ins: tuple[str, ...], report: Report) -> None:
    similar = nearest(name, plug_ins) or nearest_platform(name)
    report.problem(
        named.node.place,
        named.node.path,
        expected=expected,
        found=describe(name),
        nearest=similar,
        message="" if similar else _ADD_ONE,
    )


def _plug_in(name: str, section: Node, report: Report) -> Platform | None:
    """The platform of an installed package; its section travels as JSON."""
    return Platform(name, Availability.SUPPORTED) if all_finite(section, report) else None


def _refuse(platform: Platform, member: Member, expected: str, report: Report) -> None:
    found = describe(plain(member.node))
    report.problem(member.node.place, member.node.path, expected=expected, found=found, message=platform.refusal)


def _hoist(root: Node, section: Node, report: Report) -> Node:
    """Move what the section may say for the root to the root."""
    for key in INHERITED:
        inner = section.get(key)
        if inner is None:
            continue
        section = section.without(key)
        outer = root.get(key)
        if inner.node.value is None:
            continue
        if outer is not None and outer.node.value not in (None, inner.node.value):
            report.notice(outer.place, outer.node.path, f"has no effect: trainingService has its own {key}")
        root = root.without(key).with_member(key, inner)
    name = next(name for name in root.members if folded(name) == "trainingservice")
    return root.with_member(name, replace(root.members[name], node=section))


def _notice_active_gpu(root: Node, report: Report) -> None:
    number, service = root.get("trialGpuNumber"), root.get("trainingService")
    if number is None or service is None or service.node.get("useActiveGpu") is not None:
        return
    platform = service.node.get("platform")
    if platform and platform.node.value == "local" and number.node.value not in (0, None):
        report.notice(number.place, number.node.path, _ACTIVE_GPU)
