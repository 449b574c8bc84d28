"""Places for jobs: the pure placement function over the manager-wide pool, for one experiment."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Protocol

from proctor.manager.engine.feasibility import Outlook, assess
from proctor.manager.placement import (
    HOLD_AFTER_SECONDS,
    OVERDUE_AFTER_SECONDS,
    Impossible,
    Placed,
    Waiting,
    exclusions,
    hold_gpus,
    place,
    preempted_jobs,
)
from proctor.training_services.base import NodePlacement, SupportsNodes, SupportsNotices, TrainingService
from proctor.training_services.capacity import (
    UNRANKED,
    Candidate,
    GpuDemand,
    NodeCapacity,
    PlacementRequest,
    Preemptible,
    Standing,
)
from proctor.training_services.nodes.pool import NodePool


class Placer(Protocol):
    """Where the loop gets places from."""

    def take(
        self, job_id: str, token: str, holder: str, *, since: float, now: float, standing: Standing = UNRANKED
    ) -> NodePlacement | Waiting | Impossible | None:
        """A place, reserved for the job (None: the service places by itself), or why there is none. That is the same
        for every job of the experiment. One that waits for GPUs may have some held for it, until a place is taken or
        `stop_waiting`.

        :param since: since when the job's trial has waited for a place, by the clock's steady time, as `now`.
        :param standing: the experiment's, against others that wait.
        """

    @property
    def is_preemptible(self) -> bool:
        """Whether jobs of this experiment may be stopped for more important ones."""

    def is_wanted(self, priority: int) -> bool:
        """Whether they may, and a trial of a higher priority waits."""

    def set_preemptible(self, jobs: Mapping[str, Preemptible]) -> None:
        """The experiment's jobs that may be stopped."""

    def preempt(self, standing: Standing, now: float) -> Mapping[str, Standing]:
        """Which of these are to be stopped now for experiments of a higher priority, and for which. They count as being
        stopped from now on; `set_leaving` takes that back."""

    def set_leaving(self, job_id: str, leaving: bool = True) -> None:
        """The job is being stopped, or is not after all. Idempotent."""

    def counted_gpus(self, placement: NodePlacement | None) -> float:
        """As how many GPUs a place counts in the accounting (docs/decisions/0038-what-a-trial-has-used.md)."""

    def stop_waiting(self) -> None:
        """Trials of the experiment no longer wait for a place. Idempotent."""

    def give_back(self, job_id: str) -> None:
        """The job is over. Idempotent."""

    def keep_only(self, job_ids: Collection[str]) -> None:
        """Give back every place that was taken through this placer but those of these jobs."""

    def restore(self, job_id: str, holder: str, placement: NodePlacement) -> None:
        """The job had this place before the manager was started again."""

    def take_notices(self) -> Sequence[str]:
        """What people should know of the places there are, each text once: nodes that no job ever gets, rights on a
        cluster that are missing."""

    def outlook(self) -> Outlook | None:
        """Which machines can be used now; None: the service places by itself and nothing is known of them."""

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back when there may be more places than before. Returns how to stop that."""


class FreePlacer:
    """For services that place by themselves."""

    def __init__(self, gpu_number: int | None = None, service: TrainingService | None = None) -> None:
        """:param service: is asked for notices about its platform."""
        self._gpu_number = gpu_number
        self._service = service

    def take(
        self, job_id: str, token: str, holder: str, *, since: float, now: float, standing: Standing = UNRANKED
    ) -> None:
        """Always."""

    is_preemptible = False

    def is_wanted(self, priority: int) -> bool:
        """Nothing is known of its places."""
        return False

    def set_preemptible(self, jobs: Mapping[str, Preemptible]) -> None:
        """Nothing is known of its places."""

    def preempt(self, standing: Standing, now: float) -> Mapping[str, Standing]:
        """Nothing is known of its places."""
        return {}

    def set_leaving(self, job_id: str, leaving: bool = True) -> None:
        """Nothing was reserved."""

    def counted_gpus(self, placement: NodePlacement | None) -> float:
        """As many as were asked for."""
        return float(self._gpu_number or 0)

    def stop_waiting(self) -> None:
        """Nothing is waited for."""

    def give_back(self, job_id: str) -> None:
        """Nothing was reserved."""

    def keep_only(self, job_ids: Collection[str]) -> None:
        """Nothing was reserved."""

    def restore(self, job_id: str, holder: str, placement: NodePlacement) -> None:
        """Nothing was reserved."""

    def take_notices(self) -> Sequence[str]:
        """What the service knows of its platform."""
        return self._service.take_notices() if isinstance(self._service, SupportsNotices) else ()

    def outlook(self) -> None:
        """Nothing is known of its places."""

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Places never change."""
        return lambda: None


