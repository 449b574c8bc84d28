"""Which host keys are known: the user's known_hosts files, and the manager's own file of keys trusted on first use.

asyncssh reads each line. A host is looked up as ssh does it: under HostKeyAlias, else under `host` for port 22 and
under `[host]:port`, then `host`, for any other one. Invalid lines are skipped.
"""

import functools
import os
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from proctor.sdk.files import make_folder, name_beside, replace_file
from proctor.training_services.ssh.errors import HostKeyRefused

_OWN, _AUTHORITY, _REVOKED = _MARKERS = ("", "cert-authority", "revoked")
_NAMES = re.compile(r"^(\s*(?:@\S+\s+)?)([^@|#\s]\S*)")  # of a line; not where they are hashed
_CACHED_LINES = 20_000


@dataclass(frozen=True)
class _KnownKey:
    """One line of a known_hosts file that is about a host."""

    marker: str
    key: Any
    place: str
    """For people: the file and the line."""
    exact: bool
    """Whether the line names this port too; without, the key may be used but says nothing against another one."""


class KnownHost:
    """What is known about the keys of one host."""

    def __init__(self, name: str, keys: Sequence[_KnownKey], file: str) -> None:
        """:param name: what known_hosts calls it.
        :param file: where a key of it is to be added, for people; empty: in no file that is read for it.
        """
        self.file = file
        self._name = name
        self._keys = keys

    @property
    def is_new(self) -> bool:
        """Whether nothing speaks against the first key it shows."""
        return not any(item.exact or item.marker == _REVOKED for item in self._keys)

    @property
    def trusted(self) -> tuple[list[Any], list[Any], list[Any]]:
        """For asyncssh: the host's keys, those of authorities, and revoked ones."""
        # without authorities revoked keys are left to `refusal`, which says where they stand
        own, authorities, revoked = ([item.key for item in self._keys if item.marker == kind] for kind in _MARKERS)
        return [key for key in own if key not in revoked], authorities, revoked if authorities else []

    def line(self, key: Any) -> str:
        """The known_hosts line that makes a key known."""
        return " ".join([self._name, *key.export_public_key("openssh").decode().split()[:2]])

    def refusal(self, place: str, offered: Any) -> HostKeyRefused:
        """Why a key is not accepted, with what to do about it.

        :param place: host:port, for people.
        """
        line = self.line(offered)
        kind, mark = offered.get_algorithm(), offered.get_fingerprint()
        revoked = [item for item in self._keys if item.marker == _REVOKED and item.key == offered]
        others = [item for item in self._keys if item.marker == _OWN and item.exact]
        if revoked:
            return HostKeyRefused(f"its host key {mark} is marked as revoked at {revoked[0].place}", line)
        if others:
            return HostKeyRefused(
                f"ITS HOST KEY HAS CHANGED: {place} shows the {kind} key {mark}, but {others[0].place} knows another "
                f"one; someone may be intercepting the connection, or the machine was reinstalled: find out, then "
                f"remove that line and add: `{line}`",
                line,
            )
        how = f"add this line to {self.file}, or set trustOnFirstUse: `{line}`" if self.file else "set trustOnFirstUse"
        return HostKeyRefused(
            f"its host key is not known: {place} shows the {kind} key {mark}; compare it with the machine's own "
            f"and {how}",
            line,
        )


class HostKeys:
    """The known host keys. Thread-safe; its methods read and write files, so call them in a thread."""

    _writing = threading.Lock()  # of the process: every login has an instance of its own, for the same file

    def __init__(self, store: Path) -> None:
        """:param store: the manager's own known_hosts file; made when the first key is remembered."""
        self.store = store

    def of(self, names: Sequence[str], files: Sequence[Path]) -> KnownHost:
        """What is known about a host.

        :param names: what known_hosts calls it, with its port first.
        :param files: the user's known_hosts files.
        """
        keys = [key for path in (*files, self.store) for key in _read(path, names)]
        return KnownHost(names[0], keys, next((shortened(path) for path in files if str(path) != os.devnull), ""))

    def remember(self, line: str) -> None:
        """Store a key permanently. Idempotent. Raises OSError."""
        with self._writing:
            lines = self.store.read_bytes().splitlines() if self.store.exists() else []
            if line.encode() in lines:
                return
            make_folder(str(self.store.parent))
            unfinished = name_beside(self.store, of_thread=True)
            replace_file(str(self.store), b"\n".join([*lines, line.encode(), b""]), durable=True, unfinished=unfinished)


def shortened(path: Path) -> str:
    """A path for people: below the home directory it begins with ~."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _read(path: Path, names: Sequence[str]) -> Iterator[_KnownKey]:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return
    for number, line in enumerate(lines, start=1):
        for name in names:
            # a port is given as part of the name: given as a port, asyncssh overlooks lines that revoke a key
            matches = _entry(line).match(name, "", None)
            keys = [(marker, key) for marker, found in zip(_MARKERS, matches, strict=False) for key in found]
            for marker, key in keys:
                yield _KnownKey(marker, key, f"{shortened(path)} line {number}", exact=name == names[0])
            if keys:
                break


@functools.lru_cache(_CACHED_LINES)  # reading a key takes 60 µs, and every login looks at every line
def _entry(line: str) -> Any:
    # names in lower case, as ssh compares them, and no empty ones, which asyncssh takes for those of every host
    lowered = _NAMES.sub(lambda names: names[1] + ",".join(filter(None, names[2].lower().split(","))), line)
    try:
        return asyncssh.import_known_hosts(lowered)
    except ValueError:
        return asyncssh.import_known_hosts("")
