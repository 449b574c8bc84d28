"""The pointer file, by which keepers find their manager: what it holds, and how it is written.

It holds the path of a Unix socket, or for a manager that is reached over a network (`--keeper-listen`) two lines:

    https://proctor.example.org:8443
    sha256:1f0c…          of the manager's certificate (DER), 64 hexadecimal digits

The keeper sends nothing to a listener with another certificate, whatever that says of its names and dates. The file is
read at every attempt to connect, and once a second during a session, so it is always replaced by rename.
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from proctor.sdk.files import replace_file

_SCHEME = "https://"
_MOST_BYTES = 16 * 1024
_URL = re.compile(r"https://(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s/?#@:\[\]]+):(?P<port>[0-9]{1,5})", re.ASCII)
_FINGERPRINT = re.compile("sha256:([0-9a-f]{64})", re.IGNORECASE)


@dataclass(frozen=True)
class ManagerEndpoint:
    """Where a manager listens for keepers: on a Unix socket, or else on a TCP port with TLS and this certificate."""

    socket_path: str = ""
    host: str = ""
    port: int = 0
    fingerprint: str = ""
    """The SHA-256 of the manager's certificate (DER), hexadecimal in lower case."""
    pointer: str = field(default="", compare=False)
    """The file that says so."""

    @property
    def is_remote(self) -> bool:
        """Whether it is reached over a network."""
        return not self.socket_path

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return self.socket_path or f"{_SCHEME}{host}:{self.port}"


def read_pointer(pointer: str) -> ManagerEndpoint:
    """Where the file `pointer` leads. Raises OSError, and ValueError for one that was cut short by a power cut, until a
    manager writes it again."""
    with open(pointer, "rb") as file:
        text = os.fsdecode(file.read(_MOST_BYTES)).strip()
    if text.startswith(_SCHEME):
        return parse_endpoint(text, pointer)
    if not text or "\0" in text:
        raise ValueError(f"{pointer} should hold the path of the manager's socket, or its URL, found {text!r}")
    return ManagerEndpoint(socket_path=text, pointer=pointer)


def parse_endpoint(text: str, pointer: str = "") -> ManagerEndpoint:
    """The manager at a URL, with its certificate's fingerprint in the line below. Raises ValueError.

    :param pointer: the file that holds this text.
    """
    url, *pins = text.split()
    found = _URL.fullmatch(url)
    if found is None or not 0 < int(found["port"]) < 65536:
        raise ValueError(f"{pointer or 'a pointer'}: expected a URL such as https://host:8443, found {url[:200]!r}")
    pin = _FINGERPRINT.fullmatch(pins[0]) if len(pins) == 1 else None
    if pin is None:
        raise ValueError(
            f"{pointer or 'a pointer'}: expected sha256:<64 hexadecimal digits> of the manager's certificate in the "
            f"line below {url}, found {' '.join(pins)[:80]!r}"
        )
    host = found["host"].strip("[]")
    return ManagerEndpoint(host=host, port=int(found["port"]), fingerprint=pin[1].lower(), pointer=pointer)


def write_pointer(path: Path, endpoint: ManagerEndpoint) -> None:
    """Let the pointer file lead there; it is replaced by rename. Raises OSError."""
    text = f"{endpoint}\nsha256:{endpoint.fingerprint}\n" if endpoint.is_remote else endpoint.socket_path
    replace_file(str(path), os.fsencode(text), durable=False)
