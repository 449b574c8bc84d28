"""Where everything of a manager is, how it may be reached, and the one place that reads the environment.

Only little is imported, so that the CLI can ask for a path without waiting for the web framework.
"""

import math
import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from proctor.sdk.files import make_folder, replace_file, require_room

ENV_HOME = "PROCTOR_HOME"
ENV_HOST = "PROCTOR_HOST"
ENV_PORT = "PROCTOR_PORT"
ENV_ALLOW_REMOTE = "PROCTOR_ALLOW_REMOTE"
ENV_ALLOWED_HOSTS = "PROCTOR_ALLOWED_HOSTS"
ENV_URL_PREFIX = "PROCTOR_URL_PREFIX"
ENV_KEEPER_LISTEN = "PROCTOR_KEEPER_LISTEN"
ENV_KEEPER_URL = "PROCTOR_KEEPER_URL"
ENV_TOKEN_FILE = "PROCTOR_TOKEN_FILE"
ENV_READONLY_TOKEN_FILE = "PROCTOR_READONLY_TOKEN_FILE"
ENV_LOG_FORMAT = "PROCTOR_LOG_FORMAT"
ENV_LOG_LEVEL = "PROCTOR_LOG_LEVEL"
ENV_DISPATCHER_PATIENCE = "PROCTOR_DISPATCHER_PATIENCE_SECONDS"
ENV_KEEPER_HEARTBEAT = "PROCTOR_KEEPER_HEARTBEAT_SECONDS"

DEFAULT_HOST = "127.0.0.1"
_KEY_BYTES = 32
DEFAULT_PORT = 8080
_SWITCHES = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False, "": False}
LEAST_PATIENCE_SECONDS = 3.0
"""Twelve looks at a dispatcher, none more often than four times a second."""
HEARTBEAT_SECONDS = 5.0
"""The default and the maximum: a configuration may rely on three heartbeats of this length."""
LEAST_HEARTBEAT_SECONDS = 0.1

START_BYTES = 256 * 1024
"""What a start writes at most before its database says by itself what is wrong."""
CONFIG_FILE = "config.json"
"""In the folder of an experiment, as are the next ones: its configuration."""
ENVIRONMENT_FILE = "environment.json"
METRICS_FILE = "metrics.db"
UNFINISHED_FILE = "unfinished"
"""Marks the folder of an experiment whose rows are not written yet."""


