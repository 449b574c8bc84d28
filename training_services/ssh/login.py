"""One login to one SSH server: what ~/.ssh/config says about it, the keys to offer, and what the server said.

asyncssh reads the configuration, the key files and the agent's answers, and its defaults hold. Keys are handed to it
one after the other, so that a message can say what was tried. $HOME of the manager's process is what counts for every
`~`.
"""

import asyncio
import errno
import os
import re
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncssh

from proctor.training_services.ssh.errors import HostKeyRefused, KeyUnusable, LoginRefused, RemoteError, Unreachable
from proctor.training_services.ssh.host_keys import KnownHost, shortened
from proctor.training_services.ssh.settings import MachineSettings

_JUMP = re.compile(r"(?:ssh://)?(?:(?P<user>.+)@)?(?:\[(?P<v6>[^]]+)]|(?P<host>[^:@\[\]]+))(?::(?P<port>\d+))?/?")
_KNOWN_HOSTS = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_SYSTEM_KNOWN_HOSTS = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
_KEY_FILES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_HOST_KEY_ALGORITHMS = (
    "ssh-ed25519,ecdsa-sha2-nistp256,ecdsa-sha2-nistp384,ecdsa-sha2-nistp521,rsa-sha2-512,rsa-sha2-256"
)
_AGENT = "the SSH agent"
_AGENT_VARIABLE = "SSH_AUTH_SOCK"
_AGENT_SECONDS = 10.0
_MOST_KEYS_BESIDE_A_PASSWORD = 3  # sshd ends the connection at the sixth attempt (MaxAuthTries)
_LOCKED = "Passphrase"  # how the library begins what it says of a locked key file
_LOST = "Connection lost"  # what it says of a connection that ended without a reason
_ADVICE = {
    errno.ECONNREFUSED: "check the port and that sshd runs there",
    errno.EHOSTUNREACH: "check the network, or that the machine is on",
    errno.ENETUNREACH: "check the network of the manager's machine",
}


@dataclass(frozen=True)
class Limits:
    """How patient a connection is."""

    keep_alive_seconds: float
    reach_seconds: float
    """Until a port answers."""
    timeout_seconds: float
    """Until a server has accepted the login, that included."""


class Hop:
    """One SSH server on the way, as ~/.ssh/config describes it."""

    def __init__(self, name: str, options: Any) -> None:
        """Raises ValueError for an invalid ProxyJump.

        :param name: as the user wrote it.
        :param options: the library's, for this name.
        """
        self.name = name
        self.config = options.config
        self.host, self.port, self.user = options.host, options.port, options.username
        self.place = f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"
        """For people: host:port."""
        self.address = f"{self.user}@{self.place}"
        self.jumps = [_jump(item.strip()) for item in (options.tunnel or "").split(",") if item.strip()]
        """Those of ProxyJump, in the order in which they are passed."""
        self.by_command = bool(options.proxy_command) and not self.jumps
        """Whether a ProxyCommand makes the connection."""
        self.by_address = not (self.jumps or self.by_command or options.canonicalize_hostname)
        """Whether its name is looked up here."""

    @classmethod
    async def read(cls, machine: MachineSettings) -> "Hop":
        """Ask ~/.ssh/config. Raises Unreachable where that is invalid."""
        address = {"host": machine.host, "port": machine.port or (), "username": machine.user or ()}
        try:
            # config=(): the user's; without, none is read
            options = await asyncssh.SSHClientConnectionOptions.construct(config=(), **address, client_keys=None)
            return cls(machine.host, options)
        except (ValueError, OSError) as error:
            raise Unreachable(f"~/.ssh/config cannot be used for {machine.host}: {error}; correct it") from error

    @property
    def known_names(self) -> tuple[str, ...]:
        """What known_hosts calls it: HostKeyAlias, else its address, with the port first."""
        if alias := self.config.get("HostKeyAlias"):
            return (alias.lower(),)
        host = self.host.lower()
        return (host,) if self.port == 22 else (f"[{host}]:{self.port}", host)

    @property
    def known_hosts(self) -> list[Path]:
        """The known_hosts files, the user's first."""
        files = self.config.get("UserKnownHostsFile", _KNOWN_HOSTS)
        every = (*files, *self.config.get("GlobalKnownHostsFile", _SYSTEM_KNOWN_HOSTS))
        return [_path(item) for item in every if item.lower() != "none"]

    @property
    def key_files(self) -> list[Path]:
        """Where private keys for it may be."""
        return [_path(item) for item in self.config.get("IdentityFile") or _KEY_FILES]

    @property
    def agent(self) -> tuple[str, str]:
        """The path of the agent's socket, empty if there is none; and where it comes from, for people."""
        named = self.config.get("IdentityAgent", _AGENT_VARIABLE)
        if named is None:
            return "", "IdentityAgent none"
        if named.removeprefix("$") != _AGENT_VARIABLE:
            return str(_path(named)), f"{named} (IdentityAgent)"
        path = os.environ.get(_AGENT_VARIABLE, "")
        return path, f"${_AGENT_VARIABLE}" if path else f"${_AGENT_VARIABLE} is not set"


