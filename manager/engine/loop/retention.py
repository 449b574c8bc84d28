"""Which of an experiment's checkpoints are deleted, and having them deleted.

A decision is made in the loop, between two turns, by the rules of `proctor.manager.lifecycle.checkpoints`, over the few
checkpoints of the trials that the turn was about. It is committed in the metrics database before anything is deleted;
from the moment it is made no job is given such a checkpoint (`ExperimentState.deleting`). Then the training service is
asked to delete the files, beside the loop and for each node in order. What was committed and not confirmed is carried
out again by the next loop. See docs/decisions/0035.
"""

import asyncio
import logging
import sqlite3
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

from proctor.manager.engine.loop.context import JobFormBuilder, LoopContext
from proctor.manager.engine.loop.messages import Inbox, NoticePosted, Wake
from proctor.manager.engine.loop.state import ExperimentState
from proctor.manager.engine.transient_errors import error_clause
from proctor.manager.lifecycle.checkpoints import (
    CheckpointFacts,
    Expendability,
    KeepRule,
    retain,
    take_until_within,
)
from proctor.manager.store.errors import DatabaseUnusable, RowNotFound, StoreError
from proctor.manager.store.rows import CheckpointRow, TrialJobRow, TrialRow
from proctor.manager.store.tables import checkpoints, jobs, trials
from proctor.sdk.failpoints import failpoint
from proctor.sdk.protocol import is_url
from proctor.training_services.base import SupportsCheckpointDeletion
from proctor.training_services.errors import NoJobRuns, ServiceUnavailable
from proctor.training_services.stored_checkpoints import delete_stored
from proctor.trial_keeper.linux.backoff import growing_pause

if TYPE_CHECKING:
    from proctor.manager.config.experiment import ExperimentConfig

log = logging.getLogger(__name__)

BYTES_PER_MB = 10**6
TRIALS_AT_ONCE = 100
EXPENDABLE_AT_ONCE = 50
STUCK_SECONDS = 300.0
"""After this time the deletion of what could not be deleted is tried again."""
NOTICED_FAILURES = 6
"""That no job runs which could delete a checkpoint is a notice after so many attempts in a row, half a minute."""
FINISH_SECONDS = 10.0
"""How long an experiment that ends waits for deletions that are under way."""
_FIRST_TO_GO = (Expendability.OF_ENDED, Expendability.OLDER_OF_LIVE, Expendability.BEST_OF_ENDED)


def keep_rule(config: "ExperimentConfig") -> KeepRule:
    """keepCheckpoints as a rule."""
    kept = config.keep_checkpoints
    newest = None if kept.newest == "all" else kept.newest
    return KeepRule(newest, kept.best, maximize=config.objective.direction == "maximize")


def gather_facts(
    trial: TrialRow,
    rows: Iterable[CheckpointRow],
    forms: JobFormBuilder,
    *,
    job: TrialJobRow | None,
    origins: Collection[tuple[str, str]],
    copying: Collection[int] = (),
) -> list[CheckpointFacts]:
    """What the fate of a trial's checkpoints depends on.

    :param job: its live job.
    :param copying: those that are being copied to this machine.
    :param origins: what trials continue from that have not ended (`trials.origins`).
    """
    given = _given(job)

    def facts(row: CheckpointRow) -> CheckpointFacts:
        path = forms.checkpoint_place(trial, row.job, row.path)
        return CheckpointFacts(
            row.id,
            row.job,
            row.member,
            (f"{trial.id}.{row.job}", row.path),
            row.value,
            is_given=path in given,
            is_donor=(trial.id, path) in origins,
            is_copied=row.id in copying,
            is_foreign=not forms.is_checkpoint_path(trial, row.job, row.path),
        )

    return [facts(row) for row in rows]


def _given(job: TrialJobRow | None) -> set[str | None]:
    """The paths of the checkpoints that a live job may continue from: until it has started, all that it was offered."""
    if job is None:
        return set()
    offers = job.checkpoints or () if job.started_at is None else ()
    return {job.resume_checkpoint, *(offer["path"] for offer in offers)}


@dataclass(frozen=True)
class _Decision:
    """What was decided over some trials."""

    deleted: Sequence[CheckpointRow]
    expendable: Mapping[int, Expendability]
    changed: Mapping[int, Expendability]  # those that are not stored like that
    rows: Mapping[int, CheckpointRow]  # all of their checkpoints by id


