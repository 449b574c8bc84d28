"""The sockets of a manager: TCP for people and programs, Unix for keepers, and TLS for keepers that are far away."""

import errno
import os
import shutil
import socket
import ssl
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path

from proctor.manager.process.certificate import open_certificate
from proctor.manager.process.instance import EXIT_USAGE, StartError
from proctor.manager.security import is_loopback
from proctor.manager.settings import DEFAULT_PORT, ENV_ALLOW_REMOTE, ENV_KEEPER_URL, Home, ListenAddress, WebSettings
from proctor.sdk.files import remove_file, replace_file
from proctor.trial_keeper.uplink.pointer import ManagerEndpoint, parse_endpoint, write_pointer

BACKLOG = 512
PORTS_TO_TRY = 100
LONGEST_UNIX_PATH = 100  # the kernel's limit is 107 bytes; a keeper may see the home under a longer name
_TEMPORARY = Path("/tmp")
_TEMPORARY_PREFIX = "proctor-"
_PORTS = range(1, 65536)


class NotLoopback(StartError):
    """The address could be reached from other machines, which was not allowed."""

    exit_code = EXIT_USAGE


class PortInUse(StartError):
    """Something else listens on the port."""


def listen_tcp(web: WebSettings, *, last_port: int | None = None) -> socket.socket:
    """A listening socket as the settings want it; where they leave the port open, `last_port` is tried first, so that
    open pages find a manager again that was started again. Raises StartError."""
    if not is_loopback(web.host) and not web.allow_remote:
        raise NotLoopback(
            f"other machines could reach the manager at --host {web.host}; say --allow-remote (or "
            f"{ENV_ALLOW_REMOTE}=1) if that is what you want (then use a reverse proxy with TLS, the token would "
            "travel unencrypted), or use 127.0.0.1"
        )
    if web.port is not None:
        return _listen(web.host, web.port)
    usual = range(DEFAULT_PORT, DEFAULT_PORT + PORTS_TO_TRY)
    for port in usual if last_port is None else (last_port, *usual):
        try:
            return _listen(web.host, port)
        except PortInUse:
            continue
        except StartError:
            if port != last_port:  # that may be half a number, and a port that only root may use
                raise
    return _listen(web.host, 0)


def read_last_port(home: Home) -> int | None:
    """The port that the home's last manager had; None when there is no telling."""
    try:
        port = int(home.port_file.read_text())
    except (OSError, ValueError):
        return None
    return port if port in _PORTS else None


def _listen(host: str, port: int, *, option: str = "") -> socket.socket:
    """Raises StartError.

    :param option: the one that names host and port together; "": --host and --port.
    """
    host_option = option or "--host"
    try:
        name = host.encode() if host.isascii() else host  # as text it would load Python's tables for other alphabets
        family, _, _, _, address = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        raise StartError(f"{host_option} {host}: expected an address or a name of this machine; {error}") from error
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(BACKLOG)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            advice = option or "--port, or leave it out for the next free one"
            raise PortInUse(
                f"port {port} of {host} is in use by another program; choose another one with {advice}"
            ) from error
        raise StartError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    return listener


class KeeperSocket:
    """The Unix socket for keepers, in a folder that only its owner may enter, and the pointer file that names it."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._path: Path | None = None
        self._inode = 0

    def listen(self) -> socket.socket:
        """Listen, and point to it. The caller holds the home's lock: whatever stands in the home where socket and
        pointer go was left by a manager that is gone, or by a power cut, and is replaced. Raises OSError."""
        self._remove_leftovers()
        path = self._home.socket_file
        if len(os.fsencode(path)) > LONGEST_UNIX_PATH:
            path = Path(tempfile.mkdtemp(prefix=_TEMPORARY_PREFIX, dir=_TEMPORARY)) / "manager.sock"
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        path.chmod(0o600)
        self._inode = path.stat().st_ino
        listener.listen(BACKLOG)
        listener.setblocking(False)
        self._path = path
        replace_file(str(self._home.socket_pointer), str(path).encode(), durable=False)
        return listener

    def remove(self) -> None:
        """Take the socket away, unless it is another's: the home may have been renamed meanwhile. The pointer stays,
        keepers wait for the next manager by it."""
        if self._path is not None:
            with suppress(FileNotFoundError):
                if self._path.stat().st_ino == self._inode:
                    _remove_socket(self._path)
            self._path = None

    def _remove_leftovers(self) -> None:
        with suppress(OSError, ValueError):  # a pointer that was cut short leads nowhere
            left = Path(self._home.socket_pointer.read_text(encoding="utf-8"))
            if not _is_listened_on(left):  # the pointer of a copied home names the original's
                _remove_socket(left)
        _remove_whatever_is(self._home.socket_file)
        if not self._home.socket_pointer.is_file():
            _remove_whatever_is(self._home.socket_pointer)


@dataclass(frozen=True)
class KeeperListener:
    """A TCP port for keepers, the certificate that it shows, and the pointer to it in the home."""

    socket: socket.socket
    context: ssl.SSLContext
    endpoint: ManagerEndpoint


def listen_for_keepers(home: Home, address: ListenAddress) -> KeeperListener:
    """Listen there with the home's certificate, and point to it. Raises StartError."""
    context, fingerprint = open_certificate(home, address.host)
    listener = _listen(address.host, address.port, option="--keeper-listen")
    host = socket.gethostname() if _is_any(address.host) else address.host
    endpoint = ManagerEndpoint(host=host, port=listener.getsockname()[1], fingerprint=fingerprint)
    if address.url:
        try:
            given = parse_endpoint(f"{address.url}\nsha256:{fingerprint}", ENV_KEEPER_URL)
        except ValueError as error:
            listener.close()
            raise StartError(str(error)) from error
        endpoint = replace(endpoint, host=given.host, port=given.port)
    write_pointer(home.endpoint_pointer, endpoint)
    return KeeperListener(listener, context, endpoint)


def stop_pointing_to_listener(home: Home) -> None:
    """This manager does not listen for keepers over a network, though an earlier one may have."""
    with suppress(OSError):
        remove_file(str(home.endpoint_pointer))


def _is_any(host: str) -> bool:
    """Whether it stands for all addresses of this machine."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def _is_listened_on(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as attempt:
        attempt.setblocking(False)
        try:
            attempt.connect(str(path))
        except ConnectionRefusedError:
            return False
        except OSError:  # more connections wait than it takes, or it is another user's; or there is none
            return True
    return True


def _remove_socket(path: Path) -> None:
    """Remove a socket, and the temporary folder that was made for it; anything else is left alone."""
    if not path.is_socket():
        return
    path.unlink(missing_ok=True)
    folder = path.parent
    ours = folder.parent == _TEMPORARY and folder.name.startswith(_TEMPORARY_PREFIX)
    if ours and folder.stat().st_uid == os.getuid():
        shutil.rmtree(folder, ignore_errors=True)


def _remove_whatever_is(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def web_url(host: str, port: int, prefix: str) -> str:
    """Under which people on this machine reach the page."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{name}:{port}{prefix}"
