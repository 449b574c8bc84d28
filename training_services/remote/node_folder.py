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
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from proctor.training_services.providers import RECORD_FILE
from proctor.training_services.remote.claims import Claim
from proctor.trial_keeper.linux.files import make_folder, replace_file

__all__ = ["KIND", "NodeFolder", "NodeRecord", "choose_node_id", "keeper_folder", "read_records"]

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


class NodeFolder:
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
