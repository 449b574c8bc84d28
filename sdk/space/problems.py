"""What can be wrong with a search space, collected instead of raised one by one."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class SpaceProblem:
    """One thing wrong with a search space, and where it is."""

    path: tuple[str | int, ...]
    """Keys and list indexes from the top of the search space, e.g. `("lr", "_value", 0)`; empty means all of it."""
    message: str
    """A sentence: what was expected, what was found, what to do."""

    def __str__(self) -> str:
        where = ".".join(str(step) for step in self.path)
        return f"{where}: {self.message}" if where else self.message


class SearchSpaceError(ValueError):
    """A search space is not valid, or parameters are outside of one."""

    def __init__(self, problems: Sequence[SpaceProblem]) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


def shown(value: Any) -> str:
    """A JSON value on one line, shortened."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= 60 else text[:57] + "..."
