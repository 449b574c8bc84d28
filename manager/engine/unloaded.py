"""Experiments that are active and that no loop works on: why not, and when loading them is tried again.

An experiment cannot be loaded while its metrics database is on a disk that is full or away, while its configuration
cannot be read, or while its training service cannot be made. None of that is the fault of its trials: they keep
running, and their keepers keep what they report. The experiment keeps its status. Loading is tried again with growing
pauses, and at once when a user resumes the experiment.

Meanwhile a user can stop it, kill its trials and change its limits: that is committed to the control database as a
loop would do it, and keepers are notified through the hub. A loop that loads the experiment later finds it there.
"""

import asyncio
import logging
import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from proctor.manager.actors import Actor
from proctor.manager.engine.cleanup import CleanUps
from proctor.manager.engine.context import EngineContext
from proctor.manager.engine.loop import messages as m
from proctor.manager.engine.loop import tuning, user_commands
from proctor.manager.engine.loop.loop import ExperimentLoop
from proctor.manager.engine.loop.recovery import read_state
from proctor.manager.engine.loop.state import ExperimentState, LiveTrial, Turn
from proctor.manager.engine.loop.stopping import save_time, soft_stop
from proctor.manager.engine.transient_errors import error_clause, is_transient, retry_clause
from proctor.manager.errors import NotFound, Unavailable
from proctor.manager.lifecycle.experiment import ExperimentEvent
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.manager.store.errors import RowNotFound
from proctor.manager.store.tables import experiments, trials
from proctor.training_services.base import TrainingService
from proctor.trial_keeper.linux.backoff import growing_pause

if TYPE_CHECKING:
    from proctor.manager.engine.supervisor import ExperimentSupervisor

log = logging.getLogger(__name__)

START_TIMEOUT_SECONDS = 10.0
"""How long the start of the manager waits for all first attempts: a disk that hangs must not hold it up."""
RESUME_TIMEOUT_SECONDS = 15.0
"""How long a user who resumes an experiment waits for the attempt."""
STOP_POLL_SECONDS = 2.0
"""How often an experiment that is being stopped is looked at."""
FIRST_TRANSIENT_SECONDS, LONGEST_TRANSIENT_SECONDS = 1.0, 30.0
"""The first and the longest pause after what may pass by itself, such as a full disk."""
FIRST_LASTING_SECONDS, LONGEST_LASTING_SECONDS = 60.0, 600.0
"""The same after what only a person can change, such as a plug-in that is not installed."""

WithoutLoop = m.StopExperiment | m.CancelTrial | m.ChangeLimits
"""What can be done for an experiment that no loop works on."""


@dataclass(frozen=True)
class ReadExperiment:
    """An experiment that was read back, with all that its loop needs. Nothing was changed yet."""

    loop: ExperimentLoop
    service: TrainingService


@dataclass(eq=False)
class _UnloadedExperiment:
    """One experiment, and the attempts to load it."""

    experiment_id: str
    since: float  # monotonic
    clause: str = ""  # why it is not loaded; "" before the first attempt has failed
    began: int = 0
    failed: int = 0
    failed_alike: int = 0  # in a row, in the same way: transient or lasting
    is_transient: bool = True
    due: float | None = None  # monotonic; None while an attempt is under way
    woken: asyncio.Event = field(default_factory=asyncio.Event)
    attempted: asyncio.Event = field(default_factory=asyncio.Event)  # of the end of the next attempt
    task: asyncio.Task[None] | None = None

    def notify_waiters(self) -> None:
        """An attempt has ended."""
        self.attempted.set()
        self.attempted = asyncio.Event()


