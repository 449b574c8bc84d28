"""What `doctor` looks at. Each function answers one question about this machine or the home."""

import os
import platform
import shlex
import shutil
import socket
import sqlite3
import stat
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path

import proctor.sdk.compat
from proctor.manager.settings import DEFAULT_HOST, DEFAULT_PORT, Home, open_to_others

GIBIBYTE = 1 << 30
NETWORK_FILE_SYSTEMS = (
    "nfs",
    "cifs",
    "smb",
    "fuse.sshfs",
    "lustre",
    "gpfs",
    "beegfs",
    "ceph",
    "glusterfs",
    "afs",
    "9p",
)
LEAST_SQLITE = (3, 37, 0)
MOST_SKEW_SECONDS = 2.0


class CheckResult(StrEnum):
    """What a check has found."""

    OK = "ok"  # as it should be
    NOTE = "note"  # works; worth knowing
    FAIL = "fail"  # experiments will not run well, or not at all


@dataclass(frozen=True)
class Check:
    """The answer to one question: what was found, and what to do about it."""

    name: str
    verdict: CheckResult
    found: str
    advice: str = ""


def check_python(home: Home) -> Check:
    """The interpreter."""
    found = f"{platform.python_version()} at {sys.executable}"
    sound = sys.version_info >= (3, 11)
    return Check(
        "python", CheckResult.OK if sound else CheckResult.FAIL, found, "" if sound else "the manager needs 3.11"
    )


def check_sqlite(home: Home) -> Check:
    """The SQLite library: strict tables came with 3.37."""
    sound = sqlite3.sqlite_version_info >= LEAST_SQLITE
    advice = "" if sound else "a Python with SQLite 3.37 or newer is needed"
    return Check("sqlite", CheckResult.OK if sound else CheckResult.FAIL, sqlite3.sqlite_version, advice)


def check_home(home: Home) -> Check:
    """Whether the home can be written."""
    nearest = _nearest_existing(home.path)
    try:
        with tempfile.TemporaryFile(dir=nearest):
            pass
    except OSError as error:
        advice = "set PROCTOR_HOME to a folder that you may write"
        return Check("home", CheckResult.FAIL, f"{nearest} cannot be written: {error.strerror}", advice)
    if not home.path.exists():
        return Check("home", CheckResult.OK, f"{home.path} (will be made at the first start)")
    return _check_who_may_enter(home.path) or Check("home", CheckResult.OK, str(home.path))


def _check_who_may_enter(path: Path) -> Check | None:
    """What is wrong with the permissions of the home: who may write it can replace the token and the trial side."""
    if danger := open_to_others(path):
        return Check("home", CheckResult.FAIL, danger[0], f"`{danger[1]}`")
    facts = path.stat()
    mode = stat.S_IMODE(facts.st_mode)
    if facts.st_uid != os.geteuid():
        return Check(
            "home", CheckResult.NOTE, f"{path} belongs to user {facts.st_uid}, who may change everything in it"
        )
    if mode & 0o077:
        found = f"{path} may be entered by others (mode {mode:o})"
        return Check("home", CheckResult.NOTE, found, f"`chmod go= {path}`")
    return None


def check_file_system(home: Home, mounts: Path = Path("/proc/self/mounts")) -> Check:
    """Databases and sockets do not work reliably on network file systems."""
    try:
        kind = file_system_of(_nearest_existing(home.path).resolve(), mounts.read_text())
    except OSError:
        return Check("file system", CheckResult.NOTE, "unknown: this system does not list its mounts")
    if kind.startswith(NETWORK_FILE_SYSTEMS):
        return Check(
            "file system", CheckResult.FAIL, f"{kind}, a network file system", "set PROCTOR_HOME to a local disk"
        )
    return Check("file system", CheckResult.OK, kind)


def file_system_of(path: Path, mounts: str) -> str:
    """The kind of file system that `path` is on, from the text of /proc/self/mounts."""
    best, kind = Path("/"), "unknown"
    for line in mounts.splitlines():
        fields = line.split()
        point = Path(fields[1].replace("\\040", " "))
        if path.is_relative_to(point) and len(point.parts) >= len(best.parts):
            best, kind = point, fields[2]
    return kind


def check_disk(home: Home) -> Check:
    """Free space where the home is."""
    usage = shutil.disk_usage(_nearest_existing(home.path))
    found = f"{usage.free / GIBIBYTE:.1f} GiB of {usage.total / GIBIBYTE:.1f} GiB free"
    if usage.free < GIBIBYTE // 10:
        return Check("disk", CheckResult.FAIL, found, "make room: no trial is started on a full disk")
    return Check("disk", CheckResult.NOTE if usage.free < GIBIBYTE else CheckResult.OK, found)


def check_clock(home: Home) -> Check:
    """Whether file times and the clock agree; they differ where a file server's clock is wrong."""
    if time.time() < 1_700_000_000:
        return Check("clock", CheckResult.FAIL, time.strftime("%Y-%m-%d %H:%M:%S"), "set the clock of this machine")
    try:
        with tempfile.NamedTemporaryFile(dir=_nearest_existing(home.path)) as file:
            skew = os.stat(file.name).st_mtime - time.time()
    except OSError:
        return Check("clock", CheckResult.NOTE, "not compared: the home cannot be written")
    if abs(skew) > MOST_SKEW_SECONDS:
        return Check(
            "clock", CheckResult.FAIL, f"files are {skew:+.1f} s from the clock", "synchronize the file server"
        )
    return Check("clock", CheckResult.OK, time.strftime("%Y-%m-%d %H:%M:%S %Z"))


