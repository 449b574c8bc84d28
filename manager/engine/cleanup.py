"""Clean-ups that are pending: of experiments that are STOPPED, and whose platform has not cleaned up after them yet.

That an experiment is STOPPED and that its clean-up is owed are committed together; a clean-up that has succeeded is
written down, too. One that failed, or that a killed manager has not come to, is tried again with growing pauses, by a
later manager as well. An experiment that was stopped while it was not loaded, and of whose jobs keepers still have
reports, is cleaned up after when these are stored, or given up: after its next stop, or when it is deleted.
"""

import asyncio
import logging
import sqlite3
from contextlib import suppress
from dataclasses import dataclass, field

from proctor.manager.engine.context import EngineContext
from proctor.manager.engine.creation import make_service
from proctor.manager.engine.transient_errors import error_clause, is_transient, retry_clause
from proctor.manager.errors import Unavailable
from proctor.manager.store.errors import RowNotFound
from proctor.manager.store.rows import ExperimentRow
from proctor.manager.store.tables import events, experiments, jobs
from proctor.sdk.failpoints import failpoint
from proctor.training_services.base import SupportsCollection, TrainingService
from proctor.trial_keeper.linux.backoff import growing_pause

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS, LONGEST_TRANSIENT_SECONDS, LONGEST_LASTING_SECONDS = 1.0, 30.0, 600.0
"""The first pause after a failure; the longest one where it may pass by itself, and where a person must act."""
PATIENCE_SECONDS = 60.0
"""How long a user who resumes or deletes an experiment waits for a clean-up."""


@dataclass(eq=False)
class _OwedCleanUp:
    """One experiment, and the attempts to clean up after it."""

    experiment_id: str
    clause: str = ""  # why the last attempt failed; "" before the first one has
    failures: int = 0
    due: float = 0.0  # monotonic
    abandoned: asyncio.Event = field(default_factory=asyncio.Event)  # set while no further attempt is wanted
    task: asyncio.Task[None] | None = None
    service: TrainingService | None = None  # of the attempt that is under way


