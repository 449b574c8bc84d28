"""What a run leaves behind when it has ended or died: the other processes of its session."""

import os
import time
from pathlib import Path

PATIENCE_SECONDS = 60.0


def wait_for_the_end_of_others() -> "list[str]":
    """Wait until no other process of this session is left, and return the commands of those that stay."""
    until = time.monotonic() + PATIENCE_SECONDS
    while (others := find_others()) and time.monotonic() < until:
        time.sleep(0.25)
    return others


def find_others() -> "list[str]":
    """The commands of the living processes of this session, without this one."""
    others = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            _, _, rest = (folder / "stat").read_text().rpartition(")")
            state, _, _, session = rest.split()[:4]
            command = (folder / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue  # it has ended
        if int(session) == os.getsid(0) and state != "Z" and int(folder.name) != os.getpid():
            others.append(f"{folder.name}: {command}")
    return others
