"""What a keeper would find on this node: its devices, whether they can be leased, whether folders are there."""

import errno
import os
import platform
from pathlib import Path
from typing import Any

import proctor
from proctor.trial_keeper.commands.input import CommandInput
from proctor.trial_keeper.gpus import DeviceSurvey
from proctor.trial_keeper.linux.locks import find_danger
from proctor.trial_keeper.protocol import to_json
from proctor.trial_keeper.settings import ARCHIVE, default_lock_folder


def probe(given: CommandInput) -> dict[str, Any]:
    """The command `probe`; see `commands/main.py`."""
    locks = given.text("gpu_lock_directory", "") or default_lock_folder()
    survey = DeviceSurvey(locks)
    survey.open()
    try:
        facts = survey.read({})
    finally:
        survey.close()
    return {
        "version": proctor.__version__,
        "archive": ARCHIVE,
        "python": platform.python_version(),
        "devices": [to_json(device) for device in facts.devices],
        "driver_note": survey.driver_note,
        "notes": facts.notes,
        "gpu_lock_directory": locks,
        "gpu_lock_problem": _find_problem(locks),
        "paths": {path: _kind(path) for path in given.texts("paths")},
    }


def _find_problem(folder: str) -> str:
    """Why GPUs cannot be leased in this folder, which need not be there yet; empty when they can."""
    place = folder
    while not os.path.lexists(place):
        place = os.path.dirname(place) or "/"
    if not os.path.isdir(place):
        return f"{place} should be a folder, so that GPUs can be leased in {folder}"
    if not os.access(place, os.W_OK | os.X_OK):
        return f"GPUs cannot be leased in {folder}: {place} may not be written by user {os.getuid()}"
    danger = find_danger(folder)
    return f"GPUs cannot be leased: {danger}" if danger else ""


def _kind(path: str) -> str:
    try:
        found = Path(path).expanduser()
        if found.is_dir():
            return "folder" if os.access(found, os.R_OK | os.X_OK) else "unreadable"
        return "file" if found.stat() else "missing"
    except OSError as error:
        return "missing" if error.errno in (errno.ENOENT, errno.ENOTDIR) else "unreadable"