class CleanUps:
    """The clean-ups of one manager."""

    def __init__(self, context: EngineContext) -> None:
        self._context = context
        self._entries: dict[str, _OwedCleanUp] = {}
        self._group: asyncio.TaskGroup | None = None

    async def start(self, group: asyncio.TaskGroup) -> None:
        """Begin with what earlier managers have left, in tasks of the group."""
        self._group = group
        for experiment_id in await self._context.control.read(experiments.needing_clean_up):
            self.add(experiment_id)

    def close(self) -> None:
        """The manager leaves; what is pending remains written down. Idempotent."""
        self._group = None
        for entry in self._entries.values():
            if entry.task is not None:
                entry.task.cancel()

    async def carry_out(self, experiment_id: str, service: TrainingService) -> None:
        """Clean up now, and write down that it was done, with the files that are still on nodes. Raises what the
        service raises."""
        failpoint("manager.clean_up.before")
        await service.clean_up()
        failpoint("manager.clean_up.after")
        notices = await self._describe_uncollected(experiment_id)
        now = self._context.clock.now()

        def end(connection: sqlite3.Connection) -> None:
            experiments.end_clean_up(connection, experiment_id)
            for text in notices:
                data = {"text": text}
                events.append(connection, time=now, kind=events.NOTICE, data=data, experiment_id=experiment_id)

        with suppress(RowNotFound):
            await self._context.control.write(end)

    async def _describe_uncollected(self, experiment_id: str) -> list[str]:
        """Sentences about the files of an experiment that are still on nodes. Nodes on which no job of it ran have
        none."""
        providers = self._context.providers
        if providers is None or not providers.uncollected(experiment_id=experiment_id):
            return []
        ran_on = await self._context.control.read(lambda c: jobs.nodes(c, experiment_id))
        await providers.forget(experiment_id, keep=ran_on)
        return [
            f"when it was stopped, files on node {each.node_id} were not collected: {each.why}; they stay there, "
            f"{each.place}, until `proctor nodes collect {each.node_id}` fetches them or the experiment is deleted"
            for each in providers.uncollected(experiment_id=experiment_id)
        ]

    def add(self, experiment_id: str, error: Exception | None = None) -> None:
        """Try until it is done: at once, or after a pause because of `error`. Does nothing while the manager leaves."""
        if self._group is None or experiment_id in self._entries:
            return
        entry = self._entries[experiment_id] = _OwedCleanUp(experiment_id)
        if error is not None:
            self._record_failure(entry, error)
        entry.task = self._group.create_task(self._keep_trying(entry), name=f"clean-up of experiment {experiment_id}")

    async def end_attempts(self, experiment_id: str) -> None:
        """Make no further attempt, and wait for one that is under way. What is pending remains written down. Raises
        Unavailable when that takes too long."""
        entry = self._entries.get(experiment_id)
        if entry is None or entry.task is None:
            return
        entry.abandoned.set()
        try:
            await asyncio.wait({entry.task}, timeout=PATIENCE_SECONDS)
        finally:
            entry.abandoned.clear()
        if not entry.task.done():
            raise Unavailable(f"the platform of experiment {experiment_id} is still cleaning up after it; try again")

    def end_collection(self, experiment_id: str) -> None:
        """The experiment is about to be deleted: an attempt that is under way collects no more files."""
        entry = self._entries.get(experiment_id)
        if entry is not None and isinstance(entry.service, SupportsCollection):
            entry.service.end_collection()

    async def settle(self, experiment: ExperimentRow) -> None:
        """Clean up after an experiment that is about to be deleted. Raises Unavailable when its platform cannot do it.
        A platform that no longer exists is no reason to keep the experiment."""
        await self.end_attempts(experiment.id)
        try:
            service = make_service(self._context, experiment)
        except Exception as error:
            text = "experiment %s is deleted without a clean-up by its platform: %s"
            extra = {"action": "experiment.clean_up", "experiment_id": experiment.id}
            log.warning(text, experiment.id, error_clause(error), extra=extra)
            self._context.hub.release(experiment.id)
            return
        if isinstance(service, SupportsCollection):
            service.end_collection()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await self.carry_out(experiment.id, service)
        except Exception as error:
            self.add(experiment.id, error)
            why = "it takes too long" if isinstance(error, TimeoutError) and not str(error) else error_clause(error)
            problem = f"its platform could not clean up after it: {why}"
            text = f"experiment {experiment.id} cannot be deleted yet: {problem}; delete it again"
            raise Unavailable(text) from error

    async def _keep_trying(self, entry: _OwedCleanUp) -> None:
        try:
            while not entry.abandoned.is_set():
                if (pause := entry.due - self._context.clock.monotonic()) > 0:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(pause):
                            await entry.abandoned.wait()
                elif await self._try(entry):
                    return
        finally:
            if self._entries.get(entry.experiment_id) is entry:
                del self._entries[entry.experiment_id]
            self._context.feed.notify()

    async def _try(self, entry: _OwedCleanUp) -> bool:
        """One attempt. True: nothing is left to try."""
        try:
            row = await self._context.control.read(lambda c: experiments.get(c, entry.experiment_id))
            live = await self._context.control.read(lambda c: jobs.live(c, entry.experiment_id))
            if row.clean_up_owed and not row.status.is_active and not live:
                entry.service = make_service(self._context, row)
                await self.carry_out(row.id, entry.service)
        except RowNotFound:  # it was deleted
            return True
        except Exception as error:
            self._record_failure(entry, error)
            return False
        finally:
            entry.service = None
        if entry.failures:
            extra = {"action": "experiment.clean_up", "experiment_id": entry.experiment_id}
            log.info("the platform of experiment %s has cleaned up after it", entry.experiment_id, extra=extra)
        return True

    def _record_failure(self, entry: _OwedCleanUp, error: Exception) -> None:
        transient, clause = is_transient(error), error_clause(error)
        longest = LONGEST_TRANSIENT_SECONDS if transient else LONGEST_LASTING_SECONDS
        entry.failures += 1
        entry.due = self._context.clock.monotonic() + growing_pause(entry.failures, FIRST_PAUSE_SECONDS, longest)
        if clause != entry.clause:
            extra = {"action": "experiment.clean_up", "experiment_id": entry.experiment_id}
            text = "the platform of experiment %s has not cleaned up after it: %s"
            log.warning(text, entry.experiment_id, clause, exc_info=None if transient else error, extra=extra)
        entry.clause = clause
        self._context.feed.notify()

    # ---- in words

    def describe(self, experiment_id: str) -> str:
        """Why a stopped experiment is not cleaned up, and when that is tried again; "" if no attempt has failed."""
        entry = self._entries.get(experiment_id)
        if entry is None or not entry.clause:
            return ""
        when = retry_clause(entry.due - self._context.clock.monotonic())
        return f"stopped; its platform has not cleaned up after it: {entry.clause}; {when}"

    @property
    def problem(self) -> str:
        """The experiments whose clean-up has failed, each with the reason, or ''."""
        clauses = [(experiment_id, self.describe(experiment_id)) for experiment_id in self._entries]
        return "; ".join(f"experiment {experiment_id} is {clause}" for experiment_id, clause in clauses if clause)
