"""The commands by which a manager looks after its keeper on a node, over SSH:

    python3 -I -S -X utf8 keeper-<hash>.pyz COMMAND

Each reads one JSON object, on one line, from standard input and prints one JSON object, on one line, on standard
output; nothing else goes there. Exit code 0, or 1 with {"error": sentence} and, when the system refused something, its
word for that: "errno": "ENOSPC". Members with "?" may be left out.
Every command may be given again after it was broken off anywhere. `directory` is the keeper's directory on this node,
`~/.proctor/nodes/<manager id>-<node id>`: absolute, or beginning with "~/".

prepare  Make the directory (0700) and what it holds, clean up what broken-off uploads have left.
    in   {"directory": "~/.proctor/nodes/…"}
    out  {"directory": "/home/bob/.proctor/nodes/…",    absolute: to be used from now on
          "socket": "/home/…/run/1f2e….sock",           fresh, at most 100 bytes, in a 0700 folder, nothing there yet
          "codes": ["3a0b…", …],                        the folders in code/
          "keeper": {"pid": 17, "archive": "keeper-….pyz", "version": "0.1.0"} | null,
          "free_mb": 51200, "jobs": 3}                  jobs: how many the keeper's records know, ended ones included

point    Have the keeper find the manager at `socket` from now on; sockets of earlier connections are removed.
    in   {"directory": …, "socket": …}
    out  {"socket": …}

start    Make sure that a keeper of this very archive, with these settings, runs. Another one is asked to leave first;
         its jobs keep running and the new one adopts them. With `socket`, `point` is carried out before.
    in   {"directory": …, "node_id": …, "secret": …, "socket"?: …, "device_refresh_seconds"?: 5.0,
          "gpu_lock_directory"?: "", "search_path"?: "/opt/py/bin"}         search_path: goes first on PATH
    out  {"pid": 17, "started": true, "replaced": false}          started: was not running, or was replaced

stop     Have the keeper leave. With `kill_jobs` every job of it ends with all its processes, its end written down.
    in   {"directory": …, "kill_jobs"?: false, "grace_seconds"?: 5.0}       grace: between SIGTERM and SIGKILL
    out  {"jobs": 2, "left": [],        jobs: how many were ended, or continue; left: messages on what did not end
          "experiments"?: ["Ab3dE5f7"]} with `kill_jobs`: whose folders are there, with what was not collected

remove   `stop` with `kill_jobs`, then leave no trace: the directory, ~/.proctor/nodes and ~/.proctor when they are
         empty, temporary socket folders, unused lock files of GPUs.
    in   {"directory": …, "grace_seconds"?: 5.0, "gpu_lock_directory"?: ""}   by default the one of the settings there
    out  {"removed": true, "jobs": 2, "left": []}      removed: nothing is left; else `left` says what and why
         `stop` and `remove` answer within the grace and 20 s, a minute later where a process does not react to SIGKILL.

unpack   Unpack a .tar.gz of that hash, which was uploaded or follows the line, as the folder `target`, which appears
         whole or not at all; then remove the archive. Nothing in it may lead out of the folder. A `target` that is
         there is left as it is.
    in   {"directory": …, "archive": "uploads/….tar.gz", "sha256": hex, "target": "code/3a0b…",    both below directory
          "size"?: 0}                                              how many bytes of the archive follow the line
    out  {"target": "/home/…/code/3a0b…", "there_already": false, "files": 120, "bytes": 345678}

probe    What a keeper of this archive finds here; changes nothing.
    in   {"gpu_lock_directory"?: "", "paths"?: ["/data/code"]}
    out  {"version": "0.1.0", "archive": "keeper-….pyz", "python": "3.11.2",
          "devices": [Device of protocol.py, …], "driver_note": "", "notes": [],
          "gpu_lock_directory": "/var/lock/proctor", "gpu_lock_problem": "",    a sentence when GPUs cannot be leased
          "paths": {"/data/code": "folder" | "file" | "missing" | "unreadable"}}

Problems that are no programming error are sentences for users: a full disk, a damaged upload, a folder that may not be
written. `trial_keeper/probe.py` probes a node before the archive is there; `trial_keeper/relay.py` describes `relay`.
"""

import errno
import importlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any, BinaryIO

from proctor.trial_keeper.commands.input import CommandInput
from proctor.trial_keeper.errors import CommandRefused, TrialKeeperError

COMMANDS = {
    "prepare": "proctor.trial_keeper.commands.directory:prepare",
    "point": "proctor.trial_keeper.commands.directory:point",
    "start": "proctor.trial_keeper.commands.keeper:start",
    "stop": "proctor.trial_keeper.commands.keeper:stop",
    "remove": "proctor.trial_keeper.commands.keeper:remove",
    "unpack": "proctor.trial_keeper.commands.unpack:unpack",
    "probe": "proctor.trial_keeper.commands.survey:probe",
}


def main(name: str) -> int:
    """Carry out a command from standard input to standard output; returns the exit code."""
    with open(0, "rb", closefd=False) as source, open(1, "wb", closefd=False) as output:
        answer = _answer_to_line(name, source)
        output.write(json.dumps(answer).encode() + b"\n")
    return 1 if "error" in answer else 0


def answer_to(name: str, body: Any, source: BinaryIO) -> dict[str, Any]:
    """The answer to a command.

    :param body: its JSON object.
    :param source: what may follow it.
    """
    try:
        return _find(name)(CommandInput(name, body, source))
    except TrialKeeperError as error:
        return {"error": str(error), **_errno(error.__cause__)}
    except OSError as error:
        where = f": {error.filename}" if error.filename else ""
        return {"error": f"{name} failed: {error.strerror or error}{where}", **_errno(error)}
    except Exception as error:
        return {"error": f"{name} failed: {type(error).__name__}: {error}"}


def _answer_to_line(name: str, source: BinaryIO) -> dict[str, Any]:
    try:
        body = read_object(source)
    except CommandRefused as error:
        return {"error": str(error)}
    return answer_to(name, body, source)


def _errno(error: BaseException | None) -> dict[str, str]:
    number = error.errno if isinstance(error, OSError) else None
    return {} if number is None else {"errno": errno.errorcode.get(number, str(number))}


def read_object(source: BinaryIO) -> Any:
    """One line of JSON. Raises CommandRefused."""
    line = source.readline()
    try:
        return json.loads(line)
    except ValueError as error:
        raise CommandRefused(f"standard input should begin with a line of JSON, found {line[:100]!r}") from error


def _find(name: str) -> Callable[[CommandInput], dict[str, Any]]:
    if name not in COMMANDS:
        known = ", ".join(sorted([*COMMANDS, "pod", "relay", "serve"]))
        raise CommandRefused(f"there is no command {name!r}; known: {known}")
    module, _, function = COMMANDS[name].partition(":")
    if not sys.executable:  # an empty environment: Python could not find itself
        sys.executable = os.path.realpath("/proc/self/exe")
    found: Callable[[CommandInput], dict[str, Any]] = getattr(importlib.import_module(module), function)
    return found
