"""What reading a configuration can answer besides a configuration: problems and notices."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

KeyPath = tuple[str | int, ...]


@dataclass(frozen=True)
class SourcePosition:
    """A position in a text, both counted from 1; None where the input had no text (Python, REST)."""

    file: str | None = None
    line: int | None = None
    column: int | None = None

    def __str__(self) -> str:
        """`file:line:column`, as far as known; empty when nothing is."""
        return ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)


NOWHERE = SourcePosition()


@dataclass(frozen=True)
class ConfigProblem:
    """One thing that is wrong: where, which key, what was expected, what was found, what to do."""

    place: SourcePosition
    key: str
    """The key path as it was written, `trainingService.machineList[0].port`; empty for the whole document."""
    expected: str = ""
    found: str = ""
    message: str = ""
    """A sentence with what to do; the only text where "expected, found" does not fit."""
    nearest: str | None = None
    """The known key or name that is most similar to the one found."""

    @property
    def file(self) -> str | None:
        """The file the problem is in, None for configurations that came without one."""
        return self.place.file

    @property
    def line(self) -> int | None:
        """The line, counted from 1."""
        return self.place.line

    @property
    def column(self) -> int | None:
        """The column, counted from 1."""
        return self.place.column

    def __str__(self) -> str:
        """`file:line:column: key: expected …, found …; …; did you mean …?` on one line."""
        clauses = []
        if self.expected:
            clauses.append(f"expected {self.expected}" + (f", found {self.found}" if self.found else ""))
        if self.message:
            clauses.append(self.message)
        if self.nearest is not None:
            clauses.append(f"did you mean {self.nearest}?")
        head = ": ".join(part for part in (str(self.place), self.key) if part)
        text = f"{head}: {'; '.join(clauses)}" if head else "; ".join(clauses)
        return " ".join(text.split())


@dataclass(frozen=True)
class Notice:
    """Something accepted that does less than, or something else than, its writer may believe."""

    place: SourcePosition
    key: str
    message: str

    def __str__(self) -> str:
        """`file:line:column: key: message` on one line."""
        return ": ".join(part for part in (str(self.place), self.key, self.message) if part)


class ConfigError(ValueError):
    """The configuration cannot be used; `problems` holds every reason, in the order of the text."""

    def __init__(self, problems: Iterable[ConfigProblem], notices: Iterable[Notice] = ()) -> None:
        self.problems: tuple[ConfigProblem, ...] = tuple(problems)
        self.notices: tuple[Notice, ...] = tuple(notices)
        super().__init__(describe_problems(self))


class MissingPackage(ConfigError):
    """The configuration names a platform whose package is not installed. That is its only problem: the file itself may
    be right, and nothing else in it has been checked."""

    def __init__(self, message: str) -> None:
        super().__init__([ConfigProblem(NOWHERE, "", message=message)])


def describe_problems(error: "ConfigError | Sequence[ConfigProblem]") -> str:
    """All problems, one line each, in the form `file:line:column: key: expected …, found …; did you mean …?`."""
    problems = error.problems if isinstance(error, ConfigError) else error
    return "\n".join(str(problem) for problem in problems)


def written_path(path: KeyPath) -> str:
    """A key path as people write it: `("machineList", 0, "port")` is `machineList[0].port`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


class ConfigReport:
    """Collects problems and notices while a configuration is read, so that all are reported at once."""

    def __init__(self) -> None:
        self.problems: list[ConfigProblem] = []
        self.notices: list[Notice] = []

    def problem(
        self,
        place: SourcePosition,
        path: KeyPath,
        *,
        expected: str = "",
        found: str = "",
        message: str = "",
        nearest: str | None = None,
    ) -> None:
        """Add a problem."""
        self.problems.append(ConfigProblem(place, written_path(path), expected, found, message, nearest))

    def notice(self, place: SourcePosition, path: KeyPath, message: str) -> None:
        """Add a notice."""
        self.notices.append(Notice(place, written_path(path), message))

    def raise_if_any(self) -> None:
        """Raise ConfigError with every problem so far, sorted by position, if there is one."""
        if self.problems:
            unique = dict.fromkeys(self.problems)
            raise ConfigError(sorted(unique, key=lambda p: (p.file or "", p.line or 0, p.column or 0)), self.notices)
