"""Copying registered checkpoints to the manager's machine, so that the loss of a node does not mean from the start.

Of each trial that has not ended the newest checkpoint is copied, a few at a time and beside the loop: one that is
superseded before its turn has come is skipped, and one that is being copied is kept until it is here. One for which the
disk has no room is tried again now and then, because room may be made. Where they are on this machine anyway (the
service is not `SupportsCheckpointCopies`), or in a storage of the experiment's, nothing is done.
"""

import asyncio
import logging
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from proctor.manager.engine.loop.context import LoopContext
from proctor.manager.engine.loop.messages import Inbox, NoticePosted
from proctor.manager.engine.loop.state import ExperimentState
from proctor.manager.engine.transient_errors import error_clause
from proctor.manager.store.errors import StoreError
from proctor.manager.store.rows import CheckpointRow, TrialJobRow, TrialRow
from proctor.manager.store.tables import checkpoints, jobs, trials
from proctor.training_services.base import SupportsCheckpointCopies
from proctor.training_services.errors import ServiceUnavailable, TrainingServiceError
from proctor.trial_keeper.linux.backoff import growing_pause

log = logging.getLogger(__name__)

AT_ONCE = 2
SPARE_BYTES = 10**9
"""What copies leave free on the manager's disk."""
NO_ROOM_SECONDS = 60.0
"""After this time a copy is tried again for which there was no room."""
TRIALS_AT_ONCE = 500


class NoRoomForCopy(TrainingServiceError):
    """The disk has no room for the copy of a checkpoint."""

    def __init__(self, problem: str, *, passes: bool) -> None:
        super().__init__(problem)
        self.passes = passes
        """There is room but for other copies that are being made."""


@dataclass
class _Wanted:
    """The newest checkpoint of one rank of a trial that is to be copied."""

    row: CheckpointRow
    failures: int = 0
    due: float = 0.0  # monotonic


