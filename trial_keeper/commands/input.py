"""What a command on the node was given: one JSON object, each member checked where it is used; bytes may follow."""

import os
from pathlib import Path
from typing import Any, BinaryIO

from proctor.trial_keeper.errors import CommandRefused


class CommandInput:
    """The members of a command's JSON object. All methods raise CommandRefused for a member of the wrong kind."""

    def __init__(self, command: str, body: Any, source: BinaryIO) -> None:
        if not isinstance(body, dict):
            raise CommandRefused(f"{command} needs one JSON object on its standard input, found {type(body).__name__}")
        self._command = command
        self._body = body
        self._source = source

    def text(self, name: str, default: str | None = None) -> str:
        """A text; without a default it must be there and not be empty."""
        value = self._body.get(name, default)
        if not isinstance(value, str) or (default is None and not value):
            raise self._wrong(name, "a text")
        return value

    def texts(self, name: str) -> list[str]:
        """A list of texts; empty when it is not there."""
        value = self._body.get(name, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self._wrong(name, "a list of texts")
        return value

    def number(self, name: str, default: float) -> float:
        """A number that is not negative."""
        value = self._body.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
            raise self._wrong(name, "a number from 0")
        return float(value)

    def flag(self, name: str) -> bool:
        """True or false; false when it is not there."""
        value = self._body.get(name, False)
        if not isinstance(value, bool):
            raise self._wrong(name, "true or false")
        return value

    def directory(self) -> Path:
        """The keeper's directory, absolute; `~` is the home of the user who runs the command."""
        path = os.path.expanduser(self.text("directory"))
        if not os.path.isabs(path) or os.path.normpath(path) == "/":
            raise self._wrong("directory", "an absolute path below a home")
        return Path(os.path.normpath(path))

    def path(self, name: str, below: Path) -> Path:
        """A path below a directory, given relative to it or absolute; links are not resolved."""
        path = os.path.normpath(os.path.join(below, os.path.expanduser(self.text(name))))
        if not path.startswith(f"{below}{os.sep}"):
            raise self._wrong(name, f"a path below {below}")
        return Path(path)

    def following(self, name: str) -> bytes:
        """What follows the object, as many bytes as the member says; none when it is not there. Less where the input
        has ended."""
        return self._source.read(int(self.number(name, 0)))

    def _wrong(self, name: str, expected: str) -> CommandRefused:
        return CommandRefused(f"{self._command}: {name} should be {expected}, found {self._body.get(name)!r:.200}")
