"""Where what people see of a run is kept: a file or a folder named after the run, its trial, and its first start.

A place is made once, when the run starts for the first time; a resumed run goes back to it. Two runs never share one,
also if they start in the same second, or if one continues from the other's checkpoint.
"""

import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from time import localtime, struct_time

from proctor.sdk import trial as sdk
from proctor.sdk.pytorch.settings import Settings
from proctor.sdk.pytorch.trial import choose_root, is_in_trial

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def identify_run(settings: Settings) -> str:
    """Return what all incarnations of a run have in common, and another run that continues from its checkpoint has not.

    In a trial that is the trial, wherever its attempts run and keep their checkpoints; elsewhere it is the real path of
    the checkpoints' folder, so that a copy of the folder is another run.
    """
    if is_in_trial():
        return f"run {settings.run_name} of trial {sdk.get_trial_id()} of experiment {sdk.get_experiment_id()}"
    root = choose_root(settings)
    return "" if root is None else os.path.realpath(root / settings.run_name)


def name_start(run_name: str, start: "struct_time | None" = None) -> str:
    """Return `<run>[_<trial id>]_<Mon><day>_<H>-<M>-<S>`, in English and local time.

    :param start: when the run started; None is now.
    """
    start = localtime() if start is None else start
    trial = f"_{sdk.get_trial_id()}" if is_in_trial() else ""
    clock = "-".join(f"{part:02d}" for part in (start.tm_hour, start.tm_min, start.tm_sec))
    return f"{run_name}{trial}_{_MONTHS[start.tm_mon - 1]}{start.tm_mday:02d}_{clock}"


def make_file(folder: Path, name: str, suffix: str) -> Path:
    """Make a new empty file and return its path: the name, or the name with the first free number.

    :raises OSError: the folder cannot be made or written to.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for candidate in _candidates(name):
        path = folder / f"{candidate}{suffix}"
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o644))
        except FileExistsError:
            continue
        return path
    raise AssertionError("numbers do not end")


def make_folder(parent: Path, name: str) -> Path:
    """Make a new empty folder and return its path: the name, or the name with the first free number.

    :raises OSError: the parent cannot be made or written to.
    """
    parent.mkdir(parents=True, exist_ok=True)
    for candidate in _candidates(name):
        path = parent / candidate
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise AssertionError("numbers do not end")


def _candidates(name: str) -> "Iterator[str]":
    return (name if number == 1 else f"{name}_{number}" for number in count(1))