class CheckpointRetention:
    """The retention of one experiment's checkpoints. `run` carries out what is decided."""

    def __init__(self, state: ExperimentState, context: LoopContext, inbox: Inbox) -> None:
        self._state = state
        self._context = context
        self._inbox = inbox
        self._rule = keep_rule(context.config)
        quota = context.config.checkpoint_quota_mb
        self._quota = None if quota is None else quota * BYTES_PER_MB
        self._undecided: dict[str, None] = {}  # trials, in the order in which they came
        self._ended: set[str] = set()  # trials whose donors are to be decided over
        self._is_exceeded = False
        self._said: set[str] = set()
        self._group: asyncio.TaskGroup | None = None
        self._queues: dict[str | None, deque[CheckpointRow]] = {}  # by node: what is to be deleted there
        self._working: set[object] = set()  # nodes at which something is being deleted now, and what comes before that
        self._rests = asyncio.Event()
        self._rests.set()

    @property
    def _can_delete(self) -> bool:
        """Whether checkpoints can be deleted: by the service; those under a URL by this process, whatever it is."""
        storage = self._context.forms.storage
        return isinstance(self._context.service, SupportsCheckpointDeletion) or (
            storage is not None and is_url(storage.location)
        )

    @property
    def _is_needed(self) -> bool:
        return self._can_delete and (self._rule.newest is not None or self._quota is not None)

    async def start(self) -> None:
        """Take up what the loop before has left."""
        if not self._can_delete:
            self._explain_that_all_are_kept()
            return
        await self._queue(await self._context.metrics.read(checkpoints.to_remove))
        if self._is_needed:
            self._undecided |= dict.fromkeys(await self._context.metrics.read(checkpoints.undecided))

    def _explain_that_all_are_kept(self) -> None:
        from proctor.manager.config.experiment import ALL_CHECKPOINTS, KeepCheckpointsConfig

        config = self._context.config
        if self._quota is not None or config.keep_checkpoints not in (KeepCheckpointsConfig(), ALL_CHECKPOINTS):
            platform = config.training_service.platform
            self._say(
                f"platform {platform} cannot delete checkpoints: keepCheckpoints and checkpointQuotaMb have no effect, "
                "except that a checkpoint larger than the quota is not saved"
            )

    # ---- decisions, in the loop

    def reconsider(self, trial_id: str) -> None:
        """Something has changed for a trial outside of a turn."""
        if self._is_needed:
            self._undecided[trial_id] = None
            self._inbox.post(Wake())

    async def find_deleted(self, wanted: Collection[int]) -> set[int]:
        """Which of these checkpoints are deleted, or about to be."""
        deleted = {id for id in wanted if id in self._state.deleting}

        def read(connection: sqlite3.Connection) -> set[int]:
            return {id for id in wanted if checkpoints.get(connection, id).deleted_at is not None}

        return deleted | (await self._context.metrics.read(read) if wanted else set())

    async def decide(self, trial_ids: Collection[str]) -> None:
        """Decide over the checkpoints of these trials, of which something has changed in a turn that is committed.
        While the metrics database cannot be used, that waits for a later turn."""
        if not self._is_needed:
            return
        self._undecided |= dict.fromkeys(trial_ids)
        self._ended.update(trial_id for trial_id in trial_ids if trial_id not in self._state.trials)
        batch = list(islice(self._undecided, TRIALS_AT_ONCE))
        if not batch:
            return
        for trial_id in batch:  # what changes from now on is decided over again
            del self._undecided[trial_id]
        ended, self._ended = self._ended, set()
        try:
            self._context.metrics.require_writable()
            donors = await self._donors(ended)
            decision = await self._judge(batch)
            await self._commit(decision.changed, decision.deleted)
            if self._quota is not None:
                await self._enforce(self._quota)
        except StoreError as error:
            extra = {"action": "checkpoint.decide", "experiment_id": self._state.row.id}
            log.warning("nothing is decided over checkpoints now: %s", error, extra=extra)
            self._undecided |= dict.fromkeys(batch)
            self._ended |= ended
            return
        self._undecided |= dict.fromkeys(donor for donor in donors if donor not in batch)
        if self._undecided:
            self._inbox.post(Wake())

    async def _donors(self, ended: Collection[str]) -> list[str]:
        """The trials whose checkpoints these needed no longer than until now."""
        return await self._context.control.read(lambda c: trials.donors(c, ended)) if ended else []

    async def _judge(self, trial_ids: Collection[str]) -> _Decision:
        """Apply the rules to these trials as they are now."""
        live, deleting = self._state.trials, self._state.deleting
        others = [trial_id for trial_id in trial_ids if trial_id not in live]

        def read_control(connection: sqlite3.Connection) -> tuple[dict[str, TrialRow], set[tuple[str, str]]]:
            found = {}
            for trial_id in others:
                with suppress(RowNotFound):
                    found[trial_id] = trials.get(connection, trial_id)
            return found, trials.origins(connection, trial_ids)

        def read_metrics(connection: sqlite3.Connection) -> dict[str, list[CheckpointRow]]:
            return {trial_id: checkpoints.kept(connection, trial_id) for trial_id in trial_ids}

        (found, origins), kept = await asyncio.gather(
            self._context.control.read(read_control), self._context.metrics.read(read_metrics)
        )
        found |= {trial_id: live[trial_id].row for trial_id in trial_ids if trial_id in live}
        rows: dict[int, CheckpointRow] = {}
        deleted: list[CheckpointRow] = []
        expendable: dict[int, Expendability] = {}
        for trial_id, trial in found.items():
            ours = {row.id: row for row in kept[trial_id] if row.id not in deleting}
            job = live[trial_id].job if trial_id in live else None
            facts = gather_facts(
                trial, ours.values(), self._context.forms, job=job, origins=origins, copying=self._state.copying
            )
            outcome = retain(facts, self._rule, has_ended=trial.status.is_terminal)
            rows |= ours
            deleted += [ours[id] for id in outcome.deleted]
            expendable |= outcome.expendable
        changed = {id: rank for id, rank in expendable.items() if rows[id].expendable != rank}
        return _Decision(deleted, expendable, changed, rows)

    async def _commit(self, changed: Mapping[int, Expendability], deleted: Sequence[CheckpointRow]) -> None:
        """Write down a decision; their files are removed later. Raises DatabaseUnusable: it is written down
        later."""
        if not changed and not deleted:
            return
        now = self._context.clock.now()
        self._state.deleting.update(row.id for row in deleted)

        def write(connection: sqlite3.Connection) -> None:
            checkpoints.set_expendable(connection, changed)
            checkpoints.delete(connection, deleted, time=now)

        failpoint("manager.checkpoint.delete.before")
        writing = self._context.metrics.write(write)
        writing.add_done_callback(lambda done: self._on_committed(done, deleted))
        await self._context.metrics.until_done_or_unwritable(writing)

    def _on_committed(self, done: "asyncio.Future[None]", deleted: Sequence[CheckpointRow]) -> None:
        failpoint("manager.checkpoint.delete.after")
        self._state.deleting.difference_update(row.id for row in deleted)
        if deleted and not done.cancelled() and done.exception() is None and self._group is not None:
            work = object()
            self._begin_work(work)
            task = self._group.create_task(self._queue_safely(deleted), name="checkpoints to delete")
            task.add_done_callback(lambda _: self._end_work(work))

    async def _enforce(self, quota: int) -> None:
        """Delete what goes first until all checkpoints take no more than the quota."""
        total = await self._context.metrics.read(checkpoints.total_bytes)
        maximize = self._rule.maximize
        best = await self._context.metrics.read(lambda c: checkpoints.best(c, maximize=maximize))
        for rank in _FIRST_TO_GO:
            while total > quota:
                found = await self._context.metrics.read(
                    lambda c, rank=rank: checkpoints.expendable(c, rank, limit=EXPENDABLE_AT_ONCE)  # type: ignore[misc]
                )
                decision = await self._judge(list(dict.fromkeys(row.trial_id for row in found)))
                candidates = [
                    (row.id, row.bytes or 0)
                    for row in found
                    if decision.expendable.get(row.id) is rank and (row.id != best or not self._rule.protects_best)
                ]
                deleted = [decision.rows[id] for id in take_until_within(total, quota, candidates)]
                await self._commit(decision.changed, [*decision.deleted, *deleted])
                total = await self._context.metrics.read(checkpoints.total_bytes)
                if not deleted and not decision.changed and not decision.deleted:
                    break
        self._report_quota(total, quota)

    def _report_quota(self, total: int, quota: int) -> None:
        if total > quota and not self._is_exceeded:
            text = (
                f"all checkpoints together take {total / BYTES_PER_MB:,.0f} MB, more than checkpointQuotaMb "
                f"({quota // BYTES_PER_MB:,}), and those that are left are kept: they are needed by trials that have "
                "not ended or by jobs and clones that began with them, are being copied to the manager's machine, are "
                "the best one, or are where only their own trials can delete them; raise "
                "the quota in a new experiment, or end trials"
            )
            self._inbox.post(NoticePosted(text))
        self._is_exceeded = total > quota

    # ---- deletions, beside the loop

    async def run(self) -> None:
        """Delete what is decided until canceled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                for node_id in self._queues:
                    self._serve_beside(node_id)
                await asyncio.Event().wait()
            finally:
                self._group = None

    async def finish(self) -> None:
        """Wait for the deletions that are under way; not for nodes that are away."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FINISH_SECONDS):
                await self._rests.wait()

    async def _queue_safely(self, rows: Sequence[CheckpointRow]) -> None:
        try:
            await self._queue(rows)
        except StoreError as error:
            extra = {"action": "checkpoint.delete", "experiment_id": self._state.row.id}
            log.warning("checkpoints are deleted after the next restart of the loop: %s", error, extra=extra)

    async def _queue(self, rows: Sequence[CheckpointRow]) -> None:
        """Have files deleted where their jobs ran."""
        numbers = {f"{row.trial_id}.{row.job}" for row in rows}

        def read(connection: sqlite3.Connection) -> dict[str, str | None]:
            return {job_id: jobs.get(connection, job_id).node_id for job_id in numbers}

        nodes = await self._context.control.read(read)
        for row in rows:
            node_id = nodes[f"{row.trial_id}.{row.job}"]
            queue = self._queues.get(node_id)
            if queue is None:
                queue = self._queues[node_id] = deque()
                self._serve_beside(node_id)
            queue.append(row)

    def _serve_beside(self, node_id: str | None) -> None:
        if self._group is not None:
            self._begin_work(node_id)
            name = f"experiment {self._state.row.id}: checkpoints of node {node_id}"
            self._group.create_task(self._serve(node_id), name=name)

    async def _serve(self, node_id: str | None) -> None:
        """Delete the checkpoints of one node, one after the other."""
        queue, stuck = self._queues[node_id], list[CheckpointRow]()
        failures = 0
        await asyncio.sleep(0)  # until the first is queued
        while queue or stuck:
            if not queue:
                await self._pause(node_id, STUCK_SECONDS)
                queue.extend(stuck)
                stuck.clear()
            row = queue.popleft()
            try:
                await self._delete(row)
                failures = 0
            except ServiceUnavailable as error:
                failures += 1
                queue.appendleft(row)
                log.info("checkpoints are deleted later: %s", error, extra=self._extra(row))
                if isinstance(error, NoJobRuns) and failures == NOTICED_FAILURES:
                    self._say(f"deleted checkpoints still take room: {error}")
                await self._pause(node_id, growing_pause(failures))
            except Exception as error:
                stuck.append(row)
                log.warning("a checkpoint cannot be deleted: %s", error, extra=self._extra(row))
                self._say(f"deleted checkpoints still take room: {error_clause(error)}")
        del self._queues[node_id]
        self._end_work(node_id)

    async def _delete(self, row: CheckpointRow) -> None:
        def read(connection: sqlite3.Connection) -> tuple[TrialRow, TrialJobRow]:
            return trials.get(connection, row.trial_id), jobs.get(connection, f"{row.trial_id}.{row.job}")

        trial, job = await self._context.control.read(read)
        if not self._context.forms.is_checkpoint_path(trial, row.job, row.path):
            return  # in the storage of the home that this one was copied from
        form = self._context.forms.form(self._state.row, trial, job)
        failpoint("manager.checkpoint.remove.before")
        if is_url(row.path):
            await delete_stored(row.path, form.environment)
        else:
            service = self._context.service
            assert isinstance(service, SupportsCheckpointDeletion)
            await service.delete_checkpoint(form, row.path)
        failpoint("manager.checkpoint.remove.after")
        now = self._context.clock.now()
        with suppress(DatabaseUnusable):  # it is closed: the next loop asks again
            await self._context.metrics.write(lambda c: checkpoints.confirm_removal(c, row, time=now))

    async def _pause(self, node_id: str | None, seconds: float) -> None:
        self._end_work(node_id)
        await asyncio.sleep(seconds)
        self._begin_work(node_id)

    def _begin_work(self, key: object) -> None:
        self._working.add(key)
        self._rests.clear()

    def _end_work(self, key: object) -> None:
        self._working.discard(key)
        if not self._working:
            self._rests.set()

    def _say(self, text: str) -> None:
        """A notice, once."""
        if text not in self._said:
            self._said.add(text)
            self._inbox.post(NoticePosted(text))

    def _extra(self, row: CheckpointRow) -> dict[str, str]:
        return {
            "action": "checkpoint.delete",
            "experiment_id": self._state.row.id,
            "job_id": f"{row.trial_id}.{row.job}",
        }
