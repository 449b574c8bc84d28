"""The first contact with a node, begun before anything of ours is there. The source of this module is given to the
node's Python as it stands (`python3 -c`), so it imports nothing of ours, and keeps to Python 3.6 until that is checked.

Standard input: one JSON object on a line for each thing that is asked. Standard output: one on a line for each answer.
It ends with its input. What can be asked, and what is answered:

    {"inspect": "<manager id>-<node id>",                     the folder below ~/.proctor/nodes that is probed
     "python_path": "/opt/conda/bin"}                         to be first on the PATH of trials; or null

    {"python": "3.11.2", "too_old": false,                 too_old: older than 3.10; then "newer" may help
     "executable": "/usr/bin/python3",
     "newer": ["/usr/bin/python3.12", ...],                  other Pythons >= 3.10 on PATH, by their names; newest first
     "lacks": ["bash", ...],                                 phrases: what a keeper needs besides Python and is not here
     "home": "/home/bob", "uid": 1000, "user": "bob",
     "hostname": ..., "boot_id": ..., "machine_id": ...,         "" where the system does not say
     "time": 1732220000.0,                                 its clock, Unix seconds
     "writable": true, "why_not_writable": "",             whether a small file could be written where ours will be
     "free_mb": 51200, "free_inodes": 1000000,             null: the system sets no limit, or does not say
     "directory": "/home/bob/.proctor/nodes/<key>",        "" without a key
     "exists": true,                                       whether it is there
     "archives": ["keeper-0123....pyz"],                     whole ones, there already
     "kills_at_logout": false,                             logind ends a user's processes at logout
     "python_path_without": ""}                            "python_path", if no Python is in it

    {"write": "/home/bob/.../keeper-0123....pyz", "size": 300000, "sha256": hex}    followed by so many bytes: a file,
    {}                                        which is durable, with the hash expected, before it has its name

    {"command": "prepare", "file": "/home/bob/.../keeper-0123....pyz", ...}      a command of the keeper's one file, see
    its answer                                trial_keeper/commands/main.py; always of the same file

    {"list": "<manager id>-check-"}           the names in ~/.proctor/nodes that begin so
    {"names": [...]}

    {"remove": "/home/bob/.proctor/nodes/..."}      a folder in which no keeper has run, with the empty ones above it
    {"left": false}

Anything that goes wrong is {"error": sentence} and, when the system refused something, "errno": "ENOSPC".
"""

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import socket
import sys
import tempfile
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import BinaryIO

OLDEST = (3, 10)
MEBIBYTE = 1024 * 1024
ATTEMPTS = 5


def main() -> None:
    source = sys.stdin.buffer
    for line in iter(source.readline, b""):
        sys.stdout.write(json.dumps(answer_to(line, source)) + "\n")
        sys.stdout.flush()


def answer_to(line: bytes, source: "BinaryIO") -> "dict[str, object]":
    """What is answered to a line; `source` is what stands behind it."""
    try:
        asked = json.loads(line.decode("utf-8"))
        if "inspect" in asked:
            return inspect_node(asked["inspect"], asked.get("python_path") or "")
        if "write" in asked:
            return write_file(asked["write"], source.read(asked["size"]), asked)
        if "command" in asked:
            return carry_out(asked, source)
        if "list" in asked:
            return {"names": list_folders(asked["list"])}
        return {"left": remove(asked["remove"])}
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "")
        return {"error": f"{error.strerror or error}: {error.filename or 'no file'}", "errno": name}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def inspect_node(key: str, python_path: str) -> "dict[str, object]":
    """Everything that is reported about this node.

    :param python_path: the directory that is to be first on the PATH of its trials, or "".
    """
    home = os.path.expanduser("~")
    directory = os.path.join(home, ".proctor", "nodes", key) if key else ""
    nearest, why_not = home, ""
    for _ in range(ATTEMPTS):
        nearest = nearest_folder(directory or home)
        why_not = try_to_write(nearest)
        if os.path.isdir(nearest):
            break  # else another node that shares this home has just been left
    free_mb, free_inodes = room(nearest)
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "too_old": sys.version_info[:2] < OLDEST,
        "executable": sys.executable or os.path.realpath("/proc/self/exe"),
        "newer": newer_pythons() if sys.version_info[:2] < OLDEST else [],
        "lacks": list_lacks(),
        "home": home,
        "uid": os.getuid(),
        "user": user_name(),
        "hostname": socket.gethostname(),
        "boot_id": first_line("/proc/sys/kernel/random/boot_id"),
        "machine_id": first_line("/etc/machine-id"),
        "time": time.time(),
        "writable": not why_not,
        "why_not_writable": why_not,
        "free_mb": free_mb,
        "free_inodes": free_inodes,
        "directory": directory,
        "exists": bool(directory) and os.path.isdir(directory),
        "archives": list_archives(directory),
        "kills_at_logout": kills_at_logout(),
        "python_path_without": "" if has_python(python_path) else python_path,
    }


def write_file(path: str, data: bytes, expected: "dict[str, object]") -> "dict[str, object]":
    """Write a file, if it has arrived whole."""
    if len(data) != expected["size"] or hashlib.sha256(data).hexdigest() != expected["sha256"]:
        return {"error": f"{path} arrived damaged ({len(data)} bytes); check its network"}
    make_folder(os.path.dirname(path))
    part = f"{path}.{os.getpid()}"
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())  # noqa: TID251 - this module is sent to machines as one file
        os.rename(part, path)  # noqa: TID251 - the same
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(part)
        raise
    return {}


