"""How much each parameter of an experiment matters, computed in a process of its own while others wait for nothing.

Optuna, which computes it, takes seconds and is not imported here. An answer is what is known now: that of the trials as
they are, or an earlier one while a newer one is being computed.
"""

import asyncio
import hashlib
import json
import logging
import os
import sqlite3
import sys
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from proctor.manager.clock import Clock
from proctor.manager.errors import ManagerError
from proctor.manager.file_descriptors import require_spare
from proctor.manager.store.database import Database
from proctor.manager.store.errors import RowNotFound, StoreError
from proctor.manager.store.tables import events, experiments, trials

log = logging.getLogger(__name__)

MODULE = "proctor.manager.dispatcher.algorithms.importance"
MOST_TRIALS = 20_000
"""The newest: computing takes 0.4 ms for each."""
LIMIT_SECONDS = 120
MOST_KEPT = 200
"""Answers."""
LARGEST_SHARE = 1 / 5
"""Of the time, that is spent on one question while its experiment runs."""
LEAST_PAUSE_SECONDS = 2.0
RETRY_SECONDS = 60.0
"""After a failure."""
_MESSAGE_BYTES = 2000


class ImportanceState(StrEnum):
    """How an answer relates to the trials."""

    CURRENT = "CURRENT"  # of the trials as they are
    COMPUTING = "COMPUTING"  # another one is being computed
    OUTDATED = "OUTDATED"  # trials have ended since; the next one is computed after a pause, when it is asked for


@dataclass(frozen=True)
class ImportanceQuestion:
    """Of which experiment, for which value (None: the number of the final metric), for which share of best trials."""

    experiment_id: str
    key: str | None
    quantile: float
    maximize: bool


@dataclass(frozen=True)
class ImportanceResult:
    """What was computed: how many trials were compared, left out as they are outside of the search space, and the best;
    shares by parameter, the greatest first, or the reason for which there are none."""

    revision: int
    trials: int
    outside: int
    top: int
    parameters: tuple[tuple[str, float], ...]
    reason: str | None


@dataclass(frozen=True)
class ImportanceAnswer:
    """The newest result, and what keeps a newer one from being there."""

    state: ImportanceState
    result: ImportanceResult | None
    failure: str | None


@dataclass
class _Kept:
    """What is known about a question."""

    revision: int = -1  # the newest event when the input was read
    digest: bytes = b""  # of the input
    result: ImportanceResult | None = None
    failure: str | None = None
    not_before: float = 0.0
    task: asyncio.Task[None] | None = None


@dataclass
class Importances:
    """Answers questions; computes one at a time."""

    control: Database
    clock: Clock
    _kept: OrderedDict[ImportanceQuestion, _Kept] = field(default_factory=OrderedDict)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _group: asyncio.TaskGroup | None = None

    @asynccontextmanager
    async def serve(self) -> AsyncIterator[None]:
        """Compute what is asked for until this is left; then what is being computed ends."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                yield
            finally:
                self._group = None
                for kept in self._kept.values():
                    if kept.task is not None:
                        kept.task.cancel()

    async def ask(self, question: ImportanceQuestion) -> ImportanceAnswer:
        """What is known now. Where that is not of the present trials, a computation begins, unless the last one was
        just now."""
        revision = await self.control.read(lambda c: events.revision(c, question.experiment_id))
        kept = self._kept.setdefault(question, _Kept())
        self._kept.move_to_end(question)
        self._forget()
        is_current = kept.revision == revision and kept.failure is None
        if (
            not is_current
            and kept.task is None
            and self._group is not None
            and self.clock.monotonic() >= kept.not_before
        ):
            name = f"importance of parameters of experiment {question.experiment_id}"
            kept.task = self._group.create_task(self._answer(question, kept), name=name)
        if kept.task is not None:
            state = ImportanceState.COMPUTING
        else:
            state = ImportanceState.CURRENT if is_current else ImportanceState.OUTDATED
        return ImportanceAnswer(state, kept.result, kept.failure)

    def _forget(self) -> None:
        for question in list(self._kept)[: max(0, len(self._kept) - MOST_KEPT)]:
            if self._kept[question].task is None:
                del self._kept[question]

    async def _answer(self, question: ImportanceQuestion, kept: _Kept) -> None:
        pause = LEAST_PAUSE_SECONDS
        try:
            async with self._turn:
                began = self.clock.monotonic()
                revision, data = await self.control.read(lambda connection: _input(connection, question))
                digest = hashlib.blake2b(data).digest()
                if kept.digest != digest or kept.result is None or kept.failure:
                    kept.result = _result(await compute(data), revision)
                kept.revision, kept.digest, kept.failure = revision, digest, None
                pause = max(pause, (self.clock.monotonic() - began) / LARGEST_SHARE)
        except RowNotFound:  # deleted meanwhile
            pass
        except (OSError, ValueError, ManagerError, StoreError) as error:
            kept.failure, pause = str(error), RETRY_SECONDS
            text = "the importance of the parameters of experiment %s cannot be computed: %s"
            log.warning(text, question.experiment_id, error, extra={"action": "importance.compute"})
        finally:
            kept.task = None
            kept.not_before = self.clock.monotonic() + pause


def _input(connection: sqlite3.Connection, question: ImportanceQuestion) -> tuple[int, bytes]:
    """The experiment's newest event, and what the process reads. Raises RowNotFound."""
    space = experiments.get(connection, question.experiment_id).search_space
    head = {"key": question.key, "quantile": question.quantile, "maximize": question.maximize, "search_space": space}
    rows = trials.results(connection, question.experiment_id, limit=MOST_TRIALS)
    text = f'{json.dumps(head)[:-1]},"trials":[{",".join(rows)}]}}'
    return events.revision(connection, question.experiment_id), text.encode()


def _result(answer: Any, revision: int) -> ImportanceResult:
    return ImportanceResult(
        revision=revision,
        trials=answer["trials"],
        outside=answer["outside"],
        top=answer["top"],
        parameters=tuple((each["name"], each["importance"]) for each in answer["parameters"]),
        reason=answer["reason"],
    )


async def compute(data: bytes, *, limit_seconds: int = LIMIT_SECONDS) -> Any:
    """The answer of the process to `data`. Raises OSError where it cannot be started, ValueError where it does not
    answer within its time. It is gone when this returns."""
    require_spare()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", MODULE, "--parent", str(os.getpid()), "--seconds", str(limit_seconds)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(limit_seconds):
            answer, message = await process.communicate(data)
    except TimeoutError:
        raise ValueError(f"it took longer than {limit_seconds} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await asyncio.shield(process.wait())
    if process.returncode != 0:
        raise ValueError(_how_it_ended(process.returncode, message, limit_seconds))
    return json.loads(answer)


def _how_it_ended(code: int | None, message: bytes, limit_seconds: int) -> str:
    if code == -14:  # SIGALRM, its own limit
        return f"it took longer than {limit_seconds} s"
    how = f"was killed by signal {-code}" if code is not None and code < 0 else f"exited with {code}"
    text = message[-_MESSAGE_BYTES:].decode(errors="replace").strip()
    return f"its process {how}" + (f": {text.rpartition(chr(10))[2]}" if text else "")