@dataclass(frozen=True)
class Home:
    """The folder that holds all of a manager's state. Every path in it is absolute."""

    path: Path

    @classmethod
    def find(cls, path: str | os.PathLike[str] | None = None, environment: Mapping[str, str] = os.environ) -> "Home":
        """The home named by `path`, else by PROCTOR_HOME, else the platform's state directory for proctor."""
        chosen = path or environment.get(ENV_HOME)
        if not chosen:
            import platformdirs

            chosen = platformdirs.user_state_dir("proctor")
        return cls(Path(chosen).expanduser().absolute())

    @property
    def control_database(self) -> Path:
        """Experiments, trials, jobs and events of everything."""
        return self.path / "control.db"

    @property
    def control_witness(self) -> Path:
        """Says which control database was used here last, and how far it had come."""
        return self.path / "control.witness"

    @property
    def lock_file(self) -> Path:
        """Held with flock by the one manager of this home."""
        return self.path / "manager.lock"

    @property
    def manager_file(self) -> Path:
        """Says where the running manager is reached; there only while it is up."""
        return self.path / "manager.json"

    @property
    def token_file(self) -> Path:
        """The token that may do everything (0600)."""
        return self.path / "token"

    @property
    def readonly_token_file(self) -> Path:
        """The token that may only look (0600)."""
        return self.path / "readonly.token"

    @property
    def named_tokens_file(self) -> Path:
        """Hashes of the named tokens (0600)."""
        return self.path / "named-tokens.json"

    @property
    def run_directory(self) -> Path:
        """Sockets and their pointer (0700)."""
        return self.path / "run"

    @property
    def socket_pointer(self) -> Path:
        """A file that holds the path of the Unix socket that keepers connect to."""
        return self.run_directory / "socket"

    @property
    def socket_file(self) -> Path:
        """The Unix socket itself, where its path is short enough for the kernel."""
        return self.run_directory / "manager.sock"

    @property
    def endpoint_pointer(self) -> Path:
        """A file that says under which URL, and with which certificate, keepers reach this manager over a network; not
        there if the home's last manager did not listen for them."""
        return self.run_directory / "endpoint"

    @property
    def keeper_certificate(self) -> Path:
        """The certificate that keepers pin, and its key (0600)."""
        return self.path / "keepers.pem"

    @property
    def port_file(self) -> Path:
        """The TCP port that the last manager had."""
        return self.run_directory / "port"

    @property
    def log_directory(self) -> Path:
        """The manager's logs."""
        return self.path / "log"

    @property
    def manager_log(self) -> Path:
        """One line of JSON for every thing the manager says."""
        return self.log_directory / "manager.log"

    @property
    def manager_output(self) -> Path:
        """What a manager in the background wrote to stdout and stderr."""
        return self.log_directory / "manager.out"

    @property
    def incoming_directory(self) -> Path:
        """Files that `create` hands over, and that must not travel over REST (0700)."""
        return self.path / "incoming"

    @property
    def nodes_directory(self) -> Path:
        """One folder for every keeper on this machine."""
        return self.path / "nodes"

    def node_directory(self, node_id: str) -> Path:
        """The folder of one keeper."""
        return self.nodes_directory / node_id

    @property
    def experiments_directory(self) -> Path:
        """One folder for every experiment."""
        return self.path / "experiments"

    def experiment_directory(self, experiment_id: str) -> Path:
        """All of one experiment; deleting the experiment is deleting this folder."""
        return self.experiments_directory / experiment_id

    def dispatcher_log(self, experiment_id: str) -> Path:
        """What the experiment's dispatcher, and the user's tuner in it, printed."""
        return self.experiment_directory(experiment_id) / "log" / "dispatcher.log"

    def manager_id(self) -> str:
        """What tells this home's manager from others on the machines it uses: random, made once. Raises OSError."""
        path = self.path / "manager.id"
        with suppress(FileNotFoundError):
            if found := path.read_text(encoding="utf-8", errors="replace").strip():
                return found
        made = os.urandom(4).hex()
        replace_file(str(path), made.encode(), durable=True)
        return made

    def keeper_key(self) -> bytes:
        """What the secrets of the keepers of single jobs are derived from: random, made once (0600). Raises OSError."""
        path = self.path / "keeper.key"
        with suppress(FileNotFoundError):
            if len(found := path.read_bytes()) == _KEY_BYTES:
                return found
        made = os.urandom(_KEY_BYTES)
        replace_file(str(path), made, durable=True)
        return made

    def prepare(self) -> None:
        """Create the folders. Raises OSError where the home cannot be written or lacks room for what a start writes."""
        private = (self.run_directory, self.incoming_directory)
        for directory in (self.path, *private, self.log_directory, self.nodes_directory, self.experiments_directory):
            make_folder(str(directory))
        for directory in private:
            directory.chmod(0o700)
        self.require_room()

    def require_room(self) -> None:
        """Raise OSError where the disk of the home has no room for what a manager writes when it starts."""
        require_room(self.path, START_BYTES)


def open_to_others(path: Path) -> tuple[str, str] | None:
    """Whether every user of the machine may write a folder, or rename it: what was found, and the command that ends
    it."""
    for folder in (path, *path.parents):
        mode = folder.stat().st_mode
        if mode & stat.S_IWOTH and not (mode & stat.S_ISVTX and folder != path):
            what = "may be written" if folder == path else f"may be replaced: its folder {folder} may be written"
            return f"{path} {what} by every user of this machine (mode {stat.S_IMODE(mode):o})", f"chmod o-w {folder}"
    return None