def carry_out(asked: "dict[str, object]", source: "BinaryIO") -> "dict[str, object]":
    """A command of the keeper's one file."""
    if asked["file"] not in sys.path:
        sys.path.insert(0, str(asked["file"]))
    from proctor.trial_keeper.commands.main import answer_to

    return answer_to(str(asked["command"]), asked, source)


def list_folders(prefix: str) -> "list[str]":
    """The nodes' directories whose names begin so."""
    place = os.path.expanduser("~/.proctor/nodes")
    names = os.listdir(place) if os.path.isdir(place) else []
    return sorted(name for name in names if name.startswith(prefix))


def remove(directory: str) -> bool:
    """Remove a node's directory; whether something is left of it."""
    shutil.rmtree(directory, ignore_errors=True)
    with contextlib.suppress(OSError):
        os.rmdir(os.path.dirname(directory))
        os.rmdir(os.path.dirname(os.path.dirname(directory)))
    return os.path.exists(directory)


def make_folder(path: str) -> None:
    """Make a node's folder, and those above it, readable for the owner only."""
    nodes = os.path.dirname(path)
    for attempt in range(ATTEMPTS):
        try:
            for folder in (os.path.dirname(nodes), nodes, path):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(folder, 0o700)
            break
        except FileNotFoundError:  # another node that shares this home has just been left, and a parent with it
            if attempt == ATTEMPTS - 1:
                raise
    os.chmod(path, 0o700)


def nearest_folder(path: str) -> str:
    """The folder itself, or the first one above it that is there."""
    while not os.path.isdir(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


def try_to_write(folder: str) -> str:
    """Why a small file cannot be written in the folder; empty when it can."""
    home = os.path.expanduser("~")
    if not os.path.isdir(home):
        return f"the home directory {home} does not exist"
    try:
        descriptor, path = tempfile.mkstemp(prefix=".proctor-", suffix=".probe", dir=folder)
    except OSError as error:
        return f"{folder}: {error.strerror}"
    try:
        os.write(descriptor, b"\0" * 4096)
        os.fsync(descriptor)  # noqa: TID251 - as above
    except OSError as error:
        return f"{folder}: {error.strerror}"
    finally:
        os.close(descriptor)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    return ""


def room(folder: str) -> "tuple[int | None, int | None]":
    """Free MiB and free inodes for an ordinary user; None where there is no such limit."""
    try:
        facts = os.statvfs(folder)
    except OSError:
        return None, None
    return facts.f_bavail * facts.f_frsize // MEBIBYTE, facts.f_favail if facts.f_files else None


def list_archives(directory: str) -> "list[str]":
    """The whole keeper archives in a node's directory."""
    try:
        names = os.listdir(directory) if directory else []
    except OSError:
        names = []
    return sorted(name for name in names if name.startswith("keeper-") and name.endswith(".pyz"))


def list_lacks() -> "list[str]":
    """What a keeper needs of the system and does not find."""
    if not sys.platform.startswith("linux"):
        return [f"Linux (this is {os.uname().sysname})"]
    lacks = [] if shutil.which("bash") else ["bash"]
    open_process = getattr(os, "pidfd_open", None)
    if open_process is not None:
        try:
            os.close(open_process(os.getpid()))
        except OSError:
            lacks.append(f"a kernel with pidfd_open, 5.3 or newer (this is {os.uname().release})")
    return lacks


def newer_pythons() -> "list[str]":
    """Pythons on PATH that are new enough by their names, the newest first."""
    found: dict[int, str] = {}  # not evaluated, so that Python 3.6 takes it
    for folder in os.environ.get("PATH", "/usr/local/bin:/usr/bin:/bin").split(os.pathsep):
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            match = re.match(r"^python3\.(\d+)$", name)
            if match and int(match.group(1)) >= OLDEST[1] and os.access(os.path.join(folder, name), os.X_OK):
                found.setdefault(int(match.group(1)), os.path.join(folder, name))
    return [found[minor] for minor in sorted(found, reverse=True)]


def has_python(folder: str) -> bool:
    """Whether a Python of any version can be executed there."""
    try:
        names = os.listdir(folder) if folder else []
    except OSError:
        return False
    pythons = [name for name in names if re.match(r"^python[0-9.]*$", name)]
    return any(os.access(os.path.join(folder, name), os.X_OK) for name in pythons)


def kills_at_logout() -> bool:
    """Whether systemd-logind is configured to end what a user leaves running (off by default)."""
    setting = "no"
    files = ["/etc/systemd/logind.conf"]
    folder = "/etc/systemd/logind.conf.d"
    if os.path.isdir(folder):
        files += sorted(os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".conf"))
    for path in files:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                found = re.findall(r"^\s*KillUserProcesses\s*=\s*(\S+)", file.read(), re.M)
        except OSError:
            continue
        setting = found[-1] if found else setting
    return setting.lower() in ("1", "yes", "true", "on")


def user_name() -> str:
    """The user's name; its number where it has none."""
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):
        return str(os.getuid())


def first_line(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return ""


if __name__ == "__main__":
    main()
