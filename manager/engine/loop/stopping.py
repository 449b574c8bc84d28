"""What an experiment that is being stopped waits for, and which trials of one that runs are stuck, in words."""

import math
from collections import Counter
from collections.abc import Sequence

from proctor.manager.dispatcher.client.client import FINISH_SECONDS
from proctor.manager.engine.loop.state import ExperimentState, LiveTrial
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.training_services.base import EndReason, SoftStop
from proctor.training_services.nodes.pool import NodePool

DEFAULT_SAVE_SECONDS = 30.0
"""How long a trial that can save may do so when it is stopped, where the configuration does not say."""

_REQUESTS = {EndReason.PAUSED: "pause", EndReason.PREEMPTED: "preempt"}
_MOST_NAMED = 5


def awaited(state: ExperimentState, pool: NodePool, now: float) -> str:
    """A clause that names the trials that still save, and the machines whose trials have not ended, with why where they
    are away: "waits for trial 3 to save, at most 24 s and 2 trials on node gpu-1 (node gpu-1 is silent: no word for
    20 s)"; then its dispatcher; "" if there is nothing.

    :param now: Unix time.
    """
    if state.row.status is ExperimentStatus.STOPPING and not state.by_job:
        return f"waits for its dispatcher, which may take {FINISH_SECONDS:g} s to handle the last results"
    live = [trial for trial in state.by_job.values() if trial.job is not None]
    # A service that places by itself names its own nodes; the pool knows nothing of those.
    pooled = {trial.job.keeper_node for trial in live if trial.job is not None}
    pooled |= {node.id for node in pool.nodes()}
    absences = {node_id: pool.absence(node_id) for node_id in pooled if node_id is not None}
    saving: list[LiveTrial] = []
    numbers = Counter[str | None]()
    for trial in live:
        node_id = None if trial.job is None else trial.job.node_id
        if _save_until(trial) > now and not absences.get(node_id or ""):
            saving.append(trial)
        else:
            numbers[node_id] += 1
    parts = [_saving_part(saving, now)] if saving else []
    for node_id, number in numbers.items():
        trials = "1 trial" if number == 1 else f"{number} trials"
        absence = absences.get(node_id or "")
        where = "" if node_id is None else f" on node {node_id}"
        parts.append(f"{trials}{where}" + (f" ({absence})" if absence else ""))
    return f"waits for {' and '.join(parts)}" if parts else ""


def save_time(configured: float | None) -> float:
    """How long a trial may save at most when its experiment is stopped.

    :param configured: saveSeconds of the configuration.
    """
    return DEFAULT_SAVE_SECONDS if configured is None else configured


def soft_stop(trial: LiveTrial, configured: float | None, now: float) -> SoftStop | None:
    """How the trial's job is to be stopped if it may save first; None: at once.

    Its keeper holds to the deadline that it received first, by a clock that nothing sets. So where ours has been set,
    the trial is granted all of its time again rather than none: that prolongs nothing.

    :param configured: saveSeconds of the configuration.
    :param now: Unix time.
    """
    if trial.job is None or trial.job.save_until is None:
        return None
    left, longest = trial.job.save_until - now, save_time(configured)
    seconds = left if 0 < left < longest else longest
    request = _REQUESTS.get(trial.job.stop_reason or EndReason.CANCELED, "stop")
    return SoftStop(trial.job.detail, seconds, only_if_able=configured is None, request=request)


def _save_until(trial: LiveTrial) -> float:
    return 0.0 if trial.job is None or trial.job.save_until is None else trial.job.save_until


def _saving_part(trials: Sequence[LiveTrial], now: float) -> str:
    numbers = sorted(trial.row.sequence_id for trial in trials)
    if len(numbers) > _MOST_NAMED:
        named = f"{len(numbers)} trials"
    elif len(numbers) > 1:
        named = f"trials {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
    else:
        named = f"trial {numbers[0]}"
    return f"{named} to save, at most {math.ceil(max(map(_save_until, trials)) - now)} s"


def held_up(state: ExperimentState, pool: NodePool) -> str:
    """A clause that names trials that are stuck because a process of their keeper is suspended, or machines that
    report nothing of their trials: "trial 3: its end cannot be noticed: its reaper (pid 7) is stopped (SIGSTOP) …"; ""
    if there are none."""
    known = {node.id for node in pool.nodes()}
    jobs = [(trial.row.sequence_id, trial.job) for trial in state.by_job.values() if trial.job is not None]
    placed = [(number, job.node_id, job.id) for number, job in jobs if job.node_id is not None and job.node_id in known]
    stopped = [
        f"trial {number}: {clause}" for number, node_id, job_id in placed if (clause := pool.stop_of(node_id, job_id))
    ]
    if len(stopped) > 1:
        stopped[1:] = [f"and {len(stopped) - 1} more trials"]
    numbers = Counter(node_id for _, node_id, _ in placed if pool.absence(node_id))
    absent = [
        f"no reports from {'1 trial' if number == 1 else f'{number} trials'}: {pool.absence(node_id)}"
        for node_id, number in numbers.items()
    ]
    return "; ".join([*stopped, *absent, *_paused_clause(state)])


def _paused_clause(state: ExperimentState) -> list[str]:
    """Where nothing else is left, what the experiment waits for."""
    ends_with_trials = state.row.status in {ExperimentStatus.NO_MORE_TRIAL, ExperimentStatus.TUNER_NO_MORE_TRIAL}
    paused = state.paused - state.paused_by_scheduler
    if not paused or state.trials or not ends_with_trials:
        return []
    those, them = ("1 trial is", "it") if paused == 1 else (f"{paused} trials are", "them")
    return [f"{those} PAUSED by a user: resume or kill {them} to finish the experiment"]
