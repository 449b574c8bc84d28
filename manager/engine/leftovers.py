"""What managers that were killed have left half done, found and removed when the next one starts."""

import fcntl
import logging
import os
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from proctor.manager.engine.creation import UNFINISHED_FILE, is_unfinished
from proctor.manager.settings import Home
from proctor.sdk.client.credentials import HELD_PREFIX

log = logging.getLogger(__name__)

DRAFTS = (".token.*", ".readonly.token.*", "*.new", "run/*.new")
HANDOVER_SECONDS = 3600.0
"""A handed-over file that is older was left by a `create` that was killed: nobody will ask for it any more."""
LOCK_SECONDS = 2.0
"""A held file that is younger may not be locked yet."""


def remove_leftovers(home: Home, known: Collection[str]) -> None:
    """Remove drafts of files, handed-over files that nobody came for, and the folders of experiments that were being
    created or loaded: not `known`, and marked as unfinished. Any other folder that is not known is left alone, with a
    warning: it may be an experiment whose row was lost.

    Only for the home's one manager, before it serves. A file that cannot be removed is no reason not to start.
    """
    for path in (*_drafts(home), *_unborn(home, known)):
        log.info("removing %s, which a killed manager has left", path, extra={"action": "leftover.remove"})
        try:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("%s cannot be removed: %s", path, error, extra={"action": "leftover.remove"})


def _drafts(home: Home) -> Iterator[Path]:
    for pattern in DRAFTS:
        yield from home.path.glob(pattern)
    now = time.time()
    for path in home.incoming_directory.glob("*"):
        is_held = path.name.startswith(HELD_PREFIX)
        with suppress(FileNotFoundError):  # whoever wrote it has removed it just now
            age = now - path.stat().st_mtime
            if (is_held and age > LOCK_SECONDS and not _is_locked(path)) or (not is_held and age > HANDOVER_SECONDS):
                yield path


def _is_locked(path: Path) -> bool:
    """Whether the process that wrote a file still needs it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _unborn(home: Home, known: Collection[str]) -> Iterator[Path]:
    for path in home.experiments_directory.glob("*"):
        if path.name in known:
            if (path / UNFINISHED_FILE).exists():
                yield path / UNFINISHED_FILE
        elif is_unfinished(path):
            yield path
        else:
            text = "%s belongs to no experiment that the database knows; it is left alone"
            log.warning(text, path, extra={"action": "leftover.leave"})