class Keys:
    """The keys to offer to one server. Those of the agent can be used until the stack is closed."""

    def __init__(self, hop: Hop, stack: AsyncExitStack) -> None:
        self.offers: list[tuple[str, Any]] = []
        """Each with where it comes from, for people."""
        self.notes: list[str] = []
        """Clauses about what was to be offered and could not be."""
        self._hop = hop
        self._stack = stack

    async def add_named(self, path: Path, passphrase: str | None) -> None:
        """The key that sshKeyFile names, from the agent where the file is locked. Raises KeyUnusable."""
        try:
            await self._load(path, passphrase)
        except (OSError, ValueError) as error:
            if str(error).startswith(_LOCKED):
                public = await asyncio.to_thread(_public_half, path)
                self.offers = [(_AGENT, key) for key in await self._of_agent() if key.public_data == public]
            if not self.offers:
                raise KeyUnusable(_problem(shortened(path), error)[1]) from error

    async def add_all(self, passphrase: str | None) -> None:
        """As ssh does it: the agent's keys, those that IdentityFile names first (with IdentitiesOnly no others), then
        the files of IdentityFile or the default ones."""
        held = await self._of_agent()
        named = [await asyncio.to_thread(_public_half, path) for path in self._hop.key_files]
        chosen = [key for public in named for key in held if key.public_data == public]
        if not self._hop.config.get("IdentitiesOnly"):
            chosen += [key for key in held if key.public_data not in named]
        self.offers = [(_AGENT, key) for key in chosen]
        for path in self._hop.key_files:
            try:
                await self._load(path, passphrase)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                self.notes.append(_problem(shortened(path), error)[0])

    async def _load(self, path: Path, passphrase: str | None) -> None:
        pairs = await asyncio.to_thread(asyncssh.load_keypairs, str(path), passphrase)
        self.offers += [(shortened(path), pair) for pair in pairs]

    async def _of_agent(self) -> list[Any]:
        path, source = self._hop.agent
        if not path:
            return []
        try:
            async with asyncio.timeout(_AGENT_SECONDS):
                agent = await self._stack.enter_async_context(await asyncssh.connect_agent(path))
                return list(await agent.get_keys())
        except (OSError, ValueError):  # a TimeoutError is an OSError
            self.notes.append(f"the SSH agent at {source} no longer responds")
            return []


class HungUp(Unreachable):
    """The server ended the connection before it said who it is. A further try may help."""


