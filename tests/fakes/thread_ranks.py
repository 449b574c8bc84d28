"""Ranks that are threads of one process, for tests of what they tell each other."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from proctor.sdk.pytorch.distributed.ranks import Ranks

PATIENCE_SECONDS = 60.0


class ThreadRanks(Ranks):
    """One of several threads that call the collective methods in step."""

    def __init__(self, rank: int, barrier: threading.Barrier, shared: "list[Any]") -> None:
        self.rank = rank
        self.local_rank = rank
        self.world_size = barrier.parties
        self._barrier = barrier
        self._shared = shared

    def _tell(self, value: Any) -> "list[Any]":
        self._shared[self.rank] = value
        self._barrier.wait(PATIENCE_SECONDS)
        values = list(self._shared)
        self._barrier.wait(PATIENCE_SECONDS)
        return values

    def gather(self, value: Any) -> "list[Any] | None":
        values = self._tell(value)
        return values if self.is_main else None

    def broadcast(self, value: Any) -> Any:
        return self._tell(value)[0]

    def any(self, flag: bool) -> bool:
        return any(self._tell(flag))

    def barrier(self) -> None:
        self._tell(None)

    def sum(self, tensor: Any) -> Any:
        return tensor.copy_(sum(self._tell(tensor.clone())))

    def broadcast_tensor(self, tensor: Any) -> Any:
        return tensor.copy_(self._tell(tensor.clone())[0])


def call_on_ranks(work: "Callable[[Ranks], Any]", count: int = 2) -> "list[Any]":
    """Do the work in a thread for each rank, and return what each came to, an exception included."""
    barrier, shared = threading.Barrier(count), [None] * count

    def call(rank: int) -> Any:
        try:
            return work(ThreadRanks(rank, barrier, shared))
        except Exception as problem:
            return problem

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(call, range(count)))
