"""The configuration of a keeper, in its directory's config.json; and which code this process was loaded from."""

import hashlib
import json
import os
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path

import proctor
from proctor.sdk.files import replace_file
from proctor.trial_keeper.errors import KeeperSettingsError

CONFIG_FILE = "config.json"
SECRET_FILE = "secret"
LOCK_FILE = "keeper.lock"
FACTS_FILE = "keeper.json"
LOG_FILE = "log"
SPAWNER_LOG_FILE = "spawner.log"
JOBS_FOLDER = "jobs"
BUNDLE_FOLDER = "sdk"
SOCKET_FOLDER = "run"
EXPERIMENTS_FOLDER = "experiments"
UPLOADS_FOLDER = "uploads"

_CODE_FOLDERS = ("sdk", "trial_keeper")
_LOCK_FOLDERS = ("/var/lock/proctor", "/tmp/proctor-gpu-locks")
PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(proctor.__file__)))
"""What stands on `sys.path` for `import proctor`: a folder or a zip archive."""
ARCHIVE = os.path.basename(PACKAGE_ROOT) if os.path.isfile(PACKAGE_ROOT) else ""
"""The archive's name (it holds a hash of its content); empty when the code was loaded from a folder."""
SPAWNER_CODE_END = "spawner import main; main()"
"""By this a spawner and the reapers that were forked from it are recognized, also those of an earlier keeper."""
SPAWNER_CODE = f"import sys; sys.path.insert(0, sys.argv.pop()); from proctor.trial_keeper.reaper.{SPAWNER_CODE_END}"
"""What Python runs as a spawner."""
ENV_KEEPER = "PROCTOR_KEEPER_DIRECTORY"
"""In the environment of the processes that belong to a keeper started by `commands/`: the keeper's directory."""


@dataclass(frozen=True)
class KeeperSettings:
    """A keeper's configuration."""

    node_id: str
    """The manager's name for this node."""
    manager_pointer: str
    """The file that says where the manager listens (`uplink/pointer.py`); read at every (re)connect."""
    secret_file: str = SECRET_FILE
    """The file with the node's secret, absolute or relative to the keeper's directory."""
    gpu_lock_directory: str = ""
    """Where the GPU leases of this machine are, for all its users; empty: `default_lock_folder`."""
    device_refresh_seconds: float = 5.0
    """How often NVML is asked, when there are devices."""
    instance: str = ""
    """Of a keeper that was started for one job: which one of it this is, such as the uid of its pod."""
    linger_seconds: float | None = None
    """How long it waits for a manager once none of its jobs runs; None: until it is stopped."""


@cache
def code_id() -> str:
    """What tells the code of this process, of which its keeper and the trial side of its jobs are made, from that of
    every other version or commit: the archive's name, or a hash of the files. Raises OSError."""
    if ARCHIVE:
        return ARCHIVE
    digest = hashlib.sha256()
    for package in _CODE_FOLDERS:
        for folder, folders, names in os.walk(os.path.join(PACKAGE_ROOT, "proctor", package)):
            folders.sort()
            for name in sorted(names):
                if name.endswith(".py"):
                    path = os.path.join(folder, name)
                    with open(path, "rb") as file:
                        data = file.read()
                    digest.update(f"{os.path.relpath(path, PACKAGE_ROOT)}\0{len(data)}\0".encode() + data)
    return digest.hexdigest()


def default_lock_folder() -> str:
    """The machine-local directory of GPU leases: /var/lock where one may write there or another user has made it."""
    preferred, fallback = _LOCK_FOLDERS
    usable = os.access(preferred, os.W_OK) or (
        not os.path.exists(preferred) and os.access(os.path.dirname(preferred), os.W_OK)
    )
    return preferred if usable else fallback


def read_settings(directory: Path) -> KeeperSettings:
    """The settings in `directory`; raises KeeperSettingsError."""
    path = directory / CONFIG_FILE
    known = {item.name for item in fields(KeeperSettings)}
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        return KeeperSettings(**{name: value for name, value in body.items() if name in known})
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise KeeperSettingsError(f"{path} should hold the keeper's settings, but: {error}; start it again") from error


def write_settings(directory: Path, settings: KeeperSettings, secret: str) -> None:
    """Write config.json and the secret (0600) into `directory`, which is made if need be (0700). What stands there
    already is not written again: on a full disk that would fail."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    contents = {SECRET_FILE: secret.encode(), CONFIG_FILE: json.dumps(asdict(settings)).encode()}
    for name, data in contents.items():
        path = directory / name
        if not path.exists() or path.read_bytes() != data:
            replace_file(str(path), data, durable=False)
