"""The manager's own record of a machine, `<home>/nodes/<node id>/`: which one it is, and the secret of its keeper.

It exists from the first claim until the machine was left without a trace, or was released before anything was brought
there. One that could not be reached when it was released is owed that, and owes the files that were not collected, also
over restarts of the manager. No login is ever written here.
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

from proctor.training_services.providers import RECORD_FILE
from proctor.training_services.remote.settings import Login, MachineSettings, RemoteSettings, read_logins
from proctor.trial_keeper.linux.backoff import LONGEST_SECONDS
from proctor.trial_keeper.linux.files import make_folder, replace_file

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


# ---- claims ---------------------------------------------------------------------------------------------------------
# Who wants which machine, and how it is reached: an experiment's claim of one machine.


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


KIND = "remote"
SECRET_FILE = "secret"
_LONGEST_ID = 48
_RESERVED = "local"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NodeRecord:
    """A machine that was touched.

    claims: the experiments that want it; of a released one those that wanted it last, for they say how to get in.
    owed: the experiments that let it go before all their files were collected.
    entered: whether anything of ours was ever brought there; True is on the disk before the first thing is.
    """

    node_id: str
    address: str
    claims: tuple[Claim, ...] = ()
    released: bool = False
    owed: tuple[Claim, ...] = ()
    entered: bool = False


class NodeDirectory:
    """One machine's folder. It is made when something is written."""

    def __init__(self, nodes_directory: Path, node_id: str) -> None:
        self.path = nodes_directory / node_id

    def write(self, record: NodeRecord) -> None:
        """Replace the record (0600). Raises OSError."""
        body = {
            "kind": KIND,
            "node_id": record.node_id,
            "address": record.address,
            "released": record.released,
            "entered": record.entered,
            "claims": [claim.to_json() for claim in record.claims],
            "owed": [claim.to_json() for claim in record.owed],
        }
        make_folder(str(self.path))
        replace_file(str(self.path / RECORD_FILE), json.dumps(body, indent=1).encode(), durable=True)

    def secret(self) -> str:
        """What proves the keeper and this manager to each other; made once (0600). Raises OSError."""
        path = self.path / SECRET_FILE
        with contextlib.suppress(FileNotFoundError):
            if found := path.read_text(encoding="utf-8").strip():
                return found
        made = secrets.token_urlsafe(32)
        make_folder(str(self.path))
        replace_file(str(path), made.encode(), durable=True)
        return made

    def remove(self) -> None:
        """The machine was left; forget it. The record goes last, so that what is half removed is still owed."""
        for name in (f"{SECRET_FILE}.new", f"{RECORD_FILE}.new", SECRET_FILE, RECORD_FILE):
            (self.path / name).unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.path.rmdir()


def read_records(nodes_directory: Path) -> list[NodeRecord]:
    """Every machine that was touched and not yet left. A record that cannot be read is left alone, with a warning."""
    found = []
    for path in sorted(nodes_directory.glob(f"*/{RECORD_FILE}")):
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
            if body["kind"] == KIND:
                found.append(_read(body))
        except (OSError, ValueError, TypeError, KeyError) as error:
            log.warning("%s should say how a machine is reached, but: %s; it is left alone", path, error)
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


def _read(body: dict[str, object]) -> NodeRecord:
    claims, owed = body["claims"], body.get("owed", [])
    assert isinstance(claims, list)
    assert isinstance(owed, list)
    return NodeRecord(
        str(body["node_id"]),
        str(body["address"]),
        tuple(Claim.from_json(claim) for claim in claims),
        bool(body["released"]),
        tuple(Claim.from_json(claim) for claim in owed),
        bool(body.get("entered", True)),
    )


# ---- tenancy --------------------------------------------------------------------------------------------------------
# The book of one machine, kept on the manager's disk: which experiments want it, which ones are still owed files of
# theirs, and whether anything of ours was ever brought there.


class MachineRecord:
    """A machine's `NodeRecord`, and how it changes."""

    def __init__(self, record: NodeRecord, folder: NodeDirectory) -> None:
        self._record = record
        self._folder = folder

    @property
    def address(self) -> str:
        """[user@]host[:port], as written."""
        return self._record.address

    @property
    def claims(self) -> tuple[Claim, ...]:
        """Those that want it, the newest last; of a released machine those that wanted it last."""
        return self._record.claims

    @property
    def experiments(self) -> tuple[str, ...]:
        """The experiments that want it."""
        return () if self._record.released else tuple(claim.experiment_id for claim in self._record.claims)

    @property
    def is_released(self) -> bool:
        """Whether nobody wants it any more."""
        return self._record.released

    @property
    def is_entered(self) -> bool:
        """Whether something of ours may be there."""
        return self._record.entered

    @property
    def owed(self) -> tuple[Claim, ...]:
        """The experiments that are owed files."""
        return self._record.owed

    def claim(self, claim: Claim) -> None:
        """An experiment wants it; one that has claimed it already is heard again. Raises OSError."""
        others = () if self._record.released else _without(self._record.claims, claim.experiment_id)
        owed = _without(self._record.owed, claim.experiment_id)  # it collects them itself
        self._write(replace(self._record, claims=(*others, claim), released=False, owed=owed))

    def release(self, experiment_id: str, *, owing: bool) -> None:
        """An experiment wants it no more, and is owed files or not."""
        debt = [claim for claim in self._record.claims if owing and claim.experiment_id == experiment_id]
        others = _without(self._record.claims, experiment_id)
        owed = (*self._record.owed, *debt)
        if others:
            self._try_to_write(replace(self._record, claims=others, owed=owed))
        else:
            self._try_to_write(replace(self._record, released=True, owed=owed))

    def give_up(self) -> None:
        """None of those that wanted it is there any more. Each may be owed files."""
        owing = () if self._record.released else self._record.claims
        self._try_to_write(replace(self._record, released=True, owed=(*self._record.owed, *owing)))

    def settle_with(self, *experiments: str) -> None:
        """Nothing is owed to these any more."""
        self._try_to_write(replace(self._record, owed=_without(self._record.owed, *experiments)))

    def enter(self) -> None:
        """Something is about to be brought there. On the disk when it returns. Raises OSError."""
        self._write(replace(self._record, entered=True))

    def close(self) -> None:
        """Nothing of ours is there any more, or it is given up: the machine is forgotten. Raises OSError."""
        self._folder.remove()
        self._record = replace(self._record, released=True, owed=(), entered=False)

    def _write(self, record: NodeRecord) -> None:
        if record != self._record or not self._folder.path.exists():
            self._folder.write(record)
            self._record = record

    def _try_to_write(self, record: NodeRecord) -> None:
        """A machine is left whether or not that can be written down; after a restart nobody claims it."""
        try:
            self._write(record)
        except OSError as error:
            extra = {"action": "node.fail", "node_id": record.node_id}
            log.error("what becomes of node %s cannot be written down: %s", record.node_id, error, extra=extra)
            self._record = record


def _without(claims: Sequence[Claim], *experiments: str) -> tuple[Claim, ...]:
    return tuple(claim for claim in claims if claim.experiment_id not in experiments)