class LoginClient(asyncssh.SSHClient):  # type: ignore[misc]
    """One try to log in to one server, as the library's callbacks. Holds secrets; never printed."""

    def __init__(self, hop: Hop, keys: Keys, password: str | None, known: KnownHost, *, trust: bool) -> None:
        """:param trust: accept the first key of a host of which nothing is known."""
        self.ended = asyncio.Event()
        self.why = "the connection was closed"
        self._hop, self._keys, self._known = hop, keys, known
        self._password = password
        self._left = keys.offers[: None if password is None else _MOST_KEYS_BESIDE_A_PASSWORD]
        self._tried: list[str] = []
        self._gave: set[str] = set()  # the ways in which the password was asked for
        self._answers = password is not None  # a server that asks no question is not asked for one again
        self._trust = trust and known.is_new
        self._unknown: Any = None  # the host key, where it is none of the known ones
        self._reached = False  # the host key is accepted, and the login has begun
        self._ssh: Any = None

    async def open(self, tunnel: Any | None, limits: Limits) -> Any:
        """The connection, logged in. Raises HungUp, Unreachable, HostKeyRefused, LoginRefused."""
        # all kinds, to be able to say what it shows; those that are known first
        algorithms = f"+{_HOST_KEY_ALGORITHMS}" if any(self._known.trusted) else _HOST_KEY_ALGORITHMS
        began = asyncio.get_running_loop().time()
        self._limits, self._until = limits, began + limits.timeout_seconds
        try:
            async with asyncio.timeout_at(min(began + limits.reach_seconds, self._until)) as self._patience:
                return await asyncssh.connect(
                    self._hop.name,
                    self._hop.port,
                    username=self._hop.user,
                    tunnel=tunnel,
                    client_factory=lambda: self,
                    client_keys=None,  # handed out one by one
                    known_hosts=self._known.trusted,
                    server_host_key_algs=() if self._hop.config.get("HostKeyAlgorithms") else algorithms,
                    keepalive_interval=limits.keep_alive_seconds,
                    keepalive_count_max=3,
                    connect_timeout=None,
                    login_timeout=0,
                    command=None,
                    request_pty=False,
                    agent_forwarding=False,
                    x11_forwarding=False,
                )
        except (asyncssh.Error, OSError, ValueError) as error:
            raise self._failure(error) from error

    # ---- what was said, for people

    @property
    def greeting(self) -> str:
        """How the server introduced itself; empty: not yet."""
        return str(self._ssh.get_extra_info("server_version", "")) if self._ssh is not None else ""

    @property
    def port(self) -> str:
        """That the port answers; empty: it does not."""
        said = f" ({self.greeting})" if self.greeting else ""
        return f"{self._hop.place} answers{said}" if self._ssh is not None else ""

    @property
    def host_key(self) -> str:
        """The host key that was accepted; empty: none."""
        key = self._ssh.get_server_host_key() if self._reached else None
        remembered = ", remembered" if self.new_line else ""
        return f"{key.get_algorithm()} {key.get_fingerprint()}{remembered}" if key is not None else ""

    @property
    def new_line(self) -> str:
        """The known_hosts line of a host key that was accepted though it was not known; empty: there is none."""
        return self._known.line(self._unknown) if self._reached and self._unknown is not None else ""

    @property
    def success(self) -> str:
        """How it got in."""
        way = "the password" if self._gave else self._tried[-1] if self._tried else "no authentication"
        return f"as {self._hop.user} with {f'a key of {_AGENT}' if way == _AGENT else way}"

    def _failure(self, error: Exception) -> RemoteError:
        place = self._hop.place
        said = (str(getattr(error, "reason", "")) or str(error) or type(error).__name__).rstrip(".")
        lost = isinstance(error, OSError) or said == _LOST
        if isinstance(error, TimeoutError) and self._patience.expired():
            return self._too_late()
        if isinstance(error, asyncssh.HostKeyNotVerifiable):
            if self._unknown is None:
                return HostKeyRefused(f"its host key was refused ({said}); see {self._known.file or 'known_hosts'}")
            return self._known.refusal(place, self._unknown)
        if isinstance(error, asyncssh.PermissionDenied):
            return self._refused("")
        if isinstance(error, asyncssh.ChannelOpenError):
            return Unreachable(f"its SSH server at {place} cannot be reached from its jump host ({said})")
        if isinstance(error, OSError) and self._ssh is None:
            said = os.strerror(error.errno).lower() if error.errno else said
            advice = _ADVICE.get(error.errno or 0, "check host, port and network")
            return Unreachable(f"its SSH server at {place} does not answer ({said}); {advice}")
        if not self.greeting and self._hop.by_command:
            return Unreachable(f"the ProxyCommand for {place} ended before an SSH server answered; try it by hand")
        if not self.greeting and lost:
            return HungUp(
                f"its SSH server at {place} closes the connection at once; it allows no more logins at a time "
                "(MaxStartups), blocks this address, or is not an SSH server"
            )
        if self._reached and not lost:
            return self._refused(f" ({said})")
        return Unreachable(f"its SSH server at {place} ended the login ({said})")

    def _too_late(self) -> Unreachable:
        if self._ssh is not None:
            return Unreachable(
                f"its SSH server at {self._hop.place} accepts connections but the login was not complete within "
                f"{self._limits.timeout_seconds:g} s; it is overloaded or hangs"
            )
        seconds = min(self._limits.reach_seconds, self._limits.timeout_seconds)
        return Unreachable(
            f"its SSH server at {self._hop.place} does not answer (timed out after {seconds:g} s); check host, port "
            "and firewall"
        )

    def _refused(self, said: str) -> LoginRefused:
        head = f"login as {self._hop.user} was refused{said}"
        if not self._tried and self._password is None:
            path, source = self._hop.agent
            missing = [*self._keys.notes, "no key file can be used"]
            if not path:
                missing.insert(0, f"no SSH agent is known to the manager ({source})")
            if self._left:
                missing = ["its SSH server did not ask for a key"]
            return LoginRefused(
                f"{head}; {' and '.join(missing)}; start the SSH agent, name sshKeyFile or give a password"
            )
        number = self._tried.count(_AGENT)
        tried = [f"{_AGENT} ({number} {'key' if number == 1 else 'keys'})"] if number else []
        tried += dict.fromkeys(label for label in self._tried if label != _AGENT)
        advice = "give a password or another sshKeyFile, or correct the user"
        clauses = list(self._keys.notes)
        if self._gave:
            tried.append("the password")
            advice = "correct the password or the user"
        elif self._password is not None:
            clauses.append("its SSH server did not ask for the password")
        return LoginRefused("; ".join([head, f"tried {' and '.join(tried) or 'nothing'}", *clauses, advice]))

    # ---- the library's callbacks

    def connection_made(self, conn: Any) -> None:
        """The port answers."""
        self._ssh = conn
        if not self._patience.expired():  # it may just have been
            self._patience.reschedule(self._until)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        said = str(exc or "")
        if "keepalive" in said.lower():
            self.why = f"it has not answered for {3 * self._limits.keep_alive_seconds:g} s"
        elif said == _LOST:
            self.why = "its SSH server closed the connection"
        elif isinstance(exc, OSError):
            self.why = f"the connection broke ({said or type(exc).__name__})"
        elif exc is not None:
            self.why = f"its SSH server ended the connection ({said})"
        self.ended.set()

    def validate_host_public_key(self, host: str, addr: str, port: int, key: Any) -> bool:
        """The host's key is none of the known ones."""
        self._unknown = key
        return self._trust

    def validate_host_ca_key(self, host: str, addr: str, port: int, key: Any) -> bool:
        """The host's certificate is signed by no known authority."""
        return False

    def begin_auth(self, username: str) -> None:
        """The host key is accepted; now it wants to know who we are."""
        self._reached = True

    def public_key_auth_requested(self) -> Any | None:
        """The next key; None: no more."""
        if not self._left:
            return None
        label, key = self._left.pop(0)
        self._tried.append(label)
        return key

    def password_auth_requested(self) -> str | None:
        """The password, once."""
        return self._give("password")

    def kbdint_auth_requested(self) -> str | None:
        """Whether to be asked questions, once."""
        answers, self._answers = self._answers, False
        return "" if answers else None

    def kbdint_challenge_received(self, name: str, instructions: str, lang: str, prompts: Any) -> list[str] | None:
        """Questions; one that is not shown while it is typed is taken for the password's, in whatever language."""
        if not prompts:
            return []  # only a message
        password = self._give("questions") if len(prompts) == 1 and not prompts[0][1] else None
        return None if password is None else [password]

    def _give(self, way: str) -> str | None:
        if self._password is None or way in self._gave:
            return None
        self._gave.add(way)
        return self._password


