"""Places for jobs: the pure placement function over the manager-wide pool, for one experiment."""

from collections.abc import Callable, Sequence
from typing import Protocol

from proctor.manager.placement import Impossible, Placed, Waiting, exclusions, place
from proctor.training_services.base import NodePlacement, SupportsNodes
from proctor.training_services.capacity import Candidate, PlacementRequest
from proctor.training_services.nodes import NodePool


class Placer(Protocol):
    """Where the loop gets places from."""

    def take(self, job_id: str, token: str, holder: str) -> NodePlacement | Waiting | Impossible | None:
        """A place, reserved for the job (None: the service places by itself), or why there is none. That is the same
        for every job of the experiment."""

    def give_back(self, job_id: str) -> None:
        """The job is over. Doing it twice is doing it once."""

    def restore(self, job_id: str, holder: str, placement: NodePlacement) -> None:
        """The job had this place before the manager was started again."""

    def take_notices(self) -> Sequence[str]:
        """What people should know of the places there are, each text once: nodes that no job ever gets."""

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when there may be more places than before. Returns how to stop that."""


class FreePlacer:
    """For services that place by themselves."""

    def take(self, job_id: str, token: str, holder: str) -> None:
        """Always."""

    def give_back(self, job_id: str) -> None:
        """Nothing was reserved."""

    def restore(self, job_id: str, holder: str, placement: NodePlacement) -> None:
        """Nothing was reserved."""

    def take_notices(self) -> Sequence[str]:
        """Nothing is known of its places."""
        return ()

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Places never change."""
        return lambda: None


class PoolPlacer:
    """For services whose nodes are in the manager's pool. The service is asked for its nodes and its rules for them at
    each job, so that a changed setting counts from the next one."""

    def __init__(self, pool: NodePool, service: SupportsNodes, gpu_number: int | None) -> None:
        self._pool = pool
        self._service = service
        self._gpu_number = gpu_number
        self._noticed: set[str] = set()
        self._has_changed = True  # the pool, since `take_notices` has looked at it

    def take(self, job_id: str, token: str, holder: str) -> NodePlacement | Waiting | Impossible:
        outcome = place(self._request(), self._candidates())
        if not isinstance(outcome, Placed):
            return outcome
        policy = self._service.gpu_rules(outcome.placement.node_id).policy
        self._pool.reserve(job_id, token, holder, outcome.placement, policy)
        return outcome.placement

    def give_back(self, job_id: str) -> None:
        self._pool.release(job_id)

    def restore(self, job_id: str, holder: str, placement: NodePlacement) -> None:
        self._pool.restore(job_id, placement, holder, policy=self._service.gpu_rules(placement.node_id).policy)

    def take_notices(self) -> Sequence[str]:
        if not self._gpu_number or not self._has_changed:  # without GPUs every node will do
            return ()
        self._has_changed = False
        excluded = exclusions(self._request(), self._candidates())
        texts = [f"node {node_id} gets no trials of this experiment: {why}" for node_id, why in excluded.items()]
        news = [text for text in texts if text not in self._noticed]
        self._noticed.update(news)
        return news

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        def note() -> None:
            self._has_changed = True
            callback()

        return self._pool.on_change(note)

    def _request(self) -> PlacementRequest:
        return PlacementRequest(self._gpu_number, self._service.placement_strategy())

    def _candidates(self) -> list[Candidate]:
        nodes = self._pool.capacity(self._service.node_ids(), self._service.job_folder())
        return [Candidate(node, self._service.gpu_rules(node.node_id)) for node in nodes]
