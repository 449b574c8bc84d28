"""Names for what is still being made, so that what a crash leaves behind can be told from what someone is working on.

A folder is made under such a name and then renamed to its own. A name holds the host and the thread that is at work;
once that thread is gone from this host the thing is nobody's and may be removed.
"""

import os
from _thread import get_native_id

UNFINISHED_PREFIX = ".unfinished-"


def name_unfinished(folder: str) -> str:
    """Return a path in `folder` for this thread to work under."""
    return f"{folder}/{_prefix()}{get_native_id()}"


def remove_unfinished(folder: str) -> None:
    """Remove what threads of this host that are gone, or this very thread, have left in `folder`."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return
    prefix = _prefix()
    for name in names:
        writer = name.removeprefix(prefix)
        if name.startswith(prefix) and (writer == str(get_native_id()) or not os.path.exists(f"/proc/{writer}")):
            remove_tree(f"{folder}/{name}")


def remove_tree(path: str) -> None:
    """Remove a folder and all in it, or a file; what cannot be removed stays."""
    import shutil  # slow to import, and hardly ever needed in a trial

    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path, ignore_errors=True)
    elif os.path.lexists(path):
        os.unlink(path)


def _prefix() -> str:
    return f"{UNFINISHED_PREFIX}{os.uname().nodename}-"
