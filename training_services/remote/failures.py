"""Why an SSH server cannot be reached, in words."""

import errno
import os
import socket
from typing import TYPE_CHECKING

from proctor.training_services.remote.errors import RemoteError, Unreachable
from proctor.training_services.remote.ssh_config import Hop

if TYPE_CHECKING:
    from proctor.training_services.remote.login_client import LoginClient

_LOST = "Connection lost"  # what the library says of a connection that ended without a word
_ADVICE = {
    errno.ECONNREFUSED: "check the port and that sshd runs there",
    errno.EHOSTUNREACH: "check the network, or that the machine is on",
    errno.ENETUNREACH: "check the network of the manager's machine",
}


def unknown_name(hop: Hop, error: socket.gaierror) -> Unreachable:
    """The name stands for no address."""
    said = error.strerror or "no address"
    return Unreachable(f"the name {hop.host} is not known here ({said}); correct host, or HostName in ~/.ssh/config")


def no_answer(hop: Hop, error: OSError) -> Unreachable:
    """No connection to the port."""
    advice = _ADVICE.get(error.errno or 0, "check host, port and network")
    said = os.strerror(error.errno) if error.errno else str(error) or type(error).__name__
    return Unreachable(f"its SSH server at {hop.place} does not answer ({said.lower()}); {advice}")


def timed_out(hop: Hop, seconds: float, *, connected: bool) -> Unreachable:
    """Nothing came in time."""
    if connected:
        return Unreachable(
            f"its SSH server at {hop.place} takes connections but the login did not end within {seconds:g} s; "
            "it is overloaded or hangs"
        )
    return Unreachable(
        f"its SSH server at {hop.place} does not answer (timed out after {seconds:g} s); check host, port and firewall"
    )


class HungUp(Unreachable):
    """The server ended the connection before it said who it is. A further try may help."""


def login_failed(hop: Hop, error: Exception, client: "LoginClient") -> RemoteError:
    """Connecting or logging in has failed with an error of the SSH library or of the system."""
    said = (str(getattr(error, "reason", "")) or str(error) or type(error).__name__).rstrip(".")
    lost = isinstance(error, OSError) or said == _LOST
    if isinstance(error, OSError) and not client.connected:
        return no_answer(hop, error)
    if not client.greeting and hop.by_command:
        return Unreachable(f"the ProxyCommand for {hop.place} ended before an SSH server answered; try it by hand")
    if not client.greeting:
        return hung_up(hop) if lost else broken_off(hop, said)
    if client.attempt.reached and not lost:
        return client.attempt.refusal(said)
    return broken_off(hop, said)


def hung_up(hop: Hop) -> HungUp:
    """The server ended the connection before it said who it is."""
    return HungUp(
        f"its SSH server at {hop.place} hangs up at once; it lets in no more logins at a time (MaxStartups), bars this "
        "address, or is no SSH server"
    )


def broken_off(hop: Hop, said: str) -> Unreachable:
    """The server ended the connection during the handshake or the login."""
    return Unreachable(f"its SSH server at {hop.place} broke off the login ({said})")


def no_passage(hop: Hop, said: str) -> Unreachable:
    """A jump host cannot get there."""
    return Unreachable(f"its SSH server at {hop.place} cannot be reached from its jump host ({said})")


def at_jump(hop: Hop, error: RemoteError) -> RemoteError:
    """The same failure, told of a jump host."""
    error.args = (f"at its jump host {hop.address}: {error}",)
    return error


def end_clause(error: Exception | None, *, keep_alive_seconds: float) -> str:
    """Why a connection that stood has ended."""
    if error is None:
        return "the connection was closed"
    said = str(error)
    if "keepalive" in said.lower():
        return f"nothing was heard from it for {3 * keep_alive_seconds:g} s"
    if said == _LOST:
        return "its SSH server hung up"
    if isinstance(error, OSError):
        return f"the connection broke ({said or type(error).__name__})"
    return f"its SSH server ended the connection ({said})"
