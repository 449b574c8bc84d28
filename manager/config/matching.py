"""Matches the keys of a tree with the fields of the models, case and underscores aside."""

import types
from dataclasses import replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from proctor.manager.config.errors import ConfigReport
from proctor.manager.config.key_names import folded, nearest, snake_case
from proctor.manager.config.services import Section
from proctor.manager.config.tree import Member, TreeNode

DISCRIMINATORS = ("platform", "storageType")
"""Keys whose value says which model a section follows."""
MOST_UNKNOWN_KEYS = 50
"""In one section. Each is compared with all known keys to find the nearest."""


def match_keys(
    node: TreeNode, model: type[Section], report: ConfigReport, also_known: tuple[str, ...] = ()
) -> TreeNode:
    """The same mapping with keys spelled as the model's aliases; unknown and repeated keys are reported.

    Keys without a value (null) are taken as not given, as in NNI. `also_known` are names to suggest besides
    the model's own.
    """
    spellings = _spellings(model)
    matched: dict[str, Member] = {}
    unknown = 0
    for name, member in node.members.items():
        alias = spellings.get(folded(member.key)) or spellings.get(folded(name))
        if alias is None and model.model_config.get("extra") == "allow":
            alias = snake_case(member.key)
        if alias is None and unknown == MOST_UNKNOWN_KEYS:
            report.problem(
                member.place, member.node.path, message=f"more than {unknown} unknown keys; the rest are omitted"
            )
            break
        if alias is None:
            unknown += 1
            known = (*dict.fromkeys(spellings.values()), *also_known)
            report.problem(
                member.place,
                member.node.path,
                expected="a known key",
                found=member.key,
                nearest=nearest(member.key, known),
            )
        elif alias in matched:
            report.problem(
                member.place,
                member.node.path,
                expected="each key once",
                found=f"{member.key} after {matched[alias].key}, which is the same key",
            )
        elif member.node.value is not None:
            field = _field_type(model, alias)
            node_there = member.node if field is None else _match_value(member.node, field, report)
            matched[alias] = replace(member, node=node_there)
    return replace(node, value=matched)


def _match_value(node: TreeNode, annotation: Any, report: ConfigReport) -> TreeNode:
    if isinstance(node.value, tuple):
        items = [_match_value(item, annotation, report) for item in node.items]
        return replace(node, value=tuple(items))
    model = model_of(annotation, node)
    if model is None or not isinstance(node.value, dict):
        return node
    return match_keys(node, model, report)


def model_of(annotation: Any, node: TreeNode) -> type[Section] | None:
    """The section model a value of this type follows; for a union the one its platform or type names."""
    models = section_models(annotation)
    if len(models) < 2:
        return models[0] if models else None
    for name in DISCRIMINATORS:
        chosen = node.get(name)
        for model in models:
            field = next((f for f in model.model_fields.values() if f.alias == name), None)
            literal = field is not None and get_origin(field.annotation) is Literal
            if chosen and field and literal and chosen.node.value in get_args(field.annotation):
                return model
            if chosen and field and not literal and model is models[-1]:  # takes any other name
                return model
    return None


def section_models(annotation: Any) -> list[type[Section]]:
    """Every section model inside a type: of a union, an optional or a list."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return [annotation]
    if get_origin(annotation) in (Union, types.UnionType, Annotated, tuple, list):
        return [model for part in get_args(annotation) for model in section_models(part)]
    return []


def _spellings(model: type[Section]) -> dict[str, str]:
    """Folded key → alias; the Python name of a field counts as a spelling too."""
    names = {}
    for name, field in model.model_fields.items():
        alias = field.alias or name
        names[folded(name)] = alias
        names[folded(alias)] = alias
    return names


def _field_type(model: type[Section], alias: str) -> Any:
    """None for a key that the model only lets through."""
    fields = model.model_fields.items()
    return next((field.annotation for name, field in fields if (field.alias or name) == alias), None)