def check_secrets(home: Home) -> Check:
    """Tokens and keys are for their owner only."""
    files = (home.token_file, home.readonly_token_file, home.keeper_certificate)
    there = [path for path in (*files, home.incoming_directory, home.run_directory) if path.exists()]
    open_ones = [path for path in there if stat.S_IMODE(path.stat().st_mode) & 0o077]
    if open_ones:
        names = ", ".join(path.name for path in open_ones)
        advice = f"`chmod go= {' '.join(str(path) for path in open_ones)}`"
        return Check("secrets", CheckResult.FAIL, f"others may read {names}", advice)
    return Check("secrets", CheckResult.OK, "only you may read them" if there else "none yet: made at the first start")


def check_manager(home: Home) -> Check:
    """Whether the manager of this home answers."""
    from proctor.sdk.client.client import Client
    from proctor.sdk.client.errors import ClientError
    from proctor.sdk.client.home import read_address

    address = read_address(home.path)
    if address is None:
        return Check(
            "manager", CheckResult.NOTE, "not running", "`proctor create` and `proctor manager start` start it"
        )
    try:
        with Client(address.url, home=home.path, timeout_seconds=5.0) as client:
            health, running = client.health(), client.version()
    except ClientError as error:
        return Check(
            "manager", CheckResult.FAIL, f"{address.url} (pid {address.pid}): {error}", "run `proctor manager start`"
        )
    if health["status"] != "ok":
        return Check("manager", CheckResult.FAIL, f"{address.url}: {health['status']}", str(health["reason"]))
    return Check("manager", CheckResult.OK, f"{address.url}, version {running['version']}, pid {running['pid']}")


def check_port(home: Home) -> Check:
    """Whether a manager could listen where it does by default."""
    from proctor.sdk.client.home import read_address

    if read_address(home.path) is not None:
        return Check("port", CheckResult.OK, "a manager of this home has one")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((DEFAULT_HOST, DEFAULT_PORT))
        except OSError:
            return Check("port", CheckResult.NOTE, f"{DEFAULT_PORT} is taken", "the next free one will be used")
    return Check("port", CheckResult.OK, f"{DEFAULT_PORT} is free")


def check_gpus(home: Home) -> Check:
    """GPUs through NVML, and whether nvidia-smi exists without it."""
    names, note = gpu_names()
    if note:
        if shutil.which("nvidia-smi"):
            return Check(
                "gpus",
                CheckResult.FAIL,
                f"nvidia-smi is installed, but NVML cannot be loaded: {note}",
                "check the driver",
            )
        return Check("gpus", CheckResult.NOTE, "no NVIDIA driver; trials run without GPUs")
    import pynvml

    driver = "of an unknown version"
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        driver = str(pynvml.nvmlSystemGetDriverVersion())
        pynvml.nvmlShutdown()
    return Check("gpus", CheckResult.OK, f"{len(names)} ({', '.join(dict.fromkeys(names))}), driver {driver}")


def gpu_names() -> tuple[list[str], str]:
    """The name of each GPU of this machine by its index; and why the NVIDIA driver cannot be asked, or ""."""
    import pynvml

    try:
        pynvml.nvmlInit()
        try:
            handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
            return [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles], ""
        finally:
            pynvml.nvmlShutdown()
    except pynvml.NVMLError as error:
        return [], f"the NVIDIA driver cannot be used: {error}"


def check_cgroup(home: Home, root: Path = Path("/sys/fs/cgroup")) -> Check:
    """Whether trials can be put into control groups; without, they are stopped by process group and tag."""
    if not (root / "cgroup.controllers").exists():
        return Check("cgroup", CheckResult.NOTE, "no cgroup v2; trials are stopped by process group and tag")
    try:
        line = next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))
    except (OSError, StopIteration):
        return Check("cgroup", CheckResult.NOTE, "v2, but this process is in none of its groups")
    own = root / line.removeprefix("0::").lstrip("/")
    writable = os.access(own, os.W_OK)
    return Check(
        "cgroup",
        CheckResult.OK if writable else CheckResult.NOTE,
        "v2" + ("" if writable else ", not delegated to you"),
    )


def check_nni(home: Home) -> Check:
    """What `import nni` finds in a script that is run by hand, such as one that starts experiments."""
    ours = next(iter(proctor.sdk.compat.__path__))
    spec = find_spec("nni")
    if spec is not None and spec.origin is not None and Path(spec.origin).is_relative_to(ours):
        return Check("import nni", CheckResult.OK, "Proctor's, in trials and in scripts run by hand")
    advice = f"to have Proctor's there: `export PYTHONPATH={shlex.quote(ours)}:$PYTHONPATH`"
    if spec is None:
        return Check("import nni", CheckResult.OK, "Proctor's in trials, nothing in scripts run by hand", advice)
    found = f"Proctor's in trials, NNI's own in scripts run by hand ({spec.origin})"
    return Check("import nni", CheckResult.NOTE, found, advice)


CHECKS: tuple[Callable[[Home], Check], ...] = (
    check_python,
    check_sqlite,
    check_home,
    check_file_system,
    check_disk,
    check_clock,
    check_secrets,
    check_manager,
    check_port,
    check_gpus,
    check_cgroup,
    check_nni,
)


def _nearest_existing(path: Path) -> Path:
    return next((folder for folder in (path, *path.parents) if folder.exists()), Path("/"))
