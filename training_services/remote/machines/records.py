"""The manager's record of a machine, in `<home>/nodes/<node id>/`: its address, its claims and the secret of its
keeper.

The record exists from the first claim until everything of this manager was removed from the machine, or until the
machine was released before anything was copied there. So a machine that cannot be reached when it is released is
cleaned later, also after restarts of the manager, and files that were not collected stay there until they are. No
login is ever written here.
"""

import contextlib
import json
import logging
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from proctor.sdk.files import make_folder, replace_file
from proctor.sdk.process_limits import is_short
from proctor.training_services.providers import RECORD_FILE
from proctor.training_services.remote.settings import RemoteSettings, read_logins
from proctor.training_services.ssh.settings import Login, MachineSettings
from proctor.trial_keeper.linux.backoff import LONGEST_SECONDS

__all__ = [
    "KIND",
    "Claim",
    "NodeDirectory",
    "NodeRecord",
    "choose_node_id",
    "keeper_folder",
    "read_claims",
    "read_records",
]

log = logging.getLogger(__name__)

KIND = "remote"
SECRET_FILE = "secret"
NOT_COLLECTED = "the manager ended before they were collected"
_LONGEST_ID = 48
_RESERVED = "local"


@dataclass(frozen=True)
class Claim:
    """One experiment's claim of one machine, with everything that connecting takes.

    The login is never written to disk; `secrets_file` and `index` say where it is while the experiment exists.

    released: the experiment uses the machine no more.
    uncollected: why files of it may still be there though it was stopped, as a clause; "" if none are.
    """

    experiment_id: str
    machine: MachineSettings
    login: Login
    node_timeout_seconds: float
    keep_alive_seconds: float
    secrets_file: str
    index: int
    released: bool = False
    uncollected: str = ""

    # A machine that comes back must be connected before its trials are abandoned: every wait is short compared to
    # `node_timeout_seconds`.

    @property
    def longest_pause_seconds(self) -> float:
        """Between two attempts to connect while trials may still run there."""
        return _bounded(self.node_timeout_seconds / 20, 1.0, LONGEST_SECONDS)

    @property
    def reach_seconds(self) -> float:
        """How long one attempt waits for its port to answer."""
        return _bounded(self.node_timeout_seconds / 6, 5.0, 30.0)

    @property
    def probe_seconds(self) -> float:
        """How often a silent connection is tested: as configured, or more often."""
        return min(self.keep_alive_seconds, max(self.node_timeout_seconds / 10, 1.0))

    @property
    def experiment_directory(self) -> Path:
        """The experiment's folder on this host, while the experiment exists."""
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
    """Empty where the experiment was deleted: its secrets were deleted with it."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {str(name): str(secret) for name, secret in found.items()}
    except (OSError, ValueError, AttributeError):
        return {}


@dataclass(frozen=True)
class NodeRecord:
    """A machine that is claimed, or released and not cleaned.

    claims: of the experiments that use it, of those that have files there, and, until others claim it, of those that
        used it last: any of them says how to connect. The newest is the last.
    installed: whether anything was ever copied there; True is on the disk before the first thing is copied.
    """

    node_id: str
    address: str
    claims: tuple[Claim, ...] = ()
    installed: bool = False

    @property
    def experiments(self) -> tuple[str, ...]:
        """The experiments that use it."""
        return tuple(claim.experiment_id for claim in self.claims if not claim.released)

    @property
    def users(self) -> tuple[Claim, ...]:
        """The claims of those whose jobs may run there."""
        return tuple(claim for claim in self.claims if not claim.released and not claim.uncollected)

    @property
    def uncollected(self) -> tuple[Claim, ...]:
        """The claims of experiments whose files may still be there; of these, one that uses it does so only until they
        are collected."""
        return tuple(claim for claim in self.claims if claim.uncollected)

    def claimed(self, claim: Claim) -> "NodeRecord":
        """An experiment uses it; its earlier claim is replaced."""
        others = [each for each in self.claims if each.experiment_id != claim.experiment_id]
        return replace(self, claims=(*(each for each in others if not each.released or each.uncollected), claim))

    def released(self, *experiments: str, uncollected: str = "") -> "NodeRecord":
        """Experiments use it no more. `uncollected` as in `Claim`."""
        return replace(
            self,
            claims=tuple(
                replace(claim, released=True, uncollected=uncollected) if claim.experiment_id in experiments else claim
                for claim in self.claims
            ),
        )


class NodeDirectory:
    """One machine's folder on this host, made when something is written."""

    def __init__(self, nodes_directory: Path, node_id: str) -> None:
        self.path = nodes_directory / node_id

    def write(self, record: NodeRecord) -> None:
        """Replace the record (0600). Raises OSError."""
        body = {
            "kind": KIND,
            "node_id": record.node_id,
            "address": record.address,
            "entered": record.installed,
            "claims": [claim.to_json() for claim in record.claims],
        }
        make_folder(str(self.path))
        replace_file(str(self.path / RECORD_FILE), json.dumps(body, indent=1).encode(), durable=True)

    def secret(self) -> str:
        """With which the keeper and this manager authenticate each other; made once (0600). Raises OSError."""
        path = self.path / SECRET_FILE
        with contextlib.suppress(FileNotFoundError):
            if found := path.read_text(encoding="utf-8").strip():
                return found
        made = secrets.token_urlsafe(32)
        make_folder(str(self.path))
        replace_file(str(path), made.encode(), durable=True)
        return made

    def remove(self) -> None:
        """Delete the folder. The record is deleted last, so that a removal that was interrupted is repeated."""
        for name in (f"{SECRET_FILE}.new", f"{RECORD_FILE}.new", SECRET_FILE, RECORD_FILE):
            (self.path / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()


def read_records(nodes_directory: Path) -> list[NodeRecord]:
    """The record of every machine. One that cannot be read is skipped with a warning. Raises OSError where this process
    has no descriptors left."""
    found = []
    for path in sorted(nodes_directory.glob(f"*/{RECORD_FILE}")):
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            if body["kind"] == KIND:
                found.append(_read(body))
        except (OSError, ValueError, TypeError, KeyError) as error:
            if is_short(error):
                raise
            log.warning("%s is not a valid machine record: %s; it is left unchanged", path, error)
    return found


def keeper_folder(manager_id: str, node_id: str) -> str:
    """What a node's keeper directory is called, below ~/.proctor/nodes there: no two managers share one."""
    return f"{manager_id}-{node_id}"


def choose_node_id(host: str, taken: Iterable[str]) -> str:
    """A new node id for a host: its name made safe, with a number where another address has it already."""
    base = re.sub(r"[^A-Za-z0-9._-]", "-", host)[:_LONGEST_ID].lstrip(".-") or "node"
    unusable = {_RESERVED, *taken}
    number, candidate = 1, base
    while candidate in unusable:
        number += 1
        candidate = f"{base}-{number}"
    return candidate


def _read(body: dict[str, Any]) -> NodeRecord:
    """Also as earlier versions wrote it: with `released` for all claims, and a list `owed` of claims with files."""
    owed = [replace(Claim.from_json(claim), released=True, uncollected=NOT_COLLECTED) for claim in body.get("owed", ())]
    claims = [Claim.from_json({"released": body.get("released", False), **claim}) for claim in body["claims"]]
    others = [claim for claim in claims if all(each.experiment_id != claim.experiment_id for each in owed)]
    installed = bool(body.get("entered", True))
    return NodeRecord(str(body["node_id"]), str(body["address"]), (*owed, *others), installed)