class CheckpointCopies:
    """The copies of one experiment's checkpoints. `run` makes them: a few at a time, of each trial one.

    :param on_copied: called with the trial of a checkpoint that is no longer being copied.
    """

    def __init__(
        self, state: ExperimentState, context: LoopContext, inbox: Inbox, *, on_copied: Callable[[str], None]
    ) -> None:
        self._state = state
        self._context = context
        self._inbox = inbox
        self._on_copied = on_copied
        self._wanted: dict[tuple[str, int], _Wanted] = {}  # by trial and rank, in the order in which they came
        self._copying: dict[int, tuple[str, asyncio.Task[None]]] = {}  # by checkpoint: its trial, and the copy
        self._changed = asyncio.Event()
        self._has_noticed = False

    @property
    def _is_needed(self) -> bool:
        config = self._context.config
        is_wanted = config.copy_checkpoints and config.checkpoint_storage is None
        return is_wanted and isinstance(self._context.service, SupportsCheckpointCopies)

    async def start(self) -> None:
        """After a restart of the loop: the newest ones of the trials that have not ended may not be here yet."""
        if not self._is_needed:
            return
        wanted = [trial.row.id for trial in self._state.trials.values() if trial.has_checkpoints]
        experiment_id = self._state.row.id
        found = await self._context.metrics.read(checkpoints.undecided) if self._state.paused else []
        for batch in _batches(found):
            paused = await self._context.control.read(lambda c, ids=batch: trials.paused(c, experiment_id, ids))  # type: ignore[misc]
            wanted += [trial.id for trial in paused]
        for batch in _batches(wanted):
            self.add(
                await self._context.metrics.read(
                    lambda c, ids=batch: [row for trial_id in ids for row in checkpoints.kept(c, trial_id)]  # type: ignore[misc]
                )
            )

    def add(self, rows: Iterable[CheckpointRow]) -> None:
        """These were registered, in this order. Returns at once."""
        if not self._is_needed:
            return
        for row in rows:
            known = self._wanted.setdefault((row.trial_id, row.member), _Wanted(row))
            known.row = row
        self._changed.set()

    def drop(self, trial_id: str) -> None:
        """The trial has ended: what it has saved is not needed to continue it. Returns at once."""
        for key in [key for key in self._wanted if key[0] == trial_id]:
            del self._wanted[key]
        for owner, task in self._copying.values():
            if owner == trial_id:
                task.cancel()

    async def run(self) -> None:
        """Copy what is wanted until canceled."""
        async with asyncio.TaskGroup() as group:
            while True:
                self._changed.clear()
                pause = self._begin(group)
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._changed.wait()

    def _begin(self, group: asyncio.TaskGroup) -> float | None:
        """Begin what may begin; returns in how many seconds there may be more, None: when something changes."""
        now = self._context.clock.monotonic()
        for key, wanted in list(self._wanted.items()):
            if len(self._copying) >= AT_ONCE:
                return None
            if wanted.due <= now and all(owner != key[0] for owner, _ in self._copying.values()):
                del self._wanted[key]
                self._state.copying.add(wanted.row.id)
                name = f"experiment {self._state.row.id}: copy of checkpoint {wanted.row.id}"
                task = group.create_task(self._copy(key, wanted), name=name)
                self._copying[wanted.row.id] = wanted.row.trial_id, task
                task.add_done_callback(lambda _, row=wanted.row: self._on_done(row))  # type: ignore[misc]
        return min((wanted.due - now for wanted in self._wanted.values() if wanted.due > now), default=None)

    async def _copy(self, key: tuple[str, int], wanted: _Wanted) -> None:
        row = wanted.row
        try:
            await self._make(row)
            self._has_noticed = False
        except (ServiceUnavailable, StoreError, NoRoomForCopy) as error:
            wanted.failures += 1
            has_room = not isinstance(error, NoRoomForCopy)
            pause = growing_pause(wanted.failures) if has_room else NO_ROOM_SECONDS
            wanted.due = self._context.clock.monotonic() + pause
            self._wanted.setdefault(key, wanted)  # unless a newer one has come
            log.info("a checkpoint is copied later: %s", error, extra=self._extra)
            if isinstance(error, NoRoomForCopy) and not error.passes:
                self._say(error_clause(error))
        except Exception as error:
            log.warning("a checkpoint is not copied: %s", error, extra=self._extra)
            self._say(error_clause(error))

    def _on_done(self, row: CheckpointRow) -> None:
        """Also of one that was canceled before it had begun."""
        del self._copying[row.id]
        self._state.copying.discard(row.id)
        self._changed.set()
        self._on_copied(row.trial_id)

    async def _make(self, row: CheckpointRow) -> None:
        service = self._context.service
        assert isinstance(service, SupportsCheckpointCopies)

        def read(connection: sqlite3.Connection) -> tuple[TrialRow, TrialJobRow]:
            return trials.get(connection, row.trial_id), jobs.get(connection, f"{row.trial_id}.{row.job}")

        trial, job = await self._context.control.read(read)
        still = await self._context.metrics.read(lambda c: checkpoints.get(c, row.id))
        if still.deleted_at is not None:
            return
        form = self._context.forms.form(self._state.row, trial, job)
        disk, free = await asyncio.to_thread(_free_bytes, Path(form.directory))
        size, copying = row.bytes or 0, self._context.copying
        promised = sum(size for other, size in copying.values() if other == disk)
        if size + promised > free - SPARE_BYTES:
            problem = f"{row.path} of job {form.job_id} takes {_gb(size)}, and its disk has {_gb(free)} left"
            raise NoRoomForCopy(problem, passes=size <= free - SPARE_BYTES)
        key = self._state.row.id, row.id
        copying[key] = disk, size
        try:
            await service.copy_checkpoint(form, row.path)
        finally:
            del copying[key]

    def _say(self, clause: str) -> None:
        """A notice, once until a copy has been made again."""
        if not self._has_noticed:
            text = (
                f"a checkpoint was not copied to the manager's machine: {clause}; if its machine is lost, the trial "
                "continues from an earlier copy or from the start"
            )
            self._inbox.post(NoticePosted(text))
        self._has_noticed = True

    @property
    def _extra(self) -> dict[str, str]:
        return {"action": "checkpoint.copy", "experiment_id": self._state.row.id}


def _batches(trial_ids: list[str]) -> Iterator[list[str]]:
    return (trial_ids[first : first + TRIALS_AT_ONCE] for first in range(0, len(trial_ids), TRIALS_AT_ONCE))


def _free_bytes(folder: Path) -> tuple[int, int]:
    """The disk on which a folder is, or is to be made, and what it has left. Blocks."""
    while not folder.exists():
        folder = folder.parent
    return folder.stat().st_dev, shutil.disk_usage(folder).free


def _gb(size: int) -> str:
    return f"{size / 1e9:,.1f} GB"
