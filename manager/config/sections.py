"""The sections of a configuration that need more than their model: algorithms, search space and training service.

Names and arguments of tuner, assessor and trial scheduler are checked against the algorithms that the dispatcher
offers; names that the user has given to classes (`proctor algo register`) become those classes. The search space,
inline or in a file, is checked as the tuner will read it. Of `trainingService` it is settled, before it is validated,
which platform it names and what of it belongs to the root.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol

from proctor.manager.config.document import parse, read_text
from proctor.manager.config.errors import ConfigReport, MissingPackage
from proctor.manager.config.experiment import AlgorithmConfig
from proctor.manager.config.fields import expanded
from proctor.manager.config.key_names import camel_case, folded, nearest
from proctor.manager.config.platforms import (
    PLATFORMS,
    Availability,
    Platform,
    find_platform,
    nearest_platform,
    plug_in_platforms,
    supported_platforms,
)
from proctor.manager.config.tree import Member, TreeNode, describe, find, plain
from proctor.manager.config.validation import all_finite
from proctor.manager.dispatcher.algorithms.catalog import ASSESSOR, KINDS, TRIAL_SCHEDULER, TUNER, fill_arguments
from proctor.sdk.scheduler import TRAINING_ITERATION

if TYPE_CHECKING:
    from proctor.sdk.space import SearchSpace

INHERITED = ("trialCommand", "trialCodeDirectory", "trialGpuNumber", "debug")
"""Keys NNI lets one write in the section instead of the root; the section wins."""
_ADD_ONE = (
    "other platforms come from packages installed alongside Proctor, by an entry point of the group "
    "proctor.training_services"
)
_ACTIVE_GPU = (
    "useActiveGpu is not given, so it is false: GPUs that other processes use are skipped; NNI refuses this "
    "configuration"
)


def check_algorithms(
    root: TreeNode, algorithms: dict[str, AlgorithmConfig], space: "SearchSpace | None", report: ConfigReport
) -> None:
    """Report the problems that the registry of algorithms finds in these, by kind."""
    from proctor.manager.dispatcher.algorithms.registry import check_algorithm

    for kind, algorithm in algorithms.items():
        section = root.members[kind].node
        if not all_finite(section, report):
            continue
        canonical = algorithm.model_dump(mode="json", by_alias=False)
        for problem in check_algorithm(kind, canonical, space):
            head, *rest = problem.path or ("",)
            if head == "search_space":
                where, path = root.members["searchSpace"].node, tuple(rest)
            else:
                where, path = section, (camel_case(str(head)), *rest) if head else ()
            node, _, _ = find(where, path)
            report.problem(node.place, (*where.path, *path), message=problem.message)


def check_trial_scheduler(root: TreeNode, report: ConfigReport) -> None:
    """Report what cannot stand beside a trial scheduler."""
    scheduler, assessor, tuner = (root.members.get(kind) for kind in (TRIAL_SCHEDULER, ASSESSOR, TUNER))
    if scheduler is None or not isinstance(scheduler.node.value, dict):
        return
    if assessor is not None:
        report.problem(
            scheduler.place,
            scheduler.node.path,
            expected="either assessor or trialScheduler",
            found="both",
            message="a trial scheduler judges the same metrics: remove one of them",
        )
    name = scheduler.node.members.get("name")
    if name is None or tuner is None or not isinstance(tuner.node.value, dict):
        return
    from proctor.manager.dispatcher.algorithms.registry import find_builtin

    builtin = find_builtin(TRIAL_SCHEDULER, str(name.node.value))
    if builtin is not None and builtin.name == "PBT" and "className" in tuner.node.members:
        text = "PBT explores the parameters of other trials by itself, so that the tuner must be a built-in one: Random"
        report.problem(tuner.place, tuner.node.path, message=text)


def notice_idle_verdict_timeout(
    root: TreeNode, algorithms: Mapping[str, AlgorithmConfig], report: ConfigReport
) -> None:
    """Add a notice about a `verdictTimeout` where no trial ever waits for a verdict."""
    member, scheduler = root.members.get("verdictTimeout"), algorithms.get(TRIAL_SCHEDULER)
    if member is None:
        return
    if scheduler is None:
        report.notice(member.place, member.node.path, "has no effect: there is no trialScheduler")
        return
    from proctor.manager.dispatcher.algorithms.registry import find_builtin

    builtin = find_builtin(TRIAL_SCHEDULER, scheduler.name) if scheduler.name is not None else None
    if builtin is None:
        return
    time_attr = fill_arguments(scheduler.class_args, builtin.arguments)["time_attr"]
    if builtin.name == "MedianStopping" or time_attr != TRAINING_ITERATION:
        by = "" if builtin.name == "MedianStopping" else f" by {time_attr}"
        text = f"has no effect: under {builtin.name}{by} no trial waits for a verdict"
        report.notice(member.place, member.node.path, text)


# ---- names of registered classes -------------------------------------------------------------------------------------


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


def find_registered(root: TreeNode, registered: Mapping[str, Registered]) -> dict[str, Registered]:
    """The registered algorithms that the tree names, by kind; `registered` is by lower-case name."""
    named: dict[str, Registered] = {}
    for kind in KINDS:
        name = root.members[kind].node.members.get("name") if kind in root.members else None
        if name is None or not isinstance(name.node.value, str):
            continue
        found = registered.get(name.node.value.lower())
        if found is not None and {"advisor": "tuner"}.get(found.kind, found.kind) == kind:
            named[kind] = found
    return named


def resolve_registered(root: TreeNode, named: Mapping[str, Registered]) -> TreeNode:
    """The tree with `className` and `codeDirectory` where an algorithm has the `name` of a registered one."""
    for kind, found in named.items():
        section = root.members[kind].node
        root = root.with_value(kind, _as_class(section, section.members["name"], found))
    return root


def check_class_args(
    root: TreeNode,
    named: Mapping[str, Registered],
    algorithms: Mapping[str, AlgorithmConfig],
    refusal: Refusal,
    report: ConfigReport,
) -> None:
    """Report the class arguments that the validators of registered algorithms refuse."""
    for kind, found in named.items():
        algorithm = algorithms.get(kind)
        message = refusal(found, algorithm.class_args) if algorithm is not None else ""
        if message:
            section = root.members[kind].node
            at = section.members.get("classArgs") or section.members["className"]
            report.problem(at.node.place, (*section.path, "classArgs"), message=message)


def _as_class(section: TreeNode, name: Member, found: Registered) -> TreeNode:
    """Problems with the class are reported where its name stands."""
    place, path = name.node.place, name.node.path
    resolved = section.without("name")
    for key, value in (("className", found.class_name), ("codeDirectory", found.code_directory)):
        resolved = resolved.with_member(key, Member(key, name.place, TreeNode(value, place, path)))
    return resolved


# ---- the search space ------------------------------------------------------------------------------------------------


def settle_search_space(root: TreeNode, directory: Path, report: ConfigReport) -> tuple[TreeNode, "SearchSpace | None"]:
    """The tree with the space under `searchSpace` whichever way it came, and the space when it is sound.

    A tuner of the user's has a space of its own kind, which is not looked into.
    """
    inline, file = root.members.get("searchSpace"), root.members.get("searchSpaceFile")
    if inline is not None and file is not None:
        report.problem(
            file.place,
            file.node.path,
            expected="either searchSpace or searchSpaceFile",
            found="both",
            message="remove one of them",
        )
    elif file is not None:
        node = _read(file, directory, report)
        # A file that cannot be read is reported already; the model need not miss the space as well.
        inline = Member("searchSpace", file.place, node or TreeNode({}, file.node.place, ()))
        root = root.with_member("searchSpace", inline)
        if node is None:
            return root, None
    return root, _checked(inline.node, _tuner(root), report) if inline is not None else None


def _tuner(root: TreeNode) -> dict[str, object]:
    """How the tuner is named, as far as the section says it."""
    members = root.members["tuner"].node.members if "tuner" in root.members else {}
    keys = {"name": members.get("name"), "class_name": members.get("className")}
    return {key: member.node.value for key, member in keys.items() if member is not None}


def _read(file: Member, directory: Path, report: ConfigReport) -> TreeNode | None:
    if not isinstance(file.node.value, str):
        return None  # the model says so
    path = directory / expanded(file.node.value)
    if not os.path.isfile(path):  # False also for what cannot be a path
        report.problem(
            file.node.place,
            file.node.path,
            expected="an existing file",
            found=f"no file at {path}",
            message="relative paths start at the directory of the configuration",
        )
        return None
    text = read_text(path, report)
    return parse(text, str(path), report) if text is not None else None


def _checked(node: TreeNode, tuner: dict[str, object], report: ConfigReport) -> "SearchSpace | None":
    from proctor.manager.dispatcher.algorithms.registry import read_search_space
    from proctor.sdk.space import SearchSpaceError

    if "class_name" not in tuner and not isinstance(node.value, dict):
        report.problem(node.place, node.path, expected="a mapping", found=describe(plain(node)))
        return None
    try:
        space = read_search_space(tuner, plain(node))
    except SearchSpaceError as error:
        for problem in error.problems:
            at, key_place, _ = find(node, problem.path)
            place = key_place if isinstance(at.value, dict) and problem.path else at.place
            report.problem(place, (*node.path, *problem.path), message=problem.message)
        return None
    return space if all_finite(node, report) else None


# ---- the training service --------------------------------------------------------------------------------------------


def settle_service(root: TreeNode, report: ConfigReport) -> TreeNode:
    """The tree with an understood platform, or without the section where the platform is refused."""
    member = root.get("trainingService")
    if member is None or not isinstance(member.node.value, dict | tuple):
        return root
    if isinstance(member.node.value, tuple):
        _refuse(PLATFORMS["hybrid"], member, "a mapping", report)
        return root.without("trainingService")
    platform = _platform(member, report)
    if platform is None:
        return root.without("trainingService")
    root = _hoist(root, member.node, report)
    _notice_active_gpu(root, report)
    return root


def _platform(member: Member, report: ConfigReport) -> Platform | None:
    """The platform the section names, with what there is to say about it reported."""
    named = member.node.get("platform")
    name = named.node.value if named is not None else None
    platform = find_platform(name) if isinstance(name, str) else None
    if named is None or platform is None or platform.availability is not Availability.SUPPORTED:
        return _other_platform(member, platform, report)
    if platform.refusal:
        raise MissingPackage(platform.refusal)
    return platform


def _other_platform(member: Member, refused: Platform | None, report: ConfigReport) -> Platform | None:
    """The platform of an installed package, if the section names one. `refused` is one of ours of that name."""
    from proctor.training_services.errors import BrokenPlatform  # it imports the whole protocol of keepers

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
        if all_finite(section, report):  # it travels as JSON
            return Platform(named.node.value, Availability.SUPPORTED)
    elif refused is not None:
        _refuse(refused, named, expected, report)
    else:
        _report_unknown(named, named.node.value, expected, plug_ins, report)
    return None


def _report_unknown(named: Member, name: str, expected: str, plug_ins: tuple[str, ...], report: ConfigReport) -> None:
    similar = nearest(name, plug_ins) or nearest_platform(name)
    report.problem(
        named.node.place,
        named.node.path,
        expected=expected,
        found=describe(name),
        nearest=similar,
        message="" if similar else _ADD_ONE,
    )


def _refuse(platform: Platform, member: Member, expected: str, report: ConfigReport) -> None:
    found = describe(plain(member.node))
    report.problem(member.node.place, member.node.path, expected=expected, found=found, message=platform.refusal)


def _hoist(root: TreeNode, section: TreeNode, report: ConfigReport) -> TreeNode:
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


def _notice_active_gpu(root: TreeNode, report: ConfigReport) -> None:
    number, service = root.get("trialGpuNumber"), root.get("trainingService")
    if number is None or service is None or service.node.get("useActiveGpu") is not None:
        return
    platform = service.node.get("platform")
    if platform and platform.node.value == "local" and number.node.value not in (0, None):
        report.notice(number.place, number.node.path, _ACTIVE_GPU)