@dataclass(frozen=True)
class WebSettings:
    """How browsers, the CLI and the SDK reach the manager."""

    host: str = DEFAULT_HOST
    """The address to listen on."""
    port: int | None = None
    """The TCP port; None takes 8080 or the next free one, 0 lets the system choose."""
    allow_remote: bool = False
    """Whether `host` may be an address that other machines can reach."""
    allowed_hosts: tuple[str, ...] = ()
    """Host names, beside those of the loopback, under which the manager answers; "*" for any."""
    url_prefix: str = ""
    """The path in front of all URLs behind a reverse proxy: empty, or "/name" without a slash at the end."""
    token_file: str = ""
    """A file, such as one of a mounted Secret, whose token replaces that of the home at the start; "": the home's."""
    readonly_token_file: str = ""
    """The same for the read-only token."""


@dataclass(frozen=True)
class ListenAddress:
    """Where the manager listens for keepers that reach it over a network."""

    host: str
    """An address, or a name of this machine."""
    port: int
    """0 lets the system choose."""
    url: str = ""
    """Under which they reach it, where that is not this machine's name and the port: a Service, a forwarded port."""


@dataclass(frozen=True)
class LogSettings:
    """What the manager says, and how."""

    format: str = "text"
    """On stderr: "text" for people, "json" for machines. The file is always JSON lines."""
    level: str = "INFO"
    """The least level that is written."""


@dataclass(frozen=True)
class DispatcherSettings:
    """How the processes that host tuners, assessors and trial schedulers are treated."""

    patience_seconds: float = 60.0
    """After how long without an answer a suspended or deadlocked one is killed and started again. One that computes has
    30 times as long. Raise it to look at a tuner with a debugger."""


class HomeClaim(StrEnum):
    """What a person says of a home whose manager.lock is another file than its control database knows."""

    MOVED = "moved"  # it takes the place of the one that it was copied from
    COPY = "copy"  # both are used: this one becomes a home of its own


@dataclass(frozen=True)
class ManagerSettings:
    """All that a manager needs to know to start."""

    home: Home
    web: WebSettings = field(default_factory=WebSettings)
    log: LogSettings = field(default_factory=LogSettings)
    dispatchers: DispatcherSettings = field(default_factory=DispatcherSettings)
    heartbeat_seconds: float = HEARTBEAT_SECONDS
    """How often a keeper reports when it has nothing to report. After three missed reports its node is SILENT."""
    keeper_listen: ListenAddress | None = None
    """Where to listen for keepers over TLS; None: only those on this machine, and over SSH, can connect."""
    accept_database: bool = False
    """Whether to begin with the control database that is there, or an empty one, though it is not what the home had."""
    claim: HomeClaim | None = None
    """What a person says of a home that was moved or copied."""


class SettingsError(ValueError):
    """A setting cannot be used; the text names it, what was expected and what was found."""


def read_port(text: str, name: str) -> int | None:
    """A port from text; "auto" and nothing mean None. Raises SettingsError."""
    if text in ("", "auto"):
        return None
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise SettingsError(f"{name}: expected a port from 0 to 65535 or auto, found {text!r}")
    return int(text)


def read_listen_address(text: str, name: str) -> ListenAddress | None:
    """HOST:PORT, with an IPv6 address in brackets; nothing means None. Raises SettingsError."""
    if not text:
        return None
    host, _, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    is_number = port.isascii() and port.isdigit() and int(port) < 65536
    if not host or not is_number or (":" in host and not is_bracketed):
        raise SettingsError(f"{name}: expected HOST:PORT, such as 0.0.0.0:8443 or [::]:8443, found {text!r}")
    return ListenAddress(host.strip("[]"), int(port))


def read_switch(text: str, name: str) -> bool:
    """Whether something is on; nothing means no. Raises SettingsError."""
    word = text.strip().lower()
    if word not in _SWITCHES:
        raise SettingsError(f"{name}: expected yes or no (true or false, 1 or 0), found {text!r}")
    return _SWITCHES[word]


