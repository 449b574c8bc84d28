"""Who wants which machine, and how it is reached: an experiment's claim of one machine."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from proctor.training_services.remote.backoff import LONGEST_SECONDS
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

    # A machine that comes back must be found before its trials are given up, so nothing may take long against the time
    # after which they are.

    @property
    def longest_pause_seconds(self) -> float:
        """Between two tries to reach it while trials may still run there."""
        return _bounded(self.node_timeout_seconds / 20, 1.0, LONGEST_SECONDS)

    @property
    def reach_seconds(self) -> float:
        """How long one try waits for its port to answer."""
        return _bounded(self.node_timeout_seconds / 6, 5.0, 30.0)

    @property
    def probe_seconds(self) -> float:
        """How often a silent connection is tested: as configured, or more often."""
        return min(self.keep_alive_seconds, max(self.node_timeout_seconds / 10, 1.0))

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


def _bounded(seconds: float, least: float, most: float) -> float:
    return max(least, min(seconds, most))


def _read_secrets(path: Path) -> dict[str, str]:
    """Nothing where the experiment is gone: what it kept secret went with it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): str(secret) for name, secret in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}
