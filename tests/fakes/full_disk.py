"""Calls that the operating system refuses, and a disk that has no room for what `os.write` writes below a folder."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def refuse(number: int) -> "Callable[..., Any]":
    """A stand-in for a call that the operating system answers with this error."""

    def call(*_: object, **__: object) -> Any:
        raise OSError(number, os.strerror(number))

    return call


class FullDisk:
    """Takes so many bytes and no more; `room` may be changed at any time, None is enough for everything."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, room: "int | None" = None) -> None:
        self.room = room
        self.attempts = 0  # how often something was to be written
        self._folder = folder
        self._write = os.write
        monkeypatch.setattr(os, "write", self._take)

    def _take(self, descriptor: int, data: Any) -> int:
        if not self._is_below(descriptor):
            return self._write(descriptor, data)
        self.attempts += 1
        if self.room is None:
            return self._write(descriptor, data)
        if self.room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        count = self._write(descriptor, data[: self.room])
        self.room -= count
        return count

    def _is_below(self, descriptor: int) -> bool:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}")).is_relative_to(self._folder)
