"""Takes secrets out of a configuration: they are kept in one file of their own, never in the database."""

from dataclasses import replace
from typing import Any

from proctor.manager.config.errors import ConfigReport, KeyPath
from proctor.manager.config.experiment import ExperimentConfig
from proctor.manager.config.matching import section_models
from proctor.manager.config.services import SECRET, Section
from proctor.manager.config.tree import Member, TreeNode

REDACTED = "********"
"""Stands for a secret in the configuration, the database and REST."""

_NOTICE = (
    "is kept in a file only you can read, and shown nowhere; a key file or the agent would be safer than "
    "a secret inside the configuration"
)


class Vault:
    """Collects the secrets of one configuration while they are replaced in its tree."""

    def __init__(self) -> None:
        self.secrets: dict[str, str] = {}
        """By path in the canonical configuration: `training_service.machine_list.0.password`."""
        self.paths: set[KeyPath] = set()
        """Where they stood in the mapping as written."""

    def empty(self, node: TreeNode, model: type[Section], report: ConfigReport, path: tuple[str, ...] = ()) -> TreeNode:
        """The tree of a section with every secret replaced by REDACTED."""
        matched = node
        for name, field in model.model_fields.items():
            alias = field.alias or name
            member = node.members.get(alias)
            if member is None:
                continue
            if field.json_schema_extra == SECRET:
                child = self._take(member, (*path, name), report)
            else:
                child = self._empty_value(member.node, field.annotation, report, (*path, name))
            matched = matched.with_member(alias, replace(member, node=child))
        return matched

    def redact(self, node: TreeNode) -> object:
        """The plain value of a tree with every secret replaced by REDACTED."""
        if node.path in self.paths:
            return REDACTED
        if isinstance(node.value, dict):
            return {name: self.redact(member.node) for name, member in node.value.items()}
        if isinstance(node.value, tuple):
            return [self.redact(item) for item in node.value]
        return node.value

    def _empty_value(self, node: TreeNode, annotation: Any, report: ConfigReport, path: tuple[str, ...]) -> TreeNode:
        if isinstance(node.value, tuple):
            items = [
                self._empty_value(item, annotation, report, (*path, str(index)))
                for index, item in enumerate(node.items)
            ]
            return replace(node, value=tuple(items))
        for model in section_models(annotation) if isinstance(node.value, dict) else ():
            node = self.empty(node, model, report, path)
        return node

    def _take(self, member: Member, path: tuple[str, ...], report: ConfigReport) -> TreeNode:
        node = member.node
        if node.value == REDACTED:
            return node  # a mapping that was loaded before: its secrets travel apart from it
        self.paths.add(node.path)
        if isinstance(node.value, str):
            self.secrets[".".join(path)] = node.value
            report.notice(member.place, node.path, _NOTICE)
        else:
            report.problem(node.place, node.path, expected="text", found="something else", message="put it in quotes")
        return replace(node, value=REDACTED)


def empty_secrets(root: TreeNode, report: ConfigReport) -> tuple[TreeNode, Vault]:
    """The tree of an experiment without its secrets, and what held them."""
    vault = Vault()
    return vault.empty(root, ExperimentConfig, report), vault
