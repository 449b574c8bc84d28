"""A run of several ranks that may die, for the tests: what each rank trained comes back through the queue.

The functions are called in incarnations (see `incarnations`), which have torch imported. There the ranks are forks
too: a real start takes each of them seconds. That the trainer's own way of starting them works is tested by itself.
"""

import os
import random
import signal
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from fakes.incarnations import read_history
from fakes.trained_models import DigitsData, DigitsModel, DisturbedDigits, Recipe, hash_state

from proctor.sdk.pytorch import (
    DataLoaderParams,
    NotExactWarning,
    Trainer,
    get_rng_state_dict,
    spawning,
    unwrap,
    wrap_for_ranks,
)
from proctor.sdk.pytorch.distributed import get_ranks

PATIENCE_SECONDS = 60.0


class KillAt:
    """A watch (see `DigitsModel`) that kills its rank, or the launcher, at the n-th passage through a place."""

    def __init__(self, *, rank: int, place: str, passage: int, launcher: bool = False) -> None:
        self.rank = rank
        self.place = place
        self.left = passage
        self.launcher = launcher

    def __call__(self, place: str, number: int) -> None:
        if place != self.place or get_ranks().rank != self.rank:
            return
        self.left -= 1
        if self.left == 0:
            os.kill(os.getppid() if self.launcher else os.getpid(), signal.SIGKILL)


class RankData(DigitsData):
    """Enough samples for several batches of every rank."""

    def setup(self) -> None:
        params = DataLoaderParams(batch_size=4, shuffle=True, num_workers=self.recipe.workers)
        self.add_train_phase(DisturbedDigits(44), params)
        self.set_validation(DisturbedDigits(10, first=150), DataLoaderParams(batch_size=4))
        self.set_testing(DisturbedDigits(10, first=160), DataLoaderParams(batch_size=4))


class RankModel(DigitsModel):
    """The model of `DigitsModel` on several ranks."""

    def __init__(self, recipe: Recipe, kill: "KillAt | None") -> None:
        super().__init__(recipe)
        self.watch = kill or pass_by

    def setup(self) -> None:
        super().setup()
        torch.rand(3)  # the streams are in use before the first step
        before, buffers = hash_state(get_rng_state_dict()), hash_state(dict(self.net.named_buffers()))
        self.net = wrap_for_ranks(self.net, self.ranks)
        assert before == hash_state(get_rng_state_dict())
        assert buffers == hash_state(dict(unwrap(self.net).named_buffers()))

    def on_training_end(self) -> None:
        super().on_training_end()
        state = self.state_dict()
        self.queue.put(
            {
                "rank": self.ranks.rank,
                "weights": hash_state(state["net"]),
                "optimizer": hash_state([state["optimizer"], state["scheduler"]]),
                "streams": hash_state(get_rng_state_dict()),
                "samples": self.samples,
                "draw": torch.rand(1).item(),
            }
        )


def pass_by(place: str, number: int) -> None:
    """A watch that does nothing."""


def train(
    root: str,
    recipe: "dict[str, Any]",
    *,
    processes: int,
    kill: "dict[str, Any] | None" = None,
    start: str = "fork",
    options: Any = None,
) -> "dict[str, Any]":
    """Train on ranks, from the latest checkpoint, and return what every rank handed over, or the error.

    :param kill: the arguments of `KillAt`.
    :param start: "fork", or "spawn" as the trainer itself does.
    """
    spawning.START_METHOD = start
    random.seed()
    warnings.simplefilter("ignore", NotExactWarning)
    cell = Recipe(**recipe)
    trainer = Trainer("run", **{**cell.options(), **(options or {}), "chkpt_root": root, "processes": processes})
    killer = None if kill is None else KillAt(**kill)
    try:
        outcome = trainer.fit(RankModel(cell, killer), RankData(cell))
    except Exception as problem:
        return {"error": f"{type(problem).__name__}: {problem}"}
    ranks = sorted(trainer.queue.get_all(), key=lambda values: values["rank"])
    return {
        "error": None,
        "reason": None if outcome.reason is None else outcome.reason.value,
        "resumed": outcome.resumed_from is not None,
        "state": outcome.state.state_dict(),
        "history": read_history(Path(root) / "run" / "history.jsonl"),
        "ranks": ranks,
    }


def train_under_a_killed_launcher(**arguments: Any) -> "list[str]":
    """`train` in a process of its own, which a rank kills, and return the commands of what is left after that."""
    launcher = os.fork()
    if launcher == 0:
        try:
            train(**arguments)
        finally:
            os._exit(0)
    _, status = os.waitpid(launcher, 0)
    assert os.WIFSIGNALED(status), f"the launcher was to be killed and ended with {status}"
    return wait_for_the_end_of_others()


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
