"""The `trainingService` section before it is validated: which platform, and what belongs to the root."""

from dataclasses import replace

from proctor.manager.config.errors import Report
from proctor.manager.config.names import folded
from proctor.manager.config.platforms import (
    PLATFORMS,
    Platform,
    find_platform,
    nearest_platform,
    supported_platforms,
)
from proctor.manager.config.tree import Member, Node, describe, plain

INHERITED = ("trialCommand", "trialCodeDirectory", "trialGpuNumber", "debug")
"""Keys NNI lets one write in the section instead of the root; the section wins."""
_WITH_MODEL = ("local", "remote")
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
    if platform is None or platform.name not in _WITH_MODEL:
        return root.without("trainingService")
    root = _hoist(root, member.node, report)
    _notice_active_gpu(root, report)
    return root


def _platform(member: Member, report: Report) -> Platform | None:
    """The platform the section names, with what there is to say about it reported."""
    section = member.node
    named = section.get("platform")
    expected = " or ".join(supported_platforms())
    if named is None or not isinstance(named.node.value, str):
        place, path = (named.node.place, named.node.path) if named else (member.place, (*section.path, "platform"))
        found = describe(plain(named.node)) if named else "nothing"
        report.problem(place, path, expected=expected, found=found)
        return None
    name = named.node.value
    platform = find_platform(name)
    if platform is None:
        report.problem(
            named.node.place,
            named.node.path,
            expected=expected,
            found=describe(name),
            nearest=nearest_platform(name),
        )
    elif platform.refusal:
        _refuse(platform, named, expected, report)
    return platform


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
