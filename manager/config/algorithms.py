"""Checks names and arguments of tuner and assessor against the algorithms the dispatcher offers."""

from typing import TYPE_CHECKING

from proctor.manager.config.errors import KeyPath, Report
from proctor.manager.config.experiment import AlgorithmConfig
from proctor.manager.config.names import camel_case
from proctor.manager.config.tree import Node, find
from proctor.manager.config.validation import all_finite

if TYPE_CHECKING:
    from proctor.sdk.space import SearchSpace


def check_algorithms(
    root: Node, algorithms: dict[str, AlgorithmConfig], space: "SearchSpace | None", report: Report
) -> None:
    """Report what the registry of algorithms has against these, by kind ("tuner", "assessor")."""
    from proctor.manager.dispatcher.algorithms.registry import check_algorithm

    for kind, algorithm in algorithms.items():
        section = root.members[kind].node
        if not all_finite(section, report):
            continue
        canonical = algorithm.model_dump(mode="json", by_alias=False)
        for problem in check_algorithm(kind, canonical, space):
            head, *rest = problem.path or ("",)
            if head == "search_space":
                _report_space(root.members["searchSpace"].node, tuple(rest), problem.message, report)
                continue
            path = (camel_case(str(head)), *rest) if head else ()
            node, _, _ = find(section, path)
            report.problem(node.place, (*section.path, *path), message=problem.message)


def _report_space(space: Node, path: KeyPath, message: str, report: Report) -> None:
    node, _, _ = find(space, path)
    report.problem(node.place, (*space.path, *path), message=message)
