"""Starting the keeper of a node, for the manager that looks after it over SSH."""

import os
import sys
from pathlib import Path
from typing import Any

import proctor
from proctor.trial_keeper.command_input import CommandInput
from proctor.trial_keeper.errors import SettingsError
from proctor.trial_keeper.files import remove_file
from proctor.trial_keeper.node_directory import POINTER_FILE, make_folders, point_to
from proctor.trial_keeper.origin import ARCHIVE, ENV_KEEPER
from proctor.trial_keeper.settings import KeeperSettings, read_settings, write_settings
from proctor.trial_keeper.start import find_keeper, launch_keeper, read_facts, stop_keeper

_ISOLATED = ("-I", "-S", "-X", "utf8")


def start(given: CommandInput) -> dict[str, Any]:
    """The command `start`; see `commands.py`."""
    directory = given.directory()
    settings = KeeperSettings(
        given.text("node_id"),
        str(directory / POINTER_FILE),
        gpu_lock_directory=given.text("gpu_lock_directory", ""),
        device_refresh_seconds=given.number("device_refresh_seconds", 5.0),
    )
    secret, search_path, socket = given.text("secret"), given.text("search_path", ""), given.text("socket", "")
    make_folders(directory)
    if socket:
        point_to(directory, socket)
    replaced = _make_way(directory, settings)
    write_settings(directory, settings, secret)
    pid = find_keeper(directory)
    started = pid is None
    if pid is None:
        options = _ISOLATED if ARCHIVE else ()
        pid = launch_keeper(
            directory, (sys.executable, *options), environment=keeper_environment(directory, search_path)
        )
    _remove_other_archives(directory)
    return {"pid": pid, "started": started, "replaced": replaced}


def keeper_environment(directory: Path, search_path: str) -> dict[str, str]:
    """What a keeper, and a trial without an environment of its own, finds: the login's, less the SSH session's."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SSH_")}
    path = environment.get("PATH", os.defpath)
    environment["PATH"] = f"{search_path}{os.pathsep}{path}" if search_path else path
    environment[ENV_KEEPER] = str(directory)
    return environment


def _make_way(directory: Path, settings: KeeperSettings) -> bool:
    """Have a keeper of another archive, or with other settings, leave; returns whether there was one."""
    facts = read_facts(directory)
    if facts is None:
        return False
    try:
        known = read_settings(directory)
    except SettingsError:
        known = None
    if known == settings and (facts.archive, facts.version) == (ARCHIVE, proctor.__version__):
        return False
    stop_keeper(directory)
    return True


def _remove_other_archives(directory: Path) -> None:
    """Earlier versions, which nothing runs from any more."""
    if ARCHIVE:
        for path in directory.glob("keeper-*.pyz*"):
            if path.name != ARCHIVE:
                remove_file(str(path))
