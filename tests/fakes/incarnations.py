"""A run of the trainer in processes that may die: each incarnation is a fork of one that has imported torch.

Importing torch takes longer than these runs. The server (this module run as a program) imports it once, touches
nothing, and forks; an incarnation is the leader of a session of its own, so that nothing of it outlives it.
"""

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 120.0
FEW_PROCESSORS = "ignore:This DataLoader will create:UserWarning"


class Incarnations:
    """The server, as the tests see it.

    :param imports: what it imports besides, once for all incarnations.
    """

    def __init__(self, *imports: str) -> None:
        tests = Path(__file__).resolve().parent.parent
        paths = os.pathsep.join([str(tests), str(tests.parent / "src")])
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-W", FEW_PROCESSORS, "-m", "fakes.incarnations", *imports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
            text=True,
        )

    def run(
        self,
        recipe: Any,
        root: Path,
        *,
        kill_after_seconds: "float | None" = None,
        told: bool = False,
        **how: Any,
    ) -> "dict[str, Any]":
        """Run one incarnation of `trained_runs.train` and return what came of it, at least `{"killed": True}`.

        :param kill_after_seconds: when it is killed from outside, wherever it is then.
        :param told: let it continue when it is warned, and return the texts, too.
        :param how: arguments of `train` and `make_watch`; everything else is an option of the trainer.
        """
        known = {name: how.pop(name) for name in ("kill", "kill_passage", "trace", "start") if name in how}
        arguments = {"recipe": asdict(recipe), "root": str(root), "options": how, **known}
        function = "train_warned" if told else "train"
        found: dict[str, Any] = self._order("fakes.trained_runs", function, arguments, kill_after_seconds)
        return found

    def call(self, module: str, function: str, **arguments: Any) -> Any:
        """Call a function in an incarnation and return what it returned, or `{"killed": True}`; all of it in JSON."""
        return self._order(module, function, arguments)

    def _order(
        self, module: str, function: str, arguments: "dict[str, Any]", kill_after_seconds: "float | None" = None
    ) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        order = {"module": module, "function": function, "arguments": arguments, "limit": kill_after_seconds}
        print(json.dumps(order), file=self._process.stdin, flush=True)
        reply = json.loads(self._process.stdout.readline())
        assert not isinstance(reply, dict) or "failure" not in reply, reply["failure"]
        return reply

    def close(self) -> None:
        """End the server."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()


def serve() -> None:
    """Fork an incarnation for each order on standard input and tell how it ended on standard output."""
    import fakes.trained_runs  # noqa: F401  (imported before the forks)
    import torch

    torch.set_num_threads(1)
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # the first optimizer imports a second's worth of modules
    for name in sys.argv[1:]:
        importlib.import_module(name)
    gc.freeze()  # the forks need not look through what was imported, and keep it shared
    for line in sys.stdin:
        order = json.loads(line)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            os.setsid()
            _live(order, writer)
        os.close(writer)
        print(json.dumps(_wait(child, reader, kill_after_seconds=order["limit"])), flush=True)


def _wait(child: int, reader: int, *, kill_after_seconds: "float | None") -> "dict[str, Any]":
    limit, last_signal = PATIENCE_SECONDS, signal.SIGABRT
    if kill_after_seconds is not None:
        limit, last_signal = kill_after_seconds, signal.SIGKILL
    timer = threading.Timer(limit, os.kill, (child, last_signal))
    timer.start()
    try:
        _, status = os.waitpid(child, 0)
    finally:
        timer.cancel()
        timer.join()
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # its loader workers, which would find out by themselves after seconds
    with os.fdopen(reader) as pipe:
        written = pipe.read()
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
        return {"killed": True}
    return json.loads(written) if written else {"failure": f"the incarnation ended with status {status}"}


def _live(order: "dict[str, Any]", writer: int) -> None:
    try:
        text = json.dumps(getattr(importlib.import_module(order["module"]), order["function"])(**order["arguments"]))
    except BaseException:
        import traceback

        text = json.dumps({"failure": traceback.format_exc()})
    os.write(writer, text.encode())
    os._exit(0)


if __name__ == "__main__":
    serve()
