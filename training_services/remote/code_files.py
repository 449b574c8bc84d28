"""Which files of the user's code travel to a machine.

`.gitignore` syntax in `.proctorignore` and `.nniignore`, in the code directory and in any folder of it; a later pattern
beats an earlier one, a deeper file a higher one, `.proctorignore` its `.nniignore`. Left out unless a pattern brings
them back (`!.venv/`): see `LEFT_OUT`. Sockets, pipes and devices never travel.
"""

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

from proctor.training_services.errors import SubmissionRefused

LEFT_OUT = (
    ".git", ".hg", ".svn", "__pycache__/", "*.pyc", "node_modules/", ".venv/", ".mypy_cache/", ".pytest_cache/",
    ".ruff_cache/", ".ipynb_checkpoints/",
)  # fmt: skip
IGNORE_FILES = (".nniignore", ".proctorignore")


@dataclass(frozen=True)
class CodeEntry:
    """One file, folder or link of the tree. `target` is a link's, relative to the folder it lies in."""

    path: str  # relative, with slashes
    kind: int  # stat.S_IFREG, S_IFDIR or S_IFLNK
    is_executable: bool = False
    size: int = 0
    modified_ns: int = 0
    target: str = ""


@dataclass(frozen=True)
class CodeTree:
    """What of a directory travels, by path."""

    root: Path  # no part of it is a link
    entries: tuple[CodeEntry, ...]

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(entry.size for entry in self.entries)


def read_tree(directory: Path, *, without: Sequence[Path] = ()) -> CodeTree:
    """Look at a code directory; blocks while it does.

    Raises SubmissionRefused, naming it, for a directory that is not there, for a file that cannot be read and for a
    link that leads out of the tree.
    :param without: folders that are not code wherever they lie, such as the experiment's own.
    """
    root = Path(os.path.realpath(directory))
    if not root.is_dir():
        found = "it is a file" if root.exists() else "it does not exist"
        raise SubmissionRefused(
            f"trialCodeDirectory should be the folder that trials run in, but {found}: {directory}. "
            "Create it, or correct trialCodeDirectory"
        )
    walk = _Walk(root, frozenset(os.path.realpath(path) for path in without))
    entries = sorted(walk.below("", [("", GitIgnoreSpec.from_lines(LEFT_OUT))]), key=lambda entry: entry.path)
    return CodeTree(root, tuple(entries))


@dataclass(frozen=True)
class _Walk:
    root: Path
    without: frozenset[str]

    def below(self, folder: str, rules: Sequence[tuple[str, GitIgnoreSpec]]) -> Iterator[CodeEntry]:
        """The entries of a folder and of those below it, links not followed."""
        rules = [*rules, *self._rules_of(folder)]
        for item in self._scan(folder):
            path = folder + item.name
            facts = item.stat(follow_symlinks=False)
            if _is_ignored(path, stat.S_ISDIR(facts.st_mode), rules):
                continue
            if stat.S_ISDIR(facts.st_mode):
                if item.path not in self.without:
                    yield CodeEntry(path, stat.S_IFDIR, is_executable=True)
                    yield from self.below(f"{path}/", rules)
            elif stat.S_ISLNK(facts.st_mode):
                yield CodeEntry(path, stat.S_IFLNK, target=self._target(path))
            elif stat.S_ISREG(facts.st_mode):
                self._require_readable(path)
                executable = bool(facts.st_mode & stat.S_IXUSR)
                yield CodeEntry(path, stat.S_IFREG, executable, facts.st_size, facts.st_mtime_ns)

    def _scan(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.root / folder) as found:
                return list(found)
        except OSError as error:
            raise SubmissionRefused(
                f"the folder {folder or '.'} of the trial code in {self.root} cannot be read ({error.strerror}); "
                "make it readable, or leave it out by a line in .proctorignore"
            ) from error

    def _rules_of(self, folder: str) -> Iterator[tuple[str, GitIgnoreSpec]]:
        for name in IGNORE_FILES:
            try:
                text = (self.root / folder / name).read_text(encoding="utf-8")
            except (FileNotFoundError, IsADirectoryError):
                continue
            except (OSError, UnicodeDecodeError) as error:
                raise SubmissionRefused(
                    f"{self.root / folder / name}, which says what of the code is left out, cannot be read: {error}"
                ) from error
            try:
                yield folder, GitIgnoreSpec.from_lines(text.splitlines())
            except ValueError as error:
                raise SubmissionRefused(
                    f"{self.root / folder / name} should have one pattern of .gitignore on each line: {error}"
                ) from error

    def _require_readable(self, path: str) -> None:
        if not os.access(self.root / path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
            raise SubmissionRefused(
                f"the file {path} of the trial code in {self.root} cannot be read; make it readable, or leave it out "
                "by a line in .proctorignore"
            )

    def _target(self, path: str) -> str:
        """Where a link leads, as it must read on a machine where the tree lies elsewhere."""
        place = self.root / path
        target = os.readlink(place)
        if os.path.isabs(target):
            target = os.path.relpath(target, place.parent)
        lexical = os.path.normpath(os.path.join(os.path.dirname(path), target))
        resolved = os.path.realpath(place)
        if lexical.split(os.sep)[0] == os.pardir or not (resolved + os.sep).startswith(f"{self.root}{os.sep}"):
            raise SubmissionRefused(
                f"the link {path} of the trial code leads out of {self.root}, to {os.readlink(place)}, which the "
                "machines do not have; replace it by what it leads to, or leave it out by a line in .proctorignore"
            )
        return target


def _is_ignored(path: str, is_folder: bool, rules: Sequence[tuple[str, GitIgnoreSpec]]) -> bool:
    """What the last ignore file says that has a pattern for this path."""
    for folder, spec in reversed(rules):
        include = spec.check_file(path[len(folder) :] + ("/" if is_folder else "")).include
        if include is not None:
            return include
    return False
