"""A process whose loader's worker is stuck in a sample when the process is killed; called in an incarnation."""

import os
import select
import signal

from proctor.sdk.pytorch import DataLoaderParams
from proctor.sdk.pytorch.data.loaders import EpochLoader
from proctor.sdk.pytorch.distributed.ranks import Ranks

PATIENCE_SECONDS = 60.0


class Stuck:
    """A dataset that tells which process reads it and never returns: its worker sees nothing of the run."""

    def __init__(self, pipe: int) -> None:
        self.pipe = pipe

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> int:
        os.write(self.pipe, f"{os.getpid()}\n".encode())
        while True:
            signal.pause()


def kill_its_process() -> "dict[str, bool]":
    """Kill a process whose worker is stuck, and return whether the worker has ended, too."""
    reader, writer = os.pipe()
    owner = os.fork()
    if owner == 0:
        try:
            _read(writer)
        finally:
            os._exit(1)
    os.close(writer)  # the worker's end is the last one that is open
    worker = int(_receive(reader) or 0)
    os.kill(owner, signal.SIGKILL)
    os.waitpid(owner, 0)
    has_ended = _receive(reader) == b""
    os.close(reader)
    if worker and not has_ended:
        os.kill(worker, signal.SIGKILL)
    return {"was there": worker > 0, "has ended": has_ended}


def _read(pipe: int) -> None:
    dataset = Stuck(pipe)
    params = DataLoaderParams(num_workers=1, multiprocessing_context="fork")
    list(EpochLoader(dataset, params, [0], seed=0, ranks=Ranks(), worker_seed=0))


def _receive(pipe: int) -> "bytes | None":
    """What comes through the pipe, nothing when the last writer has ended; None if nothing happens for long."""
    ready, _, _ = select.select([pipe], [], [], PATIENCE_SECONDS)
    return os.read(pipe, 100) if ready else None
