"""Which files of the user's code travel to a machine: those of `proctor.sdk.client.code_files`, with links that hold
there as well."""

import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from proctor.sdk.client.code_files import IGNORE_FILES, CodeEntry, CodeTree, CodeUnreadable
from proctor.sdk.client.code_files import read_tree as read_code_tree
from proctor.training_services.errors import SubmissionRefused

__all__ = ["IGNORE_FILES", "CodeEntry", "CodeTree", "read_tree"]


def read_tree(directory: Path, *, without: Sequence[Path] = ()) -> CodeTree:
    """Look at a code directory; blocks while it does. Links are relative to the folder they lie in.

    Raises SubmissionRefused, naming it, for what cannot be read and for a link that leads out of the tree.
    :param without: folders that are not code wherever they lie, such as the experiment's own.
    """
    try:
        tree = read_code_tree(directory, without=without)
    except CodeUnreadable as error:
        raise SubmissionRefused(str(error)) from error
    return CodeTree(tree.root, tuple(_as_there(tree.root, entry) for entry in tree.entries))


def _as_there(root: Path, entry: CodeEntry) -> CodeEntry:
    """A link as it must read on a machine where the tree lies elsewhere; everything else as it is."""
    if entry.kind != stat.S_IFLNK:
        return entry
    place = root / entry.path
    target = os.path.relpath(entry.target, place.parent) if os.path.isabs(entry.target) else entry.target
    lexical = os.path.normpath(os.path.join(os.path.dirname(entry.path), target))
    resolved = os.path.realpath(place)
    if lexical.split(os.sep)[0] == os.pardir or not (resolved + os.sep).startswith(f"{root}{os.sep}"):
        raise SubmissionRefused(
            f"the link {entry.path} of the trial code leads out of {root}, to {entry.target}, which the machines do "
            "not have; replace it by what it leads to, or leave it out by a line in .proctorignore"
        )
    return replace(entry, target=target)
