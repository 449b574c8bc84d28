"""The manager's record of a machine, in `<home>/nodes/<node id>/`: its address, its claims and the secret of its
keeper.

The record exists from the first claim until everything of this manager was removed from the machine, or until the
machine was released before anything was copied there. So a machine that cannot be reached when it is released is
cleaned later, and files that were not collected are collected then, also after restarts of the manager. No login is
ever written here.
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
from proctor.training_services.providers import RECORD_FILE
from proctor.training_services.remote.settings import RemoteSettings, read_logins
from proctor.training_services.ssh.settings import Login, MachineSettings
from proctor.trial_keeper.linux.backoff import LONGEST_SECONDS

__all__ = [
    "KIND",
    "Claim",
    "MachineRecord",
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
_LONGEST_ID = 48
_RESERVED = "local"


@dataclass(frozen=True)
class Claim:
    """One experiment's claim of one machine, with everything that connecting takes.

    The login is never written to disk; `secrets_file` and `index` say where it is while the experiment exists.
    """

    experiment_id: str
    machine: MachineSettings
    login: Login
    node_timeout_seconds: float
    keep_alive_seconds: float
    secrets_file: str
    index: int

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
    """A machine that is claimed, or released and not yet cleaned.

    claims: of the experiments that use it; of a released one, of those that used it last: they say how to connect.
    uncollected: the claims of experiments that released it before all their files were collected.
    installed: whether anything was ever copied there; True is on the disk before the first thing is copied.
    """

    node_id: str
    address: str
    claims: tuple[Claim, ...] = ()
    released: bool = False
    uncollected: tuple[Claim, ...] = ()
    installed: bool = False


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
            "released": record.released,
            "entered": record.installed,
            "claims": [claim.to_json() for claim in record.claims],
            "owed": [claim.to_json() for claim in record.uncollected],
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
    """The record of every machine. One that cannot be read is skipped with a warning."""
    found = []
    for path in sorted(nodes_directory.glob(f"*/{RECORD_FILE}")):
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            if body["kind"] == KIND:
                found.append(_read(body))
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.warning("%s should be the record of a machine, but: %s; it is left as it is", path, error)
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


class MachineRecord:
    """A machine's `NodeRecord`, kept on the disk as it changes."""

    def __init__(self, record: NodeRecord, folder: NodeDirectory) -> None:
        self._record = record
        self._folder = folder

    @property
    def address(self) -> str:
        """[user@]host[:port], as written."""
        return self._record.address

    @property
    def claims(self) -> tuple[Claim, ...]:
        """See `NodeRecord.claims`; the newest last."""
        return self._record.claims

    @property
    def experiments(self) -> tuple[str, ...]:
        """The experiments that use it."""
        return () if self._record.released else tuple(claim.experiment_id for claim in self._record.claims)

    @property
    def is_released(self) -> bool:
        """Whether no experiment uses it."""
        return self._record.released

    @property
    def is_installed(self) -> bool:
        """Whether anything may have been copied there."""
        return self._record.installed

    @property
    def uncollected(self) -> tuple[Claim, ...]:
        """See `NodeRecord.uncollected`."""
        return self._record.uncollected

    def claim(self, claim: Claim) -> None:
        """Add an experiment's claim, or replace it. Raises OSError."""
        others = () if self._record.released else _without(self._record.claims, claim.experiment_id)
        uncollected = _without(self._record.uncollected, claim.experiment_id)  # the experiment collects them itself
        self._write(replace(self._record, claims=(*others, claim), released=False, uncollected=uncollected))

    def release(self, experiment_id: str, *, uncollected: bool) -> None:
        """Remove an experiment's claim.

        :param uncollected: files of it may still be there.
        """
        own = [claim for claim in self._record.claims if uncollected and claim.experiment_id == experiment_id]
        others = _without(self._record.claims, experiment_id)
        after = replace(self._record, uncollected=(*self._record.uncollected, *own))
        self._try_to_write(replace(after, claims=others) if others else replace(after, released=True))

    def release_all(self) -> None:
        """No experiment that claimed it exists any more. Files of each may still be there."""
        own = () if self._record.released else self._record.claims
        self._try_to_write(replace(self._record, released=True, uncollected=(*self._record.uncollected, *own)))

    def drop_uncollected(self, *experiments: str) -> None:
        """The files of these experiments are collected, or no longer needed."""
        self._try_to_write(replace(self._record, uncollected=_without(self._record.uncollected, *experiments)))

    def mark_installed(self) -> None:
        """Something is about to be copied there. On the disk when this returns. Raises OSError."""
        self._write(replace(self._record, installed=True))

    def remove(self) -> None:
        """Forget the machine: it was cleaned, or what is there is abandoned. Raises OSError."""
        self._folder.remove()
        self._record = replace(self._record, released=True, uncollected=(), installed=False)

    def _write(self, record: NodeRecord) -> None:
        if record != self._record or not self._folder.path.exists():
            self._folder.write(record)
            self._record = record

    def _try_to_write(self, record: NodeRecord) -> None:
        """A machine is released even if that cannot be written: after a restart no experiment claims it."""
        try:
            self._write(record)
        except OSError as error:
            extra = {"action": "node.fail", "node_id": record.node_id}
            log.error("the record of node %s cannot be written: %s", record.node_id, error, extra=extra)
            self._record = record


def _without(claims: Sequence[Claim], *experiments: str) -> tuple[Claim, ...]:
    return tuple(claim for claim in claims if claim.experiment_id not in experiments)


def _read(body: dict[str, object]) -> NodeRecord:
    claims, uncollected = body["claims"], body.get("owed", [])
    assert isinstance(claims, list)
    assert isinstance(uncollected, list)
    return NodeRecord(
        str(body["node_id"]),
        str(body["address"]),
        tuple(Claim.from_json(claim) for claim in claims),
        bool(body["released"]),
        tuple(Claim.from_json(claim) for claim in uncollected),
        bool(body.get("entered", True)),
    )
