"""One hop on the way to a machine: what the user's ~/.ssh/config says about a host, with SSH's own defaults.

The file itself is read by the SSH library; here its answers become a `Hop`. $HOME of the manager's process is what
counts for every `~`.
"""

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

_SYSTEM_KNOWN_HOSTS = (Path("/etc/ssh/ssh_known_hosts"), Path("/etc/ssh/ssh_known_hosts2"))
_AGENT_VARIABLE = "SSH_AUTH_SOCK"
_JUMP = re.compile(r"(?:ssh://)?(?:(?P<user>.+)@)?(?:\[(?P<v6>[^]]+)]|(?P<host>[^:@\[\]]+))(?::(?P<port>\d+))?/?")


class Options(Protocol):
    """The answers of an ~/.ssh/config for one host."""

    def get(self, option: str, default: object = None) -> object:
        """The value of an option, or the default where the file is silent."""


@dataclass(frozen=True)
class Jump:
    """One entry of ProxyJump."""

    host: str
    user: str | None = None
    port: int | None = None


@dataclass(frozen=True)
class Hop:
    """One SSH server and how to get into it."""

    name: str
    """As the user wrote it."""
    host: str
    """What is connected to: HostName, or the name itself."""
    port: int
    user: str
    alias: str | None
    """HostKeyAlias: the name in known_hosts."""
    identity_files: tuple[Path, ...]
    """IdentityFile; none: SSH's default names are tried."""
    identities_only: bool
    """Use no key of the agent but those named."""
    agent: str
    """The path of the agent's socket; empty: there is none."""
    agent_source: str
    """Where that path comes from, or why there is none, for people."""
    known_hosts: tuple[Path, ...]
    jumps: tuple[Jump, ...]
    by_address: bool
    """Whether its name is looked up here (no jump, no ProxyCommand, no canonical domains)."""
    by_command: bool
    """Whether a ProxyCommand of the user makes the connection."""
    picks_host_key_algorithms: bool
    """Whether the user has chosen HostKeyAlgorithms."""

    @classmethod
    def read(cls, name: str, options: Options, *, host: str, port: int, user: str) -> "Hop":
        """From the answers of ~/.ssh/config. Raises ValueError for an invalid ProxyJump."""
        agent, source = _agent(options.get("IdentityAgent", _AGENT_VARIABLE))
        jumps = parse_jumps(str(options.get("ProxyJump") or ""))
        by_command = bool(options.get("ProxyCommand")) and not jumps
        return cls(
            name=name,
            host=host,
            port=port,
            user=user,
            alias=_text(options.get("HostKeyAlias")),
            identity_files=tuple(expand(item) for item in _texts(options.get("IdentityFile"))),
            identities_only=bool(options.get("IdentitiesOnly")),
            agent=agent,
            agent_source=source,
            known_hosts=tuple(_known_hosts(options)),
            jumps=jumps,
            by_address=not (jumps or by_command or options.get("CanonicalizeHostname")),
            by_command=by_command,
            picks_host_key_algorithms=bool(options.get("HostKeyAlgorithms")),
        )

    @property
    def address(self) -> str:
        """For people: user@host:port."""
        return f"{self.user}@{self.place}"

    @property
    def place(self) -> str:
        """For people: host:port."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_jumps(text: str) -> tuple[Jump, ...]:
    """The entries of a ProxyJump, in the order in which they are passed. Raises ValueError."""
    return tuple(_jump(item.strip()) for item in text.split(",") if item.strip())


def expand(path: str) -> Path:
    """A path of ~/.ssh/config: `~`, `%d` and ${VARIABLE} are what they are for ssh."""
    return Path(os.path.expandvars(path.replace("%d", "~", 1) if path.startswith("%d") else path)).expanduser()


def shortened(path: Path) -> str:
    """A path for people: below the home directory it begins with ~."""
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _jump(item: str) -> Jump:
    match = _JUMP.fullmatch(item)
    if match is None:
        raise ValueError(f"ProxyJump {item!r} is not of the form [user@]host[:port]")
    port = match["port"]
    return Jump(match["v6"] or match["host"], match["user"], int(port) if port else None)


def _agent(option: object) -> tuple[str, str]:
    if option is None:
        return "", "IdentityAgent none"
    if str(option).removeprefix("$") != _AGENT_VARIABLE:
        return str(expand(str(option))), f"{option} (IdentityAgent)"
    path = os.environ.get(_AGENT_VARIABLE, "")
    return path, f"${_AGENT_VARIABLE}" if path else f"${_AGENT_VARIABLE} is not set"


def _known_hosts(options: Options) -> Iterator[Path]:
    user = options.get("UserKnownHostsFile")
    if user is None:
        yield from (Path.home() / ".ssh" / name for name in ("known_hosts", "known_hosts2"))
    else:
        yield from (expand(item) for item in _texts(user))
    system = options.get("GlobalKnownHostsFile")
    yield from _SYSTEM_KNOWN_HOSTS if system is None else (expand(item) for item in _texts(system))


def _text(value: object) -> str | None:
    return str(value) if value else None


def _texts(value: Any) -> Sequence[str]:
    return [str(item) for item in value] if isinstance(value, (list, tuple)) else []
