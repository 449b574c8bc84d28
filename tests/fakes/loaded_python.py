"""A Python that has torch imported, for trials whose training is shorter than that import.

    with loaded_python("transformers") as interpreter:
        ...  # f"{interpreter} train.py" is a command like f"{sys.executable} train.py"

The command hands its arguments, folder, environment and descriptors to a server, which runs the script in a fork, and
ends like the script. A script whose command is killed is killed, too.
"""

import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

PATIENCE_SECONDS = 120.0


@contextmanager
def loaded_python(*imports: str) -> "Iterator[str]":
    """A server, and the command that runs a script in it.

    :param imports: what it has imported besides the trainer.
    """
    tests = Path(__file__).resolve().parent.parent
    paths = os.pathsep.join([str(tests), str(tests.parent / "src")])
    with TemporaryDirectory() as folder:  # the path of a socket must be short
        address = os.path.join(folder, "socket")
        server = subprocess.Popen(
            [sys.executable, "-m", "fakes.loaded_python", "--serve", address, *imports],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        )
        try:
            assert server.stdout is not None
            with server.stdout:
                assert server.stdout.read() == b""  # it closes its output when it listens
            yield f"{sys.executable} -S -E {__file__} {address}"
        finally:
            server.kill()
            server.wait(PATIENCE_SECONDS)


def ask(address: str, *arguments: str) -> None:
    """Have a script run, and end as it does."""
    order = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(address)
        socket.send_fds(connection, [b"!"], [0, 1, 2])
        connection.sendall(json.dumps(order).encode() + b"\n")
        code = int(connection.makefile().readline())
    if code < 0:
        os.kill(os.getpid(), -code)
    sys.exit(code)


def serve(address: str, *imports: str) -> "list[str]":
    """Import, and return the command line of a script in each process that is forked for one."""
    import gc
    import random

    import torch

    for name in ("proctor.sdk.pytorch", *imports):
        importlib.import_module(name)
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # the first optimizer imports a second's worth of modules
    gc.freeze()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        os.dup2(2, 1)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # its forks are not waited for
        while True:
            connection, _ = listener.accept()
            with connection:
                if os.fork() == 0:
                    listener.close()
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    order, descriptors = _receive(connection)
                    if (child := os.fork()) == 0:
                        break
                    _wait(child, connection)
    os.setsid()
    for place, descriptor in enumerate(descriptors):
        os.dup2(descriptor, place)
        os.close(descriptor)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    random.seed()  # as in a new process
    found: list[str] = order["arguments"]
    return found


def _receive(connection: socket.socket) -> "tuple[dict[str, Any], list[int]]":
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile() as lines:
        return json.loads(lines.readline()), descriptors


def _wait(child: int, connection: socket.socket) -> None:
    """Tell the command how the script has ended, or kill the script when the command is gone."""
    ended = os.pidfd_open(child)
    if ended not in select.select([ended, connection], [], [])[0]:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with suppress(OSError):
        connection.sendall(f"{code}\n".encode())
    os._exit(0)


if __name__ == "__main__":
    if sys.argv[1] != "--serve":
        ask(*sys.argv[1:])
    sys.argv = serve(*sys.argv[2:])
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