class PoolPlacer:
    """For services whose nodes are in the manager's pool. The service is asked for its nodes and its rules for them at
    each job, so that a changed setting counts from the next one."""

    def __init__(
        self, pool: NodePool, service: SupportsNodes, gpu_number: int | None, *, is_preemptible: bool = False
    ) -> None:
        self._pool = pool
        self._service = service
        self._gpu_number = gpu_number
        self.is_preemptible = is_preemptible and bool(gpu_number)
        self._preemptible: Mapping[str, Preemptible] = {}
        self._taken: set[str] = set()  # by jobs, not given back yet
        self._noticed: set[str] = set()
        self._has_changed = True  # the pool, since `take_notices` has looked at it

    def take(
        self, job_id: str, token: str, holder: str, *, since: float, now: float, standing: Standing = UNRANKED
    ) -> NodePlacement | Waiting | Impossible:
        others = {owner: demand for owner, demand in self._pool.demands().items() if owner is not self}
        mine = self._demand(holder, since, now, standing)
        if mine is not None and others:
            self._pool.set_demand(self, mine)  # first, so that all decide by the same order
        first = [demand for demand in others.values() if mine is None or demand.order < mine.order]
        held = self._hold(first, now, mine)
        outcome = place(self._request(), self._candidates(held))
        if isinstance(outcome, Waiting) and mine is not None:
            self._pool.set_demand(self, mine)
            return Waiting(_who_goes_first(mine, held) + outcome.reason + self._what_is_held(mine, first, now))
        self.stop_waiting()
        if not isinstance(outcome, Placed):
            return outcome
        policy = self._service.gpu_rules(outcome.placement.node_id).policy
        self._pool.reserve(job_id, token, holder, outcome.placement, policy)
        self._taken.add(job_id)
        return outcome.placement

    def is_wanted(self, priority: int) -> bool:
        return self.is_preemptible and any(
            demand.standing.priority > priority for owner, demand in self._pool.demands().items() if owner is not self
        )

    def set_preemptible(self, jobs: Mapping[str, Preemptible]) -> None:
        self._preemptible = jobs
        self._pool.set_preemptible(self, jobs)

    def preempt(self, standing: Standing, now: float) -> Mapping[str, Standing]:
        if not self.is_wanted(standing.priority):
            return {}
        wanted = [demand for demand in self._pool.demands().values() if demand.standing.priority > standing.priority]
        found = preempted_jobs(wanted, self._nodes_of(wanted), now, standing)
        chosen = {job_id: demand.standing for job_id, demand in found.items() if job_id in self._preemptible}
        for job_id in chosen:
            self._pool.set_leaving(job_id)
        return chosen

    def set_leaving(self, job_id: str, leaving: bool = True) -> None:
        self._pool.set_leaving(job_id, leaving)

    def counted_gpus(self, placement: NodePlacement | None) -> float:
        if placement is None or not placement.gpus:
            return 0.0
        return len(placement.gpus) / max(self._service.gpu_rules(placement.node_id).max_trials_per_gpu, 1)

    def stop_waiting(self) -> None:
        self._pool.withdraw_demand(self)

    def give_back(self, job_id: str) -> None:
        self._taken.discard(job_id)
        self._pool.release(job_id)

    def keep_only(self, job_ids: Collection[str]) -> None:
        for job_id in self._taken.difference(job_ids):
            self.give_back(job_id)

    def restore(self, job_id: str, holder: str, placement: NodePlacement) -> None:
        self._taken.add(job_id)
        self._pool.restore(job_id, placement, holder, policy=self._service.gpu_rules(placement.node_id).policy)

    def take_notices(self) -> Sequence[str]:
        if not self._gpu_number or not self._has_changed:  # without GPUs every node will do
            return ()
        self._has_changed = False
        excluded = exclusions(self._request(), self._candidates({}))
        texts = [f"node {node_id} gets no trials of this experiment: {why}" for node_id, why in excluded.items()]
        news = [text for text in texts if text not in self._noticed]
        self._noticed.update(news)
        return news

    def outlook(self) -> Outlook:
        nodes = {node.id: node for node in self._pool.nodes()}
        return assess(self._request(), self._candidates({}), nodes)

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        def on_change() -> None:
            self._has_changed = True
            callback()

        stop_watching = self._pool.on_change(on_change)
        if self.is_preemptible:
            self._pool.set_preemptible(self, {})

        def stop() -> None:
            stop_watching()
            self._pool.set_preemptible(self, None)

        return stop

    def _request(self) -> PlacementRequest:
        return PlacementRequest(self._gpu_number, self._service.placement_strategy())

    def _candidates(self, held: Mapping[str, Mapping[str, GpuDemand]]) -> list[Candidate]:
        nodes = self._pool.capacity(self._service.node_ids(), self._service.job_folder())
        return [
            Candidate(
                node,
                self._service.gpu_rules(node.node_id),
                {uuid: _held_for(demand) for uuid, demand in held.get(node.node_id, {}).items()},
            )
            for node in nodes
        ]

    def _demand(self, holder: str, since: float, now: float, standing: Standing) -> GpuDemand | None:
        """What a trial of the experiment needs that waits; None: no GPUs. Where its jobs cannot start now, for example
        on a full disk, nothing must be held for them."""
        if not self._gpu_number:
            return None
        rules = {each.node.node_id: each.rules for each in self._candidates({}) if each.node.ready}
        before = self._pool.demands().get(self)
        node_id = before.node_id if before is not None and before.holder == holder else None
        overdue = now - since >= OVERDUE_AFTER_SECONDS
        return GpuDemand(holder, self._gpu_number, since, rules, node_id, standing, overdue)

    def _hold(
        self, demands: Sequence[GpuDemand], now: float, asking: GpuDemand | None
    ) -> dict[str, dict[str, GpuDemand]]:
        """The GPUs that are held for some of the trials that wait, against the one that asks."""
        if not demands or asking is None:  # a trial without GPUs takes none of them
            return {}
        held = hold_gpus(demands, self._nodes_of(demands), now, asking.standing)
        self._pool.set_held({demand.holder: node_id for node_id, gpus in held.items() for demand in gpus.values()})
        return held

    def _nodes_of(self, demands: Sequence[GpuDemand]) -> dict[str, NodeCapacity]:
        node_ids = tuple(dict.fromkeys(node_id for demand in demands for node_id in demand.rules))
        return {node.node_id: node for node in self._pool.capacity(node_ids)}

    def _what_is_held(self, demand: GpuDemand, first: Sequence[GpuDemand], now: float) -> str:
        """For the trial that waits: where GPUs are held for it, as the end of its reason; "" if none are."""
        if now - demand.since < HOLD_AFTER_SECONDS:
            return ""
        held = self._hold([*first, demand], now, demand)
        found = [node_id for node_id, gpus in held.items() if demand in gpus.values()]
        return f"; what becomes free on node {found[0]} is held for {demand.holder}" if found else ""


def _who_goes_first(mine: GpuDemand, held: Mapping[str, Mapping[str, GpuDemand]]) -> str:
    """The experiment of a higher priority for which GPUs are held, as the beginning of a reason, or ""."""
    priority = mine.standing.priority
    higher = [each for gpus in held.values() for each in gpus.values() if each.standing.priority > priority]
    if not higher:
        return ""
    standing = min(higher, key=lambda demand: demand.order).standing
    return f"GPUs go to experiment {standing.experiment_id} first (priority {standing.priority}); "


def _held_for(demand: GpuDemand) -> str:
    since = datetime.fromtimestamp(demand.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    noun = "GPU" if demand.gpu_number == 1 else "GPUs"
    return f"held for {demand.holder}, which needs {demand.gpu_number} {noun} and has waited since {since}"
