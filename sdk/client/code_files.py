"""Which files of the user's code directory belong to the code: what travels to a machine, and what `save` keeps.

`.gitignore` syntax in `.proctorignore` and `.nniignore`, in the code directory and in any folder of it; a later pattern
beats an earlier one, a deeper file a higher one, `.proctorignore` its `.nniignore`. Left out unless a pattern brings
them back (`!.venv/`): see `LEFT_OUT`. Sockets, pipes and devices never belong to it, and neither does the state of a
Proctor manager that is in the directory: its home holds tokens and everything that its experiments have written.
"""

import os
import stat
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from proctor.sdk.client.home import is_experiment, is_home
from proctor.sdk.process_limits import is_short

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

VERSION_CONTROL = frozenset({".git", ".hg", ".svn"})
IGNORED_FOLDERS = VERSION_CONTROL | {
    "__pycache__", "node_modules", ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".ipynb_checkpoints",
}  # fmt: skip
"""Folders that are no code of the user."""
LEFT_OUT = (*sorted(VERSION_CONTROL), *(f"{name}/" for name in sorted(IGNORED_FOLDERS - VERSION_CONTROL)), "*.pyc")
IGNORE_FILES = (".nniignore", ".proctorignore")


class CodeUnreadable(ValueError):
    """The code directory cannot be read as it is; the text names the file and says what to do."""


@dataclass(frozen=True)
class CodeEntry:
    """One file, folder or link of the tree. `target` is a link's, as it reads."""

    path: str  # relative, with slashes
    kind: int  # stat.S_IFREG, S_IFDIR or S_IFLNK
    is_executable: bool = False
    size: int = 0
    modified_ns: int = 0
    target: str = ""


@dataclass(frozen=True)
class CodeTree:
    """What of a directory belongs to the code, by path."""

    root: Path  # no part of it is a link
    entries: tuple[CodeEntry, ...]

    @property
    def size(self) -> int:
        """The bytes of all files."""
        return sum(entry.size for entry in self.entries)


def read_tree(directory: Path, *, without: Collection[Path] = (), left_out: Sequence[str] = LEFT_OUT) -> CodeTree:
    """Look at a code directory; blocks while it does. A file that vanishes meanwhile is left out.

    Raises CodeUnreadable, naming it, for a directory that is not there or is the home of a manager, and for a file that
    cannot be read.
    :param without: files and folders that are not code wherever they are, such as the experiment's own folder.
    :param left_out: patterns that come before those of the ignore files.
    """
    from pathspec import GitIgnoreSpec  # not with the module: the manager starts without it

    root = Path(os.path.realpath(directory))
    if not root.is_dir():
        found = "it is a file" if root.exists() else "it does not exist"
        raise CodeUnreadable(
            f"trialCodeDirectory should be the folder that trials run in, but {found}: {directory}. "
            "Create it, or correct trialCodeDirectory"
        )
    walk = _Walk(root, frozenset(os.path.realpath(path) for path in without))
    entries = sorted(walk.below("", [("", GitIgnoreSpec.from_lines(left_out))]), key=lambda entry: entry.path)
    return CodeTree(root, tuple(entries))


@dataclass(frozen=True)
class _Walk:
    root: Path
    without: frozenset[str]

    def below(self, folder: str, rules: "Sequence[tuple[str, GitIgnoreSpec]]") -> Iterator[CodeEntry]:
        """The entries of a folder and of those below it, links not followed."""
        found = self._scan(folder)
        names = frozenset(item.name for item in found)
        if is_home(names):
            self._require_below_root(folder)
            return
        if folder and is_experiment(names):
            return
        if folder:
            yield CodeEntry(folder.removesuffix("/"), stat.S_IFDIR, is_executable=True)
        rules = [*rules, *self._rules_of(folder, names)]
        for item in found:
            path = folder + item.name
            try:
                is_folder = item.is_dir(follow_symlinks=False)
                if item.path in self.without or _is_ignored(path, is_folder, rules):
                    continue
                if is_folder:
                    yield from self.below(f"{path}/", rules)
                else:
                    yield from self._entries_of(item, path)
            except FileNotFoundError:
                continue  # it has vanished since the folder was listed

    def _entries_of(self, item: os.DirEntry[str], path: str) -> Iterator[CodeEntry]:
        facts = item.stat(follow_symlinks=False)
        if stat.S_ISLNK(facts.st_mode):
            yield CodeEntry(path, stat.S_IFLNK, target=os.readlink(item.path))
        elif stat.S_ISREG(facts.st_mode):
            if not os.access(item.path, os.R_OK, effective_ids=os.access in os.supports_effective_ids):
                os.lstat(item.path)  # raises if it has vanished
                raise CodeUnreadable(
                    f"the file {path} of the trial code in {self.root} cannot be read; make it readable, or leave it "
                    "out by a line in .proctorignore"
                )
            executable = bool(facts.st_mode & stat.S_IXUSR)
            yield CodeEntry(path, stat.S_IFREG, executable, facts.st_size, facts.st_mtime_ns)

    def _scan(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(self.root / folder) as found:
                return list(found)
        except FileNotFoundError:
            return []
        except OSError as error:
            if is_short(error):
                raise
            raise CodeUnreadable(
                f"the folder {folder or '.'} of the trial code in {self.root} cannot be read ({error.strerror}); "
                "make it readable, or leave it out by a line in .proctorignore"
            ) from error

    def _rules_of(self, folder: str, names: Collection[str]) -> "Iterator[tuple[str, GitIgnoreSpec]]":
        from pathspec import GitIgnoreSpec

        for name in IGNORE_FILES:
            if name not in names:
                continue
            try:
                text = (self.root / folder / name).read_text(encoding="utf-8")
            except (FileNotFoundError, IsADirectoryError):
                continue
            except (OSError, UnicodeDecodeError) as error:
                if is_short(error):
                    raise
                raise CodeUnreadable(
                    f"{self.root / folder / name}, the ignore file of the code, cannot be read: {error}"
                ) from error
            try:
                yield folder, GitIgnoreSpec.from_lines(text.splitlines())
            except ValueError as error:
                raise CodeUnreadable(
                    f"{self.root / folder / name} should have one pattern of .gitignore on each line: {error}"
                ) from error

    def _require_below_root(self, folder: str) -> None:
        if not folder:
            raise CodeUnreadable(
                f"the code directory {self.root} is the home of a Proctor manager, with its tokens and the files of "
                "its experiments; move the code into a folder of its own, or the home (PROCTOR_HOME) to another place"
            )


def _is_ignored(path: str, is_folder: bool, rules: "Sequence[tuple[str, GitIgnoreSpec]]") -> bool:
    """What the last ignore file says that has a pattern for this path."""
    for folder, spec in reversed(rules):
        include = spec.check_file(path[len(folder) :] + ("/" if is_folder else "")).include
        if include is not None:
            return include
    return False
