"""Why a machine cannot be used. The text of each is a clause for people: it stands after "node gpu-3 is failed: ".

RemoteError
├── Unreachable        no answer from its SSH server: name, network, port, time
├── HostKeyRefused     its host key is unknown or has changed; carries the known_hosts line that would add it
├── LoginRefused       it answers and refuses the login; names what was tried
├── KeyUnusable        a private key cannot be read: missing, no passphrase, wrong passphrase
├── ConnectionEnded    the connection broke; whatever was under way is unknown
├── CommandFailed      a command on the machine failed; carries its exit code and the end of its stderr
│   └── SessionRefused its SSH server opens no further session (MaxSessions)
├── ForwardingRefused  its SSH server forbids socket forwarding (the relay is used then)
├── NoPython           no Python ≥ 3.10 was found there
├── NoRoom             its disk is full, or the quota is
├── WrongClock         its clock is far from ours
└── NotWritable        the home directory there cannot be written, or SFTP is switched off
"""

from proctor.training_services.errors import TrainingServiceError


class RemoteError(TrainingServiceError):
    """A machine cannot be used."""


class Unreachable(RemoteError):
    """The machine's SSH server does not answer."""


class HostKeyRefused(RemoteError):
    """The machine's host key is not known. `line`: what would have to stand in known_hosts."""

    def __init__(self, text: str, line: str = "") -> None:
        super().__init__(text)
        self.line = line


class LoginRefused(RemoteError):
    """The machine refuses the login."""


class KeyUnusable(RemoteError):
    """A private key cannot be used."""


class ConnectionEnded(RemoteError):
    """The connection to the machine has ended."""


class CommandFailed(RemoteError):
    """A command on the machine has failed."""

    def __init__(self, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.code = code


class SessionRefused(CommandFailed):
    """The machine's SSH server opens no further session."""


class ForwardingRefused(RemoteError):
    """The machine's SSH server does not forward sockets."""


class NoPython(RemoteError):
    """The machine has no Python that a keeper can run on."""


class NoRoom(RemoteError):
    """The machine's disk is full."""


class WrongClock(RemoteError):
    """The machine's clock is wrong."""


class NotWritable(RemoteError):
    """The machine's home directory cannot be written."""
