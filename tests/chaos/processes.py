"""Finding, by what they are, the processes of one manager under test; and killing exactly one of them."""

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from proctor.trial_keeper.linux.identity import open_pidfd, start_time, stat_fields

TAG = "PROCTOR_CHAOS_TAG"
"""In the environment of everything that descends from a manager under test, trials included."""


class Kind(StrEnum):
    """What a process of ours is."""

    MANAGER = "manager"
    KEEPER = "keeper"
    DISPATCHER = "dispatcher"
    SPAWNER = "spawner"
    REAPER = "reaper"
    TRIAL = "trial"


@dataclass(frozen=True)
class Found:
    """One process: which one exactly, and for reapers and trials whose job it is."""

    kind: Kind
    pid: int
    started: int
    job_id: str = ""

    def kill(self) -> bool:
        """SIGKILL to exactly this process; False when it is gone already."""
        descriptor = open_pidfd(self.pid, self.started)
        if descriptor is None:
            return False
        try:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        except ProcessLookupError:
            return False
        finally:
            os.close(descriptor)
        return True


def tagged(tag: str) -> dict[int, str]:
    """Every living process with our tag: its command line by its pid."""
    return {pid: _command_line(pid) for pid in _pids() if _has_tag(pid, tag)}


def find(kind: Kind, home: Path, tag: str) -> list[Found]:
    """The living processes of this kind."""
    if kind in (Kind.REAPER, Kind.TRIAL):
        return list(_of_jobs(kind, home))
    if kind is Kind.KEEPER:
        return list(_named(kind, home / "nodes" / "local" / "keeper.json"))
    if kind is Kind.MANAGER:
        return list(_named(kind, home / "manager.json"))
    if kind is Kind.DISPATCHER:
        return [_found(kind, pid) for pid, line in tagged(tag).items() if "proctor.manager.dispatcher" in line]
    keepers = {found.pid for found in find(Kind.KEEPER, home, tag)}
    return [
        _found(kind, pid)
        for pid, line in tagged(tag).items()
        if _parent(pid) in keepers and "spawner" in line and not _is_reaper(pid)
    ]


def _named(kind: Kind, path: Path) -> Iterator[Found]:
    try:
        body = json.loads(path.read_text())
    except (OSError, ValueError):
        return
    if start_time(body["pid"]) == body["start_time"]:
        yield Found(kind, body["pid"], body["start_time"])


def _of_jobs(kind: Kind, home: Path) -> Iterator[Found]:
    """From what the reapers have written down."""
    for path in (home / "nodes" / "local" / "jobs").glob("*.process"):
        try:
            identity = json.loads(path.read_text())[str(kind)]
        except (OSError, ValueError):
            continue  # just being written, or just forgotten
        if start_time(identity["pid"]) == identity["started"] and _is_alive(identity["pid"]):
            yield Found(kind, identity["pid"], identity["started"], path.name.removesuffix(".process"))


def _found(kind: Kind, pid: int) -> Found:
    return Found(kind, pid, start_time(pid) or 0)


def _pids() -> Iterator[int]:
    return (int(name) for name in os.listdir("/proc") if name.isdigit())


def _has_tag(pid: int, tag: str) -> bool:
    try:
        return f"{TAG}={tag}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""


def _is_reaper(pid: int) -> bool:
    """One whose spawner was killed is the keeper's child, too; it has its job's record open."""
    try:
        return any(os.readlink(f"/proc/{pid}/fd/{name}").endswith(".process") for name in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False


def _parent(pid: int) -> int:
    fields = stat_fields(pid)
    return 0 if fields is None else int(fields[1])


def _is_alive(pid: int) -> bool:
    fields = stat_fields(pid)
    return fields is not None and fields[0] not in (b"Z", b"X")
