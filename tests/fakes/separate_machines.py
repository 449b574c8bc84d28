"""Ranks on machines of their own, which share no file: each has a working folder, and those of the others are closed.

The ranks are forks, one on each machine, in the environment that torchrun gives its processes; as there, the one who
started them keeps the store at which they meet, and ends all of them when one dies. Called in incarnations.
"""

import json
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

import torch.distributed as dist
from fakes.trained_models import DigitsData, DigitsModel, Recipe
from fakes.trained_runs import RUN, describe_rank
from fakes.watches import make_watch

from proctor.sdk.pytorch import Trainer, snapshots

ADDRESS = "127.0.0.1"
SMALL_BLOCK_BYTES = 1 << 10  # a checkpoint of these tests has several


def train_apart(recipe: "dict[str, Any]", machines: "list[str]", **how: Any) -> "list[dict[str, Any]]":
    """Train with one rank in each folder, the first is the main one; return what each said, `{}` if it died before.

    :param how: the arguments of `make_watch`, and `options` of the trainer.
    """
    talks = {rank: _start(rank, recipe, machines, how) for rank in range(len(machines))}
    store = dist.TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False)  # no thread before the forks
    for _, _, writer in talks.values():
        os.write(writer, f"{store.port}\n".encode())
        os.close(writer)
    pids = {pid for pid, _, _ in talks.values()}
    while pids:
        pid, status = os.waitpid(-1, 0)
        pids.remove(pid)
        if os.WIFSIGNALED(status):
            for other in pids:
                os.kill(other, signal.SIGKILL)
    return [_read(reader) for _, reader, _ in talks.values()]


def _start(rank: int, recipe: Any, machines: "list[str]", how: "dict[str, Any]") -> "tuple[int, int, int]":
    reader, reported = os.pipe()
    port, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.close(writer)
        try:
            with os.fdopen(port) as line:
                _join(rank, len(machines), line.readline().strip())
            _settle(machines[rank], others={*machines} - {machines[rank]})
            os.write(reported, json.dumps(_train(Recipe(**recipe), **how)).encode())
        except BaseException as problem:
            os.write(reported, json.dumps({"error": f"{type(problem).__name__}: {problem}"}).encode())
        os._exit(0)
    os.close(port)
    os.close(reported)
    return pid, reader, writer


def _read(reader: int) -> "dict[str, Any]":
    with os.fdopen(reader) as pipe:
        found: dict[str, Any] = json.loads(pipe.read() or "{}")
    return found


def _join(rank: int, world_size: int, port: str) -> None:
    place = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": world_size, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in place.items()})
    os.environ.update(MASTER_ADDR=ADDRESS, TORCHELASTIC_RUN_ID="apart", TORCHELASTIC_USE_AGENT_STORE="True")
    os.environ.update(GLOO_SOCKET_IFNAME="lo")


def _settle(machine: str, others: "set[str]") -> None:
    """Work in this folder, and find nothing that lies in those of other machines."""
    os.chdir(machine)

    def refuse(event: str, arguments: "tuple[Any, ...]") -> None:
        if event != "open" and not event.startswith("os."):
            return
        for path in arguments:
            if isinstance(path, (str, Path)) and any(Path(path).is_relative_to(other) for other in others):
                raise FileNotFoundError(f"{path} is on another machine")

    sys.addaudithook(refuse)
    snapshots.BLOCK_BYTES = SMALL_BLOCK_BYTES


def _train(recipe: Recipe, *, options: "dict[str, Any] | None" = None, **watch: Any) -> "dict[str, Any]":
    warnings.simplefilter("error")
    places = {"chkpt_root": "checkpoints", "log_path": "logs", "enable_file_logging": True}
    trainer = Trainer(RUN, **{**recipe.options(), "group_timeout_seconds": 90.0, **places, **(options or {})})
    model = DigitsModel(recipe, make_watch(**watch))
    outcome = trainer.fit(model, DigitsData(recipe))
    return {
        **describe_rank(model),
        "state": outcome.state.state_dict(),
        "metrics": outcome.metrics,
        "checkpoint": str(outcome.checkpoint),
        "resumed from": None if outcome.resumed_from is None else str(outcome.resumed_from),
    }
