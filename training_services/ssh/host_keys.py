"""Which host keys are known: the user's known_hosts files, and the manager's own file of machines it was told to trust.

A key is looked up as ssh does it: under HostKeyAlias, else under `host` for port 22 and `[host]:port` for any other
one, hashed names and patterns included. Invalid lines are skipped, as ssh does.
"""

import base64
import binascii
import hashlib
import hmac
import re
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from proctor.training_services.ssh.config import Hop, shortened
from proctor.training_services.ssh.errors import HostKeyRefused
from proctor.trial_keeper.linux.files import make_folder, replace_file

REVOKED = "revoked"
AUTHORITY = "cert-authority"


@dataclass(frozen=True)
class KnownKey:
    """One line of a known_hosts file that is about a host."""

    marker: str
    """Empty for a host's own key, else AUTHORITY or REVOKED."""
    key: str
    """Type and base64, as in the file."""
    place: str
    """For people: the file and the line."""
    exact: bool
    """Whether the line names this port too; without, the key may be used but says nothing against another one."""


class HostKeys:
    """The known host keys. Thread-safe; its methods read and write files, so call them in a thread."""

    _writing = threading.Lock()  # of the process: every login has an instance of its own, for the same file

    def __init__(self, store: Path) -> None:
        """:param store: the manager's own known_hosts file; made when the first key is remembered."""
        self.store = store

    def known(self, hop: Hop) -> list[KnownKey]:
        """Every line that is about this hop, the user's files first."""
        return [key for path in (*hop.known_hosts, self.store) for key in _read(path, hop)]

    def remember(self, line: str) -> None:
        """Store a key permanently. Idempotent. Raises OSError."""
        with self._writing:
            lines = self.store.read_bytes().splitlines() if self.store.exists() else []
            if line.encode() in lines:
                return
            make_folder(str(self.store.parent))
            replace_file(str(self.store), b"\n".join([*lines, line.encode(), b""]), durable=True, shared=True)


def line_for(hop: Hop, key: str) -> str:
    """The known_hosts line that makes a key known."""
    return f"{_names(hop)[0]} {key}"


def fingerprint(key: str) -> str:
    """How `ssh-keygen -l` shows a key ("ssh-ed25519 AAAA…")."""
    blob = base64.b64decode(key.split()[1])
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def refusal(hop: Hop, offered: str, known: Sequence[KnownKey]) -> HostKeyRefused:
    """Why a key is not taken, with what to do about it."""
    line = line_for(hop, offered)
    kind, mark = offered.split()[0], fingerprint(offered)
    revoked = [item for item in known if item.marker == REVOKED and item.key.split()[1] == offered.split()[1]]
    if revoked:
        return HostKeyRefused(f"its host key {mark} is marked as revoked at {revoked[0].place}", line)
    others = [item for item in known if not item.marker and item.exact]
    if others:
        return HostKeyRefused(
            f"ITS HOST KEY HAS CHANGED: {hop.place} shows the {kind} key {mark}, but {others[0].place} knows another "
            f"one; either somebody stands in between, or the machine was installed anew: find out, then remove that "
            f"line and add: {line}",
            line,
        )
    return HostKeyRefused(
        f"its host key is not known: {hop.place} shows the {kind} key {mark}; compare it with the machine's own and "
        f"add this line to ~/.ssh/known_hosts, or set trustOnFirstUse: {line}",
        line,
    )


def _names(hop: Hop) -> tuple[str, ...]:
    if hop.alias:
        return (hop.alias.lower(),)
    host = hop.host.lower()
    return (host,) if hop.port == 22 else (f"[{host}]:{hop.port}", host)


def _read(path: Path, hop: Hop) -> Iterator[KnownKey]:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return
    names = _names(hop)
    for number, line in enumerate(lines, start=1):
        fields = line.split()
        marker = fields.pop(0)[1:] if fields and fields[0].startswith("@") else ""
        if len(fields) < 3 or fields[0].startswith("#") or marker not in ("", REVOKED, AUTHORITY):
            continue
        if not _readable(fields[2]):
            continue
        for name in names:
            if _matches(fields[0], name):
                place = f"{shortened(path)} line {number}"
                yield KnownKey(marker, f"{fields[1]} {fields[2]}", place, exact=name == names[0])
                break


def _matches(patterns: str, name: str) -> bool:
    if patterns.startswith("|1|"):
        return _hashed(patterns, name)
    found = False
    for pattern in patterns.lower().split(","):
        if _fits(pattern.removeprefix("!"), name):
            if pattern.startswith("!"):
                return False
            found = True
    return found


def _fits(pattern: str, name: str) -> bool:
    expression = "".join({"*": ".*", "?": "."}.get(character, re.escape(character)) for character in pattern)
    return re.fullmatch(expression, name) is not None


def _hashed(pattern: str, name: str) -> bool:
    try:
        _, _, salt, wanted = pattern.split("|")
        digest = hmac.new(base64.b64decode(salt), name.encode(), hashlib.sha1).digest()
        return hmac.compare_digest(digest, base64.b64decode(wanted))
    except (ValueError, binascii.Error):
        return False


def _readable(blob: str) -> bool:
    try:
        return bool(base64.b64decode(blob, validate=True))
    except (ValueError, binascii.Error):
        return False
