"""Who wants which machine, and how it is reached: an experiment's claim of one machine."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from proctor.training_services.remote.settings import Login, MachineSettings, RemoteSettings, read_logins

__all__ = ["Claim", "read_claims"]


@dataclass(frozen=True)
class Claim:
    """One experiment's entry for one machine, with everything that it takes to get in.

    The login is never written down; `secrets_file` and `index` say where it can be found again while the experiment
    exists.
    """

    experiment_id: str
    machine: MachineSettings
    login: Login
    node_timeout_seconds: float
    keep_alive_seconds: float
    secrets_file: str
    index: int

    @property
    def experiment_directory(self) -> Path:
        """The experiment's folder here, for as long as the experiment exists."""
        return Path(self.secrets_file).parent

    def to_json(self) -> dict[str, Any]:
        """As a JSON object without its login."""
        body = asdict(self)
        del body["login"]
        return body

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> "Claim":
        """The inverse of `to_json`; the login is read from the experiment's secrets, if they are still there."""
        index, secrets_file = int(body["index"]), str(body["secrets_file"])
        login = read_logins(_read_secrets(Path(secrets_file)), index + 1)[index]
        return cls(**{**body, "machine": MachineSettings.read(body["machine"]), "login": login})


def read_claims(
    experiment_id: str, settings: Mapping[str, Any], secrets: Mapping[str, str], *, secrets_file: str
) -> tuple[Claim, ...]:
    """The claims of an experiment, one for each of its machines, in their order."""
    section = RemoteSettings.read(settings)
    logins: Sequence[Login] = read_logins(secrets, len(section.machines))
    return tuple(
        Claim(
            experiment_id,
            machine,
            login,
            section.node_timeout_seconds,
            section.keep_alive_seconds,
            secrets_file,
            index,
        )
        for index, (machine, login) in enumerate(zip(section.machines, logins, strict=True))
    )


def _read_secrets(path: Path) -> dict[str, str]:
    """Nothing where the experiment is gone: what it kept secret went with it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): str(secret) for name, secret in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}
