"""What placement looks at: nodes with their GPUs, who holds them, and the rules for using them. Values only; no I/O, no
clock."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from proctor.trial_keeper.protocol import GpuSlot

__all__ = [
    "UNRANKED",
    "Candidate",
    "ForeignProcess",
    "GpuCapacity",
    "GpuDemand",
    "GpuRules",
    "GpuSlot",
    "Holding",
    "NodeCapacity",
    "PlacementRequest",
    "Preemptible",
    "SharingPolicy",
    "Standing",
    "Strategy",
]


@dataclass(frozen=True)
class SharingPolicy:
    """How many trials the holder of a reservation allows on each of its GPUs, itself included."""

    max_trials_per_gpu: int = 1


@dataclass(frozen=True)
class GpuRules:
    """How an experiment uses the GPUs of one node.

    max_trials_per_gpu: how many trials may share a GPU with one of its trials, itself included.
    use_active_gpu: whether a GPU that other processes use is acceptable. Own trials never count as such.
    gpu_indices: the only GPUs of the node that may be used; None: all.
    """

    max_trials_per_gpu: int = 1
    use_active_gpu: bool = False
    gpu_indices: tuple[int, ...] | None = None

    @property
    def policy(self) -> SharingPolicy:
        """What to reserve under."""
        return SharingPolicy(max_trials_per_gpu=self.max_trials_per_gpu)


class Strategy(StrEnum):
    """Which of the nodes with room gets the next job, and which of the GPUs with room."""

    SPREAD = "SPREAD"  # the least loaded
    PACK = "PACK"  # the most loaded, so that others stay free for jobs that need many GPUs


@dataclass(frozen=True)
class PlacementRequest:
    """What one trial job asks for.

    gpu_number: None: GPUs are not managed (the trial sees them all); 0: it sees none; n: it gets n different GPUs.
    """

    gpu_number: int | None = None
    strategy: Strategy = Strategy.SPREAD


@dataclass(frozen=True)
class Preemptible:
    """A trial that may be stopped for one of an experiment with a higher priority, because it can be continued.

    priority: of its own experiment.
    saved_at: Unix time since when its work would be lost: of its newest checkpoint, or of its job's start.
    """

    priority: int
    saved_at: float


@dataclass(frozen=True)
class Holding:
    """One trial job's share of one GPU. `holder` is a phrase for people: "trial 17 of experiment Ab3dE5f7".

    It is a reservation of this manager, or a lease that another manager, or an abandoned job, holds on the node.
    """

    job_id: str
    slot: int
    holder: str
    policy: SharingPolicy = field(default_factory=SharingPolicy)
    leaving: bool = False  # it is being stopped
    preemptible: Preemptible | None = None  # None: it must not be stopped for others


@dataclass(frozen=True)
class ForeignProcess:
    """A process on a GPU that belongs to none of our jobs. Memory in MiB."""

    pid: int
    memory_mb: int = 0


@dataclass(frozen=True)
class GpuCapacity:
    """One GPU: who holds shares of it, and who else uses it."""

    index: int
    uuid: str
    name: str = ""
    holdings: tuple[Holding, ...] = ()
    foreign: tuple[ForeignProcess, ...] = ()


@dataclass(frozen=True)
class NodeCapacity:
    """One node as placement sees it.

    gpus: None until the node has reported what it has.
    ready: whether jobs can be given to it now; if not, `reason` is a clause such as "node gpu-3 is connecting".
    jobs: how many of our jobs it has, GPUs or not.
    driver_note: why it has no GPUs, where the node said so.
    arriving: whether it is not ready yet, but being connected for the first time, so that it may be in a moment.
    """

    node_id: str
    gpus: tuple[GpuCapacity, ...] | None = ()
    ready: bool = True
    reason: str = ""
    jobs: int = 0
    driver_note: str = ""
    arriving: bool = False


@dataclass(frozen=True)
class Candidate:
    """A node that a job may run on, with the rules that its experiment has for it."""

    node: NodeCapacity
    rules: GpuRules = field(default_factory=GpuRules)
    held: Mapping[str, str] = field(default_factory=dict)
    """GPUs that are held for a trial which has waited longer, by UUID: for whom, as a clause."""


@dataclass(frozen=True)
class Standing:
    """What decides whether trials of an experiment get GPUs before those of another one.

    used: GPU-seconds in the last hour, as of the last full minute.
    """

    experiment_id: str = ""
    priority: int = 0
    used: float = 0.0


UNRANKED = Standing()
"""Of an experiment about which nothing is known."""


@dataclass(frozen=True)
class GpuDemand:
    """A trial that waits for GPUs, so that some may be held for it.

    holder: a phrase for people: "trial 17 of experiment Ab3dE5f7".
    since: since when it has waited, as Unix time that is not set while the manager runs (`Clock.steady`).
    rules: the nodes that its experiment may use and that are ready for its jobs, in the order of preference, with its
        rules for them.
    node_id: the node on which GPUs were held for it last, which stays as long as it can.
    overdue: it has waited so long that it no longer matters what its experiment has used.
    """

    holder: str
    gpu_number: int
    since: float
    rules: Mapping[str, GpuRules]
    node_id: str | None = None
    standing: Standing = UNRANKED
    overdue: bool = False

    @property
    def order(self) -> tuple[float, ...]:
        """Whose is less goes first: the higher priority; then what is overdue, then who has used less; then the age."""
        used = 0.0 if self.overdue else self.standing.used
        return -self.standing.priority, not self.overdue, used, self.since