def read_prefix(text: str, name: str) -> str:
    """A URL prefix from text, with one slash in front and none at the end. Raises SettingsError."""
    stripped = text.strip("/")
    if any(not (character.isalnum() or character in "-._~/") for character in stripped):
        raise SettingsError(f"{name}: expected a path such as /proctor, found {text!r}")
    return f"/{stripped}" if stripped else ""


def read_dispatcher_settings(environment: Mapping[str, str] = os.environ) -> DispatcherSettings:
    """What the environment says of dispatchers. Raises SettingsError."""
    text = environment.get(ENV_DISPATCHER_PATIENCE, "")
    if not text:
        return DispatcherSettings()
    seconds = _read_number(text)
    if not LEAST_PATIENCE_SECONDS <= seconds < math.inf:
        wanted = f"a number of seconds, at least {LEAST_PATIENCE_SECONDS:g}"
        raise SettingsError(f"{ENV_DISPATCHER_PATIENCE}: expected {wanted}, found {text!r}")
    return DispatcherSettings(patience_seconds=seconds)


def read_heartbeat(environment: Mapping[str, str] = os.environ) -> float:
    """What the environment says of the heartbeats of keepers, in seconds. Raises SettingsError."""
    text = environment.get(ENV_KEEPER_HEARTBEAT, "")
    seconds = _read_number(text) if text else HEARTBEAT_SECONDS
    if not LEAST_HEARTBEAT_SECONDS <= seconds <= HEARTBEAT_SECONDS:
        wanted = f"a number of seconds from {LEAST_HEARTBEAT_SECONDS:g} to {HEARTBEAT_SECONDS:g}"
        raise SettingsError(f"{ENV_KEEPER_HEARTBEAT}: expected {wanted}, found {text!r}")
    return seconds


def _read_number(text: str) -> float:
    """NaN where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def read_keeper_listen(option: str | None = None, environment: Mapping[str, str] = os.environ) -> ListenAddress | None:
    """Where to listen for keepers: what the option says, else the environment. Raises SettingsError."""
    if option is not None:
        address = read_listen_address(option, "--keeper-listen")
    else:
        address = read_listen_address(environment.get(ENV_KEEPER_LISTEN, ""), ENV_KEEPER_LISTEN)
    url = environment.get(ENV_KEEPER_URL, "")
    if address is None and url:
        raise SettingsError(f"{ENV_KEEPER_URL}: nothing listens there; set {ENV_KEEPER_LISTEN} too")
    return address and replace(address, url=url)


def read_environment(environment: Mapping[str, str] = os.environ) -> tuple[WebSettings, LogSettings]:
    """What the environment says of the web and the log. Raises SettingsError."""
    web = WebSettings(
        host=environment.get(ENV_HOST) or DEFAULT_HOST,
        port=read_port(environment.get(ENV_PORT, ""), ENV_PORT),
        allow_remote=read_switch(environment.get(ENV_ALLOW_REMOTE, ""), ENV_ALLOW_REMOTE),
        allowed_hosts=tuple(environment.get(ENV_ALLOWED_HOSTS, "").replace(",", " ").split()),
        url_prefix=read_prefix(environment.get(ENV_URL_PREFIX, ""), ENV_URL_PREFIX),
        token_file=environment.get(ENV_TOKEN_FILE, ""),
        readonly_token_file=environment.get(ENV_READONLY_TOKEN_FILE, ""),
    )
    log = LogSettings(
        format=environment.get(ENV_LOG_FORMAT) or "text",
        level=(environment.get(ENV_LOG_LEVEL) or "INFO").upper(),
    )
    if log.format not in ("text", "json"):
        raise SettingsError(f"{ENV_LOG_FORMAT}: expected text or json, found {log.format!r}")
    if log.level not in ("DEBUG", "INFO", "WARNING", "ERROR"):
        raise SettingsError(f"{ENV_LOG_LEVEL}: expected DEBUG, INFO, WARNING or ERROR, found {log.level!r}")
    return web, log
