"""A run of the trainer in processes that may die: each incarnation is a fork of one that has imported torch.

Importing torch takes longer than these runs. The server (this module run as a program) imports it once, touches
nothing, and forks; an incarnation is the leader of a session of its own, so that nothing of it outlives it.
"""

import importlib
import json
import os
import random
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
Kill = tuple[str, int]
SAMPLE_FILE = "samples"  # what was trained on: a line for each batch, of all incarnations


class Incarnations:
    """The server, as the tests see it."""

    def __init__(self) -> None:
        tests = Path(__file__).resolve().parent.parent
        paths = os.pathsep.join([str(tests), str(tests.parent / "src")])
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-W", FEW_PROCESSORS, "-m", "fakes.incarnations"],
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
        kill: "Kill | None" = None,
        kill_passage: "Kill | None" = None,
        kill_after_seconds: "float | None" = None,
        trace: "Path | None" = None,
        **options: Any,
    ) -> "dict[str, Any]":
        """Run one incarnation to its end and return what it wrote, or `{"killed": True}`.

        :param kill: where it kills itself: a place of `DigitsModel.watch` and its number, or a fail point and its
            passage.
        :param kill_passage: where it kills itself: a place of either kind, and which passage through it in this
            incarnation.
        :param trace: a file that gets a line with the name of every place that is passed, in their order.
        :param kill_after_seconds: when it is killed from outside, wherever it is then.
        :param options: further options of the trainer.
        """
        order = {"recipe": asdict(recipe), "root": str(root), "kill": kill, "options": options}
        places = {"kill_passage": kill_passage, "trace": None if trace is None else str(trace)}
        return self._order({**order, **places, "kill_after_seconds": kill_after_seconds})

    def call(self, module: str, function: str, **arguments: Any) -> Any:
        """Call a function in an incarnation and return what it returned, or `{"killed": True}`; all of it in JSON."""
        return self._order({"module": module, "function": function, "arguments": arguments})

    def _order(self, order: "dict[str, Any]") -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
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
    import fakes.trained_models  # noqa: F401  (imported before the forks)
    import torch

    torch.set_num_threads(1)
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])  # the first optimizer imports a second's worth of modules
    for line in sys.stdin:
        order = json.loads(line)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            os.setsid()
            _live(order, writer)
        os.close(writer)
        print(json.dumps(_wait(child, reader, kill_after_seconds=order.get("kill_after_seconds"))), flush=True)


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
        text = json.dumps(_call(order) if "function" in order else _train(order))
    except BaseException:
        import traceback

        text = json.dumps({"failure": traceback.format_exc()})
    os.write(writer, text.encode())
    os._exit(0)


def _call(order: "dict[str, Any]") -> Any:
    return getattr(importlib.import_module(order["module"]), order["function"])(**order["arguments"])


def _train(order: "dict[str, Any]") -> "dict[str, Any]":
    from fakes.trained_models import DigitsData, DigitsModel, Recipe, hash_state

    from proctor.sdk.pytorch import Trainer, get_rng_state_dict

    random.seed()  # an incarnation begins with streams of its own, as a new process does
    recipe = Recipe(**order["recipe"])
    Path(order["root"]).mkdir(exist_ok=True)
    watch = _make_watch(order["kill"], order.get("kill_passage"), trace=order.get("trace"))
    model = DigitsModel(recipe, watch, Path(order["root"]) / SAMPLE_FILE)
    options = {**recipe.options(), **order["options"], "chkpt_root": order["root"]}
    outcome = Trainer("run", **options).fit(model, DigitsData(recipe))
    state = model.state_dict()
    return {
        "killed": False,
        "reason": None if outcome.reason is None else outcome.reason.value,
        "weights": hash_state(state["net"]),
        "optimizer": hash_state([state["optimizer"], state["scheduler"]]),
        "streams": hash_state(get_rng_state_dict()),
        "state": outcome.state.state_dict(),
        "history": read_history(Path(order["root"]) / "run" / "history.jsonl"),
        "batches": len(model.samples),
        "resumed": outcome.resumed_from is not None,
    }


def read_history(path: Path) -> "list[dict[str, Any]]":
    """The rows of a history, without the times at which they were written."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [{key: value for key, value in row.items() if key != "time_ms"} for row in rows]


def _make_watch(kill: "Kill | None", kill_passage: "Kill | None" = None, *, trace: "str | None" = None) -> Any:
    if trace is not None:
        return _make_tracer(trace)
    if (target := kill or kill_passage) is None:
        return None
    place, number = target
    if place.startswith("trainer."):  # a fail point of the product
        _arm(place, number)
        return None
    if kill is None:
        return _make_counting_watch(place, number)

    def watch(here: str, here_number: int) -> None:
        if here == place and here_number >= number:
            os.kill(os.getpid(), signal.SIGKILL)

    return watch


def _arm(place: str, passage: int) -> None:
    from proctor.sdk import failpoints

    failpoints._target_name, failpoints._target_count, failpoints._armed = place, passage, True


def _make_counting_watch(place: str, passage: int) -> Any:
    left = passage

    def watch(here: str, here_number: int) -> None:
        nonlocal left
        left -= here == place
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return watch


def _make_tracer(path: str) -> Any:
    from proctor.sdk import failpoints

    failpoints._log_path, failpoints._armed = path, True  # the fail points' names come between ours

    def watch(here: str, here_number: int) -> None:
        with open(path, "a") as file:
            file.write(f"{here}\n")

    return watch


if __name__ == "__main__":
    serve()