class Unloaded:
    """The experiments of a supervisor that are not loaded: when it is to `load` and `start` them, and what can be done
    with them until then."""

    def __init__(self, context: EngineContext, clean_ups: CleanUps, supervisor: "ExperimentSupervisor") -> None:
        self._context = context
        self._clean_ups = clean_ups
        self._supervisor = supervisor
        self._entries: dict[str, _UnloadedExperiment] = {}
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._changes: Counter[str] = Counter()  # by experiment: changes committed here, which a load may have missed
        self._group: asyncio.TaskGroup | None = None
        self._loaded: dict[str, tuple[float, int]] = {}  # when (monotonic), and after how many failures

    # ---- attempts

    async def load_all(self, group: asyncio.TaskGroup, experiment_ids: Sequence[str]) -> None:
        """Load experiments one after another, the later ones in the background when that takes long. Returns when each
        is loaded, has failed once, or the time is over."""
        self._group = group
        loop = asyncio.get_running_loop()
        ends = loop.time() + START_TIMEOUT_SECONDS
        for experiment_id in experiment_ids:
            attempted = self.add(experiment_id).attempted
            with suppress(TimeoutError):
                async with asyncio.timeout_at(ends):
                    await attempted.wait()

    def add(self, experiment_id: str, error: Exception | None = None) -> _UnloadedExperiment:
        """Try to load an experiment until it is loaded: at once, or after a pause because of `error`."""
        assert self._group is not None, "experiments are loaded while the supervisor serves"
        now = self._context.clock.monotonic()
        entry = _UnloadedExperiment(experiment_id, now)
        self._entries[experiment_id] = entry
        loaded_at, failures = self._loaded.pop(experiment_id, (-math.inf, 0))
        if now - loaded_at < LONGEST_TRANSIENT_SECONDS:
            entry.failed_alike = failures  # its loop did not last: it is tried less and less often
        if error is not None:
            self._record_failure(entry, error)
        name = f"loading experiment {experiment_id}"
        entry.task = self._group.create_task(self._keep_loading(entry), name=name)
        return entry

    async def try_now(self, experiment_id: str) -> None:
        """Have an experiment loaded now rather than after its pause. Raises Unavailable with what is in the way; one
        that is loaded is allowed."""
        entry = self._entries.get(experiment_id)
        if entry is None:
            return
        wanted = entry.began + 1  # an attempt that is under way may have seen what was in the way before
        entry.woken.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(RESUME_TIMEOUT_SECONDS):
                while self._entries.get(experiment_id) is entry and entry.failed < wanted:
                    await entry.attempted.wait()
        if self._entries.get(experiment_id) is entry:
            raise self.obstacle(experiment_id)

    def drop(self, experiment_id: str) -> None:
        """Try no more: the experiment is stopped, or about to be deleted. One that is not here is allowed."""
        entry = self._entries.pop(experiment_id, None)
        if entry is not None and entry.task is not None and entry.task is not asyncio.current_task():
            entry.task.cancel()

    def close(self) -> None:
        """The manager leaves."""
        for experiment_id in self.ids():
            self.drop(experiment_id)

    def ids(self) -> list[str]:
        """The experiments that are not loaded."""
        return list(self._entries)

    async def _keep_loading(self, entry: _UnloadedExperiment) -> None:
        try:
            is_over = entry.failed > 0 and not await self._pause(entry)
            while not is_over:
                is_over = await self._try(entry) or not await self._pause(entry)
        finally:
            if self._entries.get(entry.experiment_id) is entry:
                del self._entries[entry.experiment_id]
            entry.notify_waiters()
            self._context.feed.notify()

    async def _try(self, entry: _UnloadedExperiment) -> bool:
        """One attempt. True: nothing is left to try."""
        entry.began += 1
        entry.due = None
        try:
            await self._attempt(entry)
        except NotFound:  # it was deleted
            return True
        except Exception as error:
            self._record_failure(entry, error)
            return False
        return True

    async def _attempt(self, entry: _UnloadedExperiment) -> None:
        experiment_id, is_current = entry.experiment_id, False
        while not is_current:
            before = self._changes[experiment_id]
            loaded = await self._supervisor.load(experiment_id)
            async with self._locks[experiment_id]:
                is_current = before == self._changes[experiment_id]
                if is_current and loaded.loop.state.row.status.is_active:
                    self.drop(experiment_id)
                    self._loaded[experiment_id] = (self._context.clock.monotonic(), entry.failed_alike)
                    self._supervisor.start(loaded)
        if entry.failed:
            text = f"experiment {experiment_id} is loaded, {self._context.clock.monotonic() - entry.since:.0f} s late"
            log.info(text, extra={"action": "experiment.load", "experiment_id": experiment_id})

    def _record_failure(self, entry: _UnloadedExperiment, error: Exception) -> None:
        transient, clause = is_transient(error), error_clause(error)
        entry.failed_alike = entry.failed_alike + 1 if transient is entry.is_transient else 1
        entry.is_transient = transient
        first = FIRST_TRANSIENT_SECONDS if transient else FIRST_LASTING_SECONDS
        longest = LONGEST_TRANSIENT_SECONDS if transient else LONGEST_LASTING_SECONDS
        entry.due = self._context.clock.monotonic() + growing_pause(entry.failed_alike, first, longest)
        if clause != entry.clause:
            extra = {"action": "experiment.load", "experiment_id": entry.experiment_id}
            text = "experiment %s is not loaded: %s; its trials keep running"
            log.warning(text, entry.experiment_id, clause, exc_info=None if transient else error, extra=extra)
        entry.clause = clause
        entry.failed += 1
        entry.notify_waiters()
        self._context.feed.notify()

    async def _pause(self, entry: _UnloadedExperiment) -> bool:
        """Wait until the next attempt is due or wanted. False: none is, the experiment has stopped meanwhile."""
        while (seconds := (entry.due or 0.0) - self._context.clock.monotonic()) > 0 and not entry.woken.is_set():
            try:
                is_stopping = await self._handle_stops(entry)
            except Exception:
                log.exception("experiment %s", entry.experiment_id, extra={"action": "experiment.load"})
                is_stopping = False
            if is_stopping is None:
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout(min(seconds, STOP_POLL_SECONDS) if is_stopping else seconds):
                    await entry.woken.wait()
        entry.woken.clear()
        return True

    # ---- what users want meanwhile

    def lock(self, experiment_id: str) -> asyncio.Lock:
        """Held while a caller decides between the loop and `carry_out`; no loop is started meanwhile."""
        return self._locks[experiment_id]

    def has(self, experiment_id: str) -> bool:
        """Whether it is waiting to be loaded."""
        return experiment_id in self._entries

    async def carry_out(self, experiment_id: str, command: WithoutLoop, actor: Actor) -> Any:
        """Do without a loop what a user wants; returns when it is committed. Only with the experiment's lock."""
        state = await self._context.control.read(lambda c: read_state(c, experiment_id))
        turn = self._new_turn(experiment_id)
        turn.actor = actor
        answer: Any = None
        match command:
            case m.StopExperiment():
                user_commands.stop(state, turn, save_seconds=save_time(_configured_save_seconds(state)))
            case m.CancelTrial(trial_id):
                for row in await self._context.control.read(lambda c: trials.paused(c, experiment_id, [trial_id])):
                    state.bring_back(LiveTrial(row))
                user_commands.cancel_trial(state, turn, trial_id)
            case m.ChangeLimits():
                answer = user_commands.change_limits(state, turn, command)
        await self._commit(state, turn)
        self._cancel_jobs(state)
        if state.row.status is ExperimentStatus.STOPPING and not state.by_job:
            await self._finish_stop(state)
        elif (entry := self._entries.get(experiment_id)) is not None:
            entry.woken.set()
        return answer

    async def _handle_stops(self, entry: _UnloadedExperiment) -> bool | None:
        """Have the jobs stopped that are to stop. Whether the experiment is being stopped; None when it has."""
        async with self._locks[entry.experiment_id]:
            try:
                state = await self._context.control.read(lambda c: read_state(c, entry.experiment_id))
            except RowNotFound:
                return None
            self._cancel_jobs(state)
            if state.row.status is not ExperimentStatus.STOPPING:
                return False if state.row.status.is_active else None
            if not all(self._is_over(job_id, state) for job_id in state.by_job):
                return True
            await self._finish_stop(state)
            return None

    def _cancel_jobs(self, state: ExperimentState) -> None:
        for job_id, trial in state.by_job.items():
            job = trial.job
            if job is not None and job.stop_reason is not None and job.keeper_node is not None:
                stop = soft_stop(trial, _configured_save_seconds(state), self._context.clock.now())
                self._context.hub.cancel_unattached(job.keeper_node, job_id, stop)

    def _is_over(self, job_id: str, state: ExperimentState) -> bool:
        job = state.by_job[job_id].job
        return job is not None and job.keeper_node is not None and self._context.hub.is_over(job.keeper_node, job_id)

    async def _finish_stop(self, state: ExperimentState) -> None:
        """It no longer has running processes. Ends that its keepers still have are stored when it is resumed."""
        turn = self._new_turn(state.row.id)
        reason = state.row.reason
        if state.by_job:
            trials = "1 trial" if len(state.by_job) == 1 else f"{len(state.by_job)} trials"
            reason += f"; the keepers have the last reports of {trials}, stored when the experiment is resumed"
        tuning.move_experiment(state, turn, ExperimentEvent.FINISH_STOP, reason)
        await self._commit(state, turn)
        for job_id in state.by_job:
            self._context.pool.release(job_id)
        self.drop(state.row.id)
        if not state.by_job:
            self._clean_ups.add(state.row.id)

    def _new_turn(self, experiment_id: str) -> Turn:
        return Turn(experiment_id, self._context.clock.now(), self._context.clock.monotonic())

    async def _commit(self, state: ExperimentState, turn: Turn) -> None:
        counters, seconds = state.counters(), state.row.active_seconds
        turn.write(lambda c: experiments.set_counters(c, state.row.id, active_seconds=seconds, **counters))
        await self._context.control.write(turn.apply)
        self._changes[state.row.id] += 1
        for level, text, ids in turn.log_lines:
            log.log(level, text, extra=ids)
        self._context.feed.notify()

    # ---- in words

    def describe(self, experiment_id: str, status: ExperimentStatus | None = None) -> str:
        """Why an experiment is not loaded, what becomes of its trials, and when it is tried again; "" if it is."""
        entry = self._entries.get(experiment_id)
        if entry is None:
            return ""
        stopping = status is ExperimentStatus.STOPPING
        trials = "its trials are being stopped" if stopping else "its trials keep running"
        when = retry_clause(0.0 if entry.due is None else entry.due - self._context.clock.monotonic())
        return f"not loaded: {entry.clause or 'opening its files takes long'}; {trials}; {when}"

    def obstacle(self, experiment_id: str) -> Unavailable:
        """The error for who wants something of an experiment that needs a loop."""
        return Unavailable(f"experiment {experiment_id} is {self.describe(experiment_id)}")

    @property
    def problem(self) -> str:
        """The experiments that are not loaded, each with the reason, or ''."""
        return "; ".join(f"experiment {id} is {self.describe(id)}" for id, e in self._entries.items() if e.clause)


def _configured_save_seconds(state: ExperimentState) -> float | None:
    """saveSeconds of a configuration that may not be readable as a whole."""
    found = state.row.config.get("save_seconds")
    return float(found) if isinstance(found, int | float) else None
