"""Validates the tree by the models and translates pydantic's errors into problems with positions."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from proctor.manager.config.errors import ConfigReport, KeyPath, SourcePosition, written_path
from proctor.manager.config.key_names import nearest
from proctor.manager.config.matching import DISCRIMINATORS
from proctor.manager.config.secrets import REDACTED
from proctor.manager.config.services import Section
from proctor.manager.config.tree import TreeNode, describe, find, plain, walk
from proctor.sdk.json_input import MAX_INTEGER_BITS

SectionType = TypeVar("SectionType", bound=Section)

_EXPECTED = {
    "missing": "a value",
    "unexpected": "{expected}",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
    "literal_error": "{expected}",
    "too_short": "at least {min_length} of them",
    "union_tag_not_found": "a value",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dict_type": "a mapping",
    "tuple_type": "a list",
    "list_type": "a list",
}
# What was refused for a reason of its own, and is therefore not missing.
_TAKEN_OUT = {
    "tuner": ("advisor",),
    "trainingService": ("trainingService", "trainingServicePlatform", "trial", "frameworkcontrollerConfig"),
    "searchSpace": ("useAnnotation",),
    "experimentType": ("experimentType",),
}


def validate(node: TreeNode, model: type[SectionType], directory: Path, report: ConfigReport) -> SectionType | None:
    """The model's instance; None, with every problem reported, when the tree does not follow the model."""
    try:
        return model.model_validate(plain(node), context={"directory": directory})
    except ValidationError as error:
        errors = error.errors(include_url=False)
        # A list is also "too short" where its items are not valid: what is wrong in it says it better.
        for details in (each for each in errors if not _has_cause(each, errors)):
            _report(node, details, report)
        return None


def all_finite(node: TreeNode, report: ConfigReport) -> bool:
    """Whether JSON can write every number: search spaces and class arguments travel as JSON. Others are reported."""
    infinite = [each for each in walk(node) if isinstance(each.value, float) and not math.isfinite(each.value)]
    for each in infinite:
        report.problem(each.place, each.path, expected="a finite number", found=describe(each.value))
    return not infinite


def report_unsendable(root: TreeNode, report: ConfigReport) -> None:
    """Report every number that JSON cannot write or the manager refuses to read, wherever it stands. A key that has a
    problem already keeps that one."""
    known = {(problem.place, problem.key) for problem in report.problems}
    for each in walk(root):
        if isinstance(each.value, float) and not math.isfinite(each.value):
            expected = "a finite number"
        elif isinstance(each.value, int) and each.value.bit_length() > MAX_INTEGER_BITS:
            expected = f"an integer of at most {MAX_INTEGER_BITS} bits"
        else:
            continue
        if (each.place, written_path(each.path)) not in known:
            report.problem(each.place, each.path, expected=expected, found=describe(each.value))


def _has_cause(details: Any, errors: Sequence[Any]) -> bool:
    """Whether another error is inside of this one."""
    path = details["loc"]
    return any(len(other["loc"]) > len(path) and other["loc"][: len(path)] == path for other in errors)


def _report(root: TreeNode, details: Any, report: ConfigReport) -> None:
    kind: str = details["type"]
    path: KeyPath = tuple(details["loc"])
    node, key_place, complete = find(root, path)
    context = details.get("ctx", {})
    expected = _EXPECTED.get(kind, details["msg"]).format(**context)
    if kind == "union_tag_invalid":
        chosen = next(member for name in DISCRIMINATORS if (member := node.get(name)) is not None)
        node, complete, expected = chosen.node, True, context["expected_tags"]
    if kind in ("missing", "union_tag_not_found"):
        _report_missing(node, key_place, path, expected, report)
        return
    found = describe(plain(node)) if complete else describe(details["input"])
    found = context.get("found") or found
    if plain(node) == REDACTED:
        found = "something else"
    report.problem(
        node.place,
        node.path,
        expected=expected,
        found=found,
        nearest=_nearest_value(kind, details["input"], context),
    )


def _report_missing(
    node: TreeNode, key_place: SourcePosition, path: KeyPath, expected: str, report: ConfigReport
) -> None:
    key = str(path[-1])
    if path == ("sharedStorage",):
        key = "storageType"
    causes = _TAKEN_OUT.get(key, ())
    if any(problem.key.split(".")[0].split("[")[0] in causes for problem in report.problems):
        return
    message = "this key is required"
    report.problem(key_place, (*node.path, key), expected=expected, found="nothing", message=message)


def _nearest_value(kind: str, value: object, context: dict[str, Any]) -> str | None:
    if kind != "literal_error" or not isinstance(value, str):
        return None
    choices = [part.strip(" '") for part in str(context["expected"]).replace(" or ", ", ").split(",")]
    return nearest(value, choices)
