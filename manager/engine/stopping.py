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
    jobs = [trial.job for trial in state.by_job.values() if trial.job is not None]
    # A service that places by itself names its own nodes; the pool knows nothing of those.
    pooled = {job.node_id for job in jobs if job.placement is not None} | {node.id for node in pool.nodes()}
    parts = []
    for node_id, number in Counter(job.node_id for job in jobs).items():
        trials = "1 trial" if number == 1 else f"{number} trials"
        absence = pool.absence(node_id) if node_id is not None and node_id in pooled else ""
        where = "" if node_id is None else f" on node {node_id}"
        parts.append(f"{trials}{where}" + (f" ({absence})" if absence else ""))
    return f"waits for {' and '.join(parts)}" if parts else ""
