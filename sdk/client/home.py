"""Where a manager keeps its things on this machine, as far as a client needs to know.

The names are fixed by `proctor.manager.settings.Home`; a test holds the two together.
"""

import json
import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from proctor.sdk.files import has_open

ENV_HOME = "PROCTOR_HOME"
ENV_URL = "PROCTOR_URL"
ENV_TOKEN = "PROCTOR_TOKEN"
LOCK_FILE = "manager.lock"
"""Held open by the manager of a home as long as it runs."""


@dataclass(frozen=True)
class ManagerAddress:
    """Where a running manager is reached, as it has written down. `url` has no slash at the end."""

    url: str
    pid: int
    version: str


def find_home(path: str | os.PathLike[str] | None = None) -> Path:
    """The home named by `path`, else by PROCTOR_HOME, else the platform's state directory for proctor."""
    chosen = path or os.environ.get(ENV_HOME)
    if not chosen:
        import platformdirs

        chosen = platformdirs.user_state_dir("proctor")
    return Path(chosen).expanduser().absolute()


def read_address(home: Path) -> ManagerAddress | None:
    """Where the home's manager is reached, as manager.json says; None where it has none."""
    address = _read_document(home)
    return address if address is not None and serves(address.pid, home) else None


def serves(pid: int, home: Path) -> bool:
    """Whether a process is the manager of a home: it has the home's lock open. In a copy of a home the lock is another
    file, so that the original's manager is not taken for its own. A process that may not be looked at is believed.

    :raises OSError: that could not be looked at, such as for lack of descriptors.
    """
    try:
        return has_open(pid, home / LOCK_FILE)
    except PermissionError:
        return True


def absence(home: Path) -> str:
    """Why a home has no manager though its manager.json names one, as a clause; "" where that is just gone."""
    address = _read_document(home)
    if address is None or serves(address.pid, home) or not os.path.exists(f"/proc/{address.pid}"):
        return ""
    return f"its manager.json names process {address.pid}, which does not serve this home: the home was copied"


def _read_document(home: Path) -> ManagerAddress | None:
    try:
        document = json.loads((home / "manager.json").read_text(encoding="utf-8"))
        return ManagerAddress(
            url=str(document["url"]).rstrip("/"), pid=int(document["pid"]), version=str(document.get("version", ""))
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def read_token(home: Path) -> str | None:
    """The token that may do everything; None where there is none or it may not be read."""
    try:
        return (home / "token").read_text(encoding="utf-8").strip() or None
    except OSError:
        return None


def is_home(names: Collection[str]) -> bool:
    """Whether a folder with entries of these names is the home of a manager."""
    return "control.db" in names and "token" in names


def is_experiment(names: Collection[str]) -> bool:
    """Whether a folder with entries of these names is the one that a manager keeps of an experiment."""
    return "config.json" in names and "metrics.db" in names and ("trials" in names or "environment.json" in names)


def holds_state(folder: str) -> bool:
    """Whether a folder is the home of a manager or the folder of an experiment."""
    names = ("control.db", "token", "config.json", "metrics.db", "trials", "environment.json")
    there = [name for name in names if os.path.lexists(os.path.join(folder, name))]
    return is_home(there) or is_experiment(there)
