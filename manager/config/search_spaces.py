"""Finds the search space of a configuration, inline or in a file, and checks it as the tuner will read it."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from proctor.manager.config.document import parse, read_text
from proctor.manager.config.errors import Report
from proctor.manager.config.quantities import expanded
from proctor.manager.config.tree import Member, Node, describe, find, plain
from proctor.manager.config.validation import all_finite

if TYPE_CHECKING:
    from proctor.sdk.space import SearchSpace


def settle_search_space(root: Node, directory: Path, report: Report) -> tuple[Node, "SearchSpace | None"]:
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
        # A file that cannot be read is told by itself; the model need not miss the space as well.
        inline = Member("searchSpace", file.place, node or Node({}, file.node.place, ()))
        root = root.with_member("searchSpace", inline)
        if node is None:
            return root, None
    return root, _checked(inline.node, _tuner(root), report) if inline is not None else None


def _tuner(root: Node) -> dict[str, object]:
    """How the tuner is named, as far as it can be told."""
    members = root.members["tuner"].node.members if "tuner" in root.members else {}
    keys = {"name": members.get("name"), "class_name": members.get("className")}
    return {key: member.node.value for key, member in keys.items() if member is not None}


def _read(file: Member, directory: Path, report: Report) -> Node | None:
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


def _checked(node: Node, tuner: dict[str, object], report: Report) -> "SearchSpace | None":
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