def _jump(item: str) -> MachineSettings:
    match = _JUMP.fullmatch(item)
    if match is None:
        raise ValueError(f"ProxyJump {item!r} is not of the form [user@]host[:port]")
    port = int(match["port"]) if match["port"] else None
    return MachineSettings(match["v6"] or match["host"], port=port, user=match["user"])


def _path(text: str) -> Path:
    return Path(os.path.expandvars(text.replace("%d", "~", 1))).expanduser()


def _public_half(path: Path) -> bytes | None:
    """The public half of a private key, where it can be read without a passphrase."""
    for name in (f"{path}.pub", str(path)):
        try:
            return bytes(asyncssh.read_public_key(name).public_data)
        except (OSError, ValueError):
            continue
    return None


def _problem(label: str, error: Exception) -> tuple[str, str]:
    """Why a key file cannot be used: a note about one of several, and the sentence about the one of sshKeyFile."""
    if isinstance(error, FileNotFoundError):
        return "", f"its key {label} does not exist on the manager's machine; correct sshKeyFile"
    if isinstance(error, OSError):
        note = f"{label} cannot be read: {error.strerror or error}"
        return note, f"its key {note}"
    if isinstance(error, asyncssh.KeyEncryptionError):
        sentence = f"the passphrase given does not open its key {label}; correct sshPassphrase"
        return f"{label} has another passphrase", sentence
    if str(error).startswith(_LOCKED):
        ways = "give sshPassphrase, sshPassphraseEnv or sshPassphrasePrompt, or load the key into the SSH agent"
        return f"{label} needs a passphrase", f"its key {label} is protected by a passphrase; {ways}"
    sentence = f"its key {label} is not a usable private key ({error}); name another sshKeyFile"
    return f"{label} is unusable ({error})", sentence
