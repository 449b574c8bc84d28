"""What an experiment that is being stopped still waits for, in words."""

from collections import Counter

from proctor.manager.dispatcher.client import FINISH_SECONDS
from proctor.manager.engine.state import ExperimentState
from proctor.manager.lifecycle.states import ExperimentStatus
from proctor.training_services.nodes import NodePool

__all__ = ["awaited"]


def awaited(state: ExperimentState, pool: NodePool) -> str:
    """A clause that names the machines whose trials have not ended, and why where they are away: "waits for 2 trials
    on node gpu-1 (node gpu-1 is silent: no word for 20 s)"; then its dispatcher; "" if there is nothing."""
    if state.row.status is ExperimentStatus.STOPPING and not state.by_job:
        return f"waits for its dispatcher, which may take {FINISH_SECONDS:g} s to handle the last results"
    numbers = Counter(trial.job.node_id for trial in state.by_job.values() if trial.job is not None)
    parts = [_part(node_id, number, pool) for node_id, number in numbers.items()]
    return f"waits for {' and '.join(parts)}" if parts else ""


def _part(node_id: str | None, number: int, pool: NodePool) -> str:
    trials = "1 trial" if number == 1 else f"{number} trials"
    if node_id is None:
        return trials
    absence = pool.absence(node_id)
    return f"{trials} on node {node_id}" + (f" ({absence})" if absence else "")
