"""Who uses the machines: a home with SSH keys and known hosts, for the manager's process; and the users over there."""

from dataclasses import dataclass
from pathlib import Path

import asyncssh

PASSWORD = "correct horse"
"""The password of every user of every machine."""
PASSWORD_HASH = "$6$machines$8ce/vI5n0f6I0WMFtG7Wzbc.rtRNw00O6mwJSaWmzSvEP3a7zQSsdp.sj4.QsEXtiTENn2X3LZ1YhWWhPFJ1s/"

ADMINISTRATOR = "admin"
_FIRST_UID = 61000


@dataclass(frozen=True)
class User:
    """A user of a machine. Uid 0 is a second name of root."""

    name: str
    uid: int


def make_users(names: tuple[str, ...], *, powerful: bool) -> tuple[User, ...]:
    """The same name is the same uid on every machine. `powerful`: all are root by other names, where no Python is for
    everybody; `ADMINISTRATOR` always is, and may use the Python that runs the tests, with its packages."""

    def choose_uid(name: str) -> int:
        return 0 if powerful or name == ADMINISTRATOR else _FIRST_UID + sum(name.encode())

    return tuple(User(name, choose_uid(name)) for name in names)


class Person:
    """The home of whoever runs the manager: `environment` makes it theirs."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._folder = home / ".ssh"
        self._folder.mkdir(mode=0o700, parents=True)
        self.key_file, self.public_key = self.make_key("id_ed25519")
        self._known: dict[str, str] = {}

    @property
    def environment(self) -> dict[str, str]:
        """For the manager's process: this home, and no SSH agent."""
        return {"HOME": str(self.home), "SSH_AUTH_SOCK": ""}

    @property
    def known_hosts(self) -> Path:
        """The file."""
        return self._folder / "known_hosts"

    @property
    def config(self) -> Path:
        """The file ~/.ssh/config; there is none at first."""
        return self._folder / "config"

    def make_key(self, name: str, *, passphrase: str | None = None) -> tuple[Path, str]:
        """A new key pair; returns the private file and the text of the public key."""
        key = asyncssh.generate_private_key("ssh-ed25519", comment=name)
        path = self._folder / name
        # each use of a key with the usual 128 rounds costs a processor more than a second
        path.write_bytes(key.export_private_key(passphrase=passphrase, rounds=1, ignore_few_rounds=True))
        path.chmod(0o600)
        public: str = key.export_public_key().decode().strip()
        path.with_suffix(".pub").write_text(f"{public}\n")
        return path, public

    def know(self, machine: str, line: str) -> None:
        """Accept a machine's host key."""
        self._known[machine] = line
        self._write()

    def forget(self, machine: str) -> None:
        """As if it had never been seen."""
        self._known.pop(machine)
        self._write()

    def forget_all(self) -> None:
        """No host key was ever seen, and there is no ~/.ssh/config."""
        self._known.clear()
        self._write()
        self.config.unlink(missing_ok=True)

    def _write(self) -> None:
        self.known_hosts.write_text("".join(f"{line}\n" for line in self._known.values()))
